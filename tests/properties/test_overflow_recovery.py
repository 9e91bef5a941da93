"""What an overflow teaches, and that there is always a request that fits."""

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

OURS = Policy()
talks = conversation_strategy(turns=4, steps=5, longest=9_000)
anything = (talks | broken_history_strategy(longest=9_000) | wild_history_strategy()).filter(
    lambda said: not any(collect_media_in_messages(message) for message in said if message.role == "system")
)
"""What is always sent must fit: a system prompt of many pictures, which no API takes, is told as too large."""
windows = st.sampled_from([7_000, 12_000, 40_000])
policies = st.sampled_from([Policy.preset(name) for name in PRESETS])
DRAWN = [Message("assistant", (Media("image", "image/png", 68, "", "iVBORw0KGgo="),) * 3)]
"""An answer of nothing but pictures: no extract can tell anything of it."""


def place(window, frame=0, *, exact=False, model="claude-sonnet-4-5"):
    """Return a target whose window may be under what a preset accepts by itself."""
    return get_target("anthropic", model, window=window, setup=RequestSetup("f" * bool(frame), frame, exact))


def lenient(policy):
    """Return ``policy`` without its least window: here it is the room that counts."""
    return replace(policy, rules=policy.rules.without_window_minimum())


def known(where, branch):
    """Return what is known of ``where`` after ``branch``."""
    return apply_learned_limits(where, branch, OURS.settings)


def refused(branch, limit=0, requested=0):
    """Return ``branch`` after its newest request was refused with these numbers."""
    return apply_entry(branch, Entry("", None, FailureEntry(FAILURE_OVERFLOW, "too large", limit, requested)))


def work(steps, chars=4_000):
    """Return one turn of ``steps`` steps, each of which reads ``chars`` characters."""
    out = [Message.from_text("user", "Rename compute_total to total_price everywhere.")]
    for step in range(steps):
        out += [
            Message("assistant", (ToolCall(f"c{step}", "read", f'{{"path":"src/part_{step}.py"}}'),)),
            Message("tool", (ToolResult(f"c{step}", "read", (Text(make_text(step, chars)),)),)),
        ]
    return out


# -- the request that always fits --------------------------------------------------------------------------------------


@given(anything, windows, policies, st.booleans(), st.integers(0, 1_000))
@example(messages=DRAWN, window=7_000, policy=Policy.preset("append-only"), spill=False, frame=0)
def test_the_smallest_request_always_fits(messages, window, policy, spill, frame):
    """reduction-without-model: for every history and every target with room the request of the last overflow step is
    usable, with a store or without.
    """
    where, policy = place(window, frame), lenient(policy)
    room = compute_budget(where, policy.settings)
    assume(room.message_tokens >= 4_000)
    made = plan(messages, where, policy, inputs=PlanInputs(overflow_step="fallback", can_spill=spill))
    assert made.after <= room.usable
    assert estimate_request_tokens(made.state, where) == made.after


@given(talks, st.integers(0, 30), windows, policies, st.booleans())
def test_it_fits_behind_an_older_compaction_too(messages, cut, window, policy, spill):
    """reduction-without-model: what an earlier plan decided, shown or hidden, leaves nothing that the last overflow
    step could not take back.
    """
    where, policy = place(window), lenient(policy)
    before = plan(messages[:cut], where, policy, inputs=PlanInputs(force_compaction=True, can_spill=spill)).state
    made = plan(
        messages, where, policy, state=refused(before), inputs=PlanInputs(overflow_step="fallback", can_spill=spill)
    )
    assert made.after <= compute_budget(where, policy.settings).usable


@given(anything, windows, policies, st.sampled_from(["truncate", "media", "fallback"]), st.booleans())
def test_no_overflow_step_makes_a_request_larger(messages, window, policy, step, spill):
    """retries-shrink: what a step decides makes the request smaller; where it decides nothing a notice says so."""
    policy = lenient(policy).with_settings(compaction={"auto": False})
    where = place(window)
    plain = plan(messages, where, policy, inputs=PlanInputs(can_spill=spill))
    made = plan(messages, where, policy, inputs=PlanInputs(can_spill=spill, overflow_step=step))
    decided = made.record != plain.record or made.compaction != plain.compaction
    assert made.after < plain.after if decided else made.after == plain.after
    assert decided or "not-smaller" in [notice.rule for notice in made.notices]


