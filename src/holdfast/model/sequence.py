"""An immutable sequence whose appends cost what is new."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Seq(Generic[T]):
    """A sequence that shares its storage with the sequences it grew from.

    ``add`` appends in place when this is the newest version and copies when another version already grew from it
    (a fork), so a chain of appends is linear while every version stays what it was.
    """

    __slots__ = ("_items", "_stop")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items: list[T] = list(items)
        self._stop = len(self._items)

    def add(self, item: T) -> Seq[T]:
        """Return the sequence with ``item`` at its end; this one is unchanged."""
        items = self._items
        if len(items) == self._stop:
            items.append(item)
        if items[self._stop] is not item:  # somebody else grew from here first
            items = [*items[: self._stop], item]
        grown: Seq[T] = Seq.__new__(Seq)
        grown._items = items
        grown._stop = self._stop + 1
        return grown

    def slice(self, start: int = 0, stop: int | None = None) -> list[T]:
        """Return the items from ``start`` to ``stop`` as a new list."""
        end = self._stop if stop is None else min(stop, self._stop)
        return self._items[start:end]

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
