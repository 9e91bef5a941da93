"""What the fold learns of an overflow, number by number."""

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

WHERE = get_target("anthropic", "claude-sonnet-4-5")
WORDS = "the tide takes the harbour wall twice a day and nobody minds it "


def grown(*bodies, branch=None):
    """Return a branch of ``bodies``."""
    branch = branch or ConversationState()
    for body in bodies:
        branch = apply_entry(branch, Entry("e", None, body))
    return branch


def asked(*, frame=RequestSetup(), times=400):
    """Return a branch whose newest request showed one long message."""
    branch = grown(frame, MessageEntry(build_sized_message(Message.from_text("user", WORDS * times))))
    return grown(RequestEntry(compute_prefix_digest(branch), 1, "claude-sonnet-4-5"), branch=branch)


def refused(branch, limit=0, requested=0):
    return grown(FailureEntry(FAILURE_OVERFLOW, "too large", limit, requested), branch=branch)


def test_a_told_size_outweighs_what_usage_taught_before():
    """However much evidence there was for less, the ratio is no less than what was told now."""
    branch = asked()
    for _ in range(30):
        branch = grown(
            AnswerEntry(branch.last_request.prefix_digest, Usage(branch.last_request.tokens, 5)), branch=branch
        )
        branch = grown(MessageEntry(build_sized_message(Message.from_text("user", WORDS * 100))), branch=branch)
        branch = grown(
            RequestEntry(compute_prefix_digest(branch), len(branch.history.sized_messages), "claude-sonnet-4-5"),
            branch=branch,
        )
    assert get_calibrated_ratio(branch, WHERE) < 1.1
    told = refused(branch, requested=2 * branch.last_request.tokens)
    assert get_calibrated_ratio(told, WHERE) >= 1.95
    assert get_valid_measured_request(told).reported_tokens == 2 * branch.last_request.tokens


@pytest.mark.parametrize("told", [{"limit": 4_000}, {}, {"requested": 9_000}, {"limit": 4_000, "requested": 9_000}])
def test_what_was_forgotten_is_learned_anew(told):
    """Behind the note nothing counts of what overflows told, however; the next one teaches as the first did."""
    first = refused(asked(), **told)
    assert first.usage.learned_limits != LearnedLimits()
    after = grown(NoteEntry(NOTE_WINDOW_FORGOTTEN), branch=first)
    assert after == replace(first, usage=replace(first.usage, learned_limits=LearnedLimits()))
    asked_again = grown(RequestEntry(after.last_request.prefix_digest, 1, "claude-sonnet-4-5"), branch=after)
    again = refused(asked_again, **told).usage.learned_limits
    assert replace(again, min_ratio=0.0) == replace(first.usage.learned_limits, min_ratio=0.0)


def test_what_is_written_for_an_hour_lives_so_long():
    """A client's markers say how long: the newest answer that wrote counts, one that only read changes nothing."""

    def answered(branch, **usage):
        return grown(
            AnswerEntry(branch.last_request.prefix_digest, Usage(branch.last_request.tokens, 5, **usage)), branch=branch
        )

    first = answered(asked(), cache_write=500, cache_write_1h=400)
    read = answered(first, cache_read=500)
    again = answered(read, cache_write=500)
    told = [get_cache_lifetime(branch, WHERE.cache_rules) for branch in (asked(), first, read, again)]
    assert told == [
        WHERE.cache_rules.ttl_seconds,
        HOUR_CACHE_SECONDS,
        HOUR_CACHE_SECONDS,
        WHERE.cache_rules.ttl_seconds,
    ]


def test_the_frame_shares_in_what_was_told_unless_its_size_is_a_fact():
    """An estimated frame is wrong by the same ratio as the messages; of an exact one nothing is to be learned."""
    loose = refused(asked(frame=RequestSetup("f", 1_000)), requested=12_000)
    held = loose.last_request.tokens
    assert loose.usage.learned_limits.min_ratio == pytest.approx(12_000 / (held + 1_000))
    exact = refused(asked(frame=RequestSetup("f", 1_000, is_exact=True)), requested=12_000)
    assert exact.usage.learned_limits.min_ratio == pytest.approx(11_000 / held)


