"""Sessions in one SQLite file: WAL, one writer at a time, readable beside it.

The file, its ``.blobs`` and its ``.locks`` belong together.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import chain, groupby
from typing import Any

from holdfast.errors import StoreCorrupt, StoreError
from holdfast.state.entries import Body, Entry
from holdfast.state.lazy_entries import LazyEntries, LazyEntry
from holdfast.store.base import Decode, Quota, SessionInfo, Tick
from holdfast.store.blobs.blob_total import weighed
from holdfast.store.blobs.blobs import FileBlobs
from holdfast.store.locks import lease
from holdfast.store.search import index as indexing
from holdfast.store.search.search import is_searched, words
from holdfast.store.sql.database import Database, Durability
from holdfast.store.sql.rows import (
    BARE,
    COLUMNS,
    Columns,
    Decoders,
    Row,
    bare,
    decoders,
    from_row,
    full,
    kind_named,
    weight,
)
from holdfast.store.tree.placing import Node, Placed
from holdfast.store.tree.tree import ENTRIES_AT_ONCE, SHOWN, TreeStore, now_ms, unknown

_PLACE = ("session", "id", "parent", "seq", "depth", "base")
_BARE = (*_PLACE, *BARE)
VALUES = 999
"""Values of one statement: with more it is no quicker. [M]"""
ROWS_AT_ONCE = VALUES // len(_BARE)
"""Messages of one statement: a quarter less time than with one each. [M]"""


def _inserting(columns: Sequence[str], rows: int = 1) -> str:
    """Return the statement. With ``FAIL`` SQLite keeps nothing to undo it by: its whole transaction is undone."""
    row = f"({', '.join('?' * len(columns))})"
    return f"INSERT OR FAIL INTO entries ({', '.join(columns)}) VALUES {', '.join([row] * rows)}"  # noqa: S608 -- only constants are put into SQL


_ANY, _ONE_BARE, _MANY = _inserting((*_PLACE, *COLUMNS)), _inserting(_BARE), _inserting(_BARE, ROWS_AT_ONCE)

_COLUMNS = ", ".join(f"e.{name}" for name in COLUMNS)
_MINE = "(SELECT session FROM sessions WHERE key = ?)"
_ENTRY = f"SELECT e.id, p.id, e.seq, {_COLUMNS} FROM entries e LEFT JOIN entries p ON p.seq = e.parent"  # noqa: S608 -- only constants are put into SQL
_INFO = "SELECT key, title, format, cwd, model, created, updated, entries, leaf FROM sessions"
_ONE = f"{_ENTRY} WHERE e.session = {_MINE} AND e.id = ?"
_EVERY = f"{_ENTRY} WHERE e.session = {_MINE} AND e.seq > ? ORDER BY e.seq"
_HEADERS = f"""
    SELECT e.id, p.id, e.kind, e.seq, e.at FROM entries e LEFT JOIN entries p ON p.seq = e.parent
    WHERE e.session = {_MINE} ORDER BY e.seq"""  # noqa: S608
_NUMBER = "SELECT session FROM sessions WHERE key = ?"
_SAYS = "e.kind IN ('message', 'branch_summary', 'note', 'compaction')"
_NEW = f"{_ENTRY} WHERE e.session = ? AND {_SAYS} AND e.seq > ? ORDER BY e.seq"
_LATE = f"{_ENTRY} WHERE e.session = ? AND {_SAYS} AND e.seq > ? ORDER BY e.seq DESC"
_AT = f"{_ENTRY} WHERE e.session = ? AND e.seq = ?"
_NODE = f"SELECT seq, depth, base FROM entries WHERE session = {_MINE} AND id = ?"  # noqa: S608
_NODES = f"SELECT id, seq, depth, base FROM entries WHERE session = {_MINE}"  # noqa: S608
_IDENTITY = f"SELECT identity FROM entries WHERE session = {_MINE} AND id = ?"  # noqa: S608
_IDS = f"SELECT id FROM entries WHERE session = {_MINE} AND id >= ? AND id < ? ORDER BY id LIMIT ?"  # noqa: S608
_SAVE = """
    INSERT INTO sessions (key, title, format, cwd, model, created, updated, entries, leaf)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET
    title = excluded.title, cwd = excluded.cwd, model = excluded.model,
    updated = excluded.updated, entries = excluded.entries, leaf = excluded.leaf"""
_UP = f"""
    WITH RECURSIVE up (seq, parent) AS (
        SELECT seq, parent FROM entries WHERE seq = ?
        UNION ALL
        SELECT n.seq, n.parent FROM up JOIN entries n ON n.seq = up.parent
        WHERE n.seq < up.seq AND (n.depth > ? OR n.seq >= ?)  -- damage makes no circle
    )
    SELECT e.id, p.id, e.seq, {_COLUMNS}
    FROM up JOIN entries e ON e.seq = up.seq LEFT JOIN entries p ON p.seq = up.parent ORDER BY e.seq"""  # noqa: S608
_TIPS = f"""
    SELECT id FROM entries e WHERE session = {_MINE} AND kind <> 'label' AND NOT EXISTS (
        SELECT 1 FROM entries c WHERE c.parent = e.seq
        AND (c.kind <> 'label' OR EXISTS (SELECT 1 FROM entries g WHERE g.parent = c.seq))
    ) ORDER BY seq"""  # noqa: S608
IDS_AT_ONCE = VALUES // 2
"""Ids that are asked for in one statement. [H]"""
_LAST_CHARACTER = "\U0010ffff"


class SqliteStore(TreeStore):
    """A store in the file at ``path``, used by one thread at a time.

    ``known`` are the decoders of wire forms (default: all that this version has).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "process",
        readonly: bool = False,
        quota: Quota = Quota(),
        known: Decoders | None = None,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._file = Database(path, durability, readonly=readonly)
        super().__init__(FileBlobs(self._file.beside(".blobs"), quota), clock)
        self._locks = self._file.beside(".locks")
        self._decoders = known
        self._quota = quota.session_bytes
        self._readonly = readonly
        self._not_repairable: set[str] = set()
        """Sessions that were looked through in vain: that costs a reading of all, and a proxy may ask each time."""

    def writing(self, key: str) -> AbstractContextManager[None]:
        """Hold the session's lease, a lock on a file in ``.locks`` beside the database.

        Nothing is made beside a file that is no database: that is a ``StoreCorrupt``.
        """
        self._file.look()
        return lease(self._locks, key)

    def repair(self, key: str) -> list[str]:
        """Put right what can be in the session without loss; return what was done, a line for each."""
        if self._readonly or key in self._not_repairable:
            return []
        from holdfast.store.repair import repair_session

        found = repair_session(self._file.file, key)
        if not found:
            self._not_repairable.add(key)
        return [f"{f'entry {one.entry}: ' if one.entry else ''}{one.what}: {one.done}" for one in found]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _reading(self) -> AbstractContextManager[None]:
        return self._file.reading()

    def _writing(self) -> AbstractContextManager[None]:
        return self._file.writing()

    @property
    def _forms(self) -> Decoders:
        return decoders() if self._decoders is None else self._decoders

    def _entries(self, rows: Iterable[tuple[Any, ...]]) -> list[Entry]:
        known = self._forms
        return [from_row(row[:3], Row(*row[3:]), known) for row in rows]

    def _all(self) -> list[SessionInfo]:
        return [SessionInfo(*row) for row in self._file.db.execute(_INFO)]

    def _info(self, key: str) -> SessionInfo | None:
        row = self._file.db.execute(f"{_INFO} WHERE key = ?", (_clean(key),)).fetchone()
        return None if row is None else SessionInfo(*row)

    def _keys(self, prefix: str) -> list[str]:
        query = "SELECT key FROM sessions WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
        return [key for (key,) in self._file.db.execute(query, (*_range(prefix), SHOWN + 1))]

    def _save(self, info: SessionInfo) -> None:
        texts = map(_clean, (info.title, info.format, info.cwd, info.model))
        self._file.db.execute(_SAVE, (info.key, *texts, info.created, info.updated, info.entries, info.leaf))

    def _forget(self, key: str) -> None:
        db, session = self._file.db, (self._number(key),)
        indexing.forget(db, *session)
        db.execute("DELETE FROM checkpoints WHERE seq IN (SELECT seq FROM entries WHERE session = ?)", session)
        for table in ("entries", "searched", "sessions"):
            db.execute(f"DELETE FROM {table} WHERE session = ?", session)  # noqa: S608 -- tables of ours

    def _last(self) -> int:
        return int(self._file.db.execute("SELECT coalesce(max(seq), 0) FROM entries").fetchone()[0])

    def _node(self, key: str, id_: str) -> Node | None:
        row = self._file.db.execute(_NODE, (key, _clean(id_))).fetchone()
        return None if row is None else Node(*row)

    def _nodes(self, info: SessionInfo, ids: Sequence[str]) -> dict[str, Node]:
        """Return where those of ``ids`` stand that are in the log, a good many in one look, or all of a short log."""
        if info.entries < len(ids):
            return {id_: Node(*rest) for id_, *rest in self._file.db.execute(_NODES, (info.key,))}
        found: dict[str, Node] = {}
        for start in range(0, len(ids), IDS_AT_ONCE):
            asked = [*map(_clean, ids[start : start + IDS_AT_ONCE])]
            rows = self._file.db.execute(f"{_NODES} AND id IN ({', '.join('?' * len(asked))})", (info.key, *asked))
            found |= {id_: Node(*rest) for id_, *rest in rows}
        return found

    def _ids(self, key: str, prefix: str) -> list[str]:
        return [id_ for (id_,) in self._file.db.execute(_IDS, (key, *_range(prefix), SHOWN + 1))]

    def _identity(self, key: str, id_: str) -> bytes | None:
        row = self._file.db.execute(_IDENTITY, (key, _clean(id_))).fetchone()
        return None if row is None else bytes(row[0])

    def _insert(self, key: str, placed: Sequence[Placed], decode: Decode | None) -> None:
        known, db = self._forms, self._file.db
        session, held = db.execute("SELECT session, bytes FROM sessions WHERE key = ?", (key,)).fetchone()
        columns = bare if len(placed) >= ROWS_AT_ONCE else full
        says = [columns(one.entry, known, decode) for one in placed]
        held = weighed(key, held, weight(says), self._quota)
        insert(db, session, placed, says)
        db.execute("UPDATE sessions SET bytes = ? WHERE key = ?", (held, key))

    def _get(self, key: str, ids: Sequence[str]) -> list[Entry]:
        return [entry for id_ in ids for entry in self._entries(self._file.db.execute(_ONE, (key, id_)))]

    def _up(self, key: str, seq: int, keep: int, base: int) -> list[Entry]:  # noqa: ARG002 -- seq is of one session
        return self._entries(self._file.db.execute(_UP, (seq, keep, base)))

    def _every(self, key: str, kind: str | None = None, after: int = 0) -> list[Entry]:
        if kind is None:
            return self._entries(self._file.db.execute(_EVERY, (key, after)))
        query = f"{_ENTRY} WHERE e.session = {_MINE} AND {of_kind(kind)} AND e.seq > ? ORDER BY e.seq"
        return self._entries(self._file.db.execute(query, (key, kind, after)))

    def _lazily(self, key: str) -> Sequence[Entry]:
        rows = self._file.db.execute(_HEADERS, (key,))
        headers = [
            LazyEntry(id_, parent, kind_named(kind), partial(self._body, key, id_), seq, at)
            for id_, parent, kind, seq, at in rows
        ]
        return LazyEntries(headers, partial(self._in_order, key))

    def _in_order(self, key: str) -> Iterator[Entry]:
        """Yield every entry of a session, a good many in one look."""
        last = 0
        while True:
            with self._reading():
                found = self._entries(self._file.db.execute(f"{_EVERY} LIMIT {ENTRIES_AT_ONCE}", (key, last)))
            yield from found
            if len(found) < ENTRIES_AT_ONCE:
                return
            last = found[-1].seq

    def _body(self, key: str, id_: str) -> Body:
        with self._reading():
            found = self._get(key, [id_])
        if not found:
            raise unknown("entry", id_)
        return found[0].body

    def _unreadable(self, key: str) -> Iterator[str]:
        for row in self._file.db.execute(_EVERY, (key, 0)):
            try:
                self._entries([row])
            except StoreCorrupt as error:
                yield str(error)

    def _tips(self, key: str) -> list[str]:
        return [id_ for (id_,) in self._file.db.execute(_TIPS, (key,))]

    def _ready(self, key: str, wanted: Sequence[str], tick: Tick) -> None:
        """Bring the index of words up to date; a search does without where nothing can be written."""
        if not self._readonly and indexing.pattern(wanted):
            with suppress(StoreError):
                while done := self._index(key):
                    tick(*done)

    def _index(self, key: str) -> tuple[int, int] | None:
        """Put the next entries of a session into the index; return the last of them and of all, or nothing."""
        with self._reading():
            if next(self._unindexed(key), None) is None:
                return None
        with self._writing():
            session, texts, held = self._number(key), [], 0
            for entry in self._unindexed(key):
                texts.append((entry.seq, words(entry) if is_searched(entry) else None))
                held += len(texts[-1][1] or "")
                if held > indexing.BATCH:
                    break
            if texts:
                indexing.add(self._file.db, session, texts)
            return (texts[-1][0], self._last()) if texts else None

    def _unindexed(self, key: str) -> Iterator[Entry]:
        """Yield the entries of a session that the index has not seen."""
        session = self._number(key)
        rows = self._file.db.execute(_NEW, (session, indexing.indexed(self._file.db, session)))
        return (entry for row in rows for entry in self._entries([row]))

    def _number(self, key: str) -> int:
        """Return the number of a session; ``UnknownId`` where somebody removed it a moment ago."""
        row = self._file.db.execute(_NUMBER, (key,)).fetchone()
        if row is None:
            raise unknown("session", key)
        return int(row[0])

    def _matching(self, key: str, wanted: Sequence[str]) -> Iterator[Entry]:
        db, session = self._file.db, self._number(key)
        asked = indexing.pattern(wanted)
        found = indexing.candidates(db, session, asked) if asked else None
        upto = indexing.indexed(db, session) if found is not None else 0
        rows = chain(
            db.execute(_LATE, (session, upto)),
            (row for seq in found or () if seq <= upto for row in db.execute(_AT, (session, seq))),
        )
        return (entry for row in rows for entry in self._entries([row]) if is_searched(entry))

    def _checkpoint(self, key: str, seq: int) -> bytes | None:  # noqa: ARG002
        row = self._file.db.execute("SELECT state FROM checkpoints WHERE seq = ?", (seq,)).fetchone()
        return None if row is None else bytes(row[0])

    def _save_checkpoint(self, key: str, seq: int, state: bytes) -> None:  # noqa: ARG002
        self._file.db.execute("INSERT OR REPLACE INTO checkpoints (seq, state) VALUES (?, ?)", (seq, state))


