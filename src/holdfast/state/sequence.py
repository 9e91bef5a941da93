"""An immutable sequence whose appends cost what is new."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from operator import is_
from typing import Generic, TypeVar

T = TypeVar("T")


def common(one: Sequence[object], other: Sequence[object]) -> int:
    """Return how many items both begin with: all of the shorter where they are equal, else the very same objects."""
    most = min(len(one), len(other))
    mine, theirs = _beginning(one, most), _beginning(other, most)
    if type(mine) is not type(theirs):
        mine, theirs = [*mine], [*theirs]
    if mine == theirs:  # quick: the very same are not looked into
        return most
    return [*map(is_, one, other), False].index(False)


def _beginning(items: Sequence[object], count: int) -> Sequence[object]:
    """Return the first ``count`` of ``items``: themselves where they have no more, for to copy them takes time."""
    return items if len(items) == count else items[:count]


class Seq(Generic[T]):
    """A sequence that shares its storage with the sequences it grew from.

    ``add`` appends in place when this is the newest version and copies when another version already grew from it
    (a fork), so a chain of appends is linear while every version stays what it was. The sums of ``total`` are shared
    in the same way. Threads may add to one version at once: who comes second forks.
    """

    __slots__ = ("_items", "_stop", "_sums")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items: list[T] = list(items)
        self._stop = len(self._items)
        self._sums: dict[Callable[[T], int], list[int]] = {}

    def add(self, *new: T) -> Seq[T]:
        """Return the sequence with ``new`` items at its end; this one is unchanged."""
        items, sums, stop = self._items, self._sums, self._stop + len(new)
        there = items[self._stop : stop]
        same = common(there, new) if there else 0
        if same == len(there):
            items += new[same:]
            if len(items) == stop or items[self._stop : stop] == [*new]:
                return Seq._of(items, stop, sums)
        return Seq._of([*items[: self._stop], *new], stop, {})  # somebody else grew from here first

    def grew_into(self, other: Seq[T]) -> bool:
        """Return whether ``other`` shares this sequence's storage: it was grown from here, and nobody forked."""
        return self._items is other._items

    def same_as(self, other: Sequence[T], count: int) -> bool:
        """Return whether the first ``count`` items equal those of ``other``; the same object costs little."""
        if isinstance(other, list) and len(self._items) == count:
            try:
                return self._items <= other  # a list is no greater than one it is the beginning of; nothing is copied
            except TypeError:  # the first items that differ have no order
                return False
        return self._items[:count] == list(other[:count])

    def changed(self, start: int, items: Iterable[T]) -> Seq[T]:
        """Return the sequence with ``items`` in place of all from ``start`` on; what was measured before stays."""
        made = self.slice(0, start)
        made += items
        return Seq._of(made, len(made), {measure: sums[: start + 1] for measure, sums in self._sums.copy().items()})

    @staticmethod
    def _of(items: list[T], stop: int, sums: dict[Callable[[T], int], list[int]]) -> Seq[T]:
        """Return the sequence of the first ``stop`` items of a list that it keeps."""
        made: Seq[T] = Seq.__new__(Seq)
        made._items, made._stop, made._sums = items, stop, sums
        return made

    def slice(self, start: int = 0, stop: int | None = None) -> list[T]:
        """Return the items from ``start`` to ``stop`` as a new list."""
        end = self._stop if stop is None else min(stop, self._stop)
        return self._items[start:end]

    def total(self, measure: Callable[[T], int], start: int = 0) -> int:
        """Return the sum of ``measure`` over the items from ``start`` on; it is asked once for each item.

        ``measure`` is a constant function, or a value that is equal to others of its kind that measure alike.
        """
        sums = self._sums.setdefault(measure, [0])
        known = len(sums)
        if known <= self._stop:
            new = accumulate(map(measure, self._items[known - 1 : self._stop]), initial=sums[known - 1])
            sums[known - 1 : self._stop + 1] = new
        return sums[self._stop] - sums[min(start, self._stop)]

    def __len__(self) -> int:
        return self._stop

    def __iter__(self) -> Iterator[T]:
        return iter(self._items[: self._stop])

    def __getitem__(self, index: int) -> T:
        if not -self._stop <= index < self._stop:
            msg = f"index {index} out of range for a sequence of {self._stop}"
            raise IndexError(msg)
        return self._items[index if index >= 0 else self._stop + index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Seq) and self.slice() == other.slice()

    def __repr__(self) -> str:
        return f"Seq({self.slice()!r})"
