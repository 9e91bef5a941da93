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
from holdfast.messages.size.tokens import measure
from holdfast.state.entries import Body, Entry, Note, Said
from holdfast.store.repair.values import Kind
from holdfast.store.sql.rows import COLUMNS, Decoders, Row, body_of, digest_of, to_row
from holdfast.store.tree.placing import KINDS, ROOT, SLOTTED, Node, below

NEAR = 1_000
"""[H] Entries before one whose parent is lost among which its digest is looked for."""
LOST = "lost"
"""``Note.reason`` of a stand-in; how the id begins of one for a row of which nothing is left."""
STAND_IN = "[This message cannot be read back: its bytes in the store are damaged. `holdfast repair` put them aside.]"
"""What a stand-in for a message says to a model."""
CHANGED, GONE = "its bytes are not those that were stored", "its row is gone"

TABLE = "quarantine"
"""Where damaged rows are kept as they were, each with the reason; made when the first one is."""
_SAYS = ", ".join(COLUMNS)
_TREE = "seq, parent, depth, base, id"
_ROWS = f"SELECT {_TREE}, {_SAYS} FROM entries WHERE session = ? AND seq > ? ORDER BY seq LIMIT 100"  # noqa: S608 -- only constants are put into SQL
_PLACE = "UPDATE entries SET parent = ?, depth = ?, base = ? WHERE seq = ?"
_SAY = f"UPDATE entries SET {', '.join(f'{name} = ?' for name in COLUMNS)} WHERE seq = ?"  # noqa: S608
_SIGN = "UPDATE entries SET identity = ? WHERE seq = ?"
_ADD = f"INSERT INTO entries (session, {_TREE}, {_SAYS}) VALUES ({', '.join('?' * (6 + len(COLUMNS)))})"  # noqa: S608
QUARANTINE = f"""
    CREATE TABLE IF NOT EXISTS {TABLE} (
        number INTEGER PRIMARY KEY, reason TEXT NOT NULL, session TEXT NOT NULL, {_TREE}, {_SAYS}
    )"""
_KEEP = f"""
    INSERT INTO {TABLE} (reason, session, {_TREE}, {_SAYS})
    SELECT ?, ?, {_TREE}, {_SAYS} FROM entries WHERE seq = ?"""  # noqa: S608


class Place(NamedTuple):
    """An entry that stands: where, its id and its kind."""

    node: Node
    id: str
    kind: str


Had = tuple[int | None, int, int] | None
"""Parent, depth and base as a row had them; nothing where the row is a new one."""
Tell = Callable[[Kind, str, str, str], None]
"""Takes down what kind of thing was wrong, what, what was done, and the entry."""