def of_kind(kind: str) -> str:
    """Return what asks for entries ``e`` of ``kind``: SQLite is to be told that the index of kinds has all of them."""
    return "e.kind = ?" if kind == "message" else "e.kind = ? AND e.kind <> 'message'"


def _clean(text: str) -> str:
    """Return ``text`` as SQLite can hold it: lone surrogates become question marks."""
    return text.encode("utf-8", "replace").decode()


def _range(prefix: str) -> tuple[str, str]:
    """Return the bounds of all texts that begin with ``prefix``."""
    return _clean(prefix), _clean(prefix) + _LAST_CHARACTER


def insert(db: sqlite3.Connection, session: int, placed: Sequence[Placed], says: Sequence[Columns]) -> None:
    """Insert what the entries of a session say where ``placed`` has them; in that order, so that parents come first."""
    rows = [
        (session, one.entry.id, one.parent, one.seq, one.depth, one.base, *said)
        for one, said in zip(placed, says, strict=True)
    ]
    for width, alike in groupby(rows, len):
        run = [*alike]
        is_bare = width == len(_BARE)
        whole = len(run) - len(run) % ROWS_AT_ONCE if is_bare else 0
        for start in range(0, whole, ROWS_AT_ONCE):
            db.execute(_MANY, [*chain.from_iterable(run[start : start + ROWS_AT_ONCE])])
        db.executemany(_ONE_BARE if is_bare else _ANY, run[whole:])
