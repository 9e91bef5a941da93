"""What the counts of a growing conversation tell of a prompt that is cut unseen, over whole series of them."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json
from msgspec.structs import replace

from holdfast import ConversationState
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Text
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.calibration.calibration import MeasuredRequest
from holdfast.state.calibration.usage import find_plateau_count
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import (
    AnswerEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    MessageEntry,
    RequestEntry,
    RequestSetup,
    Usage,
)
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.view import compute_prefix_digest, get_valid_measured_request

FRAME = 1_000


def grown(branch, *bodies):
    """Return ``branch`` with ``bodies`` behind it."""
    for body in bodies:
        branch = apply_entry(branch, Entry("e", None, body))
    return branch


def said(branch, size):
    """Return ``branch`` with a message that we hold at ``size``."""
    return grown(
        branch,
        MessageEntry(
            replace(
                build_sized_message(Message.from_text("user", str(len(branch.history.sized_messages)))), tokens=size
            )
        ),
    )


def counted(branch, tokens, model="m"):
    """Return ``branch`` with its next request counted at ``tokens``."""
    request = RequestEntry(compute_prefix_digest(branch), len(branch.history.sized_messages), model)
    return grown(branch, request, AnswerEntry(request.prefix_digest, Usage(tokens, 5)))


def told(sizes, counts, branch=None):
    """Return what is told behind each count, and the branch: ``sizes`` are said in turn, each counted with its past."""
    branch, found = branch or grown(ConversationState(), RequestSetup("f", FRAME)), []
    for size, tokens in zip(sizes, counts, strict=True):
        branch = counted(said(branch, size), tokens)
        found.append(find_plateau_count(branch, 0))
    return found, branch


def whole(sizes, ratio=1.1):
    """Return the honest counts behind each of ``sizes``."""
    return [round(FRAME + ratio * held) for held in accumulate(sizes)]


def cut(sizes, window):
    """Return the counts of a server that reads so much and no more."""
    return [min(count, window) for count in whole(sizes)]


STEPS = [1_500] * 12


def test_a_prompt_that_is_cut_is_noticed_soon():
    """The same count four times over 4,096 tokens of growth: not at the first cut, and before twice the window."""
    found, _ = told(STEPS, cut(STEPS, 8_192))
    first = next(at for at, most in enumerate(found) if most)
    assert found == [0] * first + [8_192] * (len(STEPS) - first)
    assert 1.2 * 8_192 < whole(STEPS)[first] < 1.8 * 8_192


def test_cut_between_messages_the_largest_count_is_the_window():
    """Such counts differ by less than a message: half of the largest one is said before they are believed."""
    sizes = [1_500] * 20
    counts = [count if count < 16_000 else 16_000 - 311 * at % 900 for at, count in enumerate(whole(sizes))]
    found, _ = told(sizes, counts)
    first = next(at for at, most in enumerate(found) if most)
    most = max(counts)
    assert set(found[first:]) == {most}
    assert sum(sizes[counts.index(most) + 1 : first + 1]) >= 0.5 * most


tokens = st.integers(50, 6_000)
growing = st.lists(st.tuples(tokens, st.floats(0.25, 4.0)), min_size=1, max_size=14)


@given(growing, st.sampled_from([1, 128, 256, 1_024]))
def test_a_whole_count_is_never_flat(each, block):
    """However wrong our estimate of each message, up to four times either way, and however counts are rounded."""
    sizes = [size for size, _ in each]
    real = accumulate((size * ratio for size, ratio in each), initial=FRAME)
    counts = [-int(-count // block) * block for count in real][1:]
    assert not any(told(sizes, counts)[0])


@given(growing, st.lists(st.booleans(), min_size=14, max_size=14))
def test_a_count_of_what_was_not_cached_is_never_flat(each, cached):
    """Such a count is of what was new, whatever its size; now and then the cache was lost, and all is counted."""
    sizes, news = [size for size, _ in each], [round(size * min(ratio, 2.5)) for size, ratio in each]
    totals = list(accumulate(news, initial=FRAME))[1:]
    counts = [new if hit else total for new, total, hit in zip(news, totals, [False, *cached], strict=False)]
    assert not any(told(sizes, counts)[0])


@given(st.lists(st.tuples(tokens, tokens, st.booleans()), min_size=1, max_size=14), st.floats(0.5, 2.0))
def test_what_may_be_left_out_is_not_taken_for_said(each, ratio):
    """A provider leaves out the reasoning of all older turns, or of none, as it likes at each request."""
    branch, words, thought = grown(ConversationState(), RequestSetup("f", FRAME)), 0, 0
    for size, reasoning, drops in each:
        branch, words, thought = said(said(branch, size), reasoning), words + size, thought + reasoning
        branch = counted(branch, round(ratio * (FRAME + words + (reasoning if drops else thought))))
        assert find_plateau_count(branch, thought) == 0


def test_reasoning_that_goes_is_not_taken_for_said():
    """Counted for six turns and left out from then on, the count stands under the largest one for a while."""
    branch, found = grown(ConversationState(), RequestSetup("f", FRAME)), []
    for turn in range(1, 13):
        branch = said(said(branch, 1_000), 800)
        branch = counted(branch, FRAME + 1_000 * turn + 800 * (turn if turn < 7 else 1))
        found.append((find_plateau_count(branch, 0), find_plateau_count(branch, 800 * turn)))
    assert any(careless for careless, _ in found)
    assert not any(careful for _, careful in found)


ODD = {
    "what was not cached, as much each time": ([300, 300, *STEPS], [1_330, 1_660, *[1_650] * 12]),
    "one count that is far too high": (
        [*STEPS[:2], 9_000, *STEPS[:4]],
        [2_600, 22_000, 15_200, *range(16_800, 21_700, 1_600)],
    ),
    "less and less": ([1_500, 1_500, *[400] * 14], [2_500, 4_400, 2_300, *[1_200] * 13]),
}


@pytest.mark.parametrize(("sizes", "counts"), ODD.values(), ids=ODD)
def test_odd_counts_are_no_window(sizes, counts):
    """None of them is the same number of a prompt that was whole before."""
    assert not any(told(sizes, counts)[0])


@pytest.mark.parametrize("count", [0, 1, 100, 1_023, 5_000, 50_000])
def test_the_same_count_from_the_start_is_no_count(count):
    """Who tells the same of every prompt, small ones too, does not count."""
    assert not any(told(STEPS, [count] * len(STEPS))[0])


NEARLY = cut(STEPS, 8_192)[:8]
BETWEEN = {
    "a compaction": lambda branch: grown(branch, CompactionEntry(3)),
    "a decision": lambda branch: grown(branch, DecisionEntry((Edit(Span(2, 3, 0), (Text(""),), "t", "", 5),))),
    "another frame": lambda branch: grown(branch, RequestSetup("g", 5 * FRAME)),
    "a larger count": lambda branch: counted(said(branch, 30), 8_193),
}


@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
def test_only_what_grew_is_compared(between):
    """Behind what removes anything, and behind a larger count, the stretch begins anew."""
    found, branch = told(STEPS[:7], NEARLY[:7])
    assert not any(found)
    assert told(STEPS[:1], NEARLY[7:], branch)[0] == [8_192]
    assert told(STEPS[:1], NEARLY[7:], between(branch))[0] == [0]


def test_whoever_is_asked_in_between_a_server_that_cuts_is_noticed():
    """Each model's counts are compared with its own, as far as what they were of still stands."""
    sizes, found = [1_500] * 20, []
    branch = grown(ConversationState(), RequestSetup("f", FRAME))
    for at, count in enumerate(whole(sizes)):
        branch = ConversationState.load(
            counted(said(branch, sizes[at]), min(count, 8_192) if at % 2 else count, "nm"[at % 2]).dump()
        )
        found.append(find_plateau_count(branch, 0))
    assert not any(found[::2])
    assert found[1::2] == sorted(found[1::2])
    assert set(found[1::2]) == {0, 8_192}


