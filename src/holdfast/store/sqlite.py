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
from holdfast.state.entries import Entry, EntryBody
from holdfast.state.lazy_entries import LazyEntries, LazyEntry
from holdfast.store.base import MessageDecoder, ProgressCallback, Quota, SessionInfo
from holdfast.store.blobs.blob_total import add_session_bytes
from holdfast.store.blobs.blobs import FileBlobStore
from holdfast.store.locks import hold_session_lock
from holdfast.store.search import index as indexing
from holdfast.store.search.search import get_searchable_text, is_searchable_entry
from holdfast.store.sql.database import Durability, SqliteFile
from holdfast.store.sql.rows import (
    ROW_COLUMNS,
    WIRE_ONLY_COLUMNS,
    EntryRow,
    MessageDecoders,
    RowColumns,
    count_content_bytes,
    decode_entry_row,
    encode_full_columns,
    encode_minimal_columns,
    get_entry_body_type,
    load_message_decoders,
)
from holdfast.store.tree.placing import PlacedEntry, TreeNode
from holdfast.store.tree.tree import (
    ENTRIES_AT_ONCE,
    MAX_LISTED_CANDIDATES,
    TreeStore,
    build_unknown_id_error,
    get_time_ms,
)

_PLACE_COLUMNS = ("session", "id", "parent", "seq", "depth", "base")
_WIRE_ONLY_COLUMNS = (*_PLACE_COLUMNS, *WIRE_ONLY_COLUMNS)
MAX_STATEMENT_VALUES = 999
"""Values of one statement: with more it is no quicker. [M]"""
ROWS_AT_ONCE = MAX_STATEMENT_VALUES // len(_WIRE_ONLY_COLUMNS)
"""Messages of one statement: a quarter less time than with one each. [M]"""


def _build_entry_insert(columns: Sequence[str], rows: int = 1) -> str:
    """Return the statement. With ``FAIL`` SQLite keeps nothing to undo it by: its whole transaction is undone."""
    row = f"({', '.join('?' * len(columns))})"
    return f"INSERT OR FAIL INTO entries ({', '.join(columns)}) VALUES {', '.join([row] * rows)}"  # noqa: S608 -- only constants are put into SQL


_INSERT_ANY, _INSERT_ONE, _INSERT_MANY = (
    _build_entry_insert((*_PLACE_COLUMNS, *ROW_COLUMNS)),
    _build_entry_insert(_WIRE_ONLY_COLUMNS),
    _build_entry_insert(_WIRE_ONLY_COLUMNS, ROWS_AT_ONCE),
)

_SELECTED_COLUMNS = ", ".join(f"e.{name}" for name in ROW_COLUMNS)
_SESSION_NUMBER = "(SELECT session FROM sessions WHERE key = ?)"
_SELECT_ENTRY = f"SELECT e.id, p.id, e.seq, {_SELECTED_COLUMNS} FROM entries e LEFT JOIN entries p ON p.seq = e.parent"  # noqa: S608 -- only constants are put into SQL
_SELECT_INFO = "SELECT key, title, format, cwd, model, created, updated, entries, leaf FROM sessions"
_ONE = f"{_SELECT_ENTRY} WHERE e.session = {_SESSION_NUMBER} AND e.id = ?"
_SELECT_ALL_ENTRIES = f"{_SELECT_ENTRY} WHERE e.session = {_SESSION_NUMBER} AND e.seq > ? ORDER BY e.seq"
_SELECT_HEADERS = f"""
    SELECT e.id, p.id, e.kind, e.seq, e.at FROM entries e LEFT JOIN entries p ON p.seq = e.parent
    WHERE e.session = {_SESSION_NUMBER} ORDER BY e.seq"""  # noqa: S608
