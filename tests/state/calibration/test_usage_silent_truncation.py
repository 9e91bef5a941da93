"""Servers that silently cut a prompt: what a series of counts of a growing conversation shows."""

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

SETUP_TOKENS = 1_000


def add_entries(state, *bodies):
    """Return the state with entries of these ``bodies`` applied."""
    for body in bodies:
        state = apply_entry(state, Entry("e", None, body))
    return state


def add_message(state, size):
    """Return the state with one more message, estimated at ``size`` tokens."""
    return add_entries(
        state,
        MessageEntry(
            replace(build_sized_message(Message.from_text("user", str(len(state.history.sized_messages)))), tokens=size)
        ),
    )


def add_counted_request(state, tokens, model="m"):
    """Return the state after its next request was counted at ``tokens``."""
    request = RequestEntry(compute_prefix_digest(state), len(state.history.sized_messages), model)
    return add_entries(state, request, AnswerEntry(request.prefix_digest, Usage(tokens, 5)))


def run_conversation(sizes, counts, state=None):
    """For each size append a message and a counted request; return the plateau after each, and the state."""
    state, found = state or add_entries(ConversationState(), RequestSetup("f", SETUP_TOKENS)), []
    for size, tokens in zip(sizes, counts, strict=True):
        state = add_counted_request(add_message(state, size), tokens)
        found.append(find_plateau_count(state, 0))
    return found, state


def list_whole_counts(sizes, ratio=1.1):
    """Return the counts of a server that reads the whole prompt, after a message of each size."""
    return [round(SETUP_TOKENS + ratio * total_tokens) for total_tokens in accumulate(sizes)]


def list_cut_counts(sizes, window):
    """Return the counts of a server that silently cuts the prompt to ``window`` tokens."""
    return [min(count, window) for count in list_whole_counts(sizes)]


STEPS = [1_500] * 12


def test_find_plateau_count_finds_a_hard_cut_below_twice_the_window():
    """The same count four times over 4,096 tokens of growth is a plateau: later than the first cut and before the
    prompt is twice the window.
    """
    found, _ = run_conversation(STEPS, list_cut_counts(STEPS, 8_192))
    first = next(at for at, most in enumerate(found) if most)
    assert found == [0] * first + [8_192] * (len(STEPS) - first)
    assert 1.2 * 8_192 < list_whole_counts(STEPS)[first] < 1.8 * 8_192


def test_find_plateau_count_returns_largest_of_cuts_between_messages():
    """Counts of a prompt cut between messages differ by less than a message; they count as a plateau after growth by
    half the largest one.
    """
    sizes = [1_500] * 20
    counts = [count if count < 16_000 else 16_000 - 311 * at % 900 for at, count in enumerate(list_whole_counts(sizes))]
    found, _ = run_conversation(sizes, counts)
    first = next(at for at, most in enumerate(found) if most)
    most = max(counts)
    assert set(found[first:]) == {most}
    assert sum(sizes[counts.index(most) + 1 : first + 1]) >= 0.5 * most


tokens = st.integers(50, 6_000)
growth_strategy = st.lists(st.tuples(tokens, st.floats(0.25, 4.0)), min_size=1, max_size=14)


