"""What the fold learns from overflow errors and from the usage of answers."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json
from msgspec.structs import replace

from holdfast import ConversationState
from holdfast.config import get_target
from holdfast.messages.message import Message
from holdfast.messages.parts import Media
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.calibration.calibration import (
    Calibration,
    LearnedLimits,
    add_calibration_sample,
    is_plausible_count,
    min_known_size,
    raise_calibration_to,
)
from holdfast.state.calibration.model_stats import MAX_OTHER_MODELS, build_model_stats_note, list_nonempty_model_stats
from holdfast.state.calibration.token_estimate import get_calibrated_ratio
from holdfast.state.calibration.usage import HOUR_CACHE_SECONDS, get_cache_lifetime, measure_new_content
from holdfast.state.entries import (
    FAILURE_OVERFLOW,
    FAILURE_UNANSWERED,
    NOTE_MODEL_STATS,
    NOTE_WINDOW_FORGOTTEN,
    AnswerEntry,
    CompactionEntry,
    Entry,
    FailureEntry,
    MessageEntry,
    NoteEntry,
    RequestEntry,
    RequestSetup,
    Usage,
)
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.fold.rewind import rewind_state
from holdfast.state.view import compute_prefix_digest, get_valid_measured_request

TARGET = get_target("anthropic", "claude-sonnet-4-5")
WORDS = "the tide takes the harbour wall twice a day and nobody minds it "


def build_state(*bodies, state=None):
    """Return ``state``, or an empty state, with entries of these ``bodies`` applied."""
    state = state or ConversationState()
    for body in bodies:
        state = apply_entry(state, Entry("e", None, body))
    return state


def build_requested_state(*, setup=RequestSetup(), times=400):
    """Build a state whose newest request showed one long message."""
    state = build_state(setup, MessageEntry(build_sized_message(Message.from_text("user", WORDS * times))))
    return build_state(RequestEntry(compute_prefix_digest(state), 1, "claude-sonnet-4-5"), state=state)


def refuse_request(state, limit=0, requested=0):
    """Return the state after its newest request was refused as too large, with the numbers of the error."""
    return build_state(FailureEntry(FAILURE_OVERFLOW, "too large", limit, requested), state=state)


def test_learn_from_overflow_raises_ratio_despite_earlier_usage():
    """The ratio reaches the size that an overflow error reports, however many answers reported less before."""
    state = build_requested_state()
    for _ in range(30):
        state = build_state(
            AnswerEntry(state.last_request.prefix_digest, Usage(state.last_request.tokens, 5)), state=state
        )
        state = build_state(MessageEntry(build_sized_message(Message.from_text("user", WORDS * 100))), state=state)
        state = build_state(
            RequestEntry(compute_prefix_digest(state), len(state.history.sized_messages), "claude-sonnet-4-5"),
            state=state,
        )
    assert get_calibrated_ratio(state, TARGET) < 1.1
    refused_state = refuse_request(state, requested=2 * state.last_request.tokens)
    assert get_calibrated_ratio(refused_state, TARGET) >= 1.95
    assert get_valid_measured_request(refused_state).reported_tokens == 2 * state.last_request.tokens


@pytest.mark.parametrize("numbers", [{"limit": 4_000}, {}, {"requested": 9_000}, {"limit": 4_000, "requested": 9_000}])
def test_window_forgotten_note_clears_limits_until_the_next_overflow(numbers):
    """After the note no learned limit remains, whatever the overflow reported; the next overflow teaches the same
    limits again.
    """
    first = refuse_request(build_requested_state(), **numbers)
    assert first.usage.learned_limits != LearnedLimits()
    after = build_state(NoteEntry(NOTE_WINDOW_FORGOTTEN), state=first)
    assert after == replace(first, usage=replace(first.usage, learned_limits=LearnedLimits()))
    asked_again = build_state(RequestEntry(after.last_request.prefix_digest, 1, "claude-sonnet-4-5"), state=after)
    again = refuse_request(asked_again, **numbers).usage.learned_limits
    assert replace(again, min_ratio=0.0) == replace(first.usage.learned_limits, min_ratio=0.0)


def test_get_cache_lifetime_follows_the_newest_cache_write():
    """The newest answer that wrote to the cache sets its lifetime, an hour or the default; an answer that only read
    changes nothing.
    """

    def add_answer(state, **usage):
        return build_state(
            AnswerEntry(state.last_request.prefix_digest, Usage(state.last_request.tokens, 5, **usage)), state=state
        )

    first = add_answer(build_requested_state(), cache_write=500, cache_write_1h=400)
    read = add_answer(first, cache_read=500)
    again = add_answer(read, cache_write=500)
    lifetimes = [
        get_cache_lifetime(state, TARGET.cache_rules) for state in (build_requested_state(), first, read, again)
    ]
    assert lifetimes == [
        TARGET.cache_rules.ttl_seconds,
        HOUR_CACHE_SECONDS,
        HOUR_CACHE_SECONDS,
        TARGET.cache_rules.ttl_seconds,
    ]


def test_learn_from_overflow_scales_estimated_setup_but_not_exact_one():
    """An estimated setup is off by the same ratio as the messages; an exact setup is subtracted before the ratio is
    learned.
    """
    loose = refuse_request(build_requested_state(setup=RequestSetup("f", 1_000)), requested=12_000)
    message_tokens = loose.last_request.tokens
    assert loose.usage.learned_limits.min_ratio == pytest.approx(12_000 / (message_tokens + 1_000))
    exact = refuse_request(build_requested_state(setup=RequestSetup("f", 1_000, is_exact=True)), requested=12_000)
    assert exact.usage.learned_limits.min_ratio == pytest.approx(11_000 / message_tokens)


def test_learn_from_overflow_with_only_a_limit_takes_request_as_larger():
    """A request that we estimate below the reported limit counts as that limit; a larger estimate changes no ratio."""
    state = build_requested_state()
    over = refuse_request(state, limit=int(1.5 * state.last_request.tokens))
    assert get_calibrated_ratio(over, replace(TARGET, prior_ratio=over.usage.learned_limits.min_ratio)) >= 1.49
    assert get_valid_measured_request(over) is None
    assert over.usage.learned_limits.window_limit == int(1.5 * state.last_request.tokens)
    under = refuse_request(state, limit=int(0.8 * state.last_request.tokens))
    assert (under.usage.calibration, under.usage.learned_limits.min_ratio) == (state.usage.calibration, 0.0)
    assert refuse_request(over, limit=3_000).usage.learned_limits.window_limit == 3_000
    assert refuse_request(refuse_request(state, limit=3_000), limit=9_000).usage.learned_limits.window_limit == 3_000


def add_count(state, tokens):
    """Return the state with its newest request counted at ``tokens``, then a new message and a request for it."""
    state = build_state(
        AnswerEntry(state.last_request.prefix_digest, Usage(tokens, 5)),
        MessageEntry(build_sized_message(Message.from_text("user", WORDS * 20))),
        state=state,
    )
    return build_state(
        RequestEntry(compute_prefix_digest(state), len(state.history.sized_messages), "claude-sonnet-4-5"),
        state=state,
    )


def test_measured_request_ignores_counts_of_partial_prompts():
    """A count far too small for a prompt that grew is ignored, and one count that is far too high does not stop the
    next.
    """
    first = add_count(build_requested_state(), build_requested_state().last_request.tokens)
    assert get_valid_measured_request(add_count(first, 100)) == get_valid_measured_request(first)
    assert (
        get_valid_measured_request(
            add_count(
                add_count(build_requested_state(), 40 * build_requested_state().last_request.tokens),
                first.last_request.tokens,
            )
        ).reported_tokens
        == first.last_request.tokens
    )


@pytest.mark.parametrize("numbers", [(0, 0), (500, 0), (0, 10), (-1, -1), (0, 10**9), (1_023, 10**12)])
def test_learn_from_overflow_ignores_implausible_numbers(numbers):
    """No window is under 1,024 tokens and no estimate is off by a factor of a hundred; without usable numbers only the
    refused request's own estimate is learned.
    """
    state = build_requested_state()
    refused_state = refuse_request(state, *numbers)
    assert refused_state.usage.learned_limits == LearnedLimits(
        smallest_refused_estimate=state.last_request.tokens, overflows_since_answer=1
    )
    assert (refused_state.usage.calibration, get_valid_measured_request(refused_state)) == (
        state.usage.calibration,
        get_valid_measured_request(state),
    )


def test_previous_coverage_grows_only_with_answered_requests():
    """A request after a refused one has the same previous coverage; a request after an answered one has what that one
    showed.
    """
    state = build_requested_state()
    again = build_state(MessageEntry(build_sized_message(Message.from_text("user", "b"))), state=refuse_request(state))
    again = refuse_request(build_state(RequestEntry("b", 2, "claude-sonnet-4-5"), state=again))
    assert again.last_request.previous_coverage == state.last_request.previous_coverage == (0, 0)
    answered = build_state(RequestEntry("c", 2, "claude-sonnet-4-5"), AnswerEntry("c", Usage(9, 9)), state=again)
    assert build_state(RequestEntry("d", 2, "claude-sonnet-4-5"), state=answered).last_request.previous_coverage == (
        2,
        2,
    )


def test_learn_from_usage_drops_limits_that_an_answered_request_exceeds():
    """An answered request was within the window, whatever an overflow reported before; the learned ratio stays."""
    state = refuse_request(build_requested_state(), limit=2_000)
    taken = build_state(AnswerEntry(state.last_request.prefix_digest, Usage(9_000, 5)), state=state)
    assert taken.usage.learned_limits == LearnedLimits(min_ratio=state.usage.learned_limits.min_ratio)
    part = refuse_request(build_requested_state(times=4_000), limit=2_000)
    assert build_state(
        AnswerEntry(part.last_request.prefix_digest, Usage(2_001, 5)), state=part
    ).usage.learned_limits == LearnedLimits(min_ratio=part.usage.learned_limits.min_ratio)
    blind = refuse_request(build_requested_state())
    assert (
        build_state(AnswerEntry(blind.last_request.prefix_digest, Usage(9_000, 5)), state=blind).usage.learned_limits
        == LearnedLimits()
    )
    assert (
        build_state(AnswerEntry("another", Usage(9_000, 5)), state=blind).usage.learned_limits.smallest_refused_estimate
        == blind.last_request.tokens
    )


def test_switch_model_starts_a_new_model_without_learned_limits():
    """Learned limits belong to the model that was asked; a request to another model starts without them."""
    state = refuse_request(build_requested_state(), 3_000, 9_000)
    assert state.usage.learned_limits.window_limit == 3_000
    assert (
        build_state(RequestEntry("b", 1, "claude-sonnet-4-5"), state=state).usage.learned_limits
        == state.usage.learned_limits
    )
    other = build_state(RequestEntry("b", 1, "gpt-5"), state=state)
    assert (other.usage.learned_limits, other.usage.calibration, other.usage.measured_request) == (
        LearnedLimits(),
        Calibration(),
        None,
    )


WINDOWS = {"a": 0, "b": 9_000, "c": 200_000}
"""The window configured for each model; 0 = unknown."""
overflow_strategy = st.tuples(
    st.sampled_from(sorted(WINDOWS)), st.sampled_from([0, 3_000, 5_000, 9_000]), st.sampled_from([0, 2_000, 6_000])
)


def build_overflow_entries(model, limit, requested, window):
    """Build a request that was refused with these numbers, and an answer to another request after it."""
    return (
        RequestEntry("b", 1, model, window),
        FailureEntry(FAILURE_OVERFLOW, "too large", limit, requested),
        AnswerEntry("another"),
    )


@given(st.lists(overflow_strategy, max_size=8))
def test_switch_model_restores_stats_as_if_no_other_model_was_asked(overflows):
    """What overflows taught about a model applies again when it is asked again, in any order of models, and survives a
    dump.
    """
    entries_before = [RequestSetup("f", 100), MessageEntry(build_sized_message(Message.from_text("user", WORDS * 100)))]
    bodies = [(model, build_overflow_entries(model, *numbers, WINDOWS[model])) for model, *numbers in overflows]
    asked_in_turn = build_state(*entries_before, *chain.from_iterable(entries for _, entries in bodies))
    for model, window in WINDOWS.items():
        again = RequestEntry("b", 1, model, window)
        asked_alone = build_state(
            *entries_before, *chain.from_iterable(entries for other, entries in bodies if other == model), again
        )
        known = build_state(again, state=asked_in_turn)
        assert (known.usage.learned_limits, known.usage.calibration, known.last_request.configured_window) == (
            asked_alone.usage.learned_limits,
            asked_alone.usage.calibration,
            window,
        )
        assert ConversationState.load(known.dump()) == known


def test_switch_model_with_another_window_drops_that_models_limits():
    """A model asked again with another window keeps its calibration only; other models keep their limits."""
    entries_before = MessageEntry(build_sized_message(Message.from_text("user", WORDS * 100)))
    state = build_state(
        entries_before, *build_overflow_entries("a", 3_000, 6_000, 9_000), *build_overflow_entries("b", 5_000, 0, 9_000)
    )
    again = build_state(RequestEntry("b", 1, "a", 8_000), state=state)
    same = build_state(RequestEntry("b", 1, "a", 9_000), state=state)
    assert (same.usage.learned_limits.window_limit, again.usage.learned_limits) == (3_000, LearnedLimits())
    assert again.usage.calibration == same.usage.calibration != Calibration()
    assert build_state(RequestEntry("b", 1, "b", 9_000), state=again).usage.learned_limits.window_limit == 5_000


def test_window_forgotten_note_clears_limits_of_every_model():
    """The note drops the learned limits of every model and keeps their calibrations."""
    state = build_state(
        MessageEntry(build_sized_message(Message.from_text("user", WORDS * 100))),
        *build_overflow_entries("a", 3_000, 6_000, 0),
        RequestEntry("b", 1, "b"),
    )
    state = build_state(NoteEntry(NOTE_WINDOW_FORGOTTEN), RequestEntry("b", 1, "a"), state=state)
    assert state.usage.learned_limits == LearnedLimits()
    assert state.usage.calibration != Calibration()


def test_switch_model_keeps_stats_of_the_newest_other_models():
    """The model that was left longest ago is dropped first; models that taught nothing take no place."""
    state = build_state(MessageEntry(build_sized_message(Message.from_text("user", WORDS * 100))))
    for name in [str(number) for number in range(MAX_OTHER_MODELS + 2)]:
        state = build_state(
            *build_overflow_entries(name, 3_000, 6_000, 0),
            RequestEntry("b", 1, "silent"),
            RequestEntry("b", 1, "mute"),
            state=state,
        )
    assert [stats.model for stats in state.usage.other_model_stats] == [
        str(number) for number in range(2, MAX_OTHER_MODELS + 2)
    ]
    assert ConversationState.load(state.dump()).usage.other_model_stats == state.usage.other_model_stats


def test_rewind_state_keeps_learned_limits():
    """An edited history goes to the same model, so its limits stay."""
    state = build_state(
        MessageEntry(build_sized_message(Message.from_text("assistant", "b"))),
        state=refuse_request(build_requested_state(), 3_000, 9_000),
    )
    assert rewind_state(state, 1).usage.learned_limits == state.usage.learned_limits


def test_failures_other_than_overflow_teach_nothing():
    """A failure of another kind changes no estimate and no limit."""
    state = build_requested_state()
    assert build_state(FailureEntry(FAILURE_UNANSWERED, "503"), state=state) == state
    assert build_state(FailureEntry("timed_out", "", 3_000, 9_000), state=state).usage.learned_limits == LearnedLimits()


def test_calibration_arithmetic_respects_its_bounds():
    """A raised calibration is nowhere below the given ratio, 0 is an unknown size, and a count is plausible from half
    to five times the estimate.
    """
    calibration = add_calibration_sample(
        add_calibration_sample(
            add_calibration_sample(raise_calibration_to(build_state().usage.calibration, 1.0, 100), 90, 100), 90, 100
        ),
        90,
        100,
    )
    raised = raise_calibration_to(calibration, 2.0, 50)
    assert raised.real_tokens / raised.estimated_tokens >= 2.0
    assert (
        raise_calibration_to(raised, 1.5, 1_000).real_tokens / raise_calibration_to(raised, 1.5, 1_000).estimated_tokens
        >= 1.5
    )
    assert [min_known_size(a, b) for a, b in ((0, 0), (0, 5), (5, 0), (5, 3))] == [0, 5, 5, 3]
    assert [is_plausible_count(count, 1_000) for count in (499, 500, 5_000, 5_001)] == [False, True, True, False]


def test_measure_new_content_counts_what_no_earlier_request_showed():
    """A retry has the same new content as the request that it repeats; messages that a compaction hid do not count."""
    messages = [MessageEntry(build_sized_message(Message.from_text("user", WORDS * times))) for times in (1, 2, 3, 4)]
    sizes = [entry.sized_message.tokens for entry in messages]
    once = build_state(*messages[:2], RequestEntry("a", 2))
    more = build_state(*messages[2:], state=once)
    assert [
        measure_new_content(build_state(*requests, state=more))
        for requests in ([], [RequestEntry("b", 4)], [RequestEntry("b", 4)] * 2)
    ] == [
        sum(sizes[:2]),
        sum(sizes[2:]),
        sum(sizes[2:]),
    ]
    assert (
        measure_new_content(
            build_state(CompactionEntry(3, Message.from_text("user", "sum"), 1), RequestEntry("c", 4), state=more)
        )
        == sizes[3]
    )


def test_measured_request_accepts_low_counts_with_small_pictures():
    """Small pictures have far fewer tokens than their estimate, so the whole prompt may count less than the new
    messages.
    """
    state = build_requested_state()
    state = build_state(AnswerEntry(state.last_request.prefix_digest, Usage(state.last_request.tokens, 5)), state=state)
    icons = Message("user", (Media("image", "image/png", 70, source="AAAA"),) * 20)
    state = build_state(MessageEntry(build_sized_message(icons)), state=state)
    before, request = (
        get_valid_measured_request(state).reported_tokens,
        RequestEntry(compute_prefix_digest(state), 2, "claude-sonnet-4-5"),
    )
    state = build_state(request, AnswerEntry(request.prefix_digest, Usage(before + 20, 5)), state=state)
    assert get_valid_measured_request(state).reported_tokens == before + 20


@pytest.mark.parametrize("setup", [RequestSetup(), RequestSetup("f", 900), RequestSetup("f", 900, is_exact=True)])
@pytest.mark.parametrize("factor", [3, 10, 40, 10_000])
def test_learn_from_usage_doubts_a_single_wild_count(setup, factor):
    """A count that nothing explains is no measure, moves no ratio and disproves no limit; the next normal count is
    accepted.
    """
    state = refuse_request(build_requested_state(setup=setup), limit=3_000)
    size = state.last_request.tokens + setup.tokens
    counted = add_count(add_count(state, size), size + 300)
    doubted = add_count(counted, factor * size)
    assert doubted.usage.learned_limits == replace(counted.usage.learned_limits, doubted_tokens=factor * size)
    assert (get_valid_measured_request(doubted), doubted.usage.calibration) == (
        get_valid_measured_request(counted),
        counted.usage.calibration,
    )
    after = add_count(doubted, size + 600)
    assert (get_valid_measured_request(after).reported_tokens, after.usage.learned_limits.doubted_tokens) == (
        size + 600,
        0,
    )


@pytest.mark.parametrize("setup", [RequestSetup("f", 900), RequestSetup("f", 900, is_exact=True)])
def test_learn_from_usage_doubts_a_wild_first_count_with_known_setup(setup):
    """If the setup is known, the estimate bounds how many tokens the first request can have."""
    state = build_requested_state(setup=setup)
    doubted = add_count(state, 6 * (state.last_request.tokens + 900))
    assert (get_valid_measured_request(doubted), doubted.usage.calibration) == (None, state.usage.calibration)
    assert (
        get_valid_measured_request(add_count(doubted, state.last_request.tokens + 900)).reported_tokens
        == state.last_request.tokens + 900
    )


def test_learn_from_usage_allows_unknown_setup_half_the_window():
    """The excess of a first count over the messages is system prompt and tools; more than half the window is doubted
    until it is reported twice.
    """
    known = build_state(MessageEntry(build_sized_message(Message.from_text("user", "hello"))))
    for window, tokens, is_accepted in ((0, 90_000, True), (100_000, 50_000, True), (100_000, 60_000, False)):
        state = build_state(RequestEntry(compute_prefix_digest(known), 1, "claude-sonnet-4-5", window), state=known)
        state = build_state(AnswerEntry(state.last_request.prefix_digest, Usage(tokens, 5)), state=state)
        assert (get_valid_measured_request(state) is not None) is is_accepted
        assert (
            get_valid_measured_request(
                build_state(AnswerEntry(state.last_request.prefix_digest, Usage(tokens, 5)), state=state)
            ).reported_tokens
            == tokens
        )


@pytest.mark.parametrize(("tokens", "is_accepted"), [(100_000, True), (100_001, False), (4_000_000, False)])
def test_learn_from_usage_rejects_counts_over_the_window(tokens, is_accepted):
    """A count over the window of an answered request is rejected however often it is reported, if the estimate is a
    small part of it.
    """
    known = build_state(RequestSetup("f", 900), MessageEntry(build_sized_message(Message.from_text("user", "hello"))))
    state = build_state(RequestEntry(compute_prefix_digest(known), 1, "claude-sonnet-4-5", 100_000), state=known)
    for _ in range(3):
        state = build_state(AnswerEntry(state.last_request.prefix_digest, Usage(tokens, 5)), state=state)
    assert (get_valid_measured_request(state) is not None) is is_accepted


@pytest.mark.parametrize(("tokens", "is_accepted"), [(9_000_000, True), (25_000_000, False)])
def test_learn_from_usage_rejects_counts_over_any_window(tokens, is_accepted):
    """Without a known window or setup a count that no model has room for is rejected however often it is reported; it
    is no sign of a full window either.
    """
    text = "word " * 60_000
    state = build_state(MessageEntry(build_sized_message(Message.from_text("user", text))))
    state = build_state(RequestEntry(compute_prefix_digest(state), 1, "claude-sonnet-4-5"), state=state)
    for _ in range(3):
        state = build_state(AnswerEntry(state.last_request.prefix_digest, Usage(tokens, 5)), state=state)
    assert (get_valid_measured_request(state) is not None) is is_accepted
    assert (state.usage.last_answer is not None) is is_accepted


def test_learn_from_usage_accepts_any_count_with_new_media():
    """A document may have a hundred times its estimated tokens; a count below the setup, or a jump without new media,
    is rejected.
    """
    paper = Message("user", (Media("document", "application/pdf", 9_000, source="AAAA"),))
    state = build_state(RequestSetup("f", 8_000), MessageEntry(build_sized_message(paper)))
    state = build_state(RequestEntry(compute_prefix_digest(state), 1, "claude-sonnet-4-5"), state=state)
    assert (
        get_valid_measured_request(
            build_state(AnswerEntry(state.last_request.prefix_digest, Usage(300_000, 5)), state=state)
        ).reported_tokens
        == 300_000
    )
    assert (
        get_valid_measured_request(build_state(AnswerEntry(state.last_request.prefix_digest, Usage(1, 5)), state=state))
        is None
    )
    seen = add_count(state, 12_000)
    assert get_valid_measured_request(add_count(seen, 300_000)).reported_tokens == 12_000


def test_learn_from_usage_accepts_a_repeated_jump_without_calibrating():
    """A jump that is reported twice becomes the measured request; the new messages do not explain it, so the
    calibration stays.
    """
    counted = add_count(add_count(build_requested_state(), 4_000), 4_300)
    jumped = add_count(add_count(counted, 9_000), 9_300)
    assert (get_valid_measured_request(jumped).reported_tokens, jumped.usage.learned_limits.doubted_tokens) == (
        9_300,
        0,
    )
    assert jumped.usage.calibration == counted.usage.calibration
    assert add_count(jumped, 9_600).usage.calibration != counted.usage.calibration


def test_build_model_stats_note_carries_all_stats_to_another_branch():
    """The note replaces what the other branch knew about models; a model asked there next counts as it does here."""
    entries_before = MessageEntry(build_sized_message(Message.from_text("user", WORDS * 100)))
    taught = build_state(
        entries_before,
        *build_overflow_entries("a", 3_000, 6_000, 9_000),
        *build_overflow_entries("b", 0, 0, 0),
        *build_overflow_entries("c", 5_000, 0, 7_000),
    )
    for there in (
        ConversationState(),
        build_state(entries_before),
        build_state(
            entries_before, *build_overflow_entries("b", 4_000, 5_000, 0), *build_overflow_entries("d", 2_000, 0, 0)
        ),
    ):
        stored = json.decode(json.encode(build_model_stats_note(taught)), type=NoteEntry)
        informed = build_state(stored, state=there)
        assert [*list_nonempty_model_stats(informed)] == sorted(
            list_nonempty_model_stats(taught), key=lambda stats: stats.model == there.last_request.model
        )
        for model, window in (("a", 9_000), ("b", 0), ("c", 7_000), ("d", 0)):
            again = [build_state(RequestEntry("b", 1, model, window), state=state) for state in (informed, taught)]
            assert list_nonempty_model_stats(again[0])[-1:] == list_nonempty_model_stats(again[1])[-1:]
            assert again[0].usage.learned_limits == again[1].usage.learned_limits


@pytest.mark.parametrize("data", [{}, {"models": 3}, {"models": [{}]}, {"models": [{"model": "a", "window": "x"}]}])
def test_apply_model_stats_note_ignores_undecodable_data(data):
    """A note that another program wrote changes nothing and raises nothing."""
    state = refuse_request(build_requested_state(), 3_000)
    assert build_state(NoteEntry(NOTE_MODEL_STATS, data=data), state=state) == state
