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

from holdfast.messages.sized_message import SizedMessage
from holdfast.state.codec.packing import pack_value, unpack_value
from holdfast.state.conversation_state import ConversationState, flatten_state, replace_flat_fields
from holdfast.state.edit_map import EditMap
from holdfast.state.edits import Edit
from holdfast.state.entries import BranchSummaryEntry, CompactionEntry, DecisionEntry, Entry, MessageEntry
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.persistent_sequence import PersistentSequence
from holdfast.store.base import ActiveEntries

T = TypeVar("T")

FOLD_VERSION = 18
"""Version of the fold. A checkpoint of another version is not used; raise it when ``state/fold`` counts anew."""

_DERIVED_FIELDS = {
    "view.first_kept",
    "view.compaction",
    "view.edits",
    "view.active_decisions",
    "view.normalized_prefix",
    "history.first_index_by_call_id",
}
"""Fields of a state that are made from the messages, the compaction or the decisions; sequences are too."""
_EMPTY_FIELDS = flatten_state(ConversationState())
CHECKPOINT_FIELDS = tuple(
    name
    for name, value in _EMPTY_FIELDS.items()
    if name not in _DERIVED_FIELDS and not isinstance(value, PersistentSequence)
)
"""The plain fields of a state, named as ``flatten_state`` names them."""


def _list_field_types() -> Iterator[tuple[str, Any]]:
    """Yield the name in a checkpoint and the type of each plain field."""
    state_types = get_type_hints(ConversationState)
    for name in CHECKPOINT_FIELDS:
        group, _, inner = name.rpartition(".")
        yield name.replace(".", "_"), get_type_hints(state_types[group])[inner] if group else state_types[name]


StateFields: Any = msgspec.defstruct("State", [*_list_field_types()], frozen=True)
"""The plain fields of a state; a field that is new or gone makes older checkpoints unreadable, which is right."""


def collect_checkpoint_fields(state: ConversationState) -> Any:
    """Return the ``StateFields`` of ``state``."""
    flat = flatten_state(state)
    return StateFields(*(flat[name] for name in CHECKPOINT_FIELDS))


def restore_checkpoint_fields(state: ConversationState, fields: Any) -> ConversationState:
    """Return ``state`` with ``fields``, which ``collect_checkpoint_fields`` made."""
    return replace_flat_fields(state, {name: getattr(fields, name.replace(".", "_")) for name in CHECKPOINT_FIELDS})


class Checkpoint(
    Struct,
    frozen=True,
    rename={
        "fold_version": "fold",
        "first_kept": "keep",
        "pinned_ids": "head",
        "pinned_digests": "marks",
        "hidden_tokens": "total",
        "digests_before": "born",
        "active_edits": "law",
        "state_fields": "state",
    },
):
    """The fold before a compaction that keeps from slot ``first_kept`` on.

    ``pinned_ids`` names the pinned entries and ``pinned_digests`` holds their digests; ``hidden_tokens`` sums the slots
    before ``first_kept``.
    """

    fold_version: int
    first_kept: int
    pinned_ids: tuple[str, ...]
    pinned_digests: tuple[bytes, ...]
    hidden_tokens: int
    digests_before: tuple[bytes, ...]
    """What stood before each kept slot when it was said: thinking is bound to it."""
    active_edits: tuple[tuple[str, tuple[Edit, ...]], ...]
    """Edits in force on the kept slots, by the entry that decided them."""
    state_fields: bytes
    digest: bytes = b""
    """Of all the others: a bit that a disk turned must not show the model something else."""


class GappedSequence(PersistentSequence[T]):
    """A sequence whose items ``gap`` are in the log only: they count, and asking for one is a ``LookupError``."""

    __slots__ = ("gap",)

    def __init__(self, head: Sequence[T], gap: int, tail: Iterable[T]) -> None:
        super().__init__([*head, *tail])
        self.gap = range(len(head), len(head) + gap)

    def add(self, *new: T) -> GappedSequence[T]:
        """Return the sequence with ``new`` items at its end; this one is unchanged."""
        longer = PersistentSequence.add(self, *new)
        wide: GappedSequence[T] = GappedSequence.__new__(GappedSequence)
        wide._items, wide._stop, wide._sums, wide.gap = longer._items, longer._stop, longer._sums, self.gap  # noqa: SLF001
        return wide

    def slice(self, start: int = 0, stop: int | None = None) -> list[T]:
        """Return the items from ``start`` to ``stop``; none of them may lie in the gap."""
        end = len(self) if stop is None else min(stop, len(self))
        if start >= end:
            return []
        if self.gap and start < self.gap.stop and end > self.gap.start:
            self._raise_gap_error()
        gap_length = len(self.gap) if start >= self.gap.stop else 0
        return super().slice(start - gap_length, end - gap_length)

    def sum_from(self, measure: Callable[[T], int], start: int = 0) -> int:
        """Return the sum of ``measure`` over the items from ``start`` on; none of them may lie in the gap."""
        if self.gap and start < self.gap.stop:
            self._raise_gap_error()
        return super().sum_from(measure, start - len(self.gap))

    def has_same_start(self, other: Sequence[T], count: int) -> bool:
        """Return whether the first ``count`` items are ``other``'s; they must be here."""
        return self.slice(0, count) == list(other[:count])

    def __len__(self) -> int:
        return self._stop + len(self.gap)

    def __iter__(self) -> Iterator[T]:
        return iter(self.slice())

    def __getitem__(self, index: int) -> T:
        place = index if index >= 0 else len(self) + index
        if place in self.gap:
            self._raise_gap_error()
        return super().__getitem__(place - len(self.gap) if place >= self.gap.stop else place)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, GappedSequence)
            and self.gap == other.gap
            and super().slice() == PersistentSequence.slice(other)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"GappedSequence({len(self)} items, {self.gap} in the log)"

    def _raise_gap_error(self) -> None:
        gap = self.gap
        msg = f"slots {gap.start} to {gap.stop - 1} gave way to a compaction: they are in the log, open the whole path"
        raise LookupError(msg)


