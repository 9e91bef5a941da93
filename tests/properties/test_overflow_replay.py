"""After an overflow under opencode and Claude Code the newest words are in the next request, whatever was said."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import conversations

from holdfast import Policy, World, apply, plan
from holdfast.config import target
from holdfast.messages.message import Message, media_of
from holdfast.messages.parts import Media, Text, ToolCall, ToolResult
from holdfast.normalize.projection import send_slots
from holdfast.planning.presets.overflow_replay import CONTINUE
from holdfast.providers.request_body import body
from holdfast.providers.rules import validate
from holdfast.state.branch.branch import extend
from holdfast.state.entries import OVERFLOW, REPLAY, Entry, Failure, Frame

PICTURE = Media("image", "image/png", 68, "tide.png", "iVBORw0KGgo=")
QUESTION = "What does the northern harbour look like at low tide?"
OPEN = Message("assistant", (ToolCall("open", "read", "{}"),))


def step(number, chars):
    """Return a call with a result of about ``chars`` characters."""
    call, lines = ToolCall(f"new_{number}", "read", "{}"), "a line of the tide table\n" * (chars // 25)
    return [Message("assistant", (call,)), Message("tool", (ToolResult(call.id, "read", (Text(lines),)),))]


def refused(made, said, where, policy):
    """Return the plan that recovery asks for once the request of the plan ``made`` was too large."""
    branch = extend(made.branch, Entry("", None, Failure(OVERFLOW, "too long")))
    return plan(said, where, policy, branch=branch, world=World(rung="compact"))


def holds(sent, text):
    """Return the messages of a request that hold ``text``."""
    return [one for one in sent if any(isinstance(part, Text) and text in part.text for part in one.parts)]


steps = st.lists(st.sampled_from([25, 900, 9_000]), max_size=3)
talks = conversations(turns=4, steps=4, longest=6_000, system=False)
policies = st.sampled_from(["opencode", "claude-code"])


@given(talks, st.booleans(), steps, st.booleans(), policies, st.sampled_from([9_000, 60_000]))
def test_an_overflow_loses_no_newest_words(talk, shows, new, is_open, name, window):
    """The newest words and open calls stay, the request is valid; a message is said again once, and then it fits."""
    where = target("anthropic", "claude-sonnet-4-5", window=window, frame=Frame("f", 100, exact=True))
    ask = Message("user", (Text(QUESTION), *[PICTURE] * shows))
    said = [*talk, ask, *[one for at, chars in enumerate(new) for one in step(at, chars)], *[OPEN] * is_open]
    policy = Policy.preset(name)
    made = refused(plan(said, where, policy), said, where, policy)
    assume(made.compaction is not None)
    sent = apply(said, made)
    assert holds(sent, QUESTION)
    assert len(holds(sent, CONTINUE)) <= 1
    assert not is_open or any(call.id == "open" for message in sent for call in message.calls)
    found = validate(body("anthropic", where.model, send_slots(made), options=made.options), "anthropic")
    assert [one for one in found if one.level == "error" and not one.rule.startswith("anthropic.thinking")] == []
    if made.compaction.trigger == REPLAY:
        assert made.after < made.before
        assert made.after <= made.window
        assert not media_of(*holds(sent, QUESTION))
        again = refused(made, said, where, policy)
        assert again.compaction is None or again.compaction.trigger != REPLAY
        assert holds(apply(said, again), QUESTION)
