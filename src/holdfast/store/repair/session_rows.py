"""Checks and repairs the rows of one session in order.

The digest of an entry proves its content and its parent. A row that fails the proof is moved into the table
``quarantine`` with the reason, and a stand-in with the same id takes its place: a message for a message, a note for
anything else. So its children stay where they are, and every index into the history stays right. An entry gets
another parent only if its digest names that one, or if its parent is gone without a trace.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from msgspec.structs import astuple, replace

from holdfast.messages.message import Message, Role
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.entries import Entry, EntryBody, MessageEntry, NoteEntry
from holdfast.store.repair.findings import DamageKind
from holdfast.store.sql.rows import (
    ROW_COLUMNS,
    EntryRow,
    MessageDecoders,
    compute_row_identity,
    encode_entry_row,
    try_decode_entry_body,
)
from holdfast.store.tree.placing import ENTRY_KINDS, MESSAGE_KINDS, ROOT_NODE, TreeNode, make_child_node

MAX_PARENT_DISTANCE = 1_000
"""Number of entries before one with a lost parent that are tried as its parent, by its digest.

Chosen by judgement: an entry is nearly always appended right after its parent. Each try costs a hash.
"""
NOTE_LOST = "lost"
"""``NoteEntry.reason`` of a stand-in, and the beginning of the id of one for a row of which nothing is left."""
STAND_IN_TEXT = (
    "[This message cannot be read back: its bytes in the store are damaged. `holdfast repair` put them aside.]"
)
"""Text that a stand-in for a message shows to the model."""
BYTES_CHANGED = "its bytes are not those that were stored"
ROW_GONE = "its row is gone"

QUARANTINE_TABLE = "quarantine"
"""Table that keeps damaged rows unchanged, each with the reason; created for the first one."""
_CONTENT_COLUMNS = ", ".join(ROW_COLUMNS)
_TREE_COLUMNS = "seq, parent, depth, base, id"
_SELECT_ROWS = (
    f"SELECT {_TREE_COLUMNS}, {_CONTENT_COLUMNS} FROM entries WHERE session = ? AND seq > ? ORDER BY seq LIMIT "  # noqa: S608
    "100"
)
_UPDATE_PLACE = "UPDATE entries SET parent = ?, depth = ?, base = ? WHERE seq = ?"
_UPDATE_CONTENT = f"UPDATE entries SET {', '.join(f'{name} = ?' for name in ROW_COLUMNS)} WHERE seq = ?"  # noqa: S608
_UPDATE_IDENTITY = "UPDATE entries SET identity = ? WHERE seq = ?"
_INSERT_ROW = (
    f"INSERT INTO entries (session, {_TREE_COLUMNS}, {_CONTENT_COLUMNS}) VALUES "  # noqa: S608
    f"({', '.join('?' * (6 + len(ROW_COLUMNS)))})"
)
CREATE_QUARANTINE = f"""
    CREATE TABLE IF NOT EXISTS {QUARANTINE_TABLE} (
        number INTEGER PRIMARY KEY, reason TEXT NOT NULL, session TEXT NOT NULL, {_TREE_COLUMNS}, {_CONTENT_COLUMNS}
    )"""
_COPY_TO_QUARANTINE = f"""
    INSERT INTO {QUARANTINE_TABLE} (reason, session, {_TREE_COLUMNS}, {_CONTENT_COLUMNS})
    SELECT ?, ?, {_TREE_COLUMNS}, {_CONTENT_COLUMNS} FROM entries WHERE seq = ?"""  # noqa: S608


class IntactEntry(NamedTuple):
    """An entry that is in place: its node, its id and its kind."""

    node: TreeNode
    id: str
    kind: str


class _StoredPlace(NamedTuple):
    """Parent, depth and base in the columns of a row."""

    parent: int | None
    depth: int
    base: int


class _NamedParent(NamedTuple):
    """The parent that a digest names; the entry is None for the root."""

    entry: IntactEntry | None


ReportCallback = Callable[[DamageKind, str, str, str], None]
"""Called with the kind of damage, the problem, the repair and the entry's id."""


