"""How each tool counts the size of messages and requests, and at which size it compacts."""

from __future__ import annotations

import json
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import conversation_strategy, message_strategy
from msgspec.structs import replace
from planning_loop import drive_agent_loop

from holdfast import ConversationState, PlanInputs, Policy, plan
from holdfast.config import get_target
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.planning.budget import compute_budget
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.pipeline import plan_request
from holdfast.planning.presets.claude_code import prune_after_idle
from holdfast.planning.presets.common.request_measures import (
    UsageEstimate,
    count_utf16_units,
    estimate_opencode_tokens,
    estimate_pi_request,
    estimate_pi_tokens,
)
from holdfast.planning.presets.common.reserve_trigger import compute_effective_window
from holdfast.planning.presets.opencode import OPENCODE_2
from holdfast.planning.presets.registry import PRESETS
from holdfast.planning.shown_messages import sum_shown_messages, sum_shown_messages_from
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import (
    AnswerEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    MessageEntry,
    RequestEntry,
    RequestSetup,
    RevokeEntry,
    Usage,
)
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.target import ModelLimits
from holdfast.state.view import build_projection, get_valid_measured_request

PI, OPENCODE, CLAUDE = map(Policy.preset, ("pi", "opencode", "claude-code"))
PICTURE = Media("image", "image/png", 3, "", "AAAA")


# -- messages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "tokens"),
    [
        ((), 0),
        ((Text(""),), 0),
        ((Text("a"),), 1),
        ((Text("abcd" * 10),), 10),
        ((Text("abcd" * 10 + "x"),), 11),
        ((Thinking("ab"), Text("cd")), 1),
        ((ToolCall("id", "ls", '{"a": 1}'),), 3),
        ((ToolCall("id", "ls", "no json"),), 3),
        ((PICTURE,), 1_200),
        ((ToolResult("id", "ls", (Text("abcd"), PICTURE)),), 1_201),
        ((Text("\U0001f600" * 2),), 1),
        ((Text("\u4f60\u597d"),), 1),
    ],
)
def test_estimate_pi_tokens_counts_four_characters_as_one_token(parts, tokens):
    """[P] Text, thinking, a call's name and its compact JSON count, a picture as 4,800 characters; ids and roles are
    free.
    """
    assert estimate_pi_tokens(Message("assistant", parts)) == tokens


@given(message_strategy(), st.integers(1, 8))
def test_estimate_pi_tokens_grows_with_fewer_characters_per_token(message, chars):
    """An estimate is never negative and grows as a token holds fewer characters."""
    assert 0 <= estimate_pi_tokens(message, chars + 1) <= estimate_pi_tokens(message, chars)
    assert estimate_opencode_tokens(message) > 0


@given(st.text())
def test_count_utf16_units_counts_as_javascript_does(text):
    """A character beyond the basic plane counts as two, as in UTF-16."""
    assert count_utf16_units(text) == len(text.encode("utf-16-le", "surrogatepass")) // 2


def test_estimate_opencode_tokens_counts_the_json_of_a_message():
    """[C] The JSON that the model's library receives, divided by four: escapes count, and arguments are parsed
    values.
    """
    body = {"role": "user", "content": [{"type": "text", "text": 'say "hi"\n' * 100}]}
    message = Message.from_text("user", 'say "hi"\n' * 100)
    assert estimate_opencode_tokens(message) == round(len(json.dumps(body, separators=(",", ":"))) / 4)
    spaced = Message("assistant", (ToolCall("id", "ls", '{"a":   1}'),))
    assert estimate_opencode_tokens(spaced) == estimate_opencode_tokens(
        Message("assistant", (ToolCall("id", "ls", '{"a":1}'),))
    )


# -- the usage of the last answer --------------------------------------------------------------------------------------


def wrap_entry(body):
    return Entry("", None, body)


def build_message_entry(role, text):
    return wrap_entry(MessageEntry(build_sized_message(Message.from_text(role, text))))


def build_answer_entries(message_count, tokens=5_000, output=200, stop="stop", text="a" * 40, *, is_usage_late=False):
    """Return the entries of a request and its answer, with the usage before the answer (as a loop logs it) or
    after it.
    """
    usage_entry = wrap_entry(AnswerEntry("", Usage(tokens, output), stop))
    answer_entry = build_message_entry("assistant", text)
    return [
        wrap_entry(RequestEntry("", message_count)),
        *([answer_entry, usage_entry] if is_usage_late else [usage_entry, answer_entry]),
    ]