@given(anything, windows, policies, st.sampled_from(["truncate", "media", "fallback"]), st.booleans())
def test_no_overflow_step_loses_the_newest_words(messages, window, policy, step, spill):
    """newest-user-message: what the user said last stands in the request word for word, or its beginning with a notice
    of the rest.
    """
    made = plan(
        messages,
        place(window),
        lenient(policy).with_settings(compaction={"auto": False}),
        inputs=PlanInputs(overflow_step=step, can_spill=spill),
    )
    said = [message for message in messages if message.is_turn_start and message.text.strip()]
    assume(said)
    newest = next(part.text for part in said[-1].parts if isinstance(part, Text) and part.text.strip())
    shown = "\n".join(text for slot in build_messages_to_send(made) for text in texts(slot.message))
    assert plain(newest)[:60].strip() in plain(shown)


def texts(message):
    """Return all that a message says."""
    out = [part.text for part in message.parts if isinstance(part, Text)]
    return [*out, *(get_result_text(part) for part in message.parts if isinstance(part, ToolResult))]


def plain(text):
    """Return ``text`` as it can be found again: without what repairs change and what escapes change."""
    return "".join(char for char in text if char.isalnum())


@given(talks, windows, st.booleans())
def test_open_calls_stay(messages, window, spill):
    """calls-with-results: a call that waits for its result is never folded, on the last overflow step either."""
    messages = [*messages, Message("assistant", (ToolCall("open_1", "read", "{}"), ToolCall("open_2", "read", "{}")))]
    messages.append(Message("tool", (ToolResult("open_1", "read", (Text("x" * 9_000),)),)))
    made = plan(messages, place(window), inputs=PlanInputs(overflow_step="fallback", can_spill=spill))
    assert made.state.view.first_kept <= len(messages) - 2
    assert [call.id for slot in build_messages_to_send(made) for call in slot.message.calls][-2:] == [
        "open_1",
        "open_2",
    ]


def test_an_overflow_step_acts_whatever_the_policy_does_by_itself():
    """A policy that never compacts or cuts by itself does under pressure, each overflow step its own thing."""
    photo = Media("image", "image/png", 90_000, "a.png", "iVBORw0KGgo=")
    said = [Message("user", (Text("look"), photo)), Message.from_text("assistant", "yes"), *work(3, 60_000)]
    said += [Message.from_text("assistant", "done"), Message("user", (Text("and this"), photo))]
    policy, where = Policy.preset("append-only"), place(30_000)
    cut = plan(said, where, policy, inputs=PlanInputs(overflow_step="truncate"))
    assert {edit.rule for edit in cut.record} == {"truncate"}
    assert cut.state.counters.truncations_since_answer == 1
    gone = plan(said, where, policy, inputs=PlanInputs(overflow_step="media"))
    assert {edit.rule for edit in gone.record} == {"media"}
    branch = plan(said[:-1], where, policy).state
    least = plan_request(reconcile_messages(branch, said), where, policy, PlanInputs(overflow_step="fallback"))
    assert least.compaction.trigger == "fallback"
    assert least.state.counters.compactions_since_answer == 0
    assert least.after < min(cut.after, gone.after)


def test_the_newest_media_go_last():
    """All media but the newest message's go first; those go where nothing else is left, or it is still too much."""
    photo = Media("image", "image/png", 90_000, "a.png", "iVBORw0KGgo=")
    said = [
        Message("user", (Text("look"), photo)),
        Message.from_text("assistant", "yes"),
        Message("user", (photo, Text("b"))),
    ]
    once = plan(said, place(30_000), inputs=PlanInputs(overflow_step="media"))
    assert [len(collect_media_in_messages(slot.message)) for slot in build_messages_to_send(once)] == [0, 0, 1]
    again = plan_request(refused(once.state), place(30_000), inputs=PlanInputs(overflow_step="media"))
    assert [len(collect_media_in_messages(slot.message)) for slot in build_messages_to_send(again)] == [0, 0, 0]
    assert "[Attached image/png: a.png]" in build_messages_to_send(again)[2].message.text
    third = plan_request(refused(again.state), place(30_000), inputs=PlanInputs(overflow_step="media"))
    assert third.record == ()


