"""What an overflow teaches about the model, and that there is always a request that fits."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis_strategies import broken_history_strategy, conversation_strategy, wild_history_strategy
from msgspec.structs import replace
from sample_conversations import make_text

from holdfast import ConversationState, PlanInputs, Policy, plan
from holdfast.config import get_target
from holdfast.errors import WindowTooSmall
from holdfast.messages.message import Message, collect_media_in_messages, get_result_text
from holdfast.messages.parts import Media, Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.normalize.projection import build_messages_to_send
from holdfast.planning.budget import apply_learned_limits, compute_budget
from holdfast.planning.pipeline import plan_request
from holdfast.planning.plan import reconcile_messages
from holdfast.planning.presets.registry import PRESETS
from holdfast.planning.stages.smallest_request import estimate_irreducible_tokens
from holdfast.state.calibration.calibration import LearnedLimits
from holdfast.state.calibration.token_estimate import estimate_request_tokens
from holdfast.state.entries import (
    FAILURE_OVERFLOW,
    AnswerEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    FailureEntry,
    RequestEntry,
    RequestSetup,
    Usage,
)
from holdfast.state.fold.fold_entries import apply_entry

POLICY = Policy()
conversations = conversation_strategy(turns=4, steps=5, longest=9_000)
any_history = (conversations | broken_history_strategy(longest=9_000) | wild_history_strategy()).filter(
    lambda messages: not any(collect_media_in_messages(message) for message in messages if message.role == "system")
)
"""Any history without pictures in a system message: no API takes those, and a system prompt is always sent."""
windows = st.sampled_from([7_000, 12_000, 40_000])
policies = st.sampled_from([Policy.preset(name) for name in PRESETS])
ANSWER_OF_PICTURES = [Message("assistant", (Media("image", "image/png", 68, "", "iVBORw0KGgo="),) * 3)]
"""An answer of pictures only, which no extract can quote."""


def build_target(window, setup_tokens=0, *, is_exact=False, model="claude-sonnet-4-5"):
    """Return a target whose window may be below the minimum of a preset."""
    return get_target(
        "anthropic", model, window=window, setup=RequestSetup("f" * bool(setup_tokens), setup_tokens, is_exact)
    )


def without_window_minimum(policy):
    """Return ``policy`` without its minimum window, since these tests are about the budget."""
    return replace(policy, rules=policy.rules.without_window_minimum())


def learn_limits(target, state):
    """Return ``target`` with the limits that ``state`` has learned."""
    return apply_learned_limits(target, state, POLICY.settings)


def refuse(state, limit=0, requested=0):
    """Return ``state`` after its newest request was refused with these numbers."""
    return apply_entry(state, Entry("", None, FailureEntry(FAILURE_OVERFLOW, "too large", limit, requested)))


def build_turn(steps, chars=4_000):
    """Return one turn of ``steps`` steps, each of which reads ``chars`` characters."""
    messages = [Message.from_text("user", "Rename compute_total to total_price everywhere.")]
    for step in range(steps):
        messages += [
            Message("assistant", (ToolCall(f"c{step}", "read", f'{{"path":"src/part_{step}.py"}}'),)),
            Message("tool", (ToolResult(f"c{step}", "read", (Text(make_text(step, chars)),)),)),
        ]
    return messages


# -- the smallest request ----------------------------------------------------------------------------------------------


@given(any_history, windows, policies, st.booleans(), st.integers(0, 1_000))
@example(
    messages=ANSWER_OF_PICTURES, window=7_000, policy=Policy.preset("append-only"), can_spill=False, setup_tokens=0
)
def test_smallest_request_always_fits(messages, window, policy, can_spill, setup_tokens):
    """reduction-without-model: for every history and every target with room, the request of the last overflow step is
    usable, with or without a store.
    """
    target, policy = build_target(window, setup_tokens), without_window_minimum(policy)
    budget = compute_budget(target, policy.settings)
    assume(budget.message_tokens >= 4_000)
    new_plan = plan(messages, target, policy, inputs=PlanInputs(overflow_step="fallback", can_spill=can_spill))
    assert new_plan.after <= budget.usable
    assert estimate_request_tokens(new_plan.state, target) == new_plan.after


@given(conversations, st.integers(0, 30), windows, policies, st.booleans())
def test_smallest_request_fits_after_an_earlier_compaction(messages, cut, window, policy, can_spill):
    """reduction-without-model: whatever an earlier plan decided, the last overflow step can still make the
    request fit.
    """
    target, policy = build_target(window), without_window_minimum(policy)
    before = plan(messages[:cut], target, policy, inputs=PlanInputs(force_compaction=True, can_spill=can_spill)).state
    new_plan = plan(
        messages, target, policy, state=refuse(before), inputs=PlanInputs(overflow_step="fallback", can_spill=can_spill)
    )
    assert new_plan.after <= compute_budget(target, policy.settings).usable


@given(any_history, windows, policies, st.sampled_from(["truncate", "media", "fallback"]), st.booleans())
def test_overflow_steps_never_enlarge_a_request(messages, window, policy, step, can_spill):
    """retries-shrink: a decision of a step makes the request smaller; without a decision a notice says so."""
    policy = without_window_minimum(policy).with_settings(compaction={"auto": False})
    target = build_target(window)
    plan_without_step = plan(messages, target, policy, inputs=PlanInputs(can_spill=can_spill))
    new_plan = plan(messages, target, policy, inputs=PlanInputs(can_spill=can_spill, overflow_step=step))
    has_decision = new_plan.record != plan_without_step.record or new_plan.compaction != plan_without_step.compaction
    assert new_plan.after < plan_without_step.after if has_decision else new_plan.after == plan_without_step.after
    assert has_decision or "not-smaller" in [notice.rule for notice in new_plan.notices]


@given(any_history, windows, policies, st.sampled_from(["truncate", "media", "fallback"]), st.booleans())
def test_overflow_steps_keep_the_newest_user_message(messages, window, policy, step, can_spill):
    """newest-user-message: the newest user message is in the request verbatim, or its start with a notice about the
    rest.
    """
    new_plan = plan(
        messages,
        build_target(window),
        without_window_minimum(policy).with_settings(compaction={"auto": False}),
        inputs=PlanInputs(overflow_step=step, can_spill=can_spill),
    )
    history = [message for message in messages if message.is_turn_start and message.text.strip()]
    assume(history)
    newest = next(part.text for part in history[-1].parts if isinstance(part, Text) and part.text.strip())
    shown = "\n".join(text for sized in build_messages_to_send(new_plan) for text in list_texts(sized.message))
    assert keep_alphanumeric(newest)[:60].strip() in keep_alphanumeric(shown)


def list_texts(message):
    """Return all texts of a message."""
    texts = [part.text for part in message.parts if isinstance(part, Text)]
    return [*texts, *(get_result_text(part) for part in message.parts if isinstance(part, ToolResult))]


def keep_alphanumeric(text):
    """Return the letters and digits of ``text``, which neither normalization nor escaping changes."""
    return "".join(char for char in text if char.isalnum())


@given(conversations, windows, st.booleans())
def test_smallest_request_keeps_open_calls(messages, window, can_spill):
    """calls-with-results: an open call is never cut off, not even on the last overflow step."""
    messages = [*messages, Message("assistant", (ToolCall("open_1", "read", "{}"), ToolCall("open_2", "read", "{}")))]
    messages.append(Message("tool", (ToolResult("open_1", "read", (Text("x" * 9_000),)),)))
    new_plan = plan(messages, build_target(window), inputs=PlanInputs(overflow_step="fallback", can_spill=can_spill))
    assert new_plan.state.view.first_kept <= len(messages) - 2
    assert [call.id for sized in build_messages_to_send(new_plan) for call in sized.message.calls][-2:] == [
        "open_1",
        "open_2",
    ]


def test_overflow_steps_act_under_a_policy_that_never_reduces():
    """Under a policy that never compacts or truncates by itself, each overflow step still does its own work."""
    photo = Media("image", "image/png", 90_000, "a.png", "iVBORw0KGgo=")
    messages = [Message("user", (Text("look"), photo)), Message.from_text("assistant", "yes"), *build_turn(3, 60_000)]
    messages += [Message.from_text("assistant", "done"), Message("user", (Text("and this"), photo))]
    policy, target = Policy.preset("append-only"), build_target(30_000)
    truncated_plan = plan(messages, target, policy, inputs=PlanInputs(overflow_step="truncate"))
    assert {edit.rule for edit in truncated_plan.record} == {"truncate"}
    assert truncated_plan.state.counters.truncations_since_answer == 1
    media_plan = plan(messages, target, policy, inputs=PlanInputs(overflow_step="media"))
    assert {edit.rule for edit in media_plan.record} == {"media"}
    state = plan(messages[:-1], target, policy).state
    smallest_plan = plan_request(
        reconcile_messages(state, messages), target, policy, PlanInputs(overflow_step="fallback")
    )
    assert smallest_plan.compaction.trigger == "fallback"
    assert smallest_plan.state.counters.compactions_since_answer == 0
    assert smallest_plan.after < min(truncated_plan.after, media_plan.after)


def test_media_step_drops_the_newest_media_last():
    """All media but those of the newest message go first; those go only in a second refusal."""
    photo = Media("image", "image/png", 90_000, "a.png", "iVBORw0KGgo=")
    messages = [
        Message("user", (Text("look"), photo)),
        Message.from_text("assistant", "yes"),
        Message("user", (photo, Text("b"))),
    ]
    first_plan = plan(messages, build_target(30_000), inputs=PlanInputs(overflow_step="media"))
    assert [len(collect_media_in_messages(sized.message)) for sized in build_messages_to_send(first_plan)] == [0, 0, 1]
    second_plan = plan_request(refuse(first_plan.state), build_target(30_000), inputs=PlanInputs(overflow_step="media"))
    assert [len(collect_media_in_messages(sized.message)) for sized in build_messages_to_send(second_plan)] == [0, 0, 0]
    assert "[Attached image/png: a.png]" in build_messages_to_send(second_plan)[2].message.text
    third = plan_request(refuse(second_plan.state), build_target(30_000), inputs=PlanInputs(overflow_step="media"))
    assert third.record == ()


def test_truncate_step_leaves_results_their_share():
    """A result over 0.30 of the budget keeps that much, never under 500 characters; the rest can be read back."""
    target = build_target(20_000)
    policy = POLICY.with_settings(results={"spill_chars": 0})
    messages = build_turn(2, 22_000)
    new_plan = plan(
        messages,
        target,
        policy.with_settings(compaction={"enabled": False}),
        inputs=PlanInputs(overflow_step="truncate"),
    )
    budget = compute_budget(target, policy.settings)
    shown_texts = [get_result_text(edit.replacement[0]) for edit in new_plan.record]
    assert len(shown_texts) == 2
    assert all(estimate_text_tokens(text) <= budget.compute_share(0.30) for text in shown_texts)
    assert all(blob.hash[:12] in text for blob, text in zip(new_plan.blobs, shown_texts, strict=True))
    assert [blob.text for blob in new_plan.blobs] == [make_text(0, 22_000), make_text(1, 22_000)]


def test_plan_rejects_an_open_call_larger_than_the_window():
    """no-room-is-an-error: when the arguments of an open call alone exceed the window, an error gives both numbers
    before any request.
    """
    messages = [Message.from_text("user", "go"), Message("assistant", (ToolCall("c1", "write", make_text(3, 60_000)),))]
    target = build_target(9_000)
    irreducible_tokens = estimate_irreducible_tokens(
        reconcile_messages(ConversationState(), messages), target, POLICY.settings
    )
    assert irreducible_tokens > 9_000
    with pytest.raises(WindowTooSmall, match=rf"{irreducible_tokens:,}.*9,000"):
        plan(messages, target)


@given(conversations, windows)
def test_estimate_irreducible_tokens_is_below_every_request(messages, window):
    """The irreducible size is no larger than the smallest request that can be made."""
    target = build_target(window)
    new_plan = plan(messages, target, inputs=PlanInputs(overflow_step="fallback"))
    assert estimate_irreducible_tokens(new_plan.state, target, POLICY.settings) <= new_plan.after + 100


# -- learned limits ----------------------------------------------------------------------------------------------------


@given(conversations, st.floats(1.0, 2.4), st.booleans(), st.integers(0, 3_000))
def test_apply_learned_limits_uses_a_reported_size(messages, factor, is_exact, setup_tokens):
    """The refused request, planned again, is as large as the provider said, and scaled the same if the prefix
    changed.
    """
    target = build_target(200_000, setup_tokens, is_exact=is_exact)
    sent = plan(messages, target)
    reported_tokens = round(factor * sent.after) + setup_tokens * is_exact
    state = refuse(sent.state, requested=reported_tokens)
    learned = learn_limits(target, state)
    assert estimate_request_tokens(state, learned) == reported_tokens
    state_without_request = replace(state, usage=replace(state.usage, measured_request=None))
    request_tokens = sent.state.last_request.tokens
    expected = min(
        reported_tokens, setup_tokens + 2.5 * request_tokens if is_exact else 2.5 * (setup_tokens + request_tokens)
    )
    assert estimate_request_tokens(state_without_request, learned) >= 0.97 * expected - 20


@given(conversations, st.integers(1_024, 400_000))
def test_apply_learned_limits_caps_the_window_at_a_reported_limit(messages, limit):
    """A reported limit caps the window until another model is used or larger usage is reported; the source says so."""
    target = build_target(200_000)
    state = refuse(plan(messages, target).state, limit=limit)
    capped = learn_limits(target, state)
    assert capped.limits.window == min(200_000, limit)
    assert capped.limits.window_source == ("learned" if limit < 200_000 else target.limits.window_source)
    other = build_target(200_000, model="claude-opus-4-5")
    assert learn_limits(other, state) == other
    other_state = apply_entry(
        state, Entry("", None, RequestEntry("b", len(state.history.sized_messages), "claude-opus-4-5"))
    )
    assert other_state.usage.learned_limits == LearnedLimits()
    answered_state = state
    for _ in range(2):  # a single count far above the text is not believed
        answered_state = apply_entry(
            answered_state, Entry("", None, AnswerEntry(state.last_request.prefix_digest, Usage(limit + 1, 5)))
        )
    assert learn_limits(target, answered_state).limits.window == 200_000


@given(conversations, st.integers(1_024, 400_000), st.floats(1.0, 2.4))
def test_apply_learned_limits_restores_a_model_that_is_used_again(messages, limit, factor):
    """The first request after another model's uses the learned window, ratio and setup of its own model."""
    target, other = build_target(200_000, 2_000), build_target(200_000, 2_000, model="claude-opus-4-5")
    sent = plan(messages, target)
    refused_state = refuse(sent.state, limit=limit, requested=round(factor * sent.after))
    state = replace(refused_state, usage=replace(refused_state.usage, measured_request=None))
    state_after_other = plan(messages, other, state=state).state
    learned, before = learn_limits(target, state_after_other), learn_limits(target, state)
    assert (learned.limits, learned.prior_ratio, learned.setup) == (before.limits, before.prior_ratio, before.setup)
    sizes = [
        estimate_request_tokens(each_state, learned, state.view.shown_tokens)
        for each_state in (state_after_other, state)
    ]
    assert sizes[0] == sizes[1]
    elsewhere = build_target(100_000, 2_000)
    assert learn_limits(elsewhere, state_after_other).limits == elsewhere.limits


