"""A branch without the turns that gave way: opened from its newest compaction, exact in all a request needs.

Beside each compaction the store keeps a *checkpoint*: what the fold knew just before it (frame, calibration, counts,
edits on the kept tail), without the slots. From that, the kept slots and the entries since, the same fold makes the
same branch as from the root. Checkpoints are derived: one that is missing, damaged or of another version costs a walk
from the root, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, TypeVar, get_type_hints

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.messages.sized_message import Slot
from holdfast.state.branch.branch import Branch, extend
from holdfast.state.codec.packing import pack, unpack
from holdfast.state.edit_map import Edits
from holdfast.state.edits import Edit
from holdfast.state.entries import BranchSummary, Compaction, Decision, Entry, Said
from holdfast.state.sequence import Seq
from holdfast.store.base import Active

T = TypeVar("T")

FOLD = 16
"""Version of the fold. A checkpoint of another version is not used; raise it when ``branch/branch.py`` counts anew."""

_ELSEWHERE = {"keep", "compaction", "edits", "law", "callers", "settled"}
"""Fields of a branch that are made from the slots, the compaction or the law; sequences are too."""
_HINTS = get_type_hints(Branch)
CARRIED = tuple(
    name for name in Branch.__struct_fields__ if name not in _ELSEWHERE and not isinstance(getattr(Branch(), name), Seq)
)
State: Any = msgspec.defstruct("State", [(name, _HINTS[name]) for name in CARRIED], frozen=True)
"""The plain fields of a branch; a field that is new or gone makes older checkpoints unreadable, which is right."""


class Checkpoint(Struct, frozen=True):
    """The fold before a compaction that keeps from slot ``keep`` on.

    ``head`` names the pinned entries and ``marks`` holds their digests; ``total`` sums the slots before ``keep``.
    """

    fold: int
    keep: int
    head: tuple[str, ...]
    marks: tuple[bytes, ...]
    total: int
    born: tuple[bytes, ...]
    """What stood before each kept slot when it was said: thinking is bound to it."""
    law: tuple[tuple[str, tuple[Edit, ...]], ...]
    """Edits in force on the kept slots, by the entry that decided them."""
    state: bytes
    digest: bytes = b""
    """Of all the others: a bit that a disk turned must not show the model something else."""


class Gapped(Seq[T]):
    """A sequence whose items ``gap`` are in the log only: they count, and asking for one is a ``LookupError``."""

    __slots__ = ("gap",)

    def __init__(self, head: Sequence[T], gap: int, tail: Iterable[T]) -> None:
        super().__init__([*head, *tail])
        self.gap = range(len(head), len(head) + gap)

    def add(self, *new: T) -> Gapped[T]:
        """Return the sequence with ``new`` items at its end; this one is unchanged."""
        grown = Seq.add(self, *new)
        wide: Gapped[T] = Gapped.__new__(Gapped)
        wide._items, wide._stop, wide._sums, wide.gap = grown._items, grown._stop, grown._sums, self.gap  # noqa: SLF001
        return wide

    def slice(self, start: int = 0, stop: int | None = None) -> list[T]:
        """Return the items from ``start`` to ``stop``; none of them may lie in the gap."""
        end = len(self) if stop is None else min(stop, len(self))
        if start >= end:
            return []
        if self.gap and start < self.gap.stop and end > self.gap.start:
            self._refuse()
        gone = len(self.gap) if start >= self.gap.stop else 0
        return super().slice(start - gone, end - gone)

    def total(self, measure: Callable[[T], int], start: int = 0) -> int:
        """Return the sum of ``measure`` over the items from ``start`` on; none of them may lie in the gap."""
        if self.gap and start < self.gap.stop:
            self._refuse()
        return super().total(measure, start - len(self.gap))

    def same_as(self, other: Sequence[T], count: int) -> bool:
        """Return whether the first ``count`` items are ``other``'s; they must be here."""
        return self.slice(0, count) == list(other[:count])

    def __len__(self) -> int:
        return self._stop + len(self.gap)

    def __iter__(self) -> Iterator[T]:
        return iter(self.slice())

    def __getitem__(self, index: int) -> T:
        place = index if index >= 0 else len(self) + index
        if place in self.gap:
            self._refuse()
        return super().__getitem__(place - len(self.gap) if place >= self.gap.stop else place)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Gapped) and self.gap == other.gap and super().slice() == Seq.slice(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Gapped({len(self)} items, {self.gap} in the log)"

    def _refuse(self) -> None:
        gap = self.gap
        msg = f"slots {gap.start} to {gap.stop - 1} gave way to a compaction: they are in the log, open the whole path"
        raise LookupError(msg)


def slotted(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries that add a slot to their branch."""
    return [entry for entry in entries if isinstance(entry.body, Said | BranchSummary)]


def checkpoint(branch: Branch, head: Iterable[str], compaction: Compaction) -> bytes | None:
    """Return the checkpoint of ``branch``, where ``compaction`` comes next; nothing if that keeps what is not there.

    ``head`` are the ids of the pinned entries. Raises ``LookupError`` if ``branch`` lacks slots that are kept.
    """
    keep = compaction.keep
    if not branch.pinned <= keep <= len(branch.slots):
        return None
    branch.slots.slice(keep)
    law = ((id_, tuple(edit for edit in body.edits if edit.span.start >= keep)) for id_, body in branch.law)
    state = pack(State(*(getattr(branch, name) for name in CARRIED)))
    total = branch.sums[keep - 1] if keep else 0
    marks = tuple(branch.marks.slice(0, branch.pinned))
    born = tuple(branch.born.slice(keep))
    made = Checkpoint(FOLD, keep, tuple(head), marks, total, born, tuple(one for one in law if one[1]), state)
    return pack(replace(made, digest=_digest(made)))


def restored(saved: bytes | None) -> Checkpoint | None:
    """Return the checkpoint that ``saved`` holds, or nothing if it is damaged or not of this version."""
    if saved is None:
        return None
    try:
        point = unpack(saved, Checkpoint)
        unpack(point.state, State)
    except (ValueError, TypeError):
        return None
    return point if point.fold == FOLD and point.digest == _digest(point) else None


def _digest(point: Checkpoint) -> bytes:
    return blake2b(pack(replace(point, digest=b"")), digest_size=16).digest()


def resume(active: Active) -> Branch:
    """Return the branch of ``active``: every number a request needs is the one that the whole path would give."""
    point = restored(active.state)
    if point is None:
        return Branch.build(active.rest)
    branch = Branch.build(active.head)
    branch = _gapped(branch, point, [_slot(entry) for entry in active.tail])
    state = unpack(point.state, State)
    branch = replace(branch, **{name: getattr(state, name) for name in CARRIED}, keep=point.keep)
    branch = replace(
        branch,
        edits=Edits(edit for _, decided in point.law for edit in decided),
        law=tuple((id_, Decision(edits)) for id_, edits in point.law),
    )
    for entry in active.rest:
        branch = extend(branch, entry)
    return branch


def _gapped(branch: Branch, point: Checkpoint, tail: Sequence[Slot]) -> Branch:
    """Return ``branch`` with a gap up to the first kept slot and ``tail`` behind; its digests are made later."""
    gone = point.keep - branch.pinned
    sums = [point.total]
    for slot in tail:
        sums.append(sums[-1] + slot.size)
    blank = [b""] * (gone + len(tail))
    messages = [slot.message for slot in tail]
    said = [(point.keep + index, message) for index, message in enumerate(messages) if message.role == "assistant"]
    callers = {call.id: index for index, message in reversed(said) for call in message.calls}
    return replace(
        branch,
        slots=Gapped(branch.slots.slice(), gone, tail),
        messages=Gapped(branch.messages.slice(), gone, messages),
        sums=Seq([*branch.sums.slice(), *[point.total] * gone, *sums[1:]]),
        marks=Seq([*point.marks, *blank]),
        born=Seq([*branch.born.slice(), *blank[:gone], *point.born]),
        callers=callers,
    )


def _slot(entry: Entry) -> Slot:
    if isinstance(entry.body, Said | BranchSummary):
        return entry.body.slot
    msg = f"entry {entry.id} is no message"
    raise TypeError(msg)
