"""The state of a branch opened from its newest compaction, exact in everything that a request needs.

Beside each compaction the store keeps a *checkpoint*: the state just before it (setup, calibration, counts, edits
on the kept tail), without the messages. From the checkpoint, the kept messages and the entries since then, the fold
makes the same state as from the root. A checkpoint is derived: if it is missing, damaged or of another version, the
branch is read from the root, which only takes longer.
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

FOLD_VERSION = 19
"""Version of the fold. Checkpoints of other versions are ignored: raise it when ``state/fold`` computes something
anew.
"""

_DERIVED_FIELDS = {
    "view.first_kept",
    "view.compaction",
    "view.edits",
    "view.active_decisions",
    "view.revoked_decisions",
    "view.normalized_prefix",
    "history.first_index_by_call_id",
}
"""Fields of a state that are rebuilt from messages, compaction or decisions; so are all sequences.

Undone decisions are left out: a branch on which one is restored is read from the root.
"""
_EMPTY_FIELDS = flatten_state(ConversationState())
CHECKPOINT_FIELDS = tuple(
    name
    for name, value in _EMPTY_FIELDS.items()
    if name not in _DERIVED_FIELDS and not isinstance(value, PersistentSequence)
)
"""The plain fields of a state, under the names of ``flatten_state``."""


def _list_field_types() -> Iterator[tuple[str, Any]]:
    """Yield name (in a checkpoint) and type of each plain field."""
    state_types = get_type_hints(ConversationState)
    for name in CHECKPOINT_FIELDS:
        group, _, inner_name = name.rpartition(".")
        if group:
            field_type = get_type_hints(state_types[group])[inner_name]
        else:
            field_type = state_types[name]
        yield name.replace(".", "_"), field_type


StateFields: Any = msgspec.defstruct("State", [*_list_field_types()], frozen=True)
"""The plain fields of a state. A field that is added or removed makes older checkpoints unreadable, as it should."""


def collect_checkpoint_fields(state: ConversationState) -> Any:
    """Return the plain fields of ``state`` as ``StateFields``."""
    flat = flatten_state(state)
    return StateFields(*(flat[name] for name in CHECKPOINT_FIELDS))


def restore_checkpoint_fields(state: ConversationState, fields: Any) -> ConversationState:
    """Return ``state`` with the plain fields that ``collect_checkpoint_fields`` returned."""
    return replace_flat_fields(state, {name: getattr(fields, name.replace(".", "_")) for name in CHECKPOINT_FIELDS})


# The fields have better names now than in the first version. Databases store the first names, which must stay readable.
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
    """The state before a compaction that keeps the messages from index ``first_kept`` on.

    ``pinned_ids`` and ``pinned_digests`` are those of the pinned entries; ``hidden_tokens`` is the sum over all
    messages before ``first_kept``.
    """

    fold_version: int
    first_kept: int
    pinned_ids: tuple[str, ...]
    pinned_digests: tuple[bytes, ...]
    hidden_tokens: int
    digests_before: tuple[bytes, ...]
    """For each kept message, the digest of everything before it when it was added: thinking is bound to that."""
    active_edits: tuple[tuple[str, tuple[Edit, ...]], ...]
    """Edits in force on the kept messages, by the id of the entry that decided them."""
    state_fields: bytes
    digest: bytes = b""
    """Digest of the other fields: a bit that flipped on disk must not change what the model is shown."""


class GappedSequence(PersistentSequence[T]):
    """A sequence with a ``gap`` of items that are only in the log: they count, and access to one raises
    ``LookupError``.
    """

    __slots__ = ("gap",)

    def __init__(self, head: Sequence[T], gap: int, tail: Iterable[T]) -> None:
        super().__init__([*head, *tail])
        self.gap = range(len(head), len(head) + gap)

    def add(self, *new: T) -> GappedSequence[T]:
        """Return the sequence with ``new`` items at its end; this one stays unchanged."""
        longer = PersistentSequence.add(self, *new)
        # Shares the items of ``longer``, which shares those of this one: an append must not copy the history.
        gapped: GappedSequence[T] = GappedSequence.__new__(GappedSequence)
        gapped._items = longer._items  # noqa: SLF001 -- fields of this class's own base
        gapped._stop = longer._stop  # noqa: SLF001
        gapped._sums = longer._sums  # noqa: SLF001
        gapped.gap = self.gap
        return gapped

    def slice(self, start: int = 0, stop: int | None = None) -> list[T]:
        """Return the items from ``start`` to ``stop``; raises ``LookupError`` for items in the gap."""
        end = len(self) if stop is None else min(stop, len(self))
        if start >= end:
            return []
        overlaps_gap = start < self.gap.stop and end > self.gap.start
        if self.gap and overlaps_gap:
            self._raise_gap_error()
        # Items after the gap are stored as if there were none.
        gap_length = len(self.gap) if start >= self.gap.stop else 0
        return super().slice(start - gap_length, end - gap_length)

    def sum_from(self, measure: Callable[[T], int], start: int = 0) -> int:
        """Return the sum of ``measure`` over the items from ``start`` on.

        Raises ``LookupError`` if one of them is in the gap.
        """
        if self.gap and start < self.gap.stop:
            self._raise_gap_error()
        return super().sum_from(measure, start - len(self.gap))

    def has_same_start(self, other: Sequence[T], count: int) -> bool:
        """Return whether the first ``count`` items equal those of ``other``; raises ``LookupError`` for items in the
        gap.
        """
        return self.slice(0, count) == list(other[:count])

    def __len__(self) -> int:
        return self._stop + len(self.gap)

    def __iter__(self) -> Iterator[T]:
        return iter(self.slice())

    def __getitem__(self, index: int) -> T:
        position = index if index >= 0 else len(self) + index
        if position in self.gap:
            self._raise_gap_error()
        if position >= self.gap.stop:
            position -= len(self.gap)
        return super().__getitem__(position)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GappedSequence) or self.gap != other.gap:
            return False
        # The base's ``slice``, because that of this class refuses to cross the gap.
        return super().slice() == PersistentSequence.slice(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"GappedSequence({len(self)} items, {self.gap} in the log)"

    def _raise_gap_error(self) -> None:
        gap = self.gap
        msg = f"messages {gap.start} to {gap.stop - 1} are only in the log: open the whole path to read them"
        raise LookupError(msg)


def select_message_entries(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries that are messages in the history of their branch."""
    message_entries: list[Entry] = []
    for entry in entries:
        if isinstance(entry.body, MessageEntry | BranchSummaryEntry):
            message_entries.append(entry)
    return message_entries


