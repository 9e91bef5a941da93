"""The edits in force, by the slot they start at: an immutable mapping whose additions cost what is new."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar, overload

from holdfast.model.edits import Edit
from holdfast.model.sequence import Seq

T = TypeVar("T")


class Edits(Mapping[int, tuple[Edit, ...]]):
    """Edits in the order in which they were decided; those of a slot are got by its index.

    As a ``Seq`` it shares its storage with the mappings that it grew from, and a fork makes its own. What others added
    later has a number that is not its own.
    """

    __slots__ = ("_at", "_every")

    def __init__(self, edits: Iterable[Edit] = ()) -> None:
        self._every: Seq[Edit] = Seq(edits)
        self._at: dict[int, dict[int, Edit]] = {}
        _placed(self._at, self._every, 0)

    def add(self, new: Iterable[Edit]) -> Edits:
        """Return the mapping with ``new`` edits in force too; this one is unchanged."""
        grown = self._every.add(*new)
        if not self._every.grew_into(grown):
            return Edits(grown)
        made: Edits = Edits.__new__(Edits)
        made._every, made._at = grown, self._at
        _placed(made._at, grown.slice(len(self._every)), len(self._every))
        return made

    @overload
    def get(self, key: int, /) -> tuple[Edit, ...] | None: ...

    @overload
    def get(self, key: int, /, default: tuple[Edit, ...] | T) -> tuple[Edit, ...] | T: ...

    def get(self, key: int, /, default: Any = None) -> Any:
        """Return the edits that start at slot ``key``; ``default`` where there are none."""
        at = self._at.get(key)
        return default if at is None else self._own(at) or default

    def __getitem__(self, index: int) -> tuple[Edit, ...]:
        own = self._own(self._at.get(index, {}))
        if not own:
            raise KeyError(index)
        return own

    def __contains__(self, index: object) -> bool:
        at = self._at.get(index)  # type: ignore[call-overload]
        return at is not None and bool(self._own(at))

    def __iter__(self) -> Iterator[int]:
        return iter([index for index, at in self._at.copy().items() if self._own(at)])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return len(self._every) > 0

    def __repr__(self) -> str:
        return f"Edits({self._every.slice()!r})"

    def _own(self, at: Mapping[int, Edit]) -> tuple[Edit, ...]:
        """Return those of ``at`` that are this mapping's, in their order."""
        stop = len(self._every)
        return tuple([edit for number, edit in [*at.items()] if number < stop])


def _placed(at: dict[int, dict[int, Edit]], edits: Iterable[Edit], start: int) -> None:
    """Put ``edits``, numbered from ``start``, where their slots find them; to put them there twice is nothing."""
    for number, edit in enumerate(edits, start):
        at.setdefault(edit.span.start, {})[number] = edit
