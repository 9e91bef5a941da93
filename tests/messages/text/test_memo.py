"""What was found out about texts is remembered within so many bytes."""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter
from sys import getsizeof
from weakref import WeakSet

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.messages.references import get_cached_word_references
from holdfast.messages.text.memo import CACHE_ENTRY_BYTES, DEFAULT_CACHE_BYTES, cache_by_text
from holdfast.planning.extract.salience import (
    ReferenceLine,
    estimate_line_memory,
    estimate_reference_memory,
    find_distinctive_references,
    find_reference_lines,
)


class Value:
    """What is made of a text: so many bytes, it says."""

    def __init__(self, text):
        self.bytes = 10 * len(text)


@given(st.lists(st.integers(0, 40)), st.integers(0, 10_000))
def test_it_is_within_its_bytes(numbers, most):
    """Whatever is asked for in whatever order, what lives on is within the bytes, and each answer is right."""
    alive = WeakSet()

    @cache_by_text(lambda value: value.bytes, most)
    def of(text):
        value = Value(text)
        alive.add(value)
        return value

    for number in numbers:
        assert of("x" * number).bytes == 10 * number
        assert sum(value.bytes + CACHE_ENTRY_BYTES + getsizeof("x" * (value.bytes // 10)) for value in alive) <= most


@given(st.lists(st.integers(0, 40)))
def test_what_finds_room_is_made_once(numbers):
    """Texts that are together within half of the bytes are each looked at once, whatever else was asked long ago."""
    made = Counter()
    texts = [f"{number:02}" for number in numbers]
    room = 2 * sum(getsizeof(text) + 2 + CACHE_ENTRY_BYTES for text in set(texts))

    @cache_by_text(len, room)
    def of(text):
        made[text] += 1
        return text

    for text in texts:
        assert of(text) == text
    assert set(made.values()) <= {1}
    of.cache_clear()
    for text in set(texts):
        of(text)
    assert set(made.values()) <= {2}


def listing(number, seed=0):
    """Return so many lines as a search prints them."""
    return "\n".join(f"src/part_{seed}/file_{n}.py:{n}: def read_{seed}_{n}(path)" for n in range(number))


TEXTS = {
    "listing": listing,
    "words": lambda number, seed=0: "\n".join(f"name_{seed}_{n}" for n in range(5 * number)),
    "Chinese": lambda number, seed=0: "\n".join(
        f"修复第{n}个错误 part_{seed}/file_{n}.py 因此必须优先" for n in range(number)
    ),
    "prose": lambda number, _=0: "so it went on and on\n" * 5 * number,
}


@pytest.mark.long
@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize(
    ("of", "size"),
    [(find_reference_lines, estimate_line_memory), (find_distinctive_references, estimate_reference_memory)],
)
def test_bytes_are_told_about_as_they_are(of, size, kind):
    """What the extract counts for what it found in a text is between half and twice of what that takes."""
    texts = [TEXTS[kind](500, seed) for seed in range(1, 5)]
    of.__wrapped__(TEXTS[kind](500))
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    found = [of.__wrapped__(text) for text in texts]
    get_cached_word_references.cache_clear()
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    told = sum(map(size, found))
    slack = 2_000 * len(texts)
    assert taken / 2 - slack <= told <= 2 * taken + slack


@pytest.mark.long
def test_large_texts_do_not_pile_up():
    """Of texts over texts the extract remembers no more lines than its bytes take: memory is flat."""
    find_reference_lines.cache_clear()
    text = TEXTS["words"](2_000)
    fit = DEFAULT_CACHE_BYTES // (estimate_line_memory(find_reference_lines.__wrapped__(text)) + len(text))
    for seed in range(fit + fit // 2):
        find_reference_lines(TEXTS["words"](2_000, 1_000 + seed))
    gc.collect()
    held = sum(type(one) is ReferenceLine for one in gc.get_objects())
    find_reference_lines.cache_clear()
    gc.collect()
    others = sum(type(one) is ReferenceLine for one in gc.get_objects())
    assert 0 < held - others <= (fit + 1) * 10_000
