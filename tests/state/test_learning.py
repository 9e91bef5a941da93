"""What the fold learns of an overflow, number by number."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json
from msgspec.structs import replace

from holdfast import Branch
from holdfast.config import target
from holdfast.messages.message import Message
from holdfast.messages.parts import Media
from holdfast.messages.size.tokens import measure
from holdfast.state.branch.branch import extend
from holdfast.state.branch.fork import cut_back
from holdfast.state.branch.view import prefix_basis
from holdfast.state.calibration.calibration import Gauge, Learned, is_sensible, raised, smaller, taught
from holdfast.state.calibration.model_stats import MODELS, all_known, noted
from holdfast.state.calibration.token_estimate import ratio
from holdfast.state.calibration.usage import HOUR, cache_lives, fresh
from holdfast.state.entries import (
    FORGOTTEN,
    KNOWN,
    OVERFLOW,
    UNANSWERED,
    Answer,
    Compaction,
    Entry,
    Failure,
    Frame,
    Note,
    Request,
    Said,
    Usage,
)

WHERE = target("anthropic", "claude-sonnet-4-5")
WORDS = "the tide takes the harbour wall twice a day and nobody minds it "


def grown(*bodies, branch=None):
    """Return a branch of ``bodies``."""
    branch = branch or Branch()
    for body in bodies:
        branch = extend(branch, Entry("e", None, body))
    return branch


def asked(*, frame=Frame(), times=400):
    """Return a branch whose newest request showed one long message."""
    branch = grown(frame, Said(measure(Message.of("user", WORDS * times))))
    return grown(Request(prefix_basis(branch), 1, "claude-sonnet-4-5"), branch=branch)


def refused(branch, limit=0, requested=0):
    return grown(Failure(OVERFLOW, "too large", limit, requested), branch=branch)


def test_a_told_size_outweighs_what_usage_taught_before():
    """However much evidence there was for less, the ratio is no less than what was told now."""
    branch = asked()
    for _ in range(30):
        branch = grown(Answer(branch.basis, Usage(branch.asked, 5)), branch=branch)
        branch = grown(Said(measure(Message.of("user", WORDS * 100))), branch=branch)
        branch = grown(Request(prefix_basis(branch), len(branch.slots), "claude-sonnet-4-5"), branch=branch)
    assert ratio(branch, WHERE) < 1.1
    told = refused(branch, requested=2 * branch.asked)
    assert ratio(told, WHERE) >= 1.95
    assert told.anchor.tokens == 2 * branch.asked


@pytest.mark.parametrize("told", [{"limit": 4_000}, {}, {"requested": 9_000}, {"limit": 4_000, "requested": 9_000}])
def test_what_was_forgotten_is_learned_anew(told):
    """Behind the note nothing counts of what overflows told, however; the next one teaches as the first did."""
    first = refused(asked(), **told)
    assert first.learned != Learned()
    after = grown(Note(FORGOTTEN), branch=first)
    assert after == replace(first, learned=Learned())
    asked_again = grown(Request(after.basis, 1, "claude-sonnet-4-5"), branch=after)
    again = refused(asked_again, **told).learned
    assert replace(again, prior=0.0) == replace(first.learned, prior=0.0)


def test_what_is_written_for_an_hour_lives_so_long():
    """A client's markers say how long: the newest answer that wrote counts, one that only read changes nothing."""

    def answered(branch, **usage):
        return grown(Answer(branch.basis, Usage(branch.asked, 5, **usage)), branch=branch)

    first = answered(asked(), cache_write=500, cache_write_1h=400)
    read = answered(first, cache_read=500)
    again = answered(read, cache_write=500)
    told = [cache_lives(branch, WHERE.cache) for branch in (asked(), first, read, again)]
    assert told == [WHERE.cache.ttl, HOUR, HOUR, WHERE.cache.ttl]


