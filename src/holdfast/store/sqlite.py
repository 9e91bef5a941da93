"""A store in one SQLite file: write-ahead log, one writer at a time, readable meanwhile.

The file, its ``.blobs`` and its ``.locks`` belong together. The blobs may be in object storage instead.
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
from holdfast.store.base import BlobStore, MessageDecoder, ProgressCallback, Quota, SchemaVersions, SessionInfo
from holdfast.store.blobs.blob_place import choose_blob_store
from holdfast.store.blobs.blob_total import add_session_bytes
from holdfast.store.locks import hold_session_lock
from holdfast.store.search import index as indexing
from holdfast.store.search.search import get_searchable_text, is_searchable_entry
from holdfast.store.sql.database import Durability, SqliteFile
from holdfast.store.sql.migrations import MIGRATIONS, get_schema_version
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
"""Values in one statement: the default limit of SQLite before 3.32. Measured: with more it is no faster."""
ROWS_AT_ONCE = MAX_STATEMENT_VALUES // len(_WIRE_ONLY_COLUMNS)
"""Messages inserted by one statement. Measured: a quarter faster than one statement for each."""


def _build_entry_insert(columns: Sequence[str], rows: int = 1) -> str:
    """Return the statement that inserts ``rows`` entries.

    With ``FAIL`` SQLite keeps no journal to undo the statement alone; an error undoes the whole transaction anyway.
    """
    row = f"({', '.join('?' * len(columns))})"
    return f"INSERT OR FAIL INTO entries ({', '.join(columns)}) VALUES {', '.join([row] * rows)}"  # noqa: S608 -- only constants are put into SQL


_INSERT_ANY = _build_entry_insert((*_PLACE_COLUMNS, *ROW_COLUMNS))
_INSERT_ONE = _build_entry_insert(_WIRE_ONLY_COLUMNS)
_INSERT_MANY = _build_entry_insert(_WIRE_ONLY_COLUMNS, ROWS_AT_ONCE)

_SELECTED_COLUMNS = ", ".join(f"e.{name}" for name in ROW_COLUMNS)
_SESSION_NUMBER = "(SELECT session FROM sessions WHERE key = ?)"
_SELECT_ENTRY = f"SELECT e.id, p.id, e.seq, {_SELECTED_COLUMNS} FROM entries e LEFT JOIN entries p ON p.seq = e.parent"  # noqa: S608 -- only constants are put into SQL
_SELECT_INFO = "SELECT key, title, format, cwd, model, created, updated, entries, leaf, recorded_window FROM sessions"
_SELECT_OLDER_INFO = "SELECT key, title, format, cwd, model, created, updated, entries, leaf FROM sessions"
"""For a store that has not been migrated to the schema with the recorded window."""
_ONE = f"{_SELECT_ENTRY} WHERE e.session = {_SESSION_NUMBER} AND e.id = ?"
_SELECT_ALL_ENTRIES = f"{_SELECT_ENTRY} WHERE e.session = {_SESSION_NUMBER} AND e.seq > ? ORDER BY e.seq"
_SELECT_HEADERS = f"""
    SELECT e.id, p.id, e.kind, e.seq, e.at, e.size FROM entries e LEFT JOIN entries p ON p.seq = e.parent
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
    INSERT INTO sessions (key, title, format, cwd, model, created, updated, entries, leaf, recorded_window)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET
    title = excluded.title, cwd = excluded.cwd, model = excluded.model,
    updated = excluded.updated, entries = excluded.entries, leaf = excluded.leaf,
    recorded_window = excluded.recorded_window"""
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
"""Ids looked up by one statement. Chosen by judgement, well below the limit of values."""
_LAST_CHARACTER = "\U0010ffff"


class SqliteStore(TreeStore):
    """A store in the file at ``path``, used by one thread at a time.

    ``blobs`` is where they go if it has none yet, as ``s3://BUCKET/PREFIX``, or a store of blobs with its own quota
    (default: where they are, or beside the file). ``wire_decoders`` decode the wire bytes of
    messages, by API (default: all that this version has).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "process",
        readonly: bool = False,
        quota: Quota = Quota(),
        blobs: BlobStore | str | None = None,
        wire_decoders: MessageDecoders | None = None,
        clock: Callable[[], int] = get_time_ms,
    ) -> None:
        self._file = SqliteFile(path, durability, readonly=readonly)
        if blobs is None or isinstance(blobs, str):
            blobs = choose_blob_store(self._file.get_sibling_path(".blobs"), blobs, quota)
        super().__init__(blobs, clock)
        self._locks = self._file.get_sibling_path(".locks")
        self._decoders = wire_decoders
        self._quota = quota.session_bytes
        self._readonly = readonly
        self._not_repairable: set[str] = set()
        """Sessions in which a repair found nothing to do: it reads all rows, and a proxy may ask at each request."""

    def hold_lease(self, key: str) -> AbstractContextManager[None]:
        """Hold the session's lease, a lock on a file in ``.locks`` beside the database.

        Raises ``StoreCorrupt``, and creates nothing, if the file is not a database.
        """
        self._file.check_readable()  # else a lock file would be made beside whatever file was named by mistake
        return hold_session_lock(self._locks, key)

    def repair_damage(self, key: str) -> list[str]:
        """Repair damage in the session as far as possible without loss; return a line for each repair."""
        if self._readonly or key in self._not_repairable:
            return []
        # Imported late: hardly any session is ever repaired.
        from holdfast.store.repair.repair_store import repair_store_session

        findings = repair_store_session(self._file.file, key)
        if not findings:
            self._not_repairable.add(key)
        lines = []
        for finding in findings:
            subject = f"entry {finding.entry_id}: " if finding.entry_id else ""
            lines.append(f"{subject}{finding.problem}: {finding.action}")
        return lines

    def get_schema_versions(self) -> SchemaVersions:
        """Return the version of the file's schema, and the newest; a store without a file has the newest."""
        with self._read_transaction():
            current = get_schema_version(self._file.db, str(self._file.file))
        return SchemaVersions(current, len(MIGRATIONS))

    def migrate_schema(self) -> None:
        """Bring the file to the newest schema in one transaction."""
        with self._write_transaction():
            pass  # opening the file for writing migrates it

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read_transaction(self) -> AbstractContextManager[None]:
        return self._file.read_transaction()

    def _write_transaction(self) -> AbstractContextManager[None]:
        return self._file.write_transaction()

    @property
    def _message_decoders(self) -> MessageDecoders:
        if self._decoders is None:
            return load_message_decoders()
        return self._decoders

    def _decode_rows(self, rows: Iterable[tuple[Any, ...]]) -> list[Entry]:
        wire_decoders = self._message_decoders
        return [decode_entry_row(row[:3], EntryRow(*row[3:]), wire_decoders) for row in rows]

    def _list_infos(self) -> list[SessionInfo]:
        return self._select_infos("", ())

    def _find_info(self, key: str) -> SessionInfo | None:
        infos = self._select_infos(" WHERE key = ?", (_replace_unstorable(key),))
        return infos[0] if infos else None

    def _select_infos(self, condition: str, values: Sequence[str]) -> list[SessionInfo]:
        db = self._file.db
        try:
            rows = db.execute(f"{_SELECT_INFO}{condition}", values).fetchall()
        except sqlite3.OperationalError as error:
            # Reading does not migrate an older store, which has no such column.
            if "no such column" not in str(error):
                raise
            rows = db.execute(f"{_SELECT_OLDER_INFO}{condition}", values).fetchall()
        return [SessionInfo(*row) for row in rows]

    def _find_keys(self, prefix: str) -> list[str]:
        # One more than an error lists, so that it can say that there are more.
        query = "SELECT key FROM sessions WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
        rows = self._file.db.execute(query, (*_get_prefix_bounds(prefix), MAX_LISTED_CANDIDATES + 1))
        return [key for (key,) in rows]

    def _save_info(self, info: SessionInfo) -> None:
        # Titles and folders come from other tools' files and may have lone surrogates; keys and ids are checked before.
        texts = map(_replace_unstorable, (info.title, info.format, info.cwd, info.model))
        row = (info.key, *texts, info.created_at, info.updated_at, info.entry_count, info.leaf_id, info.recorded_window)
        self._file.db.execute(_UPSERT_INFO, row)

    def _delete_session(self, key: str) -> None:
        db = self._file.db
        number = self._get_session_number(key)
        indexing.clear_word_index_if_indexed(db, number)
        db.execute("DELETE FROM checkpoints WHERE seq IN (SELECT seq FROM entries WHERE session = ?)", (number,))
        # Every table that has rows of a session; tests/store/test_schema_tables.py fails if one is missing here.
        for table in ("entries", "searched", "sessions"):
            db.execute(f"DELETE FROM {table} WHERE session = ?", (number,))  # noqa: S608 -- tables of ours
        # A repair keeps damaged rows, but not beyond their session: who removes it wants its content gone.
        has_quarantine = db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'quarantine'").fetchone()
        if has_quarantine:
            db.execute("DELETE FROM quarantine WHERE session = ?", (key,))

    def _get_last_seq(self, key: str) -> int:  # noqa: ARG002 -- numbers are shared by all sessions
        return int(self._file.db.execute("SELECT coalesce(max(seq), 0) FROM entries").fetchone()[0])

    def _find_node(self, key: str, id_: str) -> TreeNode | None:
        row = self._file.db.execute(_SELECT_NODE, (key, _replace_unstorable(id_))).fetchone()
        return None if row is None else TreeNode(*row)

    def _find_nodes(self, info: SessionInfo, ids: Sequence[str]) -> dict[str, TreeNode]:
        """Return the nodes of those ``ids`` that are in the log, with few statements; all nodes of a short log."""
        if info.entry_count < len(ids):
            return self._select_nodes(_SELECT_NODES, (info.key,))
        nodes: dict[str, TreeNode] = {}
        for start in range(0, len(ids), IDS_AT_ONCE):
            wanted_ids = ids[start : start + IDS_AT_ONCE]
            id_batch = [_replace_unstorable(entry_id) for entry_id in wanted_ids]
            marks = ", ".join("?" * len(id_batch))
            query = f"{_SELECT_NODES} AND id IN ({marks})"
            nodes |= self._select_nodes(query, (info.key, *id_batch))
        return nodes

    def _select_nodes(self, query: str, values: Sequence[str]) -> dict[str, TreeNode]:
        rows = self._file.db.execute(query, values)
        return {entry_id: TreeNode(*columns) for entry_id, *columns in rows}

    def _find_entry_ids(self, key: str, prefix: str) -> list[str]:
        values = (key, *_get_prefix_bounds(prefix), MAX_LISTED_CANDIDATES + 1)
        return [entry_id for (entry_id,) in self._file.db.execute(_SELECT_ID_RANGE, values)]

    def _find_identity(self, key: str, id_: str) -> bytes | None:
        row = self._file.db.execute(_SELECT_IDENTITY, (key, _replace_unstorable(id_))).fetchone()
        return None if row is None else bytes(row[0])

    def _insert_entries(
        self,
        key: str,
        placed_entries: Sequence[PlacedEntry],
        decode: MessageDecoder | None,
    ) -> None:
        wire_decoders = self._message_decoders
        db = self._file.db
        session, session_bytes = db.execute("SELECT session, bytes FROM sessions WHERE key = ?", (key,)).fetchone()
        # Minimal columns pay off only where a statement takes many rows; a short append is simpler with full ones.
        if len(placed_entries) >= ROWS_AT_ONCE:
            encode_columns = encode_minimal_columns
        else:
            encode_columns = encode_full_columns
        columns_by_entry = []
        for placed_entry in placed_entries:
            columns_by_entry.append(encode_columns(placed_entry.entry, wire_decoders, decode))
        session_bytes = add_session_bytes(key, session_bytes, count_content_bytes(columns_by_entry), self._quota)
        insert_entries(db, session, placed_entries, columns_by_entry)
        db.execute("UPDATE sessions SET bytes = ? WHERE key = ?", (session_bytes, key))

    def _read_entries_by_id(self, key: str, ids: Sequence[str]) -> list[Entry]:
        entries: list[Entry] = []
        for entry_id in ids:
            entries += self._decode_rows(self._file.db.execute(_ONE, (key, entry_id)))
        return entries

    def _read_path_up(self, key: str, seq: int, keep: int, base: int) -> list[Entry]:  # noqa: ARG002 -- seq is of one session
        return self._decode_rows(self._file.db.execute(_SELECT_PATH_UP, (seq, keep, base)))

    def _read_all_entries(
        self, key: str, kind: str | None = None, after: int = 0, max_tokens: int | None = None
    ) -> list[Entry]:
        condition = f"e.session = {_SESSION_NUMBER}"
        values: list[str | int] = [key]
        if kind is not None:
            condition += f" AND {build_kind_condition(kind)}"
            values.append(kind)
        condition += " AND e.seq > ?"
        values.append(after)
        if max_tokens is not None:
            condition += " AND e.size <= ?"
            values.append(max_tokens)
        query = f"{_SELECT_ENTRY} WHERE {condition} ORDER BY e.seq"
        return self._decode_rows(self._file.db.execute(query, values))

    def _open_lazy_entries(self, key: str) -> Sequence[Entry]:
        headers = []
        rows = self._file.db.execute(_SELECT_HEADERS, (key,))
        read_body = partial(self._read_body, key)
        for entry_id, parent, kind, seq, at, tokens in rows:
            headers.append(LazyEntry(entry_id, parent, get_entry_body_type(kind), read_body, seq, at, tokens))
        # Two ways to read: one entry by its id, or all in order, in far fewer statements.
        return LazyEntries(headers, partial(self._iter_in_order, key))

    def _iter_in_order(self, key: str) -> Iterator[Entry]:
        """Yield every entry of a session, read in batches, each in a transaction of its own."""
        last_seq = 0
        query = f"{_SELECT_ALL_ENTRIES} LIMIT {ENTRIES_AT_ONCE}"
        while True:
            with self._read_transaction():
                entries = self._decode_rows(self._file.db.execute(query, (key, last_seq)))
            yield from entries
            if len(entries) < ENTRIES_AT_ONCE:
                return
            last_seq = entries[-1].seq

    def _read_body(self, key: str, entry_id: str) -> EntryBody:
        with self._read_transaction():
            entries = self._read_entries_by_id(key, [entry_id])
        if not entries:
            raise build_unknown_id_error("entry", entry_id)
        return entries[0].body

    def _iter_damage(self, key: str) -> Iterator[str]:
        # Row by row, so that a damaged entry does not hide those after it.
        for row in self._file.db.execute(_SELECT_ALL_ENTRIES, (key, 0)):
            try:
                self._decode_rows([row])
            except StoreCorrupt as error:
                yield str(error)

    def _find_tip_ids(self, key: str) -> list[str]:
        return [id_ for (id_,) in self._file.db.execute(_SELECT_TIPS, (key,))]

    def _prepare_search(
        self,
        key: str,
        search_terms: Sequence[str],
        tick: ProgressCallback,
    ) -> None:
        """Bring the word index up to date; if nothing can be written, a search works without."""
        if self._readonly or not indexing.build_match_query(search_terms):
            return
        with suppress(StoreError):
            progress = self._index_next_entries(key)
            while progress is not None:
                tick(*progress)
                progress = self._index_next_entries(key)

    def _index_next_entries(self, key: str) -> tuple[int, int] | None:
        """Add the next batch of a session to the index.

        Returns the last ``seq`` of the batch and of the store, or None if everything is indexed.
        """
        # A look first: a write transaction would make every search wait for other writers.
        with self._read_transaction():
            if next(self._iter_unindexed(key), None) is None:
                return None
        with self._write_transaction():
            session = self._get_session_number(key)
            texts: list[tuple[int, str | None]] = []
            batch_chars = 0
            for entry in self._iter_unindexed(key):
                if is_searchable_entry(entry):
                    text = get_searchable_text(entry)
                else:
                    text = None
                texts.append((entry.seq, text))
                batch_chars += len(text or "")
                if batch_chars > indexing.INDEX_BATCH_CHARS:
                    break
            if not texts:
                return None  # another process indexed them in between
            indexing.index_texts(self._file.db, session, texts)
            return texts[-1][0], self._get_last_seq(key)

    def _iter_unindexed(self, key: str) -> Iterator[Entry]:
        """Yield the entries of a session that are not in the index yet."""
        session = self._get_session_number(key)
        indexed_seq = indexing.get_indexed_seq(self._file.db, session)
        rows = self._file.db.execute(_SELECT_NEW_SEARCHABLE, (session, indexed_seq))
        return (entry for row in rows for entry in self._decode_rows([row]))

    def _get_session_number(self, key: str) -> int:
        """Return the number of a session; raises ``UnknownId`` if another process has just removed it."""
        row = self._file.db.execute(_SELECT_SESSION_NUMBER, (key,)).fetchone()
        if row is None:
            raise build_unknown_id_error("session", key)
        return int(row[0])

    def _iter_search_candidates(self, key: str, search_terms: Sequence[str]) -> Iterator[Entry]:
        db = self._file.db
        session = self._get_session_number(key)
        match_query = indexing.build_match_query(search_terms)
        if match_query:
            seqs = indexing.find_candidate_seqs(db, session, match_query)
        else:
            seqs = None
        if seqs is not None:
            indexed_seq = indexing.get_indexed_seq(db, session)
        else:
            indexed_seq = 0
        # Entries after the indexed part first: they are the newest, and the index says nothing about them.
        for row in db.execute(_SELECT_LATE_SEARCHABLE, (session, indexed_seq)):
            yield from filter(is_searchable_entry, self._decode_rows([row]))
        for seq in seqs or ():
            if seq > indexed_seq:
                continue
            for row in db.execute(_SELECT_ENTRY_BY_SEQ, (session, seq)):
                yield from filter(is_searchable_entry, self._decode_rows([row]))

    def _read_checkpoint(self, key: str, seq: int) -> bytes | None:  # noqa: ARG002
        row = self._file.db.execute("SELECT state FROM checkpoints WHERE seq = ?", (seq,)).fetchone()
        return None if row is None else bytes(row[0])

    def _save_checkpoint(self, key: str, seq: int, state: bytes) -> None:  # noqa: ARG002
        self._file.db.execute("INSERT OR REPLACE INTO checkpoints (seq, state) VALUES (?, ?)", (seq, state))