@pytest.mark.parametrize("is_usage_late", [False, True])
def test_estimate_pi_request_adds_reported_usage_and_newer_text(is_usage_late):
    """[P] The whole usage of the last answer plus the characters sent since, whether the log has the usage before or
    after it.
    """
    state = ConversationState.from_entries(
        [
            build_message_entry("user", "x" * 400),
            *build_answer_entries(1, is_usage_late=is_usage_late),
            build_message_entry("user", "x" * 40),
        ]
    )
    assert estimate_pi_request(state) == UsageEstimate(5_200, 10, 1)
    assert estimate_pi_request(state).tokens == 5_210


@pytest.mark.parametrize("stop", ["error", "aborted"])
@pytest.mark.parametrize("tokens", [0, 9_000])
def test_estimate_pi_request_ignores_usage_of_failed_answers(stop, tokens):
    """[P] The usage of a failed or aborted answer does not count; its text is estimated like any other."""
    broken = build_answer_entries(2, tokens, 0, stop, "abcd", is_usage_late=True)
    state = ConversationState.from_entries(
        [
            build_message_entry("user", "x" * 400),
            *build_answer_entries(1, is_usage_late=True),
            *broken,
            build_message_entry("user", "x" * 40),
        ]
    )
    assert estimate_pi_request(state) == UsageEstimate(5_200, 11, 1)


def test_estimate_pi_request_drops_usage_after_a_compaction():
    """After a compaction the summary and tail are estimated; revoking the compaction makes the usage count again."""
    start = [build_message_entry("user", "x" * 400), *build_answer_entries(1), build_message_entry("user", "x" * 40)]
    summary = CompactionEntry(1, Message.from_text("user", "x" * 80))
    state = ConversationState.from_entries([*start, Entry("c", None, summary)])
    assert estimate_pi_request(state) == UsageEstimate(0, 20 + 10 + 10)
    assert estimate_pi_request(apply_entry(state, wrap_entry(RevokeEntry("c")))) == estimate_pi_request(
        ConversationState.from_entries(start)
    )
    recompacted = ConversationState.from_entries([*start, Entry("c", None, summary), *build_answer_entries(3, 700, 1)])
    assert estimate_pi_request(recompacted) == UsageEstimate(701, 0, 3)
    assert [
        measure_with_policy(OPENCODE, each_state)
        for each_state in (ConversationState.from_entries(start), state, recompacted)
    ] == [
        5_200,
        -1,
        701,
    ]


def test_estimate_pi_request_survives_dump_and_load():
    """A state loaded from its dump gives the same estimate."""
    state = ConversationState.from_entries(
        [build_message_entry("user", "x" * 400), *build_answer_entries(1), build_message_entry("user", "x" * 40)]
    )
    assert estimate_pi_request(ConversationState.load(state.dump())) == estimate_pi_request(state)


def test_estimate_pi_request_drops_usage_after_an_edit_of_sent_messages():
    """Once a result that the usage covers is cleared, the shown messages are estimated."""
    call = wrap_entry(MessageEntry(build_sized_message(Message("assistant", (ToolCall("c", "ls"),)))))
    result = wrap_entry(
        MessageEntry(build_sized_message(Message("tool", (ToolResult("c", "ls", (Text("x" * 400),)),))))
    )
    state = ConversationState.from_entries(
        [
            build_message_entry("user", "x" * 400),
            call,
            result,
            *build_answer_entries(3),
            build_message_entry("user", "x" * 40),
        ]
    )
    assert estimate_pi_request(state).usage_tokens == 5_200
    new_plan = plan(list(state.history.messages), get_target("anthropic", "claude-sonnet-4-5"), state=state)
    assert new_plan.is_empty
    policy = Policy.preset("claude-code").with_settings(
        preset={"prune_keep_results": 0, "prune_idle_seconds": 0}, prune={"tools": ()}
    )
    builder = build_plan_builder(policy, state)
    cleared = apply_entry(state, wrap_entry(DecisionEntry(prune_after_idle(builder).record)))
    assert estimate_pi_request(cleared).usage_tokens == 0
    assert estimate_pi_request(cleared).trailing_tokens < 400


def build_plan_builder(policy, state, window=200_000, setup_tokens=0, output=None, max_input=None):
    target = get_target(
        "anthropic", "claude-sonnet-4-5", window=window, setup=RequestSetup("f", setup_tokens, is_exact=True)
    )
    target = replace(target, limits=ModelLimits(window, output, max_input=max_input))
    budget, inputs = compute_budget(target, policy.settings), PlanInputs("cold", idle_seconds=7_200)
    return PlanBuilder(state, target, policy.settings, inputs, budget, policy.rules)


