"""How large messages and requests are by the counting of each tool, and where it says that is too large."""

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
def test_pi_counts_characters_over_four(parts, tokens):
    """[P] text, thinking, a call's name and its JSON without blanks, 4,800 a picture; ids and roles are free."""
    assert estimate_pi_tokens(Message("assistant", parts)) == tokens


@given(message_strategy(), st.integers(1, 8))
def test_fewer_characters_a_token_make_more_tokens(message, chars):
    """An estimate is never negative and grows as a token holds fewer characters."""
    assert 0 <= estimate_pi_tokens(message, chars + 1) <= estimate_pi_tokens(message, chars)
    assert estimate_opencode_tokens(message) > 0


@given(st.text())
def test_length_is_javascripts(text):
    """A character beyond the first plane is two long, as in UTF-16."""
    assert count_utf16_units(text) == len(text.encode("utf-16-le", "surrogatepass")) // 2


def test_opencode_counts_the_json_of_a_message():
    """[C] the JSON handed to the model's library over four: escapes count, arguments are values."""
    body = {"role": "user", "content": [{"type": "text", "text": 'say "hi"\n' * 100}]}
    said = Message.from_text("user", 'say "hi"\n' * 100)
    assert estimate_opencode_tokens(said) == round(len(json.dumps(body, separators=(",", ":"))) / 4)
    spaced = Message("assistant", (ToolCall("id", "ls", '{"a":   1}'),))
    assert estimate_opencode_tokens(spaced) == estimate_opencode_tokens(
        Message("assistant", (ToolCall("id", "ls", '{"a":1}'),))
    )


# -- what the last answer told -----------------------------------------------------------------------------------------


def entry(body):
    return Entry("", None, body)


def said(role, text):
    return entry(MessageEntry(build_sized_message(Message.from_text(role, text))))


def asked(slots, tokens=5_000, output=200, stop="stop", text="a" * 40, *, late=False):
    """Return an answer with its request, its usage said before it (as a loop does) or behind (as recordings do)."""
    told = entry(AnswerEntry("", Usage(tokens, output), stop))
    words = said("assistant", text)
    return [entry(RequestEntry("", slots)), *([words, told] if late else [told, words])]


@pytest.mark.parametrize("late", [False, True])
def test_usage_and_what_came_later(late):
    """[P] the last answer's whole usage and characters for what came behind it, wherever the log tells the usage."""
    branch = ConversationState.from_entries([said("user", "x" * 400), *asked(1, late=late), said("user", "x" * 40)])
    assert estimate_pi_request(branch) == UsageEstimate(5_200, 10, 1)
    assert estimate_pi_request(branch).tokens == 5_210


@pytest.mark.parametrize("stop", ["error", "aborted"])
@pytest.mark.parametrize("tokens", [0, 9_000])
def test_a_broken_answer_tells_no_usage(stop, tokens):
    """[P] usage of a failed or aborted answer counts for nothing; its words are estimated like others."""
    broken = asked(2, tokens, 0, stop, "abcd", late=True)
    branch = ConversationState.from_entries(
        [said("user", "x" * 400), *asked(1, late=True), *broken, said("user", "x" * 40)]
    )
    assert estimate_pi_request(branch) == UsageEstimate(5_200, 11, 1)


def test_usage_does_not_outlive_a_compaction():
    """Usage of an answer that was kept counts for nothing, summary and tail are estimated; an undo takes that back."""
    start = [said("user", "x" * 400), *asked(1), said("user", "x" * 40)]
    summary = CompactionEntry(1, Message.from_text("user", "x" * 80))
    branch = ConversationState.from_entries([*start, Entry("c", None, summary)])
    assert estimate_pi_request(branch) == UsageEstimate(0, 20 + 10 + 10)
    assert estimate_pi_request(apply_entry(branch, entry(RevokeEntry("c")))) == estimate_pi_request(
        ConversationState.from_entries(start)
    )
    again = ConversationState.from_entries([*start, Entry("c", None, summary), *asked(3, 700, 1)])
    assert estimate_pi_request(again) == UsageEstimate(701, 0, 3)
    assert [measured(OPENCODE, one) for one in (ConversationState.from_entries(start), branch, again)] == [
        5_200,
        -1,
        701,
    ]


def test_usage_survives_being_written_down():
    """A branch from its bytes estimates as it did."""
    branch = ConversationState.from_entries([said("user", "x" * 400), *asked(1), said("user", "x" * 40)])
    assert estimate_pi_request(ConversationState.load(branch.dump())) == estimate_pi_request(branch)