class Log:
    """The rows of session ``number``, which is called ``key``."""

    def __init__(
        self, db: sqlite3.Connection, number: int, key: str, known: Decoders, tell: Tell, *, without_loss: bool = False
    ) -> None:
        self._db, self._number, self._key, self._known, self._tell = db, number, key, known, tell
        self._without_loss = without_loss
        """Whether a row that cannot be put right without losing what it said is left as it is."""
        self.places: dict[int, Place] = {}
        """The entries that stand, by ``seq``."""
        self._nameless: set[int] = set()
        """Stand-ins for rows of which not even the id is left."""
        self.moved = 0
        """Entries whose depth or base had to be counted anew."""

    def mend(self, tick: Callable[[], None]) -> None:
        """Look at every row, and put it right."""
        for seq, parent, depth, base, id_, *says in self._rows():
            self._row(seq, parent, depth, base, id_, Row(*says))
            tick()
        if self.moved:
            what = f"the places of {self.moved:,} entries in their tree were wrong"
            self._tell("index", what, "counted anew", "")

    def _rows(self) -> Iterator[Any]:
        """Yield the rows, a few at a time: they are changed as they are looked at."""
        last = -(2**63)
        while rows := self._db.execute(_ROWS, (self._number, last)).fetchall():
            yield from rows
            last = rows[-1][0]

    def _row(self, seq: int, parent: int | None, depth: int, base: int, id_: str, row: Row) -> None:
        """Look at one row, and put it right."""
        above = None if parent is None else self.places.get(parent)
        is_lost = parent is not None and (above is None or parent in self._nameless)
        if not is_lost and _is_proven(row, above):
            self._stand(seq, above, id_, row.kind, (parent, depth, base))
            self._read_again(seq, id_, row)
        elif (named := self._named(row)) is not None:
            self._tell("parent", f"it hung on number {parent}", "its digest names what it hung on before", id_)
            self._stand(seq, named[0], id_, row.kind, (parent, depth, base))
        elif self._without_loss:
            self.places[seq] = Place(Node(seq, depth, base), id_, row.kind)
        elif parent is not None and is_lost and body_of(row, self._known) is not None:
            self._behind_lost(seq, parent, depth - (row.kind in SLOTTED), id_, row)
        else:
            self._put_aside(seq, above or self._before(depth), id_, row, depth)

    def _stand(self, seq: int, above: Place | None, id_: str, kind: str, had: Had = None) -> None:
        """Take an entry for standing behind ``above``, and make its columns say so."""
        node = below(above.node if above else ROOT, kind, seq)
        self.places[seq] = Place(node, id_, kind)
        right = (above.node.seq if above else None, node.depth, node.base)
        if had != right:
            self.moved += had is not None and had[1:] != right[1:]
            self._db.execute(_PLACE, (*right, seq))

    def _read_again(self, seq: int, id_: str, row: Row) -> None:
        """Leave a message to the bytes it came in, which are proven, where the value beside them cannot be read."""
        if row.kind != "message" or None in (row.raw, row.body) or body_of(row, self._known) is not None:
            return
        alone = replace(row, body=None, raws=None)
        if body_of(alone, self._known) is None:  # it has a form of another version, and may be whole
            return
        self._quarantine(seq, CHANGED)
        self._db.execute(_SAY, (*astuple(alone), seq))
        self._tell("entry", CHANGED, "it is in quarantine, and was read again from the bytes it came in", id_)

    def _named(self, row: Row) -> tuple[Place | None] | None:
        """Return the place that the row's digest names as its parent (nothing in it: the root), if it is near."""
        if _is_proven(row, None):
            return (None,)
        near = islice(reversed(self.places.values()), NEAR)
        return next(((one,) for one in near if _is_proven(row, one)), None)

    def _before(self, depth: int) -> Place | None:
        """Return the newest entry that is no deeper than ``depth``."""
        return next((one for one in reversed(self.places.values()) if one.node.depth <= depth), None)

    # -- rows whose bytes changed --------------------------------------------------------------------------------------

    def _put_aside(self, seq: int, above: Place | None, id_: str, row: Row, depth: int) -> None:
        """Move a row into quarantine; a stand-in takes its place, but for a label, which nothing needs."""
        self._quarantine(seq, CHANGED)
        if row.kind == "label" and not self._children(seq):
            self._db.execute("DELETE FROM entries WHERE seq = ?", (seq,))
            self._tell("entry", CHANGED, "the label is in quarantine", id_)
            return
        is_message = row.kind in SLOTTED or (row.kind not in KINDS and depth > (above.node.depth if above else 0))
        body = self._stand_in(seq, above, row.kind, is_message=is_message)
        said = to_row(Entry(id_, above.id if above else None, body, seq, row.at), {})
        self._db.execute(_SAY, (*astuple(said), seq))
        self._stand(seq, above, id_, said.kind)
        what = "message" if isinstance(body, Said) else "note"
        self._tell("entry", CHANGED, f"it is in quarantine, and a {what} that says so stands in its place", id_)

    def _stand_in(self, seq: int, above: Place | None, kind: str, *, is_message: bool) -> Body:
        """Return what is said in the place of an entry of ``kind``."""
        if not is_message:
            return Note(LOST, data={"kind": kind, "why": CHANGED})
        answers = "answer" in self._children(seq) or self._asked(above)
        return Said(measure(Message.of("assistant" if answers else "user", STAND_IN)))

    def _asked(self, above: Place | None) -> bool:
        """Return whether what comes behind ``above`` is a model's answer: a request, or its usage, comes before it."""
        if above is None or above.kind != "answer":
            return above is not None and above.kind == "request"
        query = "SELECT p.kind FROM entries e JOIN entries p ON p.seq = e.parent WHERE e.seq = ?"
        return bool(self._db.execute(query, (above.node.seq,)).fetchone() == ("request",))

    def _children(self, seq: int) -> set[str]:
        """Return the kinds of what hangs on a row."""
        return {kind for (kind,) in self._db.execute("SELECT kind FROM entries WHERE parent = ?", (seq,))}

    def _quarantine(self, seq: int, why: str) -> None:
        self._db.execute(QUARANTINE)
        self._db.execute(_KEEP, (why, self._key, seq))

    # -- rows that are gone --------------------------------------------------------------------------------------------

    def _behind_lost(self, seq: int, parent: int, depth: int, id_: str, row: Row) -> None:
        """Hang a row whose parent is gone on stand-ins, as many messages as are missing.

        Its digest names an id that nobody knows any more, so it is made anew; the row as it was is in quarantine.
        """
        if parent not in self.places:
            self._fill(min(parent, seq - 1), depth)
        above = self.places.get(parent) or self._before(depth)
        self._quarantine(seq, f"number {parent}, its parent, is gone")
        self._db.execute(_SIGN, (digest_of(row, above.id if above else None), seq))
        self._stand(seq, above, id_, row.kind)
        now = f"it hangs on {above.id} now, which stands for what is lost" if above else "it begins a branch now"
        self._tell("parent", f"number {parent}, its parent, is not in the store", now, id_)

    def _fill(self, last: int, depth: int) -> None:
        """Put stand-ins up to number ``last`` so that what comes next has ``depth`` messages before it."""
        above = self._before(depth)
        start, missing = (above.node.seq, depth - above.node.depth) if above else (0, depth)
        for seq in self._free(start + 1, last)[-max(1, missing) :]:
            body: Body = Note(LOST, data={"why": GONE})
            if missing > 0:
                body = Said(measure(Message.of("user", STAND_IN)))
            id_ = f"{LOST}-{seq}"
            row = to_row(Entry(id_, above.id if above else None, body, seq), {})
            self._db.execute(_ADD, (self._number, seq, None, 0, 0, id_, *astuple(row)))
            self._stand(seq, above, id_, row.kind)
            self._nameless.add(seq)
            above = self.places[seq]

    def _free(self, first: int, last: int) -> list[int]:
        """Return the numbers from ``first`` to ``last`` that no entry has, of the last few."""
        first = max(first, last - NEAR)
        query = "SELECT seq FROM entries WHERE seq BETWEEN ? AND ?"
        taken = {seq for (seq,) in self._db.execute(query, (first, last))}
        return [seq for seq in range(first, last + 1) if seq not in taken]


def _is_proven(row: Row, above: Place | None) -> bool:
    return digest_of(row, above.id if above else None) == row.identity
