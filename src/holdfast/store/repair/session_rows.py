"""The rows of one session, looked through in order and put right.

What an entry says is proven by its digest, which covers where it hangs too. A row that fails the proof is moved into
the table ``quarantine`` with the reason, and a stand-in takes its place under its id: a message for a message, a note
for all else. So what hangs behind it stays where it was, and every number that counts messages stays right. An entry
is hung elsewhere only where its digest names that place, or where what it hung on is gone without a trace.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from msgspec.structs import astuple, replace

from holdfast.messages.message import Message
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
"""[H] Entries before one whose parent is lost among which its digest is looked for."""
NOTE_LOST = "lost"
"""``NoteEntry.reason`` of a stand-in; how the id begins of one for a row of which nothing is left."""
STAND_IN_TEXT = (
    "[This message cannot be read back: its bytes in the store are damaged. `holdfast repair` put them aside.]"
)
"""What a stand-in for a message says to a model."""
BYTES_CHANGED, ROW_GONE = "its bytes are not those that were stored", "its row is gone"

QUARANTINE_TABLE = "quarantine"
"""Where damaged rows are kept as they were, each with the reason; made when the first one is."""
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
    """An entry that stands: where, its id and its kind."""

    node: TreeNode
    id: str
    kind: str


OldPlace = tuple[int | None, int, int] | None
"""Parent, depth and base as a row had them; nothing where the row is a new one."""
ReportCallback = Callable[[DamageKind, str, str, str], None]
"""Takes down what kind of thing was wrong, what, what was done, and the entry."""


class SessionRowRepairer:
    """The rows of session ``number``, which is called ``key``."""

    def __init__(
        self,
        db: sqlite3.Connection,
        number: int,
        key: str,
        wire_decoders: MessageDecoders,
        tell: ReportCallback,
        *,
        without_loss: bool = False,
    ) -> None:
        self._db, self._number, self._key, self._known, self._tell = db, number, key, wire_decoders, tell
        self._without_loss = without_loss
        """Whether a row that cannot be put right without losing what it said is left as it is."""
        self.standing_rows: dict[int, IntactEntry] = {}
        """The entries that stand, by ``seq``."""
        self._nameless: set[int] = set()
        """Stand-ins for rows of which not even the id is left."""
        self.recounted_places = 0
        """Entries whose depth or base had to be counted anew."""

    def repair_rows(self, tick: Callable[[], None]) -> None:
        """Look at every row, and put it right."""
        for seq, parent, depth, base, id_, *says in self._iter_rows():
            self._repair_row(seq, parent, depth, base, id_, EntryRow(*says))
            tick()
        if self.recounted_places:
            problem = f"the places of {self.recounted_places:,} entries in their tree were wrong"
            self._tell("index", problem, "counted anew", "")

    def _iter_rows(self) -> Iterator[Any]:
        """Yield the rows, a few at a time: they are changed as they are looked at."""
        last = -(2**63)
        while rows := self._db.execute(_SELECT_ROWS, (self._number, last)).fetchall():
            yield from rows
            last = rows[-1][0]

    def _repair_row(self, seq: int, parent: int | None, depth: int, base: int, id_: str, row: EntryRow) -> None:
        """Look at one row, and put it right."""
        above = None if parent is None else self.standing_rows.get(parent)
        is_lost = parent is not None and (above is None or parent in self._nameless)
        if not is_lost and _has_valid_digest(row, above):
            self._accept_row(seq, above, id_, row.kind, (parent, depth, base))
            self._restore_from_wire(seq, id_, row)
        elif (parent_match := self._find_named_parent(row)) is not None:
            self._tell("parent", f"it hung on number {parent}", "its digest names what it hung on before", id_)
            self._accept_row(seq, parent_match[0], id_, row.kind, (parent, depth, base))
        elif self._without_loss:
            self.standing_rows[seq] = IntactEntry(TreeNode(seq, depth, base), id_, row.kind)
        elif parent is not None and is_lost and try_decode_entry_body(row, self._known) is not None:
            self._reattach_orphan(seq, parent, depth - (row.kind in MESSAGE_KINDS), id_, row)
        else:
            self._replace_by_stand_in(seq, above or self._find_shallower(depth), id_, row, depth)

    def _accept_row(self, seq: int, above: IntactEntry | None, id_: str, kind: str, had: OldPlace = None) -> None:
        """Take an entry for standing behind ``above``, and make its columns say so."""
        node = make_child_node(above.node if above else ROOT_NODE, kind, seq)
        self.standing_rows[seq] = IntactEntry(node, id_, kind)
        right = (above.node.seq if above else None, node.depth, node.compaction_seq)
        if had != right:
            self.recounted_places += had is not None and had[1:] != right[1:]
            self._db.execute(_UPDATE_PLACE, (*right, seq))

    def _restore_from_wire(self, seq: int, id_: str, row: EntryRow) -> None:
        """Leave a message to the bytes it came in, which are proven, where the value beside them cannot be read."""
        if row.kind != "message" or None in (row.raw, row.body) or try_decode_entry_body(row, self._known) is not None:
            return
        alone = replace(row, body=None, raws=None)
        if try_decode_entry_body(alone, self._known) is None:  # it has a form of another version, and may be whole
            return
        self._copy_to_quarantine(seq, BYTES_CHANGED)
        self._db.execute(_UPDATE_CONTENT, (*astuple(alone), seq))
        self._tell("entry", BYTES_CHANGED, "it is in quarantine, and was read again from the bytes it came in", id_)

    def _find_named_parent(self, row: EntryRow) -> tuple[IntactEntry | None] | None:
        """Return the place that the row's digest names as its parent (nothing in it: the root), if it is near."""
        if _has_valid_digest(row, None):
            return (None,)
        near = islice(reversed(self.standing_rows.values()), MAX_PARENT_DISTANCE)
        return next(((place,) for place in near if _has_valid_digest(row, place)), None)

    def _find_shallower(self, depth: int) -> IntactEntry | None:
        """Return the newest entry that is no deeper than ``depth``."""
        return next((place for place in reversed(self.standing_rows.values()) if place.node.depth <= depth), None)

    # -- rows whose bytes changed --------------------------------------------------------------------------------------

    def _replace_by_stand_in(self, seq: int, above: IntactEntry | None, id_: str, row: EntryRow, depth: int) -> None:
        """Move a row into quarantine; a stand-in takes its place, but for a label, which nothing needs."""
        self._copy_to_quarantine(seq, BYTES_CHANGED)
        if row.kind == "label" and not self._find_child_kinds(seq):
            self._db.execute("DELETE FROM entries WHERE seq = ?", (seq,))
            self._tell("entry", BYTES_CHANGED, "the label is in quarantine", id_)
            return
        is_message = row.kind in MESSAGE_KINDS or (
            row.kind not in ENTRY_KINDS and depth > (above.node.depth if above else 0)
        )
        body = self._build_stand_in(seq, above, row.kind, is_message=is_message)
        stand_in_row = encode_entry_row(Entry(id_, above.id if above else None, body, seq, row.at), {})
        self._db.execute(_UPDATE_CONTENT, (*astuple(stand_in_row), seq))
        self._accept_row(seq, above, id_, stand_in_row.kind)
        kind_name = "message" if isinstance(body, MessageEntry) else "note"
        self._tell(
            "entry", BYTES_CHANGED, f"it is in quarantine, and a {kind_name} that says so stands in its place", id_
        )

    def _build_stand_in(self, seq: int, above: IntactEntry | None, kind: str, *, is_message: bool) -> EntryBody:
        """Return what is said in the place of an entry of ``kind``."""
        if not is_message:
            return NoteEntry(NOTE_LOST, data={"kind": kind, "why": BYTES_CHANGED})
        answers = "answer" in self._find_child_kinds(seq) or self._is_answer_expected(above)
        return MessageEntry(build_sized_message(Message.from_text("assistant" if answers else "user", STAND_IN_TEXT)))

    def _is_answer_expected(self, above: IntactEntry | None) -> bool:
        """Return whether what comes behind ``above`` is a model's answer: a request, or its usage, comes before it."""
        if above is None or above.kind != "answer":
            return above is not None and above.kind == "request"
        query = "SELECT p.kind FROM entries e JOIN entries p ON p.seq = e.parent WHERE e.seq = ?"
        return bool(self._db.execute(query, (above.node.seq,)).fetchone() == ("request",))

    def _find_child_kinds(self, seq: int) -> set[str]:
        """Return the kinds of what hangs on a row."""
        return {kind for (kind,) in self._db.execute("SELECT kind FROM entries WHERE parent = ?", (seq,))}

    def _copy_to_quarantine(self, seq: int, why: str) -> None:
        self._db.execute(CREATE_QUARANTINE)
        self._db.execute(_COPY_TO_QUARANTINE, (why, self._key, seq))

    # -- rows that are gone --------------------------------------------------------------------------------------------

    def _reattach_orphan(self, seq: int, parent: int, depth: int, id_: str, row: EntryRow) -> None:
        """Hang a row whose parent is gone on stand-ins, as many messages as are missing.

        Its digest names an id that nobody knows any more, so it is made anew; the row as it was is in quarantine.
        """
        if parent not in self.standing_rows:
            self._insert_stand_ins(min(parent, seq - 1), depth)
        above = self.standing_rows.get(parent) or self._find_shallower(depth)
        self._copy_to_quarantine(seq, f"number {parent}, its parent, is gone")
        self._db.execute(_UPDATE_IDENTITY, (compute_row_identity(row, above.id if above else None), seq))
        self._accept_row(seq, above, id_, row.kind)
        now = f"it hangs on {above.id} now, which stands for what is lost" if above else "it begins a branch now"
        self._tell("parent", f"number {parent}, its parent, is not in the store", now, id_)

    def _insert_stand_ins(self, last: int, depth: int) -> None:
        """Put stand-ins up to number ``last`` so that what comes next has ``depth`` messages before it."""
        above = self._find_shallower(depth)
        start, missing = (above.node.seq, depth - above.node.depth) if above else (0, depth)
        for seq in self._find_free_seqs(start + 1, last)[-max(1, missing) :]:
            body: EntryBody = NoteEntry(NOTE_LOST, data={"why": ROW_GONE})
            if missing > 0:
                body = MessageEntry(build_sized_message(Message.from_text("user", STAND_IN_TEXT)))
            id_ = f"{NOTE_LOST}-{seq}"
            row = encode_entry_row(Entry(id_, above.id if above else None, body, seq), {})
            self._db.execute(_INSERT_ROW, (self._number, seq, None, 0, 0, id_, *astuple(row)))
            self._accept_row(seq, above, id_, row.kind)
            self._nameless.add(seq)
            above = self.standing_rows[seq]

    def _find_free_seqs(self, first: int, last: int) -> list[int]:
        """Return the numbers from ``first`` to ``last`` that no entry has, of the last few."""
        first = max(first, last - MAX_PARENT_DISTANCE)
        query = "SELECT seq FROM entries WHERE seq BETWEEN ? AND ?"
        used_seqs = {seq for (seq,) in self._db.execute(query, (first, last))}
        return [seq for seq in range(first, last + 1) if seq not in used_seqs]


def _has_valid_digest(row: EntryRow, parent: IntactEntry | None) -> bool:
    return compute_row_identity(row, parent.id if parent else None) == row.identity
