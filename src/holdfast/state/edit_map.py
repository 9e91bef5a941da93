"""The edits in force by the message they start at: an immutable mapping; adding to it costs what is added."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar, overload

from holdfast.state.edits import Edit
from holdfast.state.persistent_sequence import PersistentSequence

T = TypeVar("T")


class EditMap(Mapping[int, tuple[Edit, ...]]):
    """Edits in the order in which they were decided, looked up by the index of the message they start at.

    Like ``PersistentSequence`` it shares its storage with the mappings it grew from, and a fork copies. Each edit has a
    number; edits that a later version added to the shared storage have numbers beyond this version's end and are
    filtered out.
    """

    __slots__ = ("_edits", "_edits_by_index", "_sorted_indexes")

    def __init__(self, edits: Iterable[Edit] = ()) -> None:
        self._edits: PersistentSequence[Edit] = PersistentSequence(edits)
        self._edits_by_index: dict[int, dict[int, Edit]] = {}
        self._sorted_indexes: list[int] = []
        """The keys of ``_edits_by_index`` in order, so that ``iter_from`` finds its start by bisection."""
        _index_edits(self._edits_by_index, self._sorted_indexes, self._edits, 0)

    def add(self, new: Iterable[Edit]) -> EditMap:
        """Return the mapping with ``new`` edits in force too; this one is unchanged."""
        edits = self._edits.add(*new)
        if not self._edits.is_storage_of(edits):  # somebody else grew from here first
            return EditMap(edits)
        mapping: EditMap = EditMap.__new__(EditMap)
        mapping._edits = edits
        mapping._edits_by_index = self._edits_by_index
        mapping._sorted_indexes = self._sorted_indexes
        first_number = len(self._edits)
        _index_edits(mapping._edits_by_index, mapping._sorted_indexes, edits.slice(first_number), first_number)
        return mapping

    @overload
    def get(self, key: int, /) -> tuple[Edit, ...] | None: ...

    @overload
    def get(self, key: int, /, default: tuple[Edit, ...] | T) -> tuple[Edit, ...] | T: ...

    def get(self, key: int, /, default: Any = None) -> Any:
        """Return the edits that start at message ``key``, or ``default`` if no edit does."""
        numbered_edits = self._edits_by_index.get(key)
        if numbered_edits is None:
            return default
        return self._filter_own(numbered_edits) or default

    def iter_from(self, start: int) -> Iterator[tuple[int, tuple[Edit, ...]]]:
        """Yield, in order, each index from ``start`` on at which edits start, with these edits.

        The cost is proportional to the items yielded. Iterating over the whole mapping would also visit every edit that
        a compaction hid long ago.
        """
        last = -1
        for index in self._sorted_indexes[bisect_left(self._sorted_indexes, start) :]:
            if index == last:  # two threads may have inserted the same index
                continue
            last = index
            own_edits = self._filter_own(self._edits_by_index[index])
            if own_edits:
                yield index, own_edits

    def __getitem__(self, index: int) -> tuple[Edit, ...]:
        own_edits = self._filter_own(self._edits_by_index.get(index, {}))
        if not own_edits:
            raise KeyError(index)
        return own_edits

    def __contains__(self, index: object) -> bool:
        numbered_edits = self._edits_by_index.get(index)  # type: ignore[call-overload]
        return numbered_edits is not None and bool(self._filter_own(numbered_edits))

    def __iter__(self) -> Iterator[int]:
        # Both copies are taken at once: another thread may add to the shared storage meanwhile.
        numbered_edits_by_index = self._edits_by_index.copy()
        return iter([index for index, edits in numbered_edits_by_index.items() if self._filter_own(edits)])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        # Without this, Python would take the length, which looks at every edit.
        return len(self._edits) > 0

    def __repr__(self) -> str:
        return f"EditMap({self._edits.slice()!r})"

    def _filter_own(self, numbered_edits: Mapping[int, Edit]) -> tuple[Edit, ...]:
        """Return those of ``numbered_edits`` that belong to this version, in order."""
        stop = len(self._edits)
        edits: list[Edit] = []
        # Copied at once: another thread may add to the shared storage meanwhile.
        for number, edit in [*numbered_edits.items()]:
            if number < stop:
                edits.append(edit)
        return tuple(edits)


def _index_edits(
    edits_by_index: dict[int, dict[int, Edit]],
    sorted_indexes: list[int],
    edits: Iterable[Edit],
    first_number: int,
) -> None:
    """Add ``edits``, numbered from ``first_number``, to both indexes; adding the same edits twice has no effect."""
    for number, edit in enumerate(edits, first_number):
        index = edit.span.start
        edits_by_index.setdefault(index, {})[number] = edit
        place = bisect_left(sorted_indexes, index)
        if sorted_indexes[place : place + 1] != [index]:
            insort(sorted_indexes, index)