def test_the_frame_shares_in_what_was_told_unless_its_size_is_a_fact():
    """An estimated frame is wrong by the same ratio as the messages; of an exact one nothing is to be learned."""
    loose = refused(asked(frame=Frame("f", 1_000)), requested=12_000)
    held = loose.asked
    assert loose.learned.prior == pytest.approx(12_000 / (held + 1_000))
    exact = refused(asked(frame=Frame("f", 1_000, exact=True)), requested=12_000)
    assert exact.learned.prior == pytest.approx(11_000 / held)


def test_a_limit_alone_says_that_the_request_was_over_it():
    """What we count as less than the limit counts as that much from here on; what we count as more says nothing."""
    branch = asked()
    over = refused(branch, limit=int(1.5 * branch.asked))
    assert ratio(over, replace(WHERE, prior=over.learned.prior)) >= 1.49
    assert over.anchor is None
    assert over.learned.limit == int(1.5 * branch.asked)
    under = refused(branch, limit=int(0.8 * branch.asked))
    assert (under.gauge, under.learned.prior) == (branch.gauge, 0.0)
    assert refused(over, limit=3_000).learned.limit == 3_000
    assert refused(refused(branch, limit=3_000), limit=9_000).learned.limit == 3_000


def told(branch, tokens):
    """Return ``branch`` with its newest request counted, and one that says more behind it."""
    branch = grown(Answer(branch.basis, Usage(tokens, 5)), Said(measure(Message.of("user", WORDS * 20))), branch=branch)
    return grown(Request(prefix_basis(branch), len(branch.slots), "claude-sonnet-4-5"), branch=branch)


def test_only_a_whole_prompt_is_believed():
    """A prompt that grew and was counted far too small was not counted whole; one count too high is no measure."""
    first = told(asked(), asked().asked)
    assert told(first, 100).anchor == first.anchor
    assert told(told(asked(), 40 * asked().asked), first.asked).anchor.tokens == first.asked


@pytest.mark.parametrize("numbers", [(0, 0), (500, 0), (0, 10), (-1, -1), (0, 10**9), (1_023, 10**12)])
def test_without_sensible_numbers_the_request_itself_was_too_large(numbers):
    """No window is under a thousand tokens, and no estimate is wrong by a hundred times: such numbers are of others."""
    branch = asked()
    told = refused(branch, *numbers)
    assert told.learned == Learned(refused=branch.asked, overflows=1)
    assert (told.gauge, told.anchor) == (branch.gauge, branch.anchor)


def test_what_nobody_read_stays_unseen_until_an_answer():
    """Requests after a refused one find what that one found; once one is answered the next finds what it showed."""
    branch = asked()
    again = grown(Said(measure(Message.of("user", "b"))), branch=refused(branch))
    again = refused(grown(Request("b", 2, "claude-sonnet-4-5"), branch=again))
    assert again.found == branch.found == (0, 0)
    answered = grown(Request("c", 2, "claude-sonnet-4-5"), Answer("c", Usage(9, 9)), branch=again)
    assert grown(Request("d", 2, "claude-sonnet-4-5"), branch=answered).found == (2, 2)


def test_what_is_taken_disproves_what_was_told():
    """A request that is answered was within the window, whatever an overflow said before."""
    branch = refused(asked(), limit=2_000)
    taken = grown(Answer(branch.basis, Usage(9_000, 5)), branch=branch)
    assert taken.learned == Learned(prior=branch.learned.prior)
    part = refused(asked(times=4_000), limit=2_000)
    assert grown(Answer(part.basis, Usage(2_001, 5)), branch=part).learned == Learned(prior=part.learned.prior)
    blind = refused(asked())
    assert grown(Answer(blind.basis, Usage(9_000, 5)), branch=blind).learned == Learned()
    assert grown(Answer("another", Usage(9_000, 5)), branch=blind).learned.refused == blind.asked