@given(st.lists(st.tuples(tokens, tokens), min_size=1, max_size=14), st.floats(0.25, 2.5), st.booleans())
def test_whoever_is_asked_in_between_an_honest_count_is_never_flat(each, ratio, is_whole):
    """A server counts all of its prompt, or what its own cache did not hold: what others were asked was new to it."""
    branch, held, cached = grown(ConversationState(), RequestSetup("f", FRAME)), 0, {"m": 0, "n": 0}
    for at, (size, beside) in enumerate(each):
        held += size + beside
        model = "mn"[at % 2]
        count = FRAME + round(ratio * held)
        branch = counted(said(said(branch, size), beside), count - (0 if is_whole else cached[model]), model)
        cached[model] = count
        assert find_plateau_count(branch, 0) == 0


def test_what_another_was_asked_between_was_new_to_who_is_asked_again():
    """It counts what its own cache did not hold: as much each time, and far more than the few words behind that."""
    branch, found = grown(ConversationState(), RequestSetup("f", FRAME)), []
    for size, count in [(600, 1_650), (600, 2_300), *[(3_000, 3_050)] * 9]:
        branch = counted(said(branch, size), 60_000, "n")
        branch = counted(said(branch, 50), count)
        found.append(find_plateau_count(branch, 0))
    assert not any(found)