def build_kind_condition(kind: str) -> str:
    """Return the SQL condition for entries ``e`` of ``kind``.

    The second half repeats the condition of the partial index of kinds: SQLite uses the index only if it sees it.
    """
    if kind == "message":
        return "e.kind = ?"
    return "e.kind = ? AND e.kind <> 'message'"


def _replace_unstorable(text: str) -> str:
    """Return ``text`` as SQLite can store it: lone surrogates become question marks."""
    return text.encode("utf-8", "replace").decode()


def _get_prefix_bounds(prefix: str) -> tuple[str, str]:
    """Return lower and upper bound of all texts that begin with ``prefix``."""
    storable_prefix = _replace_unstorable(prefix)
    return storable_prefix, storable_prefix + _LAST_CHARACTER


def insert_entries(
    db: sqlite3.Connection,
    session: int,
    placed_entries: Sequence[PlacedEntry],
    columns_by_entry: Sequence[RowColumns],
) -> None:
    """Insert entries of a session with their columns, in the given order, so that parents come first."""
    rows = []
    for placed_entry, columns in zip(placed_entries, columns_by_entry, strict=True):
        place = (
            session,
            placed_entry.entry.id,
            placed_entry.parent_seq,
            placed_entry.seq,
            placed_entry.depth,
            placed_entry.compaction_seq,
        )
        rows.append((*place, *columns))
    # Rows of one width take one statement. Runs, not all rows of a width: parents have to be inserted first.
    for width, same_width_rows in groupby(rows, len):
        run = list(same_width_rows)
        is_wire_only = width == len(_WIRE_ONLY_COLUMNS)
        batched_count = 0
        if is_wire_only:
            batched_count = len(run) - len(run) % ROWS_AT_ONCE
        for start in range(0, batched_count, ROWS_AT_ONCE):
            batch = run[start : start + ROWS_AT_ONCE]
            db.execute(_INSERT_MANY, list(chain.from_iterable(batch)))
        db.executemany(_INSERT_ONE if is_wire_only else _INSERT_ANY, run[batched_count:])