def test_results_under_pressure_keep_their_share():
    """A result over 0.30 of the room keeps that much of it, never under 500 characters; the rest can be read back."""
    where = place(20_000)
    policy = OURS.with_settings(results={"spill_chars": 0})
    said = work(2, 22_000)
    made = plan(
        said, where, policy.with_settings(compaction={"enabled": False}), inputs=PlanInputs(overflow_step="truncate")
    )
    room = compute_budget(where, policy.settings)
    put = [get_result_text(edit.replacement[0]) for edit in made.record]
    assert len(put) == 2
    assert all(estimate_text_tokens(text) <= room.compute_share(0.30) for text in put)
    assert all(blob.hash[:12] in text for blob, text in zip(made.blobs, put, strict=True))
    assert [blob.text for blob in made.blobs] == [make_text(0, 22_000), make_text(1, 22_000)]


def test_what_cannot_be_made_smaller_is_an_error_with_its_numbers():
    """no-room-is-an-error: arguments of an open call that alone are larger than the window are told before any call."""
    said = [Message.from_text("user", "go"), Message("assistant", (ToolCall("c1", "write", make_text(3, 60_000)),))]
    where = place(9_000)
    least = estimate_irreducible_tokens(reconcile_messages(ConversationState(), said), where, OURS.settings)
    assert least > 9_000
    with pytest.raises(WindowTooSmall, match=rf"{least:,}.*9,000"):
        plan(said, where)


@given(talks, windows)
def test_the_floor_is_under_every_request(messages, window):
    """The floor is no larger than the smallest request that can be made."""
    where = place(window)
    made = plan(messages, where, inputs=PlanInputs(overflow_step="fallback"))
    assert estimate_irreducible_tokens(made.state, where, OURS.settings) <= made.after + 100


# -- what is learned ---------------------------------------------------------------------------------------------------


@given(talks, st.floats(1.0, 2.4), st.booleans(), st.integers(0, 3_000))
def test_a_told_size_is_the_size_from_here_on(messages, factor, exact, frame):
    """The refused request, planned again, is as large as the provider said, and so is it where the prefix changed."""
    where = place(200_000, frame, exact=exact)
    sent = plan(messages, where)
    told = round(factor * sent.after) + frame * exact
    branch = refused(sent.state, requested=told)
    again = known(where, branch)
    assert estimate_request_tokens(branch, again) == told
    loose = replace(branch, usage=replace(branch.usage, measured_request=None))
    asked = sent.state.last_request.tokens
    most = min(told, frame + 2.5 * asked if exact else 2.5 * (frame + asked))
    assert estimate_request_tokens(loose, again) >= 0.97 * most - 20


@given(talks, st.integers(1_024, 400_000))
def test_a_told_limit_is_the_window_of_that_model(messages, limit):
    """A limit caps the window until another model is asked or more is taken; where it came from is told."""
    where = place(200_000)
    branch = refused(plan(messages, where).state, limit=limit)
    capped = known(where, branch)
    assert capped.limits.window == min(200_000, limit)
    assert capped.limits.window_source == ("learned" if limit < 200_000 else where.limits.window_source)
    other = place(200_000, model="claude-opus-4-5")
    assert known(other, branch) == other
    asked = apply_entry(
        branch, Entry("", None, RequestEntry("b", len(branch.history.sized_messages), "claude-opus-4-5"))
    )
    assert asked.usage.learned_limits == LearnedLimits()
    taken = branch
    for _ in range(2):  # one count of so much, for so few words, is nobody's size
        taken = apply_entry(taken, Entry("", None, AnswerEntry(branch.last_request.prefix_digest, Usage(limit + 1, 5))))
    assert known(where, taken).limits.window == 200_000


@given(talks, st.integers(1_024, 400_000), st.floats(1.0, 2.4))
def test_a_model_that_is_asked_again_is_planned_for_as_it_was_left(messages, limit, factor):
    """Its first request behind another model's goes by the window that was told, by the ratio, and by its frame."""
    where, other = place(200_000, 2_000), place(200_000, 2_000, model="claude-opus-4-5")
    sent = plan(messages, where)
    refused_state = refused(sent.state, limit=limit, requested=round(factor * sent.after))
    branch = replace(refused_state, usage=replace(refused_state.usage, measured_request=None))
    left = plan(messages, other, state=branch).state
    again, before = known(where, left), known(where, branch)
    assert (again.limits, again.prior_ratio, again.setup) == (before.limits, before.prior_ratio, before.setup)
    sizes = [estimate_request_tokens(one, again, branch.view.shown_tokens) for one in (left, branch)]
    assert sizes[0] == sizes[1]
    elsewhere = place(100_000, 2_000)
    assert known(elsewhere, left).limits == elsewhere.limits