def measure_with_policy(policy, state, setup_tokens=0):
    return policy.rules.measure_request(build_plan_builder(policy, state, setup_tokens=setup_tokens))


def is_compacted(policy, size, limits):
    """Return whether ``policy`` compacts when the last answer reported ``size`` tokens and no message follows it."""
    state = ConversationState.from_entries(
        [build_message_entry("user", "x" * 400), *build_answer_entries(1, size - 1, 1)]
    )
    builder = build_plan_builder(policy, state, limits.window, output=limits.max_output, max_input=limits.max_input)
    return policy.rules.is_over_trigger(builder)


def test_measure_request_differs_by_preset():
    """[C] counts the last answer's usage alone; [P] adds the later text divided by four; [K] divides it by three."""
    state = ConversationState.from_entries(
        [build_message_entry("user", "x" * 400), *build_answer_entries(1), build_message_entry("user", "x" * 1_200)]
    )
    assert measure_with_policy(OPENCODE, state) == 5_200
    assert measure_with_policy(PI, state) == 5_500
    assert measure_with_policy(CLAUDE, state) == 5_600
    without_usage = ConversationState.from_entries([build_message_entry("user", "x" * 400)])
    assert measure_with_policy(OPENCODE, without_usage, setup_tokens=1_000) == -1
    assert measure_with_policy(PI, without_usage, setup_tokens=1_000) == 1_100


def test_token_ratio_stays_after_messages_are_removed():
    """After usage was reported, a decision shrinks the next request by what it saves, and the token ratio stays."""
    state = ConversationState.from_entries(
        [
            build_message_entry("user", "x" * 40_000),
            build_message_entry("user", "y" * 4_000),
            *build_answer_entries(1),
            build_message_entry("user", "z" * 400),
        ]
    )
    edit = Edit(
        Span(0, 1), (Message.from_text("user", "gone"),), "prune", "old", state.history.sized_messages[0].tokens - 9
    )
    reduced = apply_entry(state, Entry("", None, DecisionEntry((edit,))))
    before, after = (build_plan_builder(Policy(), each_state) for each_state in (state, reduced))
    assert get_valid_measured_request(state) is not None
    assert get_valid_measured_request(reduced) is None
    assert after.token_ratio == before.token_ratio


# -- when a request is too large ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "reserved", "tokens"),
    [
        (ModelLimits(200_000, 32_000), 0, 168_000),
        (ModelLimits(200_000, 64_000), 0, 168_000),
        (ModelLimits(200_000, 4_000), 0, 196_000),
        (ModelLimits(200_000), 0, 168_000),
        (ModelLimits(200_000, 32_000), 50_000, 150_000),
        (ModelLimits(200_000, 32_000), 10_000, 168_000),
        (ModelLimits(400_000, 128_000, max_input=272_000), 0, 252_000),
        (ModelLimits(400_000, 8_000, max_input=272_000), 0, 264_000),
        (ModelLimits(400_000, 128_000, max_input=272_000), 50_000, 222_000),
        (ModelLimits(0, 32_000), 0, 0),
        (ModelLimits(32_000, 32_000), 0, 0),
    ],
)
def test_compute_usable_tokens_follows_opencode(limits, reserved, tokens):
    """[C] Input limit less min(20,000, output), or window less output; a reserve counts in both, unlike in opencode
    itself.
    """
    policy = OPENCODE.with_settings(preset={"trigger_reserve": reserved})
    assert policy.rules.compute_usable_tokens(limits) == tokens
    assert policy.rules.compute_limit(limits, policy.settings) == tokens
    assert is_compacted(policy, max(2, tokens), limits) is bool(limits.window)
    assert tokens < 3 or not is_compacted(policy, tokens - 1, limits)


@pytest.mark.parametrize(
    ("limits", "tokens"),
    [
        (ModelLimits(200_000, 32_000), 168_000),
        (ModelLimits(200_000, 4_000), 180_000),
        (ModelLimits(400_000, 128_000, max_input=272_000), 252_000),
        (ModelLimits(280_000, 32_000, max_input=272_000), 248_000),
    ],
)
def test_compute_limit_follows_opencode_2(limits, tokens):
    """[C] The smaller of the input limit less 20,000 and the window less the larger of output and 20,000."""
    policy = OPENCODE.with_settings(**OPENCODE_2)
    assert policy.rules.compute_limit(limits, policy.settings) == tokens
    assert is_compacted(policy, tokens, limits)
    assert not is_compacted(policy, tokens - 1, limits)