def test_another_model_has_other_limits():
    """What was learned is of the model that was asked; a request to another begins anew."""
    branch = refused(asked(), 3_000, 9_000)
    assert branch.learned.limit == 3_000
    assert grown(Request("b", 1, "claude-sonnet-4-5"), branch=branch).learned == branch.learned
    other = grown(Request("b", 1, "gpt-5"), branch=branch)
    assert (other.learned, other.gauge, other.measured) == (Learned(), Gauge(), None)


WINDOWS = {"a": 0, "b": 9_000, "c": 200_000}
"""Models by the windows that are configured for them; 0 = nobody knows."""
taught_to = st.tuples(
    st.sampled_from(sorted(WINDOWS)), st.sampled_from([0, 3_000, 5_000, 9_000]), st.sampled_from([0, 2_000, 6_000])
)


def lesson(model, limit, requested, window):
    """Return a request that was refused by these numbers, and one thing that went well behind it."""
    return Request("b", 1, model, window), Failure(OVERFLOW, "too large", limit, requested), Answer("another")


@given(st.lists(taught_to, max_size=8))
def test_each_model_is_known_as_if_nobody_else_had_been_asked(lessons):
    """What overflows taught of a model counts when it is asked again, whoever was asked in between, in each order."""
    said = [Frame("f", 100), Said(measure(Message.of("user", WORDS * 100)))]
    bodies = [(model, lesson(model, *numbers, WINDOWS[model])) for model, *numbers in lessons]
    every = grown(*said, *chain.from_iterable(some for _, some in bodies))
    for model, window in WINDOWS.items():
        again = Request("b", 1, model, window)
        alone = grown(*said, *chain.from_iterable(some for one, some in bodies if one == model), again)
        known = grown(again, branch=every)
        assert (known.learned, known.gauge, known.window) == (alone.learned, alone.gauge, window)
        assert Branch.load(known.dump()) == known


def test_another_window_ends_what_its_own_model_taught():
    """Of the model that is asked again in another one nothing counts but how it counts; of the others all does."""
    said = Said(measure(Message.of("user", WORDS * 100)))
    branch = grown(said, *lesson("a", 3_000, 6_000, 9_000), *lesson("b", 5_000, 0, 9_000))
    again = grown(Request("b", 1, "a", 8_000), branch=branch)
    same = grown(Request("b", 1, "a", 9_000), branch=branch)
    assert (same.learned.limit, again.learned) == (3_000, Learned())
    assert again.gauge == same.gauge != Gauge()
    assert grown(Request("b", 1, "b", 9_000), branch=again).learned.limit == 5_000


def test_what_was_forgotten_is_forgotten_of_each_model():
    """Behind the note nothing counts that overflows told of any of them; how they count stands."""
    branch = grown(Said(measure(Message.of("user", WORDS * 100))), *lesson("a", 3_000, 6_000, 0), Request("b", 1, "b"))
    branch = grown(Note(FORGOTTEN), Request("b", 1, "a"), branch=branch)
    assert branch.learned == Learned()
    assert branch.gauge != Gauge()


def test_as_many_models_are_known_as_a_conversation_asks():
    """The one that was left longest ago is the first to be forgotten; a model with nothing told takes no place."""
    branch = grown(Said(measure(Message.of("user", WORDS * 100))))
    for name in [str(number) for number in range(MODELS + 2)]:
        branch = grown(
            *lesson(name, 3_000, 6_000, 0), Request("b", 1, "silent"), Request("b", 1, "mute"), branch=branch
        )
    assert [one.model for one in branch.aside] == [str(number) for number in range(2, MODELS + 2)]
    assert Branch.load(branch.dump()).aside == branch.aside


def test_a_fork_knows_what_was_learned_before_it():
    """An edited past is sent to the same model: its limits stand."""
    branch = grown(Said(measure(Message.of("assistant", "b"))), branch=refused(asked(), 3_000, 9_000))
    assert cut_back(branch, 1).learned == branch.learned


