"""The edits in force, by the slot they start at: an immutable mapping whose additions cost what is new."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar, overload

from holdfast.state.edits import Edit
from holdfast.state.persistent_sequence import PersistentSequence

T = TypeVar("T")


class EditMap(Mapping[int, tuple[Edit, ...]]):
    """Edits in the order in which they were decided; those of a slot are got by its index.

    As a ``PersistentSequence`` it shares its storage with the mappings that it grew from, and a fork makes its own.
    What others added later has a number that is not its own.
    """

    __slots__ = ("_edits", "_edits_by_index", "_sorted_indexes")

    def __init__(self, edits: Iterable[Edit] = ()) -> None:
        self._edits: PersistentSequence[Edit] = PersistentSequence(edits)
        self._edits_by_index: dict[int, dict[int, Edit]] = {}
        self._sorted_indexes: list[int] = []
        """The slots of ``_edits_by_index``, sorted: what is behind a slot is found without a look at all before it."""
        _index_edits(self._edits_by_index, self._sorted_indexes, self._edits, 0)

    def add(self, new: Iterable[Edit]) -> EditMap:
        """Return the mapping with ``new`` edits in force too; this one is unchanged."""
        all_edits = self._edits.add(*new)
        if not self._edits.is_storage_of(all_edits):
            return EditMap(all_edits)
        mapping: EditMap = EditMap.__new__(EditMap)
        mapping._edits, mapping._edits_by_index, mapping._sorted_indexes = (
            all_edits,
            self._edits_by_index,
            self._sorted_indexes,
        )
        _index_edits(
            mapping._edits_by_index, mapping._sorted_indexes, all_edits.slice(len(self._edits)), len(self._edits)
        )
        return mapping

    @overload
    def get(self, key: int, /) -> tuple[Edit, ...] | None: ...

    @overload
    def get(self, key: int, /, default: tuple[Edit, ...] | T) -> tuple[Edit, ...] | T: ...

    def get(self, key: int, /, default: Any = None) -> Any:
        """Return the edits that start at slot ``key``; ``default`` where there are none."""
        at = self._edits_by_index.get(key)
        return default if at is None else self._filter_own(at) or default

    def iter_from(self, start: int) -> Iterator[tuple[int, tuple[Edit, ...]]]:
        """Yield the slots from ``start`` on that edits start at, in order, with these edits.

        This costs what is found. A walk over all of the mapping costs every edit of the session, also those that a
        compaction hid long ago.
        """
        last = -1
        for index in self._sorted_indexes[bisect_left(self._sorted_indexes, start) :]:
            if index != last and (
                own := self._filter_own(self._edits_by_index[index])
            ):  # two threads may have put the same slot there
                yield index, own
            last = index

    def __getitem__(self, index: int) -> tuple[Edit, ...]:
        own = self._filter_own(self._edits_by_index.get(index, {}))
        if not own:
            raise KeyError(index)
        return own

    def __contains__(self, index: object) -> bool:
        at = self._edits_by_index.get(index)  # type: ignore[call-overload]
        return at is not None and bool(self._filter_own(at))

    def __iter__(self) -> Iterator[int]:
        return iter([index for index, at in self._edits_by_index.copy().items() if self._filter_own(at)])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return len(self._edits) > 0

    def __repr__(self) -> str:
        return f"EditMap({self._edits.slice()!r})"

    def _filter_own(self, at: Mapping[int, Edit]) -> tuple[Edit, ...]:
        """Return those of ``at`` that are this mapping's, in their order."""
        stop = len(self._edits)
        return tuple([edit for number, edit in [*at.items()] if number < stop])


def _index_edits(at: dict[int, dict[int, Edit]], order: list[int], edits: Iterable[Edit], start: int) -> None:
    """Put ``edits``, numbered from ``start``, where their slots find them; to put them there twice is nothing."""
    for number, edit in enumerate(edits, start):
        slot = edit.span.start
        at.setdefault(slot, {})[number] = edit
        place = bisect_left(order, slot)
        if order[place : place + 1] != [slot]:
            insort(order, slot)