def test_a_limit_alone_says_that_the_request_was_over_it():
    """What we count as less than the limit counts as that much from here on; what we count as more says nothing."""
    branch = asked()
    over = refused(branch, limit=int(1.5 * branch.last_request.tokens))
    assert get_calibrated_ratio(over, replace(WHERE, prior_ratio=over.usage.learned_limits.min_ratio)) >= 1.49
    assert get_valid_measured_request(over) is None
    assert over.usage.learned_limits.window_limit == int(1.5 * branch.last_request.tokens)
    under = refused(branch, limit=int(0.8 * branch.last_request.tokens))
    assert (under.usage.calibration, under.usage.learned_limits.min_ratio) == (branch.usage.calibration, 0.0)
    assert refused(over, limit=3_000).usage.learned_limits.window_limit == 3_000
    assert refused(refused(branch, limit=3_000), limit=9_000).usage.learned_limits.window_limit == 3_000


def told(branch, tokens):
    """Return ``branch`` with its newest request counted, and one that says more behind it."""
    branch = grown(
        AnswerEntry(branch.last_request.prefix_digest, Usage(tokens, 5)),
        MessageEntry(build_sized_message(Message.from_text("user", WORDS * 20))),
        branch=branch,
    )
    return grown(
        RequestEntry(compute_prefix_digest(branch), len(branch.history.sized_messages), "claude-sonnet-4-5"),
        branch=branch,
    )


def test_only_a_whole_prompt_is_believed():
    """A prompt that grew and was counted far too small was not counted whole; one count too high is no measure."""
    first = told(asked(), asked().last_request.tokens)
    assert get_valid_measured_request(told(first, 100)) == get_valid_measured_request(first)
    assert (
        get_valid_measured_request(
            told(told(asked(), 40 * asked().last_request.tokens), first.last_request.tokens)
        ).reported_tokens
        == first.last_request.tokens
    )


@pytest.mark.parametrize("numbers", [(0, 0), (500, 0), (0, 10), (-1, -1), (0, 10**9), (1_023, 10**12)])
def test_without_sensible_numbers_the_request_itself_was_too_large(numbers):
    """No window is under a thousand tokens, and no estimate is wrong by a hundred times: such numbers are of others."""
    branch = asked()
    told = refused(branch, *numbers)
    assert told.usage.learned_limits == LearnedLimits(
        smallest_refused_estimate=branch.last_request.tokens, overflows_since_answer=1
    )
    assert (told.usage.calibration, get_valid_measured_request(told)) == (
        branch.usage.calibration,
        get_valid_measured_request(branch),
    )


def test_what_nobody_read_stays_unseen_until_an_answer():
    """Requests after a refused one find what that one found; once one is answered the next finds what it showed."""
    branch = asked()
    again = grown(MessageEntry(build_sized_message(Message.from_text("user", "b"))), branch=refused(branch))
    again = refused(grown(RequestEntry("b", 2, "claude-sonnet-4-5"), branch=again))
    assert again.last_request.previous_coverage == branch.last_request.previous_coverage == (0, 0)
    answered = grown(RequestEntry("c", 2, "claude-sonnet-4-5"), AnswerEntry("c", Usage(9, 9)), branch=again)
    assert grown(RequestEntry("d", 2, "claude-sonnet-4-5"), branch=answered).last_request.previous_coverage == (2, 2)


def test_what_is_taken_disproves_what_was_told():
    """A request that is answered was within the window, whatever an overflow said before."""
    branch = refused(asked(), limit=2_000)
    taken = grown(AnswerEntry(branch.last_request.prefix_digest, Usage(9_000, 5)), branch=branch)
    assert taken.usage.learned_limits == LearnedLimits(min_ratio=branch.usage.learned_limits.min_ratio)
    part = refused(asked(times=4_000), limit=2_000)
    assert grown(
        AnswerEntry(part.last_request.prefix_digest, Usage(2_001, 5)), branch=part
    ).usage.learned_limits == LearnedLimits(min_ratio=part.usage.learned_limits.min_ratio)
    blind = refused(asked())
    assert (
        grown(AnswerEntry(blind.last_request.prefix_digest, Usage(9_000, 5)), branch=blind).usage.learned_limits
        == LearnedLimits()
    )
    assert (
        grown(AnswerEntry("another", Usage(9_000, 5)), branch=blind).usage.learned_limits.smallest_refused_estimate
        == blind.last_request.tokens
    )


def test_another_model_has_other_limits():
    """What was learned is of the model that was asked; a request to another begins anew."""
    branch = refused(asked(), 3_000, 9_000)
    assert branch.usage.learned_limits.window_limit == 3_000
    assert (
        grown(RequestEntry("b", 1, "claude-sonnet-4-5"), branch=branch).usage.learned_limits
        == branch.usage.learned_limits
    )
    other = grown(RequestEntry("b", 1, "gpt-5"), branch=branch)
    assert (other.usage.learned_limits, other.usage.calibration, other.usage.measured_request) == (
        LearnedLimits(),
        Calibration(),
        None,
    )


