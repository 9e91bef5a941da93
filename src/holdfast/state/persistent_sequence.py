"""An immutable sequence that shares storage between versions, so that appending costs what is new.

pyrsistent's vector appends faster (0.1 µs, not 0.7). But the commonest operations of a request are to compare a whole
conversation with a known one and to sum up sizes. Measured on 10,000 items, the comparison takes four times as long
there (0.4 ms, not 0.1), and it keeps no sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from operator import is_
from typing import Generic, TypeVar

T = TypeVar("T")


def count_shared_prefix_items(first: Sequence[object], second: Sequence[object]) -> int:
    """Return how many items both sequences begin with in common.

    That is all of the shorter one if they are equal so far, else the number of leading items that are identical
    objects.
    """
    length = min(len(first), len(second))
    first_items, second_items = _take_first(first, length), _take_first(second, length)
    if type(first_items) is not type(second_items):
        first_items, second_items = [*first_items], [*second_items]
    if first_items == second_items:  # fast: identical objects are not compared by value
        return length
    return [*map(is_, first, second), False].index(False)


def _take_first(items: Sequence[object], count: int) -> Sequence[object]:
    """Return the first ``count`` of ``items``; without copying if that is all of them."""
    return items if len(items) == count else items[:count]


class PersistentSequence(Generic[T]):
    """A sequence that shares its storage with the versions it grew from.

    ``add`` appends in place if this is the newest version, and copies if another version already grew from it (a fork).
    So a chain of appends is linear, while every version stays what it was. The sums of ``sum_from`` are shared in the
    same way. Threads may add to one version at the same time: the second one forks.
    """

    __slots__ = ("_items", "_stop", "_sums")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items: list[T] = list(items)
        self._stop = len(self._items)
        self._sums: dict[Callable[[T], int], list[int]] = {}

    def add(self, *new: T) -> PersistentSequence[T]:
        """Return the sequence with ``new`` items at its end; this one is unchanged."""
        items, sums, stop = self._items, self._sums, self._stop + len(new)
        # Items after this version's end were appended by a version that grew from it.
        existing = items[self._stop : stop]
        common_count = count_shared_prefix_items(existing, new) if existing else 0
        if common_count == len(existing):  # nobody grew from here, or by the same items
            items += new[common_count:]
            # Another thread may have appended between the check and here; then what is there must be compared.
            if len(items) == stop or items[self._stop : stop] == [*new]:
                return PersistentSequence._from_storage(items, stop, sums)
        return PersistentSequence._from_storage([*items[: self._stop], *new], stop, {})

    def is_storage_of(self, descendant: PersistentSequence[T]) -> bool:
        """Return whether ``descendant`` shares this sequence's storage, that is, grew from it without a fork."""
        return self._items is descendant._items

    def has_same_start(self, items: Sequence[T], count: int) -> bool:
        """Return whether the first ``count`` items equal those of ``items``. Identical objects cost little."""
        if isinstance(items, list) and len(self._items) == count:
            try:
                # A list is less than or equal to any list that begins with it, and nothing is copied for this.
                return self._items <= items
            except TypeError:  # the first items that differ have no order
                return False
        return self._items[:count] == list(items[:count])

    def replace_from(self, start: int, items: Iterable[T]) -> PersistentSequence[T]:
        """Return the sequence with ``items`` in place of all from ``start`` on; sums up to there are kept."""
        new_items = self.slice(0, start)
        new_items += items
        # Copied at once: another thread may add a measure to the shared storage meanwhile.
        sums = {measure: sums[: start + 1] for measure, sums in self._sums.copy().items()}
        return PersistentSequence._from_storage(new_items, len(new_items), sums)

    @staticmethod
    def _from_storage(items: list[T], stop: int, sums: dict[Callable[[T], int], list[int]]) -> PersistentSequence[T]:
        """Return the sequence of the first ``stop`` items of ``items``, which it keeps without a copy."""
        sequence: PersistentSequence[T] = PersistentSequence.__new__(PersistentSequence)
        sequence._items, sequence._stop, sequence._sums = items, stop, sums
        return sequence

    def slice(self, start: int = 0, stop: int | None = None) -> list[T]:
        """Return the items from ``start`` to ``stop`` as a new list."""
        end = self._stop if stop is None else min(stop, self._stop)
        return self._items[start:end]

    def sum_from(self, measure: Callable[[T], int], start: int = 0) -> int:
        """Return the sum of ``measure`` over the items from ``start`` on. It is called once for each item, ever.

        ``measure`` is the key under which sums are kept: a module-level function, or a hashable callable that equals
        every other one that measures the same.
        """
        # Item n of the list is the sum of the first n items, so only items after the last known sum are measured.
        sums = self._sums.setdefault(measure, [0])
        sum_count = len(sums)
        if sum_count <= self._stop:
            new = accumulate(map(measure, self._items[sum_count - 1 : self._stop]), initial=sums[sum_count - 1])
            sums[sum_count - 1 : self._stop + 1] = new
        return sums[self._stop] - sums[min(start, self._stop)]

    def __len__(self) -> int:
        return self._stop

    def __iter__(self) -> Iterator[T]:
        return iter(self._items[: self._stop])

    def __getitem__(self, index: int) -> T:
        if not -self._stop <= index < self._stop:
            msg = f"index {index} out of range for a sequence of {self._stop}"
            raise IndexError(msg)
        # A negative index counts from this version's end; the shared storage may be longer.
        return self._items[index if index >= 0 else self._stop + index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PersistentSequence) and self.slice() == other.slice()

    def __repr__(self) -> str:
        return f"PersistentSequence({self.slice()!r})"