def test_a_request_that_was_not_answered_teaches_nothing():
    """A failure of another kind changes no estimate and no limit."""
    branch = asked()
    assert grown(Failure(UNANSWERED, "503"), branch=branch) == branch
    assert grown(Failure("timed_out", "", 3_000, 9_000), branch=branch).learned == Learned()


def test_numbers():
    """A raised gauge has the ratio it was told at least; sizes are compared where there are two."""
    gauge = taught(taught(taught(raised(grown().gauge, 1.0, 100), 90, 100), 90, 100), 90, 100)
    told = raised(gauge, 2.0, 50)
    assert told.true / told.estimated >= 2.0
    assert raised(told, 1.5, 1_000).true / raised(told, 1.5, 1_000).estimated >= 1.5
    assert [smaller(a, b) for a, b in ((0, 0), (0, 5), (5, 0), (5, 3))] == [0, 5, 5, 3]
    assert [is_sensible(told, 1_000) for told in (499, 500, 5_000, 5_001)] == [False, True, True, False]


def test_what_is_new_is_what_no_request_showed_before():
    """A retry shows no less that is new; what gave way meanwhile is not shown at all."""
    told = [Said(measure(Message.of("user", WORDS * times))) for times in (1, 2, 3, 4)]
    sizes = [one.slot.size for one in told]
    once = grown(*told[:2], Request("a", 2))
    more = grown(*told[2:], branch=once)
    assert [fresh(grown(*asked, branch=more)) for asked in ([], [Request("b", 4)], [Request("b", 4)] * 2)] == [
        sum(sizes[:2]),
        sum(sizes[2:]),
        sum(sizes[2:]),
    ]
    assert fresh(grown(Compaction(3, Message.of("user", "sum"), 1), Request("c", 4), branch=more)) == sizes[3]


def test_a_count_with_small_pictures_is_a_count():
    """They have far fewer tokens than is reckoned for them: all of such a prompt may be less than what is new."""
    branch = asked()
    branch = grown(Answer(branch.basis, Usage(branch.asked, 5)), branch=branch)
    icons = Message("user", (Media("image", "image/png", 70, source="AAAA"),) * 20)
    branch = grown(Said(measure(icons)), branch=branch)
    before, request = branch.anchor.tokens, Request(prefix_basis(branch), 2, "claude-sonnet-4-5")
    branch = grown(request, Answer(request.basis, Usage(before + 20, 5)), branch=branch)
    assert branch.anchor.tokens == before + 20


@pytest.mark.parametrize("frame", [Frame(), Frame("f", 900), Frame("f", 900, exact=True)])
@pytest.mark.parametrize("wild", [3, 10, 40, 10_000])
def test_one_wild_count_teaches_nothing(frame, wild):
    """What nothing explains is no anchor, moves no ratio and disproves no limit; so the next count is believed."""
    branch = refused(asked(frame=frame), limit=3_000)
    size = branch.asked + frame.tokens
    counted = told(told(branch, size), size + 300)
    doubted = told(counted, wild * size)
    assert doubted.learned == replace(counted.learned, doubted=wild * size)
    assert (doubted.anchor, doubted.gauge) == (counted.anchor, counted.gauge)
    after = told(doubted, size + 600)
    assert (after.anchor.tokens, after.learned.doubted) == (size + 600, 0)


@pytest.mark.parametrize("frame", [Frame("f", 900), Frame("f", 900, exact=True)])
def test_the_first_count_may_be_wild_too(frame):
    """Where the frame is known the estimate says how many tokens there can be at most."""
    branch = asked(frame=frame)
    doubted = told(branch, 6 * (branch.asked + 900))
    assert (doubted.anchor, doubted.gauge) == (None, branch.gauge)
    assert told(doubted, branch.asked + 900).anchor.tokens == branch.asked + 900


