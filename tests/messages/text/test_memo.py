"""Derived values are cached per text within a limit of bytes."""

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
from holdfast.messages.text.memo import CACHE_ENTRY_BYTES, DEFAULT_CACHE_BYTES, cache_by_identity, cache_by_text
from holdfast.planning.extract.salience import (
    estimate_line_memory,
    estimate_reference_memory,
    find_distinctive_references,
    find_reference_lines,
)


class Value:
    """A value derived from a text that states its size in bytes."""

    def __init__(self, text):
        self.bytes = 10 * len(text)


@given(st.lists(st.integers(0, 40)), st.integers(0, 10_000))
def test_cache_by_text_stays_within_its_bytes(numbers, limit):
    """Whatever is requested in whatever order, the live values fit the limit and each value is right."""
    alive = WeakSet()

    @cache_by_text(lambda value: value.bytes, limit)
    def compute(text):
        value = Value(text)
        alive.add(value)
        return value

    for number in numbers:
        assert compute("x" * number).bytes == 10 * number
        assert sum(value.bytes + CACHE_ENTRY_BYTES + getsizeof("x" * (value.bytes // 10)) for value in alive) <= limit


@given(st.lists(st.integers(0, 40)))
def test_cache_by_text_computes_what_fits_once(numbers):
    """Texts that together fit half of the limit are computed once, whatever was requested before."""
    counts = Counter()
    texts = [f"{number:02}" for number in numbers]
    limit = 2 * sum(getsizeof(text) + 2 + CACHE_ENTRY_BYTES for text in set(texts))

    @cache_by_text(len, limit)
    def compute(text):
        counts[text] += 1
        return text

    for text in texts:
        assert compute(text) == text
    assert set(counts.values()) <= {1}
    compute.cache_clear()
    for text in set(texts):
        compute(text)
    assert set(counts.values()) <= {2}


@given(st.lists(st.integers(0, 30)), st.integers(0, 20_000))
def test_cache_by_identity_is_right_and_stays_within_its_bytes(numbers, limit):
    """Equal objects are no reason to confuse two: the value is that of the object given, and the limit holds."""
    alive = WeakSet()

    @cache_by_identity(lambda value, _: value.bytes, limit)
    def compute(key):
        value = Value("x" * key[0])
        alive.add(value)
        return value

    keys = {number: [number] for number in numbers}
    for number in numbers:
        assert compute(keys[number]).bytes == 10 * number
        # A key that nobody else holds: while its value is cached, no other key may get its identity.
        assert compute([number + 1]).bytes == 10 * (number + 1)
        gc.collect(0)
        assert sum(value.bytes + CACHE_ENTRY_BYTES for value in alive) <= limit


@given(st.lists(st.integers(0, 40)))
def test_cache_by_identity_computes_what_fits_once(numbers):
    """Objects that together fit half of the limit are computed once."""
    counts = Counter()
    keys = {number: [number] for number in numbers}

    @cache_by_identity(lambda _, __: 100, 2 * (100 + CACHE_ENTRY_BYTES) * len(keys))
    def compute(key):
        counts[key[0]] += 1
        return key[0]

    assert [compute(keys[number]) for number in numbers] == numbers
    assert set(counts.values()) <= {1}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5))))
def test_cache_by_identity_tells_several_objects_apart(pairs):
    """A result of several objects is that of these objects in this order, and is computed once."""
    counts = Counter()
    keys = [[number] for number in range(6)]

    @cache_by_identity(lambda *_: 0)
    def compute(first, second):
        counts[first[0], second[0]] += 1
        return first[0], second[0]

    for first, second in pairs:
        assert compute(keys[first], keys[second]) == (first, second)
    assert set(counts.values()) <= {1}


def build_listing(number, seed=0):
    """Return ``number`` lines as a search prints them."""
    return "\n".join(f"src/part_{seed}/file_{n}.py:{n}: def read_{seed}_{n}(path)" for n in range(number))


TEXTS = {
    "listing": build_listing,
    "words": lambda number, seed=0: "\n".join(f"name_{seed}_{n}" for n in range(5 * number)),
    "Chinese": lambda number, seed=0: "\n".join(
        f"修复第{n}个错误 part_{seed}/file_{n}.py 因此必须优先" for n in range(number)
    ),
    "prose": lambda number, _=0: "so it went on and on\n" * 5 * number,
}


@pytest.mark.long
@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize(
    ("compute", "size"),
    [(find_reference_lines, estimate_line_memory), (find_distinctive_references, estimate_reference_memory)],
)
def test_cached_size_estimates_are_within_a_factor_of_two(compute, size, kind):
    """The estimated size of a cached value is between half and twice of what it takes."""
    texts = [TEXTS[kind](500, seed) for seed in range(1, 5)]
    compute.__wrapped__(TEXTS[kind](500))
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    values = [compute.__wrapped__(text) for text in texts]
    get_cached_word_references.cache_clear()
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    estimated = sum(map(size, values))
    slack = 2_000 * len(texts)
    assert used / 2 - slack <= estimated <= 2 * used + slack


@pytest.mark.long
def test_find_reference_lines_cache_keeps_memory_flat():
    """However many texts are passed, no more memory stays in use than the cache limit allows."""
    find_reference_lines.cache_clear()
    text = TEXTS["words"](2_000)
    fitting_count = DEFAULT_CACHE_BYTES // (estimate_line_memory(find_reference_lines.__wrapped__(text)) + len(text))
    # Lines are not tracked by the garbage collector, so their memory is measured and not their number.
    tracemalloc.start()
    for seed in range(fitting_count + fitting_count // 2):
        find_reference_lines(TEXTS["words"](2_000, 1_000 + seed))
    gc.collect()
    bytes_in_use = tracemalloc.get_traced_memory()[0]
    find_reference_lines.cache_clear()
    gc.collect()
    freed_bytes = bytes_in_use - tracemalloc.get_traced_memory()[0]
    bytes_left = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert DEFAULT_CACHE_BYTES / 4 < freed_bytes < 1.5 * DEFAULT_CACHE_BYTES
    assert bytes_left < DEFAULT_CACHE_BYTES / 4