@pytest.mark.parametrize(("more", "stands"), [(5, True), (4 * FRAME, False)])
def test_the_frame_is_another_for_each_model(more, stands):
    """A count is as much larger as the frame is now; behind much more it is no measure, whoever was asked between."""
    branch = counted(counted(said(grown(ConversationState(), RequestSetup("f", FRAME)), 3_000), 4_000, "n"), 4_000)
    again = grown(branch, RequestSetup("g", FRAME + more), RequestEntry("b", 1, "n"))
    assert (again.usage.measured_request and again.usage.measured_request.reported_tokens) == (
        4_000 + more if stands else None
    )


def test_pictures_are_not_weighed():
    """What is reckoned for a picture may be far more than it has."""
    picture = MessageEntry(build_sized_message(Message("user", (Media("image", "image/png", 70, source="AAAA"),))))
    start = grown(ConversationState(), RequestSetup("f", FRAME), picture)
    assert not any(told(STEPS, cut(STEPS, 8_192), start)[0])


def test_a_request_that_was_not_counted_tells_nothing():
    """Only the newest count is judged, and once: not again behind a request whose own is not known."""
    _, branch = told(STEPS, cut(STEPS, 8_192))
    assert find_plateau_count(branch, 0) == 8_192
    branch = said(branch, 900)
    request = RequestEntry(compute_prefix_digest(branch), len(branch.history.sized_messages), "m")
    assert find_plateau_count(grown(branch, request, AnswerEntry("", Usage(8_192, 5))), 0) == 0


def test_a_dump_carries_the_stretch():
    """What was counted so far counts behind a restart too; one from before begins at its next count."""
    _, branch = told(STEPS[:7], NEARLY[:7])
    assert told(STEPS[:1], NEARLY[7:], ConversationState.load(branch.dump()))[0] == [8_192]
    before = json.decode(b'{"slots":7,"held":10500,"tokens":8192}', type=MeasuredRequest)
    assert before == replace(get_valid_measured_request(branch), plateau=None, projection_digest=b"")
    before = replace(before, projection_digest=get_valid_measured_request(branch).projection_digest)
    assert told(STEPS[:1], NEARLY[7:], replace(branch, usage=replace(branch.usage, measured_request=before)))[0] == [0]