def test_an_edit_of_what_was_sent_ends_its_usage():
    """Once a result that the usage covers is cleared, what is shown is estimated."""
    call = entry(MessageEntry(build_sized_message(Message("assistant", (ToolCall("c", "ls"),)))))
    result = entry(MessageEntry(build_sized_message(Message("tool", (ToolResult("c", "ls", (Text("x" * 400),)),)))))
    branch = ConversationState.from_entries([said("user", "x" * 400), call, result, *asked(3), said("user", "x" * 40)])
    assert estimate_pi_request(branch).usage_tokens == 5_200
    made = plan(list(branch.history.messages), get_target("anthropic", "claude-sonnet-4-5"), state=branch)
    assert made.is_empty
    policy = Policy.preset("claude-code").with_settings(
        preset={"prune_keep_results": 0, "prune_idle_seconds": 0}, prune={"tools": ()}
    )
    draft = draft_of(policy, branch)
    cleared = apply_entry(branch, entry(DecisionEntry(prune_after_idle(draft).record)))
    assert estimate_pi_request(cleared).usage_tokens == 0
    assert estimate_pi_request(cleared).trailing_tokens < 400


def draft_of(policy, branch, window=200_000, frame=0, output=None, max_input=None):
    where = get_target("anthropic", "claude-sonnet-4-5", window=window, setup=RequestSetup("f", frame, is_exact=True))
    where = replace(where, limits=ModelLimits(window, output, max_input=max_input))
    budget, world = compute_budget(where, policy.settings), PlanInputs("cold", idle_seconds=7_200)
    return PlanBuilder(branch, where, policy.settings, world, budget, policy.rules)


def measured(policy, branch, frame=0):
    return policy.rules.measure_request(draft_of(policy, branch, frame=frame))


def compacts(policy, size, limits):
    """Return whether ``policy`` compacts after an answer that counted so many tokens, nothing behind it."""
    branch = ConversationState.from_entries([said("user", "x" * 400), *asked(1, size - 1, 1)])
    draft = draft_of(policy, branch, limits.window, output=limits.max_output, max_input=limits.max_input)
    return policy.rules.is_over_trigger(draft)


def test_what_each_preset_looks_at():
    """[C] the last answer's usage alone; [P] and what came later over four; [K] over three."""
    branch = ConversationState.from_entries([said("user", "x" * 400), *asked(1), said("user", "x" * 1_200)])
    assert measured(OPENCODE, branch) == 5_200
    assert measured(PI, branch) == 5_500
    assert measured(CLAUDE, branch) == 5_600
    silent = ConversationState.from_entries([said("user", "x" * 400)])
    assert measured(OPENCODE, silent, frame=1_000) == -1
    assert measured(PI, silent, frame=1_000) == 1_100


def test_what_was_counted_is_no_less_known_when_something_is_taken_away():
    """Once a count was told, a decision makes the next request smaller by what it saves: no part of it grows."""
    branch = ConversationState.from_entries(
        [said("user", "x" * 40_000), said("user", "y" * 4_000), *asked(1), said("user", "z" * 400)]
    )
    short = Edit(
        Span(0, 1), (Message.from_text("user", "gone"),), "prune", "old", branch.history.sized_messages[0].tokens - 9
    )
    less = apply_entry(branch, Entry("", None, DecisionEntry((short,))))
    before, after = (draft_of(Policy(), one) for one in (branch, less))
    assert get_valid_measured_request(branch) is not None
    assert get_valid_measured_request(less) is None
    assert after.token_ratio == before.token_ratio


# -- when that is too large --------------------------------------------------------------------------------------------


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
def test_what_opencode_lets_a_request_hold(limits, reserved, tokens):
    """[C] input limit less min(20,000, output), or window less output; a reserve counts in both, more than upstream."""
    policy = OPENCODE.with_settings(preset={"trigger_reserve": reserved})
    assert policy.rules.compute_usable_tokens(limits) == tokens
    assert policy.rules.compute_limit(limits, policy.settings) == tokens
    assert compacts(policy, max(2, tokens), limits) is bool(limits.window)
    assert tokens < 3 or not compacts(policy, tokens - 1, limits)


@pytest.mark.parametrize(
    ("limits", "tokens"),
    [
        (ModelLimits(200_000, 32_000), 168_000),
        (ModelLimits(200_000, 4_000), 180_000),
        (ModelLimits(400_000, 128_000, max_input=272_000), 252_000),
        (ModelLimits(280_000, 32_000, max_input=272_000), 248_000),
    ],
)
def test_when_opencode_2_compacts(limits, tokens):
    """[C] at the smaller of input limit less 20,000 and window less the larger of output and 20,000."""
    policy = OPENCODE.with_settings(**OPENCODE_2)
    assert policy.rules.compute_limit(limits, policy.settings) == tokens
    assert compacts(policy, tokens, limits)
    assert not compacts(policy, tokens - 1, limits)