def test_plan_stays_below_a_request_refused_without_a_number():
    """However many other models were used in between, the next request to that model is smaller."""
    target, other = build_target(200_000), build_target(200_000, model="claude-opus-4-5")
    messages = build_turn(40)
    sent = plan(messages, target)
    state_after_other = plan(messages, other, state=refuse(sent.state)).state
    new_plan = plan(messages, target, state=state_after_other)
    assert new_plan.window <= max(0.8 * sent.after, 5_335)
    assert new_plan.after < sent.after


@pytest.mark.parametrize("limit", [16_000, 4_096])
def test_plan_fits_a_learned_window(limit):
    """The next plan fits the reported window, however small, and names its source."""
    target, messages = build_target(200_000), build_turn(30)
    state = refuse(plan(messages, target).state, limit=limit)
    new_plan = plan_request(state, target)
    assert new_plan.window == limit
    assert new_plan.compaction is not None
    assert new_plan.after <= compute_budget(learn_limits(target, state), POLICY.settings).usable
    tiny = refuse(state, limit=1_500)
    with pytest.raises(WindowTooSmall, match=r"1500 \(learned\)"):
        plan_request(tiny, target)


@pytest.mark.parametrize("numbers", [(0, 0), (0, 5), (7, 0), (-3, -3), (0, 10**12)])
def test_plan_shrinks_after_each_refusal_without_sensible_numbers(numbers):
    """A request refused again and again gets smaller each time, down to the smallest, of which a notice says so."""
    target, messages = build_target(200_000), build_turn(60)
    smallest_window = 5_335
    sent = plan(messages, target)
    for steps in (30, 16, 10):
        before = sent.after
        state = refuse(sent.state, *numbers)
        window = learn_limits(target, state).limits.window
        assert window <= max(0.8 * before, smallest_window)
        smaller_plan = plan_request(state, target, inputs=PlanInputs(force_compaction=True))
        if window > smallest_window:
            assert smaller_plan.after < before
        elif smaller_plan.after >= before:
            assert smaller_plan.after == before < window / 2
            assert [notice.rule for notice in smaller_plan.notices] == ["nothing-to-compact"]
        assert smaller_plan.after <= smaller_plan.window == window
        messages = [*messages, *build_turn(steps, 3_000)]
        sent = plan(messages, target, state=smaller_plan.state)
        assert sent.after <= window