def encode_checkpoint(state: ConversationState, pinned_ids: Iterable[str], compaction: CompactionEntry) -> bytes | None:
    """Return the checkpoint of ``state``, to which ``compaction`` is applied next.

    Returns None if the compaction keeps messages that do not exist, or fewer than are pinned. Raises ``LookupError`` if
    ``state`` was opened without messages that the compaction keeps.
    """
    first_kept = compaction.first_kept
    history = state.history
    if not state.view.pinned_count <= first_kept <= len(history.sized_messages):
        return None
    history.sized_messages.slice(first_kept)  # raises for messages that are only in the log
    active_edits = []
    # A checkpoint is read together with the kept messages alone, so the edits of hidden ones are left out.
    for entry_id, decision in state.view.active_decisions:
        edits = tuple(edit for edit in decision.edits if edit.span.start >= first_kept)
        if edits:
            active_edits.append((entry_id, edits))
    checkpoint = Checkpoint(
        fold_version=FOLD_VERSION,
        first_kept=first_kept,
        pinned_ids=tuple(pinned_ids),
        pinned_digests=tuple(history.projection_digests.slice(0, state.view.pinned_count)),
        hidden_tokens=history.cumulative_tokens[first_kept - 1] if first_kept else 0,
        digests_before=tuple(history.digests_before.slice(first_kept)),
        active_edits=tuple(active_edits),
        state_fields=pack_value(collect_checkpoint_fields(state)),
    )
    return pack_value(replace(checkpoint, digest=_hash_checkpoint(checkpoint)))