WINDOWS = {"a": 0, "b": 9_000, "c": 200_000}
"""Models by the windows that are configured for them; 0 = nobody knows."""
taught_to = st.tuples(
    st.sampled_from(sorted(WINDOWS)), st.sampled_from([0, 3_000, 5_000, 9_000]), st.sampled_from([0, 2_000, 6_000])
)


def lesson(model, limit, requested, window):
    """Return a request that was refused by these numbers, and one thing that went well behind it."""
    return (
        RequestEntry("b", 1, model, window),
        FailureEntry(FAILURE_OVERFLOW, "too large", limit, requested),
        AnswerEntry("another"),
    )


@given(st.lists(taught_to, max_size=8))
def test_each_model_is_known_as_if_nobody_else_had_been_asked(lessons):
    """What overflows taught of a model counts when it is asked again, whoever was asked in between, in each order."""
    said = [RequestSetup("f", 100), MessageEntry(build_sized_message(Message.from_text("user", WORDS * 100)))]
    bodies = [(model, lesson(model, *numbers, WINDOWS[model])) for model, *numbers in lessons]
    every = grown(*said, *chain.from_iterable(some for _, some in bodies))
    for model, window in WINDOWS.items():
        again = RequestEntry("b", 1, model, window)
        alone = grown(*said, *chain.from_iterable(some for one, some in bodies if one == model), again)
        known = grown(again, branch=every)
        assert (known.usage.learned_limits, known.usage.calibration, known.last_request.configured_window) == (
            alone.usage.learned_limits,
            alone.usage.calibration,
            window,
        )
        assert ConversationState.load(known.dump()) == known


def test_another_window_ends_what_its_own_model_taught():
    """Of the model that is asked again in another one nothing counts but how it counts; of the others all does."""
    said = MessageEntry(build_sized_message(Message.from_text("user", WORDS * 100)))
    branch = grown(said, *lesson("a", 3_000, 6_000, 9_000), *lesson("b", 5_000, 0, 9_000))
    again = grown(RequestEntry("b", 1, "a", 8_000), branch=branch)
    same = grown(RequestEntry("b", 1, "a", 9_000), branch=branch)
    assert (same.usage.learned_limits.window_limit, again.usage.learned_limits) == (3_000, LearnedLimits())
    assert again.usage.calibration == same.usage.calibration != Calibration()
    assert grown(RequestEntry("b", 1, "b", 9_000), branch=again).usage.learned_limits.window_limit == 5_000


def test_what_was_forgotten_is_forgotten_of_each_model():
    """Behind the note nothing counts that overflows told of any of them; how they count stands."""
    branch = grown(
        MessageEntry(build_sized_message(Message.from_text("user", WORDS * 100))),
        *lesson("a", 3_000, 6_000, 0),
        RequestEntry("b", 1, "b"),
    )
    branch = grown(NoteEntry(NOTE_WINDOW_FORGOTTEN), RequestEntry("b", 1, "a"), branch=branch)
    assert branch.usage.learned_limits == LearnedLimits()
    assert branch.usage.calibration != Calibration()


def test_as_many_models_are_known_as_a_conversation_asks():
    """The one that was left longest ago is the first to be forgotten; a model with nothing told takes no place."""
    branch = grown(MessageEntry(build_sized_message(Message.from_text("user", WORDS * 100))))
    for name in [str(number) for number in range(MAX_OTHER_MODELS + 2)]:
        branch = grown(
            *lesson(name, 3_000, 6_000, 0), RequestEntry("b", 1, "silent"), RequestEntry("b", 1, "mute"), branch=branch
        )
    assert [one.model for one in branch.usage.other_model_stats] == [
        str(number) for number in range(2, MAX_OTHER_MODELS + 2)
    ]
    assert ConversationState.load(branch.dump()).usage.other_model_stats == branch.usage.other_model_stats


def test_a_fork_knows_what_was_learned_before_it():
    """An edited past is sent to the same model: its limits stand."""
    branch = grown(
        MessageEntry(build_sized_message(Message.from_text("assistant", "b"))), branch=refused(asked(), 3_000, 9_000)
    )
    assert rewind_state(branch, 1).usage.learned_limits == branch.usage.learned_limits


def test_a_request_that_was_not_answered_teaches_nothing():
    """A failure of another kind changes no estimate and no limit."""
    branch = asked()
    assert grown(FailureEntry(FAILURE_UNANSWERED, "503"), branch=branch) == branch
    assert grown(FailureEntry("timed_out", "", 3_000, 9_000), branch=branch).usage.learned_limits == LearnedLimits()