def test_the_lines_of_pi_and_claude_code():
    """[P] window less 16,384, strictly; [K] window less an output of at most 20,000, less 13,000."""
    assert [compacts(PI, 200_000 - 16_384 + more, ModelLimits(200_000)) for more in (0, 1)] == [False, True]
    assert compacts(PI, 1, ModelLimits(8_192))
    assert compute_effective_window(ModelLimits(200_000, 64_000), 20_000) == 180_000
    assert [compacts(CLAUDE, 167_000 + more, ModelLimits(200_000, 64_000)) for more in (0, 1)] == [False, True]
    assert CLAUDE.rules.compute_limit(ModelLimits(200_000, 8_000), CLAUDE.settings) == 179_000


def test_a_draft_is_judged_by_the_limits_of_its_target():
    """The trigger in the pipeline is the same number: an input limit counts, and nothing told is never too much."""
    branch = ConversationState.from_entries([said("user", "x" * 400), *asked(1, 251_000, 1_000)])
    over = OPENCODE.rules.is_over_trigger
    assert over(draft_of(OPENCODE, branch, 400_000, output=128_000, max_input=272_000))
    assert not over(draft_of(OPENCODE, branch, 400_000, output=128_000))
    unmeasured = ConversationState.from_entries([said("user", "x" * 4_000_000)])
    assert not over(draft_of(OPENCODE, unmeasured, 20_000))


# -- sums over what is shown -------------------------------------------------------------------------------------------


@given(
    conversation_strategy(turns=4, steps=6, longest=3_000),
    st.sampled_from([Policy.preset(name) for name in ("holdfast", "pi", "openclaw")]),
    st.sampled_from([PlanInputs(), PlanInputs("cold", idle_seconds=4_000)]),
)
def test_a_total_is_that_of_the_projection(said, policy, world):
    """However it is carried along, the sum is that of all messages which the request shows."""
    where = get_target("anthropic", "claude-sonnet-4-5", window=16_000)
    for step in drive_agent_loop(said, where, policy, worlds=[world]):
        branch = step.plan.state
        assert sum_shown_messages(branch, estimate_pi_tokens) == sum(
            estimate_pi_tokens(slot.message) for slot in build_projection(branch)
        )


def test_a_total_knows_slots_that_are_gone():
    """Where an edit took whole slots, what stands for them counts, and edits within them do not."""
    said = [Message.from_text("user" if place % 2 == 0 else "assistant", "x" * 4 * (place + 1)) for place in range(6)]
    branch = ConversationState.from_entries(Entry("", None, MessageEntry(build_sized_message(one))) for one in said)
    put = (Text("y" * 400),)
    gone = (
        Edit(Span(1, 3), (Message.from_text("user", "z" * 40),)),
        Edit(Span(2, 3, 0), put),
        Edit(Span(4, 5, 0), put),
    )
    branch = apply_entry(branch, Entry("d", None, DecisionEntry(gone)))
    assert sum_shown_messages(branch, estimate_pi_tokens) == 1 + 10 + 4 + 100 + 6
    assert sum_shown_messages_from(branch, 3, estimate_pi_tokens) == 4 + 100 + 6


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("told", [True, False])
def test_a_step_costs_what_is_new(name, told):
    """Behind a long conversation a step calls no more functions than behind a short one, usage reported or not."""
    where = get_target("anthropic", "claude-sonnet-4-5", window=10_000_000)
    policy, branch, calls = Policy.preset(name), ConversationState(), []
    for number in range(120):
        call = Message("assistant", (ToolCall(f"c{number}", "read"),))
        result = Message("tool", (ToolResult(f"c{number}", "read", (Text(f"line {number}\n" * 9),)),))
        for message in (call, result):
            branch = apply_entry(branch, Entry("", None, MessageEntry(build_sized_message(message))))
        looked = Counter()
        sys.setprofile(lambda _frame, event, _what, looked=looked: looked.update([event]))
        made = plan_request(branch, where, policy)
        sys.setprofile(None)
        calls.append(looked["call"])
        branch = made.state.with_reported_usage(made.after) if told else made.state
    assert max(calls[-20:]) <= 1.1 * max(calls[10:30])