def test_a_frame_that_nobody_told_takes_half_the_window():
    """What a first count has over the messages is system and tools; one that leaves no room for a talk is doubted."""
    known = grown(Said(measure(Message.of("user", "hello"))))
    for window, tokens, believed in ((0, 90_000, True), (100_000, 50_000, True), (100_000, 60_000, False)):
        branch = grown(Request(prefix_basis(known), 1, "claude-sonnet-4-5", window), branch=known)
        branch = grown(Answer(branch.basis, Usage(tokens, 5)), branch=branch)
        assert (branch.anchor is not None) is believed
        assert grown(Answer(branch.basis, Usage(tokens, 5)), branch=branch).anchor.tokens == tokens


@pytest.mark.parametrize(("tokens", "believed"), [(100_000, True), (100_001, False), (4_000_000, False)])
def test_a_count_over_the_window_of_a_request_that_was_taken_is_none(tokens, believed):
    """Told again and again it is no size, where the estimate is a small part of it."""
    known = grown(Frame("f", 900), Said(measure(Message.of("user", "hello"))))
    branch = grown(Request(prefix_basis(known), 1, "claude-sonnet-4-5", 100_000), branch=known)
    for _ in range(3):
        branch = grown(Answer(branch.basis, Usage(tokens, 5)), branch=branch)
    assert (branch.anchor is not None) is believed


def test_new_pictures_explain_any_count():
    """A document may have a hundred times what is reckoned for it; a count that is less than the frame is none."""
    paper = Message("user", (Media("document", "application/pdf", 9_000, source="AAAA"),))
    branch = grown(Frame("f", 8_000), Said(measure(paper)))
    branch = grown(Request(prefix_basis(branch), 1, "claude-sonnet-4-5"), branch=branch)
    assert grown(Answer(branch.basis, Usage(300_000, 5)), branch=branch).anchor.tokens == 300_000
    assert grown(Answer(branch.basis, Usage(1, 5)), branch=branch).anchor is None
    seen = told(branch, 12_000)
    assert told(seen, 300_000).anchor.tokens == 12_000


def test_a_jump_that_is_told_twice_is_believed_and_is_no_ratio():
    """What was said since is not why there are more: the count stands from then on, and the calibration stays."""
    counted = told(told(asked(), 4_000), 4_300)
    jumped = told(told(counted, 9_000), 9_300)
    assert (jumped.anchor.tokens, jumped.learned.doubted) == (9_300, 0)
    assert jumped.gauge == counted.gauge
    assert told(jumped, 9_600).gauge != counted.gauge


def test_what_one_branch_knows_of_models_another_is_told():
    """It is told in a note, all of it: who is asked there next counts as here, and what was known there is old."""
    said = Said(measure(Message.of("user", WORDS * 100)))
    taught = grown(said, *lesson("a", 3_000, 6_000, 9_000), *lesson("b", 0, 0, 0), *lesson("c", 5_000, 0, 7_000))
    for there in (Branch(), grown(said), grown(said, *lesson("b", 4_000, 5_000, 0), *lesson("d", 2_000, 0, 0))):
        stored = json.decode(json.encode(noted(taught)), type=Note)
        told = grown(stored, branch=there)
        assert [*all_known(told)] == sorted(all_known(taught), key=lambda known: known.model == there.model)
        for model, window in (("a", 9_000), ("b", 0), ("c", 7_000), ("d", 0)):
            again = [grown(Request("b", 1, model, window), branch=branch) for branch in (told, taught)]
            assert all_known(again[0])[-1:] == all_known(again[1])[-1:]
            assert again[0].learned == again[1].learned


@pytest.mark.parametrize("data", [{}, {"models": 3}, {"models": [{}]}, {"models": [{"model": "a", "window": "x"}]}])
def test_a_note_that_cannot_be_read_says_nothing(data):
    """A log that somebody else wrote ends nothing."""
    branch = refused(asked(), 3_000)
    assert grown(Note(KNOWN, data=data), branch=branch) == branch