def test_numbers():
    """A raised gauge has the ratio it was told at least; sizes are compared where there are two."""
    gauge = add_calibration_sample(
        add_calibration_sample(
            add_calibration_sample(raise_calibration_to(grown().usage.calibration, 1.0, 100), 90, 100), 90, 100
        ),
        90,
        100,
    )
    told = raise_calibration_to(gauge, 2.0, 50)
    assert told.real_tokens / told.estimated_tokens >= 2.0
    assert (
        raise_calibration_to(told, 1.5, 1_000).real_tokens / raise_calibration_to(told, 1.5, 1_000).estimated_tokens
        >= 1.5
    )
    assert [min_known_size(a, b) for a, b in ((0, 0), (0, 5), (5, 0), (5, 3))] == [0, 5, 5, 3]
    assert [is_plausible_count(told, 1_000) for told in (499, 500, 5_000, 5_001)] == [False, True, True, False]


def test_what_is_new_is_what_no_request_showed_before():
    """A retry shows no less that is new; what gave way meanwhile is not shown at all."""
    told = [MessageEntry(build_sized_message(Message.from_text("user", WORDS * times))) for times in (1, 2, 3, 4)]
    sizes = [one.sized_message.tokens for one in told]
    once = grown(*told[:2], RequestEntry("a", 2))
    more = grown(*told[2:], branch=once)
    assert [
        measure_new_content(grown(*asked, branch=more))
        for asked in ([], [RequestEntry("b", 4)], [RequestEntry("b", 4)] * 2)
    ] == [
        sum(sizes[:2]),
        sum(sizes[2:]),
        sum(sizes[2:]),
    ]
    assert (
        measure_new_content(
            grown(CompactionEntry(3, Message.from_text("user", "sum"), 1), RequestEntry("c", 4), branch=more)
        )
        == sizes[3]
    )


def test_a_count_with_small_pictures_is_a_count():
    """They have far fewer tokens than is reckoned for them: all of such a prompt may be less than what is new."""
    branch = asked()
    branch = grown(AnswerEntry(branch.last_request.prefix_digest, Usage(branch.last_request.tokens, 5)), branch=branch)
    icons = Message("user", (Media("image", "image/png", 70, source="AAAA"),) * 20)
    branch = grown(MessageEntry(build_sized_message(icons)), branch=branch)
    before, request = (
        get_valid_measured_request(branch).reported_tokens,
        RequestEntry(compute_prefix_digest(branch), 2, "claude-sonnet-4-5"),
    )
    branch = grown(request, AnswerEntry(request.prefix_digest, Usage(before + 20, 5)), branch=branch)
    assert get_valid_measured_request(branch).reported_tokens == before + 20


@pytest.mark.parametrize("frame", [RequestSetup(), RequestSetup("f", 900), RequestSetup("f", 900, is_exact=True)])
@pytest.mark.parametrize("wild", [3, 10, 40, 10_000])
def test_one_wild_count_teaches_nothing(frame, wild):
    """What nothing explains is no anchor, moves no ratio and disproves no limit; so the next count is believed."""
    branch = refused(asked(frame=frame), limit=3_000)
    size = branch.last_request.tokens + frame.tokens
    counted = told(told(branch, size), size + 300)
    doubted = told(counted, wild * size)
    assert doubted.usage.learned_limits == replace(counted.usage.learned_limits, doubted_tokens=wild * size)
    assert (get_valid_measured_request(doubted), doubted.usage.calibration) == (
        get_valid_measured_request(counted),
        counted.usage.calibration,
    )
    after = told(doubted, size + 600)
    assert (get_valid_measured_request(after).reported_tokens, after.usage.learned_limits.doubted_tokens) == (
        size + 600,
        0,
    )


@pytest.mark.parametrize("frame", [RequestSetup("f", 900), RequestSetup("f", 900, is_exact=True)])
def test_the_first_count_may_be_wild_too(frame):
    """Where the frame is known the estimate says how many tokens there can be at most."""
    branch = asked(frame=frame)
    doubted = told(branch, 6 * (branch.last_request.tokens + 900))
    assert (get_valid_measured_request(doubted), doubted.usage.calibration) == (None, branch.usage.calibration)
    assert (
        get_valid_measured_request(told(doubted, branch.last_request.tokens + 900)).reported_tokens
        == branch.last_request.tokens + 900
    )