class SessionRowRepairer:
    """Repairs the rows of session ``key``, which has the number ``number`` in the database."""

    def __init__(
        self,
        db: sqlite3.Connection,
        number: int,
        key: str,
        wire_decoders: MessageDecoders,
        report: ReportCallback,
        *,
        without_loss: bool = False,
    ) -> None:
        self._db = db
        self._number = number
        self._key = key
        self._decoders = wire_decoders
        self._report = report
        self._without_loss = without_loss
        """Whether rows stay as they are if repairing them would lose their content."""
        self.intact_entries: dict[int, IntactEntry] = {}
        """The entries that are in place, by ``seq``."""
        self._nameless: set[int] = set()
        """``seq`` of stand-ins for rows of which not even the id is left."""
        self.recounted_places = 0
        """Number of entries whose depth or base was wrong."""

    def repair_rows(self, tick: Callable[[], None]) -> None:
        """Check every row, in order of ``seq``, and repair it."""
        for seq, parent, depth, base, id_, *columns in self._iter_rows():
            self._repair_row(
                seq,
                _StoredPlace(parent, depth, base),
                id_,
                EntryRow(*columns),
            )
            tick()
        if self.recounted_places:
            problem = f"the places of {self.recounted_places:,} entries in their tree were wrong"
            self._report("index", problem, "counted anew", "")

    def _iter_rows(self) -> Iterator[Any]:
        """Yield the rows in batches, each read completely, because rows are changed in between."""
        last_seq = -(2**63)
        while rows := self._db.execute(_SELECT_ROWS, (self._number, last_seq)).fetchall():
            yield from rows
            last_seq = rows[-1][0]

    def _repair_row(self, seq: int, place: _StoredPlace, id_: str, row: EntryRow) -> None:
        """Check one row, and repair it with as little change as possible."""
        if place.parent is None:
            parent = None
        else:
            parent = self.intact_entries.get(place.parent)
        is_parent_lost = place.parent is not None and (parent is None or place.parent in self._nameless)
        # The common case first: a valid digest proves content and parent, and only the columns may be wrong.
        if not is_parent_lost and _has_valid_digest(row, parent):
            self._accept_row(seq, parent, id_, row.kind, place)
            self._restore_from_wire(seq, id_, row)
            return
        # The digest is valid under another parent: only the link was damaged.
        named_parent = self._find_named_parent(row)
        if named_parent is not None:
            problem = f"its parent was number {place.parent}"
            self._report("parent", problem, "it has the parent again that its digest names", id_)
            self._accept_row(seq, named_parent.entry, id_, row.kind, place)
        elif self._without_loss:
            self.intact_entries[seq] = IntactEntry(TreeNode(seq, place.depth, place.base), id_, row.kind)
        elif place.parent is not None and is_parent_lost and try_decode_entry_body(row, self._decoders) is not None:
            # A message is one deeper than its parent; any other entry has the depth of its parent.
            parent_depth = place.depth
            if row.kind in MESSAGE_KINDS:
                parent_depth -= 1
            self._reattach_orphan(seq, place.parent, parent_depth, id_, row)
        else:
            self._replace_by_stand_in(
                seq,
                parent or self._find_shallower(place.depth),
                id_,
                row,
                place.depth,
            )

    def _accept_row(
        self,
        seq: int,
        parent: IntactEntry | None,
        id_: str,
        kind: str,
        stored: _StoredPlace | None = None,
    ) -> None:
        """Count an entry as being in place under ``parent``, and correct its columns.

        ``stored`` are the present columns, None for a new row.
        """
        node = make_child_node(parent.node if parent else ROOT_NODE, kind, seq)
        self.intact_entries[seq] = IntactEntry(node, id_, kind)
        right = _StoredPlace(parent.node.seq if parent else None, node.depth, node.compaction_seq)
        if stored == right:
            return
        if stored is not None and (stored.depth, stored.base) != (right.depth, right.base):
            self.recounted_places += 1
        self._db.execute(_UPDATE_PLACE, (*right, seq))

    def _restore_from_wire(self, seq: int, id_: str, row: EntryRow) -> None:
        """Reduce a message to its wire bytes, which the digest proves, if the value beside them cannot be decoded."""
        has_both = row.raw is not None and row.body is not None
        if row.kind != "message" or not has_both or try_decode_entry_body(row, self._decoders) is not None:
            return
        wire_only = replace(row, body=None, raws=None)
        # If the bytes cannot be decoded either, the row has a form of another version and may be intact.
        if try_decode_entry_body(wire_only, self._decoders) is None:
            return
        self._copy_to_quarantine(seq, BYTES_CHANGED)
        self._db.execute(_UPDATE_CONTENT, (*astuple(wire_only), seq))
        self._report("entry", BYTES_CHANGED, "it is in quarantine, and was read again from its original bytes", id_)

    def _find_named_parent(self, row: EntryRow) -> _NamedParent | None:
        """Return the parent that the row's digest names, or None if it names none of the entries shortly before."""
        # The digest covers the parent's id, so the entry under which it is valid is the parent.
        if _has_valid_digest(row, None):
            return _NamedParent(None)
        for entry in islice(reversed(self.intact_entries.values()), MAX_PARENT_DISTANCE):
            if _has_valid_digest(row, entry):
                return _NamedParent(entry)
        return None

    def _find_shallower(self, depth: int) -> IntactEntry | None:
        """Return the newest entry with a depth of at most ``depth``, or None."""
        for entry in reversed(self.intact_entries.values()):
            if entry.node.depth <= depth:
                return entry
        return None

    # -- changed rows --------------------------------------------------------------------------------------------------

    def _replace_by_stand_in(
        self,
        seq: int,
        parent: IntactEntry | None,
        id_: str,
        row: EntryRow,
        depth: int,
    ) -> None:
        """Move a row into quarantine and put a stand-in in its place; a label without children gets none."""
        self._copy_to_quarantine(seq, BYTES_CHANGED)
        if row.kind == "label" and not self._find_child_kinds(seq):
            self._db.execute("DELETE FROM entries WHERE seq = ?", (seq,))
            self._report("entry", BYTES_CHANGED, "the label is in quarantine", id_)
            return
        is_message = row.kind in MESSAGE_KINDS
        if row.kind not in ENTRY_KINDS:
            # The kind is damaged too; an entry deeper than its parent was a message.
            is_message = depth > (parent.node.depth if parent else 0)
        body = self._build_stand_in(seq, parent, row.kind, is_message=is_message)
        parent_id = parent.id if parent else None
        stand_in_row = encode_entry_row(Entry(id_, parent_id, body, seq, row.at), {})
        self._db.execute(_UPDATE_CONTENT, (*astuple(stand_in_row), seq))
        self._accept_row(seq, parent, id_, stand_in_row.kind)
        kind_name = "message" if isinstance(body, MessageEntry) else "note"
        action = f"it is in quarantine, and a {kind_name} that says so stands in its place"
        self._report("entry", BYTES_CHANGED, action, id_)

    def _build_stand_in(
        self,
        seq: int,
        parent: IntactEntry | None,
        kind: str,
        *,
        is_message: bool,
    ) -> EntryBody:
        """Return the body of the stand-in for an entry of ``kind``."""
        if not is_message:
            return NoteEntry(NOTE_LOST, data={"kind": kind, "why": BYTES_CHANGED})
        # Its role is lost with it; the entries around it tell whether it was a model's answer.
        is_answer = "answer" in self._find_child_kinds(seq) or self._is_answer_expected(parent)
        role: Role = "assistant" if is_answer else "user"
        return MessageEntry(build_sized_message(Message.from_text(role, STAND_IN_TEXT)))

    def _is_answer_expected(self, parent: IntactEntry | None) -> bool:
        """Return whether the next message is a model's answer, after its request or after the usage of that request."""
        if parent is None:
            return False
        if parent.kind != "answer":
            return parent.kind == "request"
        query = "SELECT p.kind FROM entries e JOIN entries p ON p.seq = e.parent WHERE e.seq = ?"
        return bool(self._db.execute(query, (parent.node.seq,)).fetchone() == ("request",))

    def _find_child_kinds(self, seq: int) -> set[str]:
        """Return the kinds of the children of a row."""
        return {kind for (kind,) in self._db.execute("SELECT kind FROM entries WHERE parent = ?", (seq,))}

    def _copy_to_quarantine(self, seq: int, reason: str) -> None:
        self._db.execute(CREATE_QUARANTINE)
        self._db.execute(_COPY_TO_QUARANTINE, (reason, self._key, seq))

    # -- missing rows --------------------------------------------------------------------------------------------------

    def _reattach_orphan(
        self,
        seq: int,
        lost_parent: int,
        depth: int,
        id_: str,
        row: EntryRow,
    ) -> None:
        """Attach a row to stand-ins for its lost parent, as many messages as are missing.

        Its digest names a parent id that is lost, so it is computed anew; the unchanged row is in quarantine.
        """
        # A sibling may have put stand-ins there already; then both have the same parent, as before.
        if lost_parent not in self.intact_entries:
            self._insert_stand_ins(min(lost_parent, seq - 1), depth)
        parent = self.intact_entries.get(lost_parent) or self._find_shallower(depth)
        self._copy_to_quarantine(seq, f"number {lost_parent}, its parent, is gone")
        self._db.execute(_UPDATE_IDENTITY, (compute_row_identity(row, parent.id if parent else None), seq))
        self._accept_row(seq, parent, id_, row.kind)
        if parent:
            action = f"its parent is {parent.id} now, which stands for the lost entries"
        else:
            action = "it begins a branch now"
        self._report("parent", f"number {lost_parent}, its parent, is not in the store", action, id_)

    def _insert_stand_ins(self, last: int, depth: int) -> None:
        """Insert stand-ins up to number ``last``, so that the entry after them has ``depth`` messages before it."""
        parent = self._find_shallower(depth)
        first = parent.node.seq + 1 if parent else 1
        missing_count = depth - parent.node.depth if parent else depth
        for seq in self._find_free_seqs(first, last)[-max(1, missing_count) :]:
            body: EntryBody = NoteEntry(NOTE_LOST, data={"why": ROW_GONE})
            if missing_count > 0:
                body = MessageEntry(build_sized_message(Message.from_text("user", STAND_IN_TEXT)))
            id_ = f"{NOTE_LOST}-{seq}"
            parent_id = parent.id if parent else None
            row = encode_entry_row(Entry(id_, parent_id, body, seq), {})
            self._db.execute(_INSERT_ROW, (self._number, seq, None, 0, 0, id_, *astuple(row)))
            self._accept_row(seq, parent, id_, row.kind)
            self._nameless.add(seq)
            parent = self.intact_entries[seq]

    def _find_free_seqs(self, first: int, last: int) -> list[int]:
        """Return the unused numbers from ``first`` to ``last``, at most as far back as ``MAX_PARENT_DISTANCE``."""
        first = max(first, last - MAX_PARENT_DISTANCE)
        query = "SELECT seq FROM entries WHERE seq BETWEEN ? AND ?"
        rows = self._db.execute(query, (first, last))
        used_seqs = {seq for (seq,) in rows}
        return [seq for seq in range(first, last + 1) if seq not in used_seqs]


def _has_valid_digest(row: EntryRow, parent: IntactEntry | None) -> bool:
    return compute_row_identity(row, parent.id if parent else None) == row.identity