def decode_checkpoint(data: bytes | None) -> Checkpoint | None:
    """Return the checkpoint in ``data``, or None if it is missing, damaged or of another version."""
    if data is None:
        return None
    try:
        checkpoint = unpack_value(data, Checkpoint)
        unpack_value(checkpoint.state_fields, StateFields)
    except (ValueError, TypeError):
        return None
    if checkpoint.fold_version != FOLD_VERSION or checkpoint.digest != _hash_checkpoint(checkpoint):
        return None
    return checkpoint


def _hash_checkpoint(checkpoint: Checkpoint) -> bytes:
    return blake2b(pack_value(replace(checkpoint, digest=b"")), digest_size=16).digest()


def resume_state(active: ActiveEntries) -> ConversationState:
    """Return the state of ``active``: every number that a request needs equals that of the whole path."""
    checkpoint = decode_checkpoint(active.checkpoint)
    if checkpoint is None:
        return ConversationState.from_entries(active.later_entries)
    state = ConversationState.from_entries(active.head)
    tail_messages = [_get_sized_message(entry) for entry in active.tail]
    state = _attach_kept_messages(state, checkpoint, tail_messages)
    state_fields = unpack_value(checkpoint.state_fields, StateFields)
    state = restore_checkpoint_fields(state, state_fields)
    decisions: list[tuple[str, DecisionEntry]] = []
    edits: list[Edit] = []
    for entry_id, decided_edits in checkpoint.active_edits:
        decisions.append((entry_id, DecisionEntry(decided_edits)))
        edits += decided_edits
    view = replace(
        state.view,
        first_kept=checkpoint.first_kept,
        edits=EditMap(edits),
        active_decisions=tuple(decisions),
    )
    state = replace(state, view=view)
    # The compaction itself is the first of these; it is applied as it was when it was new.
    for entry in active.later_entries:
        state = apply_entry(state, entry)
    return state


def _attach_kept_messages(
    state: ConversationState, checkpoint: Checkpoint, tail: Sequence[SizedMessage]
) -> ConversationState:
    """Return ``state``, which holds the pinned messages, with the kept messages ``tail`` attached after a gap.

    The gap stands for the hidden messages between the two. Digests of the projection are blank after the pinned
    messages; the compaction that is applied next computes them.
    """
    history = state.history
    gap_length = checkpoint.first_kept - state.view.pinned_count
    messages = [sized_message.message for sized_message in tail]
    tail_sums = []
    total = checkpoint.hidden_tokens
    for sized_message in tail:
        total += sized_message.tokens
        tail_sums.append(total)
    first_index_by_call_id: dict[str, int] = {}
    for index, message in enumerate(messages, checkpoint.first_kept):
        if message.role == "assistant":
            for call in message.calls:
                first_index_by_call_id.setdefault(call.id, index)
    # Only the last sum before the tail is known. For the others it stands as an upper bound: the one reader that can
    # come upon them (``measure_new_content``, about a request whose messages are all hidden by now) then returns 0
    # instead of a negative number, and its callers treat these alike. tests/store/tree/test_active.py compares the
    # state with the fold from the root.
    gap_sums = [checkpoint.hidden_tokens] * gap_length
    gap_digests = [b""] * gap_length
    tail_digests = [b""] * len(tail)
    return replace(
        state,
        history=replace(
            history,
            sized_messages=GappedSequence(history.sized_messages.slice(), gap_length, tail),
            messages=GappedSequence(history.messages.slice(), gap_length, messages),
            cumulative_tokens=PersistentSequence([*history.cumulative_tokens.slice(), *gap_sums, *tail_sums]),
            projection_digests=PersistentSequence([*checkpoint.pinned_digests, *gap_digests, *tail_digests]),
            digests_before=PersistentSequence(
                [*history.digests_before.slice(), *gap_digests, *checkpoint.digests_before]
            ),
            first_index_by_call_id=first_index_by_call_id,
        ),
    )


def _get_sized_message(entry: Entry) -> SizedMessage:
    if isinstance(entry.body, MessageEntry | BranchSummaryEntry):
        return entry.body.sized_message
    msg = f"entry {entry.id} is not a message"
    raise TypeError(msg)