def test_a_frame_that_nobody_told_takes_half_the_window():
    """What a first count has over the messages is system and tools; one that leaves no room for a talk is doubted."""
    known = grown(MessageEntry(build_sized_message(Message.from_text("user", "hello"))))
    for window, tokens, believed in ((0, 90_000, True), (100_000, 50_000, True), (100_000, 60_000, False)):
        branch = grown(RequestEntry(compute_prefix_digest(known), 1, "claude-sonnet-4-5", window), branch=known)
        branch = grown(AnswerEntry(branch.last_request.prefix_digest, Usage(tokens, 5)), branch=branch)
        assert (get_valid_measured_request(branch) is not None) is believed
        assert (
            get_valid_measured_request(
                grown(AnswerEntry(branch.last_request.prefix_digest, Usage(tokens, 5)), branch=branch)
            ).reported_tokens
            == tokens
        )


@pytest.mark.parametrize(("tokens", "believed"), [(100_000, True), (100_001, False), (4_000_000, False)])
def test_a_count_over_the_window_of_a_request_that_was_taken_is_none(tokens, believed):
    """Told again and again it is no size, where the estimate is a small part of it."""
    known = grown(RequestSetup("f", 900), MessageEntry(build_sized_message(Message.from_text("user", "hello"))))
    branch = grown(RequestEntry(compute_prefix_digest(known), 1, "claude-sonnet-4-5", 100_000), branch=known)
    for _ in range(3):
        branch = grown(AnswerEntry(branch.last_request.prefix_digest, Usage(tokens, 5)), branch=branch)
    assert (get_valid_measured_request(branch) is not None) is believed


def test_new_pictures_explain_any_count():
    """A document may have a hundred times what is reckoned for it; a count that is less than the frame is none."""
    paper = Message("user", (Media("document", "application/pdf", 9_000, source="AAAA"),))
    branch = grown(RequestSetup("f", 8_000), MessageEntry(build_sized_message(paper)))
    branch = grown(RequestEntry(compute_prefix_digest(branch), 1, "claude-sonnet-4-5"), branch=branch)
    assert (
        get_valid_measured_request(
            grown(AnswerEntry(branch.last_request.prefix_digest, Usage(300_000, 5)), branch=branch)
        ).reported_tokens
        == 300_000
    )
    assert (
        get_valid_measured_request(grown(AnswerEntry(branch.last_request.prefix_digest, Usage(1, 5)), branch=branch))
        is None
    )
    seen = told(branch, 12_000)
    assert get_valid_measured_request(told(seen, 300_000)).reported_tokens == 12_000


def test_a_jump_that_is_told_twice_is_believed_and_is_no_ratio():
    """What was said since is not why there are more: the count stands from then on, and the calibration stays."""
    counted = told(told(asked(), 4_000), 4_300)
    jumped = told(told(counted, 9_000), 9_300)
    assert (get_valid_measured_request(jumped).reported_tokens, jumped.usage.learned_limits.doubted_tokens) == (
        9_300,
        0,
    )
    assert jumped.usage.calibration == counted.usage.calibration
    assert told(jumped, 9_600).usage.calibration != counted.usage.calibration


def test_what_one_branch_knows_of_models_another_is_told():
    """It is told in a note, all of it: who is asked there next counts as here, and what was known there is old."""
    said = MessageEntry(build_sized_message(Message.from_text("user", WORDS * 100)))
    taught = grown(said, *lesson("a", 3_000, 6_000, 9_000), *lesson("b", 0, 0, 0), *lesson("c", 5_000, 0, 7_000))
    for there in (
        ConversationState(),
        grown(said),
        grown(said, *lesson("b", 4_000, 5_000, 0), *lesson("d", 2_000, 0, 0)),
    ):
        stored = json.decode(json.encode(build_model_stats_note(taught)), type=NoteEntry)
        told = grown(stored, branch=there)
        assert [*list_nonempty_model_stats(told)] == sorted(
            list_nonempty_model_stats(taught), key=lambda known: known.model == there.last_request.model
        )
        for model, window in (("a", 9_000), ("b", 0), ("c", 7_000), ("d", 0)):
            again = [grown(RequestEntry("b", 1, model, window), branch=branch) for branch in (told, taught)]
            assert list_nonempty_model_stats(again[0])[-1:] == list_nonempty_model_stats(again[1])[-1:]
            assert again[0].usage.learned_limits == again[1].usage.learned_limits


@pytest.mark.parametrize("data", [{}, {"models": 3}, {"models": [{}]}, {"models": [{"model": "a", "window": "x"}]}])
def test_a_note_that_cannot_be_read_says_nothing(data):
    """A log that somebody else wrote ends nothing."""
    branch = refused(asked(), 3_000)
    assert grown(NoteEntry(NOTE_MODEL_STATS, data=data), branch=branch) == branch