_SELECT_SESSION_NUMBER = "SELECT session FROM sessions WHERE key = ?"
_IS_SEARCHABLE = "e.kind IN ('message', 'branch_summary', 'note', 'compaction')"
_SELECT_NEW_SEARCHABLE = f"{_SELECT_ENTRY} WHERE e.session = ? AND {_IS_SEARCHABLE} AND e.seq > ? ORDER BY e.seq"
_SELECT_LATE_SEARCHABLE = f"{_SELECT_ENTRY} WHERE e.session = ? AND {_IS_SEARCHABLE} AND e.seq > ? ORDER BY e.seq DESC"
_SELECT_ENTRY_BY_SEQ = f"{_SELECT_ENTRY} WHERE e.session = ? AND e.seq = ?"
_SELECT_NODE = f"SELECT seq, depth, base FROM entries WHERE session = {_SESSION_NUMBER} AND id = ?"  # noqa: S608
_SELECT_NODES = f"SELECT id, seq, depth, base FROM entries WHERE session = {_SESSION_NUMBER}"  # noqa: S608
_SELECT_IDENTITY = f"SELECT identity FROM entries WHERE session = {_SESSION_NUMBER} AND id = ?"  # noqa: S608
_SELECT_ID_RANGE = (
    f"SELECT id FROM entries WHERE session = {_SESSION_NUMBER} AND id >= ? AND id < ? ORDER BY id LIMIT ?"  # noqa: S608
)
_UPSERT_INFO = """
    INSERT INTO sessions (key, title, format, cwd, model, created, updated, entries, leaf)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET
    title = excluded.title, cwd = excluded.cwd, model = excluded.model,
    updated = excluded.updated, entries = excluded.entries, leaf = excluded.leaf"""
_SELECT_PATH_UP = f"""
    WITH RECURSIVE up (seq, parent) AS (
        SELECT seq, parent FROM entries WHERE seq = ?
        UNION ALL
        SELECT n.seq, n.parent FROM up JOIN entries n ON n.seq = up.parent
        WHERE n.seq < up.seq AND (n.depth > ? OR n.seq >= ?)  -- damage makes no circle
    )
    SELECT e.id, p.id, e.seq, {_SELECTED_COLUMNS}
    FROM up JOIN entries e ON e.seq = up.seq LEFT JOIN entries p ON p.seq = up.parent ORDER BY e.seq"""  # noqa: S608
_SELECT_TIPS = f"""
    SELECT id FROM entries e WHERE session = {_SESSION_NUMBER} AND kind <> 'label' AND NOT EXISTS (
        SELECT 1 FROM entries c WHERE c.parent = e.seq
        AND (c.kind <> 'label' OR EXISTS (SELECT 1 FROM entries g WHERE g.parent = c.seq))
    ) ORDER BY seq"""  # noqa: S608
IDS_AT_ONCE = MAX_STATEMENT_VALUES // 2
"""Ids that are asked for in one statement. [H]"""
_LAST_CHARACTER = "\U0010ffff"