def test_is_over_trigger_follows_pi_and_claude_code():
    """[P] Window less 16,384, strictly; [K] window less an output of at most 20,000, less 13,000."""
    assert [is_compacted(PI, 200_000 - 16_384 + more, ModelLimits(200_000)) for more in (0, 1)] == [False, True]
    assert is_compacted(PI, 1, ModelLimits(8_192))
    assert compute_effective_window(ModelLimits(200_000, 64_000), 20_000) == 180_000
    assert [is_compacted(CLAUDE, 167_000 + more, ModelLimits(200_000, 64_000)) for more in (0, 1)] == [False, True]
    assert CLAUDE.rules.compute_limit(ModelLimits(200_000, 8_000), CLAUDE.settings) == 179_000


def test_is_over_trigger_uses_the_limits_of_the_target():
    """The pipeline compacts at the same size: an input limit counts, and a request of unknown size never triggers."""
    state = ConversationState.from_entries(
        [build_message_entry("user", "x" * 400), *build_answer_entries(1, 251_000, 1_000)]
    )
    over = OPENCODE.rules.is_over_trigger
    assert over(build_plan_builder(OPENCODE, state, 400_000, output=128_000, max_input=272_000))
    assert not over(build_plan_builder(OPENCODE, state, 400_000, output=128_000))
    unmeasured = ConversationState.from_entries([build_message_entry("user", "x" * 4_000_000)])
    assert not over(build_plan_builder(OPENCODE, unmeasured, 20_000))


# -- sums over the shown messages --------------------------------------------------------------------------------------


@given(
    conversation_strategy(turns=4, steps=6, longest=3_000),
    st.sampled_from([Policy.preset(name) for name in ("holdfast", "pi", "openclaw")]),
    st.sampled_from([PlanInputs(), PlanInputs("cold", idle_seconds=4_000)]),
)
def test_sum_shown_messages_equals_the_sum_of_the_projection(messages, policy, inputs):
    """However the sum is maintained, it equals that of all messages in the request."""
    target = get_target("anthropic", "claude-sonnet-4-5", window=16_000)
    for step in drive_agent_loop(messages, target, policy, plan_inputs=[inputs]):
        state = step.plan.state
        assert sum_shown_messages(state, estimate_pi_tokens) == sum(
            estimate_pi_tokens(sized.message) for sized in build_projection(state)
        )


def test_sum_shown_messages_counts_replacements_of_whole_messages():
    """When an edit replaces whole messages, its replacement counts and edits inside the replaced messages do not."""
    messages = [
        Message.from_text("user" if index % 2 == 0 else "assistant", "x" * 4 * (index + 1)) for index in range(6)
    ]
    state = ConversationState.from_entries(
        Entry("", None, MessageEntry(build_sized_message(message))) for message in messages
    )
    replacement = (Text("y" * 400),)
    edits = (
        Edit(Span(1, 3), (Message.from_text("user", "z" * 40),)),
        Edit(Span(2, 3, 0), replacement),
        Edit(Span(4, 5, 0), replacement),
    )
    state = apply_entry(state, Entry("d", None, DecisionEntry(edits)))
    assert sum_shown_messages(state, estimate_pi_tokens) == 1 + 10 + 4 + 100 + 6
    assert sum_shown_messages_from(state, 3, estimate_pi_tokens) == 4 + 100 + 6


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("has_usage", [True, False])
def test_plan_request_cost_does_not_grow_with_the_conversation(name, has_usage):
    """A step of a long conversation calls no more functions than one of a short conversation, with or without usage."""
    target = get_target("anthropic", "claude-sonnet-4-5", window=10_000_000)
    policy, state, calls = Policy.preset(name), ConversationState(), []
    for number in range(120):
        call = Message("assistant", (ToolCall(f"c{number}", "read"),))
        result = Message("tool", (ToolResult(f"c{number}", "read", (Text(f"line {number}\n" * 9),)),))
        for message in (call, result):
            state = apply_entry(state, Entry("", None, MessageEntry(build_sized_message(message))))
        events = Counter()
        sys.setprofile(lambda _frame, event, _what, events=events: events.update([event]))
        new_plan = plan_request(state, target, policy)
        sys.setprofile(None)
        calls.append(events["call"])
        state = new_plan.state.with_reported_usage(new_plan.after) if has_usage else new_plan.state
    assert max(calls[-20:]) <= 1.1 * max(calls[10:30])