def test_apply_learned_limits_believes_a_fitting_size_once():
    """A prompt within the limit was refused for lack of room for its answer; refused again, the window must be
    smaller.
    """
    target = build_target(200_000)
    sent = plan(build_turn(20), target)
    refused_once = refuse(sent.state, limit=100_000, requested=sent.after)
    assert learn_limits(target, refused_once).limits.window == 100_000
    refused_twice = refuse(refused_once, limit=100_000, requested=sent.after)
    assert learn_limits(target, refused_twice).limits.window < sent.after


def test_overflow_is_no_failed_compaction():
    """The breaker counts failed compactions, and an overflow is none."""
    state = plan(build_turn(3), build_target(200_000)).state
    for _ in range(5):
        state = refuse(state, 100_000, 120_000)
    assert state.counters.failed_compactions == 0
    assert state.usage.learned_limits.overflows_since_answer == 5
    assert (
        apply_entry(
            state, Entry("", None, AnswerEntry(state.last_request.prefix_digest))
        ).usage.learned_limits.overflows_since_answer
        == 0
    )


def test_overflow_without_a_request_teaches_nothing():
    """An overflow without a request before it belongs to no request."""
    assert refuse(ConversationState(), 9_000, 10_000) == ConversationState()


def test_auto_off_stops_automatic_compaction():
    """With ``auto`` off only forced compactions and overflow steps reduce a request, and nothing is pruned for
    space.
    """
    target, messages = build_target(16_000), build_turn(30, 3_000)
    for policy in (POLICY.with_settings(prune={"when": ("space",)}), Policy.preset("sliding")):
        automatic_plan = plan(messages, target, policy.with_settings(compaction={"auto": False}))
        assert automatic_plan.compaction is None
        assert not {edit.rule for edit in automatic_plan.record} & {"prune", "relief"}
        assert (
            plan(
                messages,
                target,
                policy.with_settings(compaction={"auto": False}),
                inputs=PlanInputs(force_compaction=True),
            ).compaction
            is not None
        )


@given(conversations, windows, st.sampled_from(["truncate", "media", "fallback"]))
def test_overflow_step_decisions_stay_in_the_next_request(messages, window, step):
    """prefix-only-grows: the next request shows the step's decisions unchanged, and the log alone gives the same."""
    target, policy = build_target(window), POLICY.with_settings(compaction={"auto": False})
    new_plan = plan(messages, target, policy, inputs=PlanInputs(overflow_step=step))
    entries = [DecisionEntry(new_plan.record)] if new_plan.record else []
    entries += [new_plan.compaction] if new_plan.compaction is not None else []
    state = reconcile_messages(ConversationState(), messages)
    for number, body in enumerate(entries):
        state = apply_entry(state, Entry(f"e{number}", None, body))
    assert [sized.message for sized in build_messages_to_send(replace(new_plan, state=state))] == [
        sized.message for sized in build_messages_to_send(new_plan)
    ]
    assert isinstance(new_plan.compaction, CompactionEntry | None)