@given(growth_strategy, st.sampled_from([1, 128, 256, 1_024]))
def test_find_plateau_count_is_0_for_counts_of_whole_prompts(each, block):
    """Holds for estimates that are wrong by up to four times either way, and however counts are rounded."""
    sizes = [size for size, _ in each]
    real = accumulate((size * ratio for size, ratio in each), initial=SETUP_TOKENS)
    counts = [-int(-count // block) * block for count in real][1:]
    assert not any(run_conversation(sizes, counts)[0])


@given(growth_strategy, st.lists(st.booleans(), min_size=14, max_size=14))
def test_find_plateau_count_is_0_for_counts_of_uncached_tokens(each, cached):
    """Such a server counts only what is new, of any size, and now and then the whole prompt after a lost cache."""
    sizes, news = [size for size, _ in each], [round(size * min(ratio, 2.5)) for size, ratio in each]
    totals = list(accumulate(news, initial=SETUP_TOKENS))[1:]
    counts = [new if hit else total for new, total, hit in zip(news, totals, [False, *cached], strict=False)]
    assert not any(run_conversation(sizes, counts)[0])


@given(st.lists(st.tuples(tokens, tokens, st.booleans()), min_size=1, max_size=14), st.floats(0.5, 2.0))
def test_find_plateau_count_subtracts_reasoning_that_may_be_dropped(each, ratio):
    """A provider drops the reasoning of all older turns, or of none, as it likes at each request."""
    state, words, thought = add_entries(ConversationState(), RequestSetup("f", SETUP_TOKENS)), 0, 0
    for size, reasoning, drops in each:
        state, words, thought = add_message(add_message(state, size), reasoning), words + size, thought + reasoning
        state = add_counted_request(state, round(ratio * (SETUP_TOKENS + words + (reasoning if drops else thought))))
        assert find_plateau_count(state, thought) == 0


def test_find_plateau_count_sees_no_plateau_when_reasoning_is_dropped():
    """Reasoning that counts for six turns and is dropped from then on keeps the count under its largest value for a
    while.
    """
    state, found = add_entries(ConversationState(), RequestSetup("f", SETUP_TOKENS)), []
    for turn in range(1, 13):
        state = add_message(add_message(state, 1_000), 800)
        state = add_counted_request(state, SETUP_TOKENS + 1_000 * turn + 800 * (turn if turn < 7 else 1))
        found.append((find_plateau_count(state, 0), find_plateau_count(state, 800 * turn)))
    assert any(careless for careless, _ in found)
    assert not any(careful for _, careful in found)


ODD_SERIES = {
    "what was not cached, as much each time": ([300, 300, *STEPS], [1_330, 1_660, *[1_650] * 12]),
    "one count that is far too high": (
        [*STEPS[:2], 9_000, *STEPS[:4]],
        [2_600, 22_000, 15_200, *range(16_800, 21_700, 1_600)],
    ),
    "less and less": ([1_500, 1_500, *[400] * 14], [2_500, 4_400, 2_300, *[1_200] * 13]),
}


@pytest.mark.parametrize(("sizes", "counts"), ODD_SERIES.values(), ids=ODD_SERIES)
def test_find_plateau_count_ignores_odd_series(sizes, counts):
    """None of these series is one constant count after a prompt that was counted whole."""
    assert not any(run_conversation(sizes, counts)[0])


@pytest.mark.parametrize("count", [0, 1, 100, 1_023, 5_000, 50_000])
def test_find_plateau_count_ignores_a_constant_count_from_the_start(count):
    """A server that reports the same number for every prompt, small ones too, does not count."""
    assert not any(run_conversation(STEPS, [count] * len(STEPS))[0])


COUNTS_BEFORE_PLATEAU = list_cut_counts(STEPS, 8_192)[:8]
BREAKS = {
    "a compaction": lambda state: add_entries(state, CompactionEntry(3)),
    "a decision": lambda state: add_entries(state, DecisionEntry((Edit(Span(2, 3, 0), (Text(""),), "t", "", 5),))),
    "another setup": lambda state: add_entries(state, RequestSetup("g", 5 * SETUP_TOKENS)),
    "a larger count": lambda state: add_counted_request(add_message(state, 30), 8_193),
}


@pytest.mark.parametrize("add_break", BREAKS.values(), ids=BREAKS)
def test_find_plateau_count_starts_anew_after_a_break(add_break):
    """A compaction, a decision, another setup or a larger count starts the comparison anew."""
    found, state = run_conversation(STEPS[:7], COUNTS_BEFORE_PLATEAU[:7])
    assert not any(found)
    assert run_conversation(STEPS[:1], COUNTS_BEFORE_PLATEAU[7:], state)[0] == [8_192]
    assert run_conversation(STEPS[:1], COUNTS_BEFORE_PLATEAU[7:], add_break(state))[0] == [0]


def test_find_plateau_count_finds_a_cut_with_models_asked_in_turn():
    """Each model's counts are compared with its own earlier ones, as long as what those counted is still shown."""
    sizes, found = [1_500] * 20, []
    state = add_entries(ConversationState(), RequestSetup("f", SETUP_TOKENS))
    for at, count in enumerate(list_whole_counts(sizes)):
        state = ConversationState.load(
            add_counted_request(
                add_message(state, sizes[at]), min(count, 8_192) if at % 2 else count, "nm"[at % 2]
            ).dump()
        )
        found.append(find_plateau_count(state, 0))
    assert not any(found[::2])
    assert found[1::2] == sorted(found[1::2])
    assert set(found[1::2]) == {0, 8_192}


@given(st.lists(st.tuples(tokens, tokens), min_size=1, max_size=14), st.floats(0.25, 2.5), st.booleans())
def test_find_plateau_count_is_0_for_whole_counts_of_models_in_turn(each, ratio, is_whole):
    """A server counts its whole prompt, or what its own cache did not hold, including messages that were new to another
    model.
    """
    state, total_tokens, cached = add_entries(ConversationState(), RequestSetup("f", SETUP_TOKENS)), 0, {"m": 0, "n": 0}
    for at, (size, beside) in enumerate(each):
        total_tokens += size + beside
        model = "mn"[at % 2]
        count = SETUP_TOKENS + round(ratio * total_tokens)
        state = add_counted_request(
            add_message(add_message(state, size), beside), count - (0 if is_whole else cached[model]), model
        )
        cached[model] = count
        assert find_plateau_count(state, 0) == 0


def test_find_plateau_count_ignores_uncached_counts_of_alternate_models():
    """Such a server reports the same number each time, far more than the few words added last."""
    state, found = add_entries(ConversationState(), RequestSetup("f", SETUP_TOKENS)), []
    for size, count in [(600, 1_650), (600, 2_300), *[(3_000, 3_050)] * 9]:
        state = add_counted_request(add_message(state, size), 60_000, "n")
        state = add_counted_request(add_message(state, 50), count)
        found.append(find_plateau_count(state, 0))
    assert not any(found)


@pytest.mark.parametrize(("more", "stands"), [(5, True), (4 * SETUP_TOKENS, False)])
def test_switch_model_shifts_measured_request_by_setup_growth(more, stands):
    """A measured request grows with the setup and is dropped after a much larger one, also if another model was asked
    in between.
    """
    state = add_counted_request(
        add_counted_request(
            add_message(add_entries(ConversationState(), RequestSetup("f", SETUP_TOKENS)), 3_000), 4_000, "n"
        ),
        4_000,
    )
    again = add_entries(state, RequestSetup("g", SETUP_TOKENS + more), RequestEntry("b", 1, "n"))
    assert (again.usage.measured_request and again.usage.measured_request.reported_tokens) == (
        4_000 + more if stands else None
    )


def test_find_plateau_count_ignores_conversations_with_pictures():
    """The estimate of a picture may be far more than its real tokens."""
    picture = MessageEntry(build_sized_message(Message("user", (Media("image", "image/png", 70, source="AAAA"),))))
    start = add_entries(ConversationState(), RequestSetup("f", SETUP_TOKENS), picture)
    assert not any(run_conversation(STEPS, list_cut_counts(STEPS, 8_192), start)[0])


def test_find_plateau_count_judges_only_the_newest_count():
    """After a request whose count is unknown an older plateau is not reported again."""
    _, state = run_conversation(STEPS, list_cut_counts(STEPS, 8_192))
    assert find_plateau_count(state, 0) == 8_192
    state = add_message(state, 900)
    request = RequestEntry(compute_prefix_digest(state), len(state.history.sized_messages), "m")
    assert find_plateau_count(add_entries(state, request, AnswerEntry("", Usage(8_192, 5))), 0) == 0


def test_dump_keeps_the_plateau():
    """A plateau goes on after a restart; a dump from before the field existed starts one at its next count."""
    _, state = run_conversation(STEPS[:7], COUNTS_BEFORE_PLATEAU[:7])
    assert run_conversation(STEPS[:1], COUNTS_BEFORE_PLATEAU[7:], ConversationState.load(state.dump()))[0] == [8_192]
    before = json.decode(b'{"slots":7,"held":10500,"tokens":8192}', type=MeasuredRequest)
    assert before == replace(get_valid_measured_request(state), plateau=None, projection_digest=b"")
    before = replace(before, projection_digest=get_valid_measured_request(state).projection_digest)
    assert run_conversation(
        STEPS[:1], COUNTS_BEFORE_PLATEAU[7:], replace(state, usage=replace(state.usage, measured_request=before))
    )[0] == [0]