class SqliteStore(TreeStore):
    """A store in the file at ``path``, used by one thread at a time.

    ``wire_decoders`` are the decoders of wire forms (default: all that this version has).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "process",
        readonly: bool = False,
        quota: Quota = Quota(),
        wire_decoders: MessageDecoders | None = None,
        clock: Callable[[], int] = get_time_ms,
    ) -> None:
        self._file = SqliteFile(path, durability, readonly=readonly)
        super().__init__(FileBlobStore(self._file.get_sibling_path(".blobs"), quota), clock)
        self._locks = self._file.get_sibling_path(".locks")
        self._decoders = wire_decoders
        self._quota = quota.session_bytes
        self._readonly = readonly
        self._not_repairable: set[str] = set()
        """Sessions that were looked through in vain: that costs a reading of all, and a proxy may ask each time."""

    def hold_lease(self, key: str) -> AbstractContextManager[None]:
        """Hold the session's lease, a lock on a file in ``.locks`` beside the database.

        Nothing is made beside a file that is no database: that is a ``StoreCorrupt``.
        """
        self._file.check_readable()
        return hold_session_lock(self._locks, key)

    def repair_damage(self, key: str) -> list[str]:
        """Put right what can be in the session without loss; return what was done, a line for each."""
        if self._readonly or key in self._not_repairable:
            return []
        from holdfast.store.repair.repair_store import repair_store_session

        findings = repair_store_session(self._file.file, key)
        if not findings:
            self._not_repairable.add(key)
        return [
            f"{f'entry {finding.entry_id}: ' if finding.entry_id else ''}{finding.problem}: {finding.action}"
            for finding in findings
        ]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read_transaction(self) -> AbstractContextManager[None]:
        return self._file.read_transaction()

    def _write_transaction(self) -> AbstractContextManager[None]:
        return self._file.write_transaction()

    @property
    def _message_decoders(self) -> MessageDecoders:
        return load_message_decoders() if self._decoders is None else self._decoders

    def _decode_rows(self, rows: Iterable[tuple[Any, ...]]) -> list[Entry]:
        wire_decoders = self._message_decoders
        return [decode_entry_row(row[:3], EntryRow(*row[3:]), wire_decoders) for row in rows]

    def _list_infos(self) -> list[SessionInfo]:
        return [SessionInfo(*row) for row in self._file.db.execute(_SELECT_INFO)]

    def _find_info(self, key: str) -> SessionInfo | None:
        row = self._file.db.execute(f"{_SELECT_INFO} WHERE key = ?", (_replace_unstorable(key),)).fetchone()
        return None if row is None else SessionInfo(*row)

    def _find_keys(self, prefix: str) -> list[str]:
        query = "SELECT key FROM sessions WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
        return [
            key for (key,) in self._file.db.execute(query, (*_get_prefix_bounds(prefix), MAX_LISTED_CANDIDATES + 1))
        ]

    def _save_info(self, info: SessionInfo) -> None:
        texts = map(_replace_unstorable, (info.title, info.format, info.cwd, info.model))
        self._file.db.execute(
            _UPSERT_INFO, (info.key, *texts, info.created_at, info.updated_at, info.entry_count, info.leaf_id)
        )

    def _delete_session(self, key: str) -> None:
        db, session = self._file.db, (self._get_session_number(key),)
        indexing.clear_word_index_if_indexed(db, *session)
        db.execute("DELETE FROM checkpoints WHERE seq IN (SELECT seq FROM entries WHERE session = ?)", session)
        for table in ("entries", "searched", "sessions"):
            db.execute(f"DELETE FROM {table} WHERE session = ?", session)  # noqa: S608 -- tables of ours

    def _get_last_seq(self) -> int:
        return int(self._file.db.execute("SELECT coalesce(max(seq), 0) FROM entries").fetchone()[0])

    def _find_node(self, key: str, id_: str) -> TreeNode | None:
        row = self._file.db.execute(_SELECT_NODE, (key, _replace_unstorable(id_))).fetchone()
        return None if row is None else TreeNode(*row)

    def _find_nodes(self, info: SessionInfo, ids: Sequence[str]) -> dict[str, TreeNode]:
        """Return where those of ``ids`` stand that are in the log, a good many in one look, or all of a short log."""
        if info.entry_count < len(ids):
            return {id_: TreeNode(*columns) for id_, *columns in self._file.db.execute(_SELECT_NODES, (info.key,))}
        nodes: dict[str, TreeNode] = {}
        for start in range(0, len(ids), IDS_AT_ONCE):
            id_batch = [*map(_replace_unstorable, ids[start : start + IDS_AT_ONCE])]
            rows = self._file.db.execute(
                f"{_SELECT_NODES} AND id IN ({', '.join('?' * len(id_batch))})", (info.key, *id_batch)
            )
            nodes |= {id_: TreeNode(*columns) for id_, *columns in rows}
        return nodes

    def _find_entry_ids(self, key: str, prefix: str) -> list[str]:
        return [
            id_
            for (id_,) in self._file.db.execute(
                _SELECT_ID_RANGE, (key, *_get_prefix_bounds(prefix), MAX_LISTED_CANDIDATES + 1)
            )
        ]

    def _find_identity(self, key: str, id_: str) -> bytes | None:
        row = self._file.db.execute(_SELECT_IDENTITY, (key, _replace_unstorable(id_))).fetchone()
        return None if row is None else bytes(row[0])

    def _insert_entries(self, key: str, placed_entries: Sequence[PlacedEntry], decode: MessageDecoder | None) -> None:
        wire_decoders, db = self._message_decoders, self._file.db
        session, session_bytes = db.execute("SELECT session, bytes FROM sessions WHERE key = ?", (key,)).fetchone()
        columns = encode_minimal_columns if len(placed_entries) >= ROWS_AT_ONCE else encode_full_columns
        says = [columns(placed_entry.entry, wire_decoders, decode) for placed_entry in placed_entries]
        session_bytes = add_session_bytes(key, session_bytes, count_content_bytes(says), self._quota)
        insert_entries(db, session, placed_entries, says)
        db.execute("UPDATE sessions SET bytes = ? WHERE key = ?", (session_bytes, key))

    def _read_entries_by_id(self, key: str, ids: Sequence[str]) -> list[Entry]:
        return [entry for id_ in ids for entry in self._decode_rows(self._file.db.execute(_ONE, (key, id_)))]

    def _read_path_up(self, key: str, seq: int, keep: int, base: int) -> list[Entry]:  # noqa: ARG002 -- seq is of one session
        return self._decode_rows(self._file.db.execute(_SELECT_PATH_UP, (seq, keep, base)))

    def _read_all_entries(self, key: str, kind: str | None = None, after: int = 0) -> list[Entry]:
        if kind is None:
            return self._decode_rows(self._file.db.execute(_SELECT_ALL_ENTRIES, (key, after)))
        query = (
            f"{_SELECT_ENTRY} WHERE e.session = {_SESSION_NUMBER} AND {build_kind_condition(kind)} AND e.seq "
            "> ? ORDER BY e.seq"
        )
        return self._decode_rows(self._file.db.execute(query, (key, kind, after)))

    def _open_lazy_entries(self, key: str) -> Sequence[Entry]:
        rows = self._file.db.execute(_SELECT_HEADERS, (key,))
        headers = [
            LazyEntry(id_, parent, get_entry_body_type(kind), partial(self._read_body, key, id_), seq, at)
            for id_, parent, kind, seq, at in rows
        ]
        return LazyEntries(headers, partial(self._iter_in_order, key))

    def _iter_in_order(self, key: str) -> Iterator[Entry]:
        """Yield every entry of a session, a good many in one look."""
        last = 0
        while True:
            with self._read_transaction():
                entries = self._decode_rows(
                    self._file.db.execute(f"{_SELECT_ALL_ENTRIES} LIMIT {ENTRIES_AT_ONCE}", (key, last))
                )
            yield from entries
            if len(entries) < ENTRIES_AT_ONCE:
                return
            last = entries[-1].seq

    def _read_body(self, key: str, id_: str) -> EntryBody:
        with self._read_transaction():
            entries = self._read_entries_by_id(key, [id_])
        if not entries:
            raise build_unknown_id_error("entry", id_)
        return entries[0].body

    def _iter_damage(self, key: str) -> Iterator[str]:
        for row in self._file.db.execute(_SELECT_ALL_ENTRIES, (key, 0)):
            try:
                self._decode_rows([row])
            except StoreCorrupt as error:
                yield str(error)

    def _find_tip_ids(self, key: str) -> list[str]:
        return [id_ for (id_,) in self._file.db.execute(_SELECT_TIPS, (key,))]

    def _prepare_search(self, key: str, search_terms: Sequence[str], tick: ProgressCallback) -> None:
        """Bring the index of words up to date; a search does without where nothing can be written."""
        if not self._readonly and indexing.build_match_query(search_terms):
            with suppress(StoreError):
                while progress := self._index_next_entries(key):
                    tick(*progress)

    def _index_next_entries(self, key: str) -> tuple[int, int] | None:
        """Put the next entries of a session into the index; return the last of them and of all, or nothing."""
        with self._read_transaction():
            if next(self._iter_unindexed(key), None) is None:
                return None
        with self._write_transaction():
            session, texts, batch_chars = self._get_session_number(key), [], 0
            for entry in self._iter_unindexed(key):
                texts.append((entry.seq, get_searchable_text(entry) if is_searchable_entry(entry) else None))
                batch_chars += len(texts[-1][1] or "")
                if batch_chars > indexing.INDEX_BATCH_CHARS:
                    break
            if texts:
                indexing.index_texts(self._file.db, session, texts)
            return (texts[-1][0], self._get_last_seq()) if texts else None

    def _iter_unindexed(self, key: str) -> Iterator[Entry]:
        """Yield the entries of a session that the index has not seen."""
        session = self._get_session_number(key)
        rows = self._file.db.execute(
            _SELECT_NEW_SEARCHABLE, (session, indexing.get_indexed_seq(self._file.db, session))
        )
        return (entry for row in rows for entry in self._decode_rows([row]))

    def _get_session_number(self, key: str) -> int:
        """Return the number of a session; ``UnknownId`` where somebody removed it a moment ago."""
        row = self._file.db.execute(_SELECT_SESSION_NUMBER, (key,)).fetchone()
        if row is None:
            raise build_unknown_id_error("session", key)
        return int(row[0])

    def _iter_search_candidates(self, key: str, search_terms: Sequence[str]) -> Iterator[Entry]:
        db, session = self._file.db, self._get_session_number(key)
        match_query = indexing.build_match_query(search_terms)
        seqs = indexing.find_candidate_seqs(db, session, match_query) if match_query else None
        upto = indexing.get_indexed_seq(db, session) if seqs is not None else 0
        rows = chain(
            db.execute(_SELECT_LATE_SEARCHABLE, (session, upto)),
            (row for seq in seqs or () if seq <= upto for row in db.execute(_SELECT_ENTRY_BY_SEQ, (session, seq))),
        )
        return (entry for row in rows for entry in self._decode_rows([row]) if is_searchable_entry(entry))

    def _read_checkpoint(self, key: str, seq: int) -> bytes | None:  # noqa: ARG002
        row = self._file.db.execute("SELECT state FROM checkpoints WHERE seq = ?", (seq,)).fetchone()
        return None if row is None else bytes(row[0])

    def _save_checkpoint(self, key: str, seq: int, state: bytes) -> None:  # noqa: ARG002
        self._file.db.execute("INSERT OR REPLACE INTO checkpoints (seq, state) VALUES (?, ?)", (seq, state))


def build_kind_condition(kind: str) -> str:
    """Return what asks for entries ``e`` of ``kind``: SQLite is to be told that the index of kinds has all of them."""
    return "e.kind = ?" if kind == "message" else "e.kind = ? AND e.kind <> 'message'"


def _replace_unstorable(text: str) -> str:
    """Return ``text`` as SQLite can hold it: lone surrogates become question marks."""
    return text.encode("utf-8", "replace").decode()


def _get_prefix_bounds(prefix: str) -> tuple[str, str]:
    """Return the bounds of all texts that begin with ``prefix``."""
    return _replace_unstorable(prefix), _replace_unstorable(prefix) + _LAST_CHARACTER


def insert_entries(
    db: sqlite3.Connection, session: int, placed_entries: Sequence[PlacedEntry], columns_by_entry: Sequence[RowColumns]
) -> None:
    """Insert what the entries of a session say where ``placed_entries`` has them; in that order, so that parents
    come first.
    """
    rows = [
        (
            session,
            placed_entry.entry.id,
            placed_entry.parent_seq,
            placed_entry.seq,
            placed_entry.depth,
            placed_entry.compaction_seq,
            *columns,
        )
        for placed_entry, columns in zip(placed_entries, columns_by_entry, strict=True)
    ]
    for width, alike in groupby(rows, len):
        run = [*alike]
        is_bare = width == len(_WIRE_ONLY_COLUMNS)
        whole = len(run) - len(run) % ROWS_AT_ONCE if is_bare else 0
        for start in range(0, whole, ROWS_AT_ONCE):
            db.execute(_INSERT_MANY, [*chain.from_iterable(run[start : start + ROWS_AT_ONCE])])
        db.executemany(_INSERT_ONE if is_bare else _INSERT_ANY, run[whole:])