def test_a_request_refused_without_a_number_stays_too_large():
    """However many models were asked in between, the next request to that one is smaller."""
    where, other = place(200_000), place(200_000, model="claude-opus-4-5")
    said = work(40)
    sent = plan(said, where)
    left = plan(said, other, state=refused(sent.state)).state
    made = plan(said, where, state=left)
    assert made.window <= max(0.8 * sent.after, 5_335)
    assert made.after < sent.after


@pytest.mark.parametrize("limit", [16_000, 4_096])
def test_a_learned_window_is_planned_for(limit):
    """The next plan fits the window that was told, however small, and says which window that was."""
    where, said = place(200_000), work(30)
    branch = refused(plan(said, where).state, limit=limit)
    made = plan_request(branch, where)
    assert made.window == limit
    assert made.compaction is not None
    assert made.after <= compute_budget(known(where, branch), OURS.settings).usable
    tiny = refused(branch, limit=1_500)
    with pytest.raises(WindowTooSmall, match=r"1500 \(learned\)"):
        plan_request(tiny, where)


@pytest.mark.parametrize("numbers", [(0, 0), (0, 5), (7, 0), (-3, -3), (0, 10**12)])
def test_without_sensible_numbers_each_refusal_shrinks_the_next(numbers):
    """What is refused again and again gets smaller each time, until it is the smallest."""
    where, said = place(200_000), work(60)
    sent = plan(said, where)
    for steps in (30, 16, 10):
        before = sent.after
        branch = refused(sent.state, *numbers)
        window = known(where, branch).limits.window
        assert window <= max(0.8 * before, 5_335)
        smaller = plan_request(branch, where, inputs=PlanInputs(force_compaction=True))
        assert smaller.after < before
        assert smaller.after <= smaller.window == window
        said = [*said, *work(steps, 3_000)]
        sent = plan(said, where, state=smaller.state)
        assert sent.after <= window


def test_a_size_within_its_limit_is_believed_once():
    """A prompt within the limit was refused for the room of its answer; if it is again the window must be smaller."""
    where = place(200_000)
    sent = plan(work(20), where)
    once = refused(sent.state, limit=100_000, requested=sent.after)
    assert known(where, once).limits.window == 100_000
    twice = refused(once, limit=100_000, requested=sent.after)
    assert known(where, twice).limits.window < sent.after


def test_an_overflow_is_no_failed_compaction():
    """The breaker counts compactions that failed, and an overflow is none."""
    branch = plan(work(3), place(200_000)).state
    for _ in range(5):
        branch = refused(branch, 100_000, 120_000)
    assert branch.counters.failed_compactions == 0
    assert branch.usage.learned_limits.overflows_since_answer == 5
    assert (
        apply_entry(
            branch, Entry("", None, AnswerEntry(branch.last_request.prefix_digest))
        ).usage.learned_limits.overflows_since_answer
        == 0
    )


def test_nothing_is_learned_before_anything_was_asked():
    """An overflow without a request before it is of no request."""
    assert refused(ConversationState(), 9_000, 10_000) == ConversationState()


def test_automatic_compaction_can_be_switched_off():
    """With ``auto`` off only force and steps compact, and nothing is cleared or hidden for space."""
    where, said = place(16_000), work(30, 3_000)
    for policy in (OURS.with_settings(prune={"when": ("space",)}), Policy.preset("sliding")):
        off = plan(said, where, policy.with_settings(compaction={"auto": False}))
        assert off.compaction is None
        assert not {edit.rule for edit in off.record} & {"prune", "relief"}
        assert (
            plan(
                said, where, policy.with_settings(compaction={"auto": False}), inputs=PlanInputs(force_compaction=True)
            ).compaction
            is not None
        )


@given(talks, windows, st.sampled_from(["truncate", "media", "fallback"]))
def test_what_an_overflow_step_decided_stands(messages, window, step):
    """prefix-only-grows: the next request shows what the step made of this one, word for word, and the log alone gives
    the same.
    """
    where, policy = place(window), OURS.with_settings(compaction={"auto": False})
    made = plan(messages, where, policy, inputs=PlanInputs(overflow_step=step))
    entries = [DecisionEntry(made.record)] if made.record else []
    entries += [made.compaction] if made.compaction is not None else []
    branch = reconcile_messages(ConversationState(), messages)
    for number, body in enumerate(entries):
        branch = apply_entry(branch, Entry(f"e{number}", None, body))
    assert [slot.message for slot in build_messages_to_send(replace(made, state=branch))] == [
        slot.message for slot in build_messages_to_send(made)
    ]
    assert isinstance(made.compaction, CompactionEntry | None)
