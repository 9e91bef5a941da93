"""After an overflow under opencode and Claude Code the newest words are in the next request, whatever was said."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis_strategies import conversation_strategy

from holdfast import PlanInputs, Policy, apply, plan
from holdfast.config import get_target
from holdfast.messages.message import Message, collect_media_in_messages
from holdfast.messages.parts import Media, Text, ToolCall, ToolResult
from holdfast.normalize.projection import build_messages_to_send
from holdfast.planning.presets.common.overflow_replay import CONTINUE_INSTRUCTION
from holdfast.providers.requests.request_body import build_request_body
from holdfast.providers.rules.validate import validate_request
from holdfast.state.entries import FAILURE_OVERFLOW, TRIGGER_REPLAY, Entry, FailureEntry, RequestSetup
from holdfast.state.fold.fold_entries import apply_entry

PICTURE = Media("image", "image/png", 68, "tide.png", "iVBORw0KGgo=")
QUESTION = "What does the northern harbour look like at low tide?"
OPEN = Message("assistant", (ToolCall("open", "read", "{}"),))


def step(number, chars):
    """Return a call with a result of about ``chars`` characters."""
    call, lines = ToolCall(f"new_{number}", "read", "{}"), "a line of the tide table\n" * (chars // 25)
    return [Message("assistant", (call,)), Message("tool", (ToolResult(call.id, "read", (Text(lines),)),))]


def refused(made, said, where, policy):
    """Return the plan that recovery asks for once the request of the plan ``made`` was too large."""
    branch = apply_entry(made.state, Entry("", None, FailureEntry(FAILURE_OVERFLOW, "too long")))
    return plan(said, where, policy, state=branch, inputs=PlanInputs(overflow_step="compact"))


def holds(sent, text):
    """Return the messages of a request that hold ``text``."""
    return [one for one in sent if any(isinstance(part, Text) and text in part.text for part in one.parts)]


steps = st.lists(st.sampled_from([25, 900, 9_000]), max_size=3)
talks = conversation_strategy(turns=4, steps=4, longest=6_000, system=False)
policies = st.sampled_from(["opencode", "claude-code"])


@given(talks, st.booleans(), steps, st.booleans(), policies, st.sampled_from([9_000, 60_000]))
def test_an_overflow_loses_no_newest_words(talk, shows, new, is_open, name, window):
    """The newest words and open calls stay, the request is valid; a message is said again once, and then it fits."""
    where = get_target("anthropic", "claude-sonnet-4-5", window=window, setup=RequestSetup("f", 100, is_exact=True))
    ask = Message("user", (Text(QUESTION), *[PICTURE] * shows))
    said = [*talk, ask, *[one for at, chars in enumerate(new) for one in step(at, chars)], *[OPEN] * is_open]
    policy = Policy.preset(name)
    made = refused(plan(said, where, policy), said, where, policy)
    assume(made.compaction is not None)
    sent = apply(said, made)
    assert holds(sent, QUESTION)
    assert len(holds(sent, CONTINUE_INSTRUCTION)) <= 1
    assert not is_open or any(call.id == "open" for message in sent for call in message.calls)
    found = validate_request(
        build_request_body("anthropic", where.model, build_messages_to_send(made), options=made.options), "anthropic"
    )
    assert [one for one in found if one.level == "error" and not one.rule.startswith("anthropic.thinking")] == []
    if made.compaction.trigger == TRIGGER_REPLAY:
        assert made.after < made.before
        assert made.after <= made.window
        assert not collect_media_in_messages(*holds(sent, QUESTION))
        again = refused(made, said, where, policy)
        assert again.compaction is None or again.compaction.trigger != TRIGGER_REPLAY
        assert holds(apply(said, again), QUESTION)
