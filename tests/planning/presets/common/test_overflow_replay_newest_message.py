"""After an overflow under opencode and Claude Code the next request contains the newest user message, in any
history.
"""

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


def build_step(number, chars):
    """Return a tool call with a result of about ``chars`` characters."""
    call, lines = ToolCall(f"new_{number}", "read", "{}"), "a line of the tide table\n" * (chars // 25)
    return [Message("assistant", (call,)), Message("tool", (ToolResult(call.id, "read", (Text(lines),)),))]


def plan_after_overflow(refused_plan, messages, target, policy):
    """Return the plan that recovery makes after the request of ``refused_plan`` was too large."""
    state = apply_entry(refused_plan.state, Entry("", None, FailureEntry(FAILURE_OVERFLOW, "too long")))
    return plan(messages, target, policy, state=state, inputs=PlanInputs(overflow_step="compact"))


def find_messages_with_text(messages, text):
    """Return the messages that contain ``text``."""
    return [
        message for message in messages if any(isinstance(part, Text) and text in part.text for part in message.parts)
    ]


steps = st.lists(st.sampled_from([25, 900, 9_000]), max_size=3)
talks = conversation_strategy(turns=4, steps=4, longest=6_000, system=False)
policies = st.sampled_from(["opencode", "claude-code"])


@given(talks, st.booleans(), steps, st.booleans(), policies, st.sampled_from([9_000, 60_000]))
def test_overflow_replay_keeps_the_newest_message_and_open_calls(
    history, has_picture, step_sizes, is_open, name, window
):
    """The newest message and open calls stay, the request is valid, and a message is replayed once only, after which it
    fits.
    """
    target = get_target("anthropic", "claude-sonnet-4-5", window=window, setup=RequestSetup("f", 100, is_exact=True))
    question = Message("user", (Text(QUESTION), *[PICTURE] * has_picture))
    messages = [
        *history,
        question,
        *[message for at, chars in enumerate(step_sizes) for message in build_step(at, chars)],
        *[OPEN] * is_open,
    ]
    policy = Policy.preset(name)
    new_plan = plan_after_overflow(plan(messages, target, policy), messages, target, policy)
    assume(new_plan.compaction is not None)
    sent = apply(messages, new_plan)
    assert find_messages_with_text(sent, QUESTION)
    assert len(find_messages_with_text(sent, CONTINUE_INSTRUCTION)) <= 1
    assert not is_open or any(call.id == "open" for message in sent for call in message.calls)
    findings = validate_request(
        build_request_body("anthropic", target.model, build_messages_to_send(new_plan), options=new_plan.options),
        "anthropic",
    )
    assert [
        finding
        for finding in findings
        if finding.level == "error" and not finding.rule.startswith("anthropic.thinking")
    ] == []
    if new_plan.compaction.trigger == TRIGGER_REPLAY:
        assert new_plan.after < new_plan.before
        assert new_plan.after <= new_plan.window
        assert not collect_media_in_messages(*find_messages_with_text(sent, QUESTION))
        second_plan = plan_after_overflow(new_plan, messages, target, policy)
        assert second_plan.compaction is None or second_plan.compaction.trigger != TRIGGER_REPLAY
        assert find_messages_with_text(apply(messages, second_plan), QUESTION)