def select_message_entries(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries that add a slot to their branch."""
    return [entry for entry in entries if isinstance(entry.body, MessageEntry | BranchSummaryEntry)]


def encode_checkpoint(branch: ConversationState, head: Iterable[str], compaction: CompactionEntry) -> bytes | None:
    """Return the checkpoint of ``branch``, where ``compaction`` comes next; nothing if that keeps what is not there.

    ``head`` are the ids of the pinned entries. Raises ``LookupError`` if ``branch`` lacks slots that are kept.
    """
    keep = compaction.first_kept
    if not branch.view.pinned_count <= keep <= len(branch.history.sized_messages):
        return None
    branch.history.sized_messages.slice(keep)
    law = (
        (id_, tuple(edit for edit in body.edits if edit.span.start >= keep))
        for id_, body in branch.view.active_decisions
    )
    state = pack_value(collect_checkpoint_fields(branch))
    total = branch.history.cumulative_tokens[keep - 1] if keep else 0
    marks = tuple(branch.history.projection_digests.slice(0, branch.view.pinned_count))
    born = tuple(branch.history.digests_before.slice(keep))
    new_checkpoint = Checkpoint(
        FOLD_VERSION, keep, tuple(head), marks, total, born, tuple(law_item for law_item in law if law_item[1]), state
    )
    return pack_value(replace(new_checkpoint, digest=_hash_checkpoint(new_checkpoint)))


def decode_checkpoint(data: bytes | None) -> Checkpoint | None:
    """Return the checkpoint that ``data`` holds, or nothing if it is damaged or not of this version."""
    if data is None:
        return None
    try:
        point = unpack_value(data, Checkpoint)
        unpack_value(point.state_fields, StateFields)
    except (ValueError, TypeError):
        return None
    return point if point.fold_version == FOLD_VERSION and point.digest == _hash_checkpoint(point) else None


def _hash_checkpoint(point: Checkpoint) -> bytes:
    return blake2b(pack_value(replace(point, digest=b"")), digest_size=16).digest()


def resume_state(active: ActiveEntries) -> ConversationState:
    """Return the branch of ``active``: every number a request needs is the one that the whole path would give."""
    point = decode_checkpoint(active.checkpoint)
    if point is None:
        return ConversationState.from_entries(active.later_entries)
    branch = ConversationState.from_entries(active.head)
    branch = _with_gap(branch, point, [_get_sized_message(entry) for entry in active.tail])
    state = unpack_value(point.state_fields, StateFields)
    branch = restore_checkpoint_fields(branch, state)
    branch = replace(
        branch,
        view=replace(
            branch.view,
            first_kept=point.first_kept,
            edits=EditMap(edit for _, law_edits in point.active_edits for edit in law_edits),
            active_decisions=tuple((id_, DecisionEntry(edits)) for id_, edits in point.active_edits),
        ),
    )
    for entry in active.later_entries:
        branch = apply_entry(branch, entry)
    return branch


def _with_gap(state: ConversationState, point: Checkpoint, tail: Sequence[SizedMessage]) -> ConversationState:
    """Return ``state`` with a gap up to the first kept slot and ``tail`` behind; its digests are made later."""
    gap_length = point.first_kept - state.view.pinned_count
    sums = [point.hidden_tokens]
    for sized_message in tail:
        sums.append(sums[-1] + sized_message.tokens)
    blank = [b""] * (gap_length + len(tail))
    messages = [sized_message.message for sized_message in tail]
    assistant_messages = [
        (point.first_kept + index, message) for index, message in enumerate(messages) if message.role == "assistant"
    ]
    callers = {call.id: index for index, message in reversed(assistant_messages) for call in message.calls}
    return replace(
        state,
        history=replace(
            state.history,
            sized_messages=GappedSequence(state.history.sized_messages.slice(), gap_length, tail),
            messages=GappedSequence(state.history.messages.slice(), gap_length, messages),
            cumulative_tokens=PersistentSequence(
                [*state.history.cumulative_tokens.slice(), *[point.hidden_tokens] * gap_length, *sums[1:]]
            ),
            projection_digests=PersistentSequence([*point.pinned_digests, *blank]),
            digests_before=PersistentSequence(
                [*state.history.digests_before.slice(), *blank[:gap_length], *point.digests_before]
            ),
            first_index_by_call_id=callers,
        ),
    )


def _get_sized_message(entry: Entry) -> SizedMessage:
    if isinstance(entry.body, MessageEntry | BranchSummaryEntry):
        return entry.body.sized_message
    msg = f"entry {entry.id} is no message"
    raise TypeError(msg)
