"""A store on PostgreSQL: any number of processes on any machines, one writer a session, readable meanwhile.

``seq`` is counted for each session. A write transaction locks the row of its session, so writes to one session come
one after the other and those to others do not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, suppress
from functools import partial
from typing import Any

from holdfast.errors import LogConflict, StoreCorrupt, StoreError
from holdfast.state.entries import Entry, EntryBody
from holdfast.state.lazy_entries import LazyEntries, LazyEntry
from holdfast.store.base import MessageDecoder, ProgressCallback, Quota, SchemaVersions, SessionInfo
from holdfast.store.blobs.blob_total import add_session_bytes
from holdfast.store.postgres import schema
from holdfast.store.postgres.blobs import PostgresBlobStore
from holdfast.store.postgres.changes import NOTIFY, ChangeListener
from holdfast.store.postgres.database import Connection, PostgresDatabase, Row, StoredSession
from holdfast.store.postgres.leases import LEASE_SECONDS, SessionLeases
from holdfast.store.postgres.location import parse_postgres_location
from holdfast.store.postgres.search import (
    SEARCH_SCHEMA_VERSION,
    find_candidate_seqs,
    get_indexed_seq,
    index_texts,
    replace_unstorable,
)
from holdfast.store.search.index import INDEX_BATCH_CHARS
from holdfast.store.search.search import get_searchable_text, is_searchable_entry
from holdfast.store.sql.rows import (
    ROW_COLUMNS,
    EntryRow,
    MessageDecoders,
    count_content_bytes,
    decode_entry_row,
    encode_full_columns,
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

_PLACE_COLUMNS = ("session", "tenant", "id", "parent_id", "parent", "seq", "depth", "base")
_INFO_COLUMNS = "key, title, format, cwd, model, created, updated, entries, leaf, recorded_window"
_SELECTED_COLUMNS = ", ".join(("id", "parent_id", "seq", *ROW_COLUMNS))

# Tables of every query but those of sessions are asked by the number of the session, which only its tenant finds.
_INSERT_ENTRY = f"""
    INSERT INTO entries ({", ".join((*_PLACE_COLUMNS, *ROW_COLUMNS))})
    VALUES ({", ".join(["%s"] * len((*_PLACE_COLUMNS, *ROW_COLUMNS)))})"""  # noqa: S608 -- only constants are put into SQL
_SELECT_INFOS = f"SELECT {_INFO_COLUMNS} FROM sessions WHERE tenant = %s"  # noqa: S608
_SELECT_SESSION = f"SELECT session, bytes, last_seq, {_INFO_COLUMNS} FROM sessions WHERE tenant = %s AND key = %s"  # noqa: S608
_LOCK_SESSION = f"{_SELECT_SESSION} FOR NO KEY UPDATE"
_INSERT_SESSION = f"""
    INSERT INTO sessions (tenant, {_INFO_COLUMNS}) VALUES ({", ".join(["%s"] * 11)})
    ON CONFLICT DO NOTHING RETURNING session"""  # noqa: S608
_UPDATE_SESSION = """
    UPDATE sessions SET title = %s, cwd = %s, model = %s, updated = %s, entries = %s, leaf = %s, recorded_window = %s,
    bytes = %s, last_seq = %s WHERE session = %s"""
_SELECT_ENTRY = f"SELECT {_SELECTED_COLUMNS} FROM entries WHERE session = %(session)s"  # noqa: S608
_SELECT_LATER = f"{_SELECT_ENTRY} AND seq > %(after)s"
_SELECT_HEADERS = "SELECT id, parent_id, kind, seq, at, size FROM entries WHERE session = %s ORDER BY seq"
_SEARCHABLE_KINDS = ["message", "branch_summary", "note", "compaction"]
_SELECT_NODES = "SELECT id, seq, depth, base FROM entries WHERE session = %s"
# One look-up an id. With ``id = ANY(…)`` the server reads a whole session wherever its statistics are those of short
# sessions: measured 30 ms in one of 30,000 entries, and not 0.2 ms.
_SELECT_NODES_BY_ID = """
    SELECT found.* FROM unnest(%s::text[]) AS wanted (id),
    LATERAL (SELECT e.id, seq, depth, base FROM entries e WHERE session = %s AND e.id = wanted.id LIMIT 1) found"""
_SELECT_ENTRIES_BY_ID = f"""
    SELECT found.* FROM unnest(%(ids)s::text[]) AS wanted (id),
    LATERAL ({_SELECT_ENTRY} AND id = wanted.id LIMIT 1) found"""  # noqa: S608
_SELECT_EARLIER = f"""
    SELECT parent, depth, {_SELECTED_COLUMNS} FROM entries
    WHERE session = %(session)s AND seq <= %(seq)s ORDER BY seq DESC LIMIT %(limit)s"""  # noqa: S608
FIRST_PATH_ROWS, MAX_PATH_ROWS = 64, 4_096
"""Rows of a path that are read by its first statement, and by any; each reads twice as many as the one before.

Chosen by judgement: a path is often short, since it begins at a compaction, or else it has thousands of entries.
"""
_SELECT_OUTLINE = "SELECT seq, id, parent, kind = 'label' FROM entries WHERE session = %s ORDER BY seq"
_SAVE_CHECKPOINT = """
    INSERT INTO checkpoints (session, seq, tenant, state) VALUES (%s, %s, %s, %s)
    ON CONFLICT (session, seq) DO UPDATE SET state = excluded.state"""
_SESSION_TABLES = ("entries", "checkpoints", "sessions")
"""Tables that have rows of a session in every version of the tables."""
_SEARCH_TABLES = ("searched", "searched_texts")
"""Those of the search have them too; the first version of the tables has none."""
INDEXED_AT_ONCE = 1_000
"""Entries that are made searchable in one transaction at most; the session's writer waits for it."""
CANDIDATES_AT_ONCE = 50
"""Candidates that are read by one statement. Chosen by judgement: a search ends after twenty places by default."""
MAX_SEQ = 2**63 - 1
"""Largest ``seq``."""
_LAST_CHARACTER = "\U0010ffff"


class PostgresStore(TreeStore):
    """The store at ``url``, used by any number of threads.

    ``wire_decoders`` decode the wire bytes of messages, by API (default: all that this version has).
    """

    def __init__(
        self,
        url: str,
        *,
        readonly: bool = False,
        quota: Quota = Quota(),
        wire_decoders: MessageDecoders | None = None,
        clock: Callable[[], int] = get_time_ms,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._location = parse_postgres_location(url)
        self._database = PostgresDatabase(self._location, self._find_tables, self._prepare_writing, readonly=readonly)
        super().__init__(PostgresBlobStore(self._database, quota), clock)
        self._schema_version = 0
        """Version of the tables when this store connected first; an older one is used as it is."""
        self._leases = SessionLeases(self._database, lease_seconds)
        self._changes = ChangeListener(self._database)
        self._tenant = self._location.tenant
        self._decoders = wire_decoders
        self._quota = quota.session_bytes

    def get_schema_versions(self) -> SchemaVersions:
        """Return the version of the tables, 0 without any, and the newest."""
        with self._read_transaction():
            return SchemaVersions(self._schema_version, len(schema.MIGRATIONS))

    def migrate_schema(self) -> None:
        """Bring the tables to the newest version step by step, and make the next partitions.

        Others go on reading and writing meanwhile, also programs of the version before.
        """
        location = self._location

        def migrate(connection: Connection) -> None:
            _, self._schema_version = schema.migrate_schema(connection, location.schema, location.name)
            schema.make_partitions(connection, location.schema)

        # On a connection of its own: the tables need not be as a writer of this version wants them.
        with closing(PostgresDatabase(location, lambda _: True, migrate)) as database:
            database.require_writable()

    def hold_lease(self, key: str) -> AbstractContextManager[None]:
        """Hold the session's lease, a row with a fence: see ``leases``."""
        return self._leases.hold(replace_unstorable(key))

    def wait_for_change(self, key: str, seconds: float) -> bool:
        """Return whether session ``key`` was changed since the last call; wait at most ``seconds`` for that.

        Only writers whose address has ``holdfast_notify=on`` tell of their changes. Changes before the first call are
        not known: call it once with 0 seconds, then read the session, then wait.
        """
        with self._read_transaction():
            session = self._get_number(key)
        return self._changes.wait_for(session, seconds)

    def close(self) -> None:
        """Close the connections."""
        self._changes.close()
        self._leases.close()
        self._database.close()

    def _find_tables(self, connection: Connection) -> bool:
        self._schema_version = schema.find_tables(connection, self._location.schema, self._location.name)
        return self._schema_version > 0

    def _prepare_writing(self, connection: Connection) -> None:
        self._schema_version = schema.prepare_writing(connection, self._location.schema, self._location.name)

    def _read_transaction(self) -> AbstractContextManager[None]:
        return self._database.read_transaction()

    def _write_transaction(self) -> AbstractContextManager[None]:
        return self._database.write_transaction()

    def _fetch_all(self, query: str, values: Any = ()) -> list[Row]:
        return self._database.transaction.fetch_all(query, values)

    # -- sessions ------------------------------------------------------------------------------------------------------

    def _list_infos(self) -> list[SessionInfo]:
        if not self._database.has_tables:
            return []
        return [SessionInfo(*row) for row in self._fetch_all(_SELECT_INFOS, (self._tenant,))]

    def _find_info(self, key: str) -> SessionInfo | None:
        """Return the session; in a write transaction its row is locked, and the lease is checked if there is one."""
        transaction = self._database.transaction
        if not self._database.has_tables:
            return None
        stored_key = replace_unstorable(key)
        if transaction.is_write:
            self._leases.check_fence(transaction, stored_key)
        query = _LOCK_SESSION if transaction.is_write else _SELECT_SESSION
        row = transaction.fetch_one(query, (self._tenant, stored_key))
        if row is None:
            return None
        number, byte_count, last_seq, *columns = row
        # Numbers that this transaction has changed are written with the row later: they are newer than what it has.
        transaction.sessions.setdefault(stored_key, StoredSession(number, byte_count, last_seq))
        return SessionInfo(*columns)

    def _find_keys(self, prefix: str) -> list[str]:
        if not self._database.has_tables:
            return []
        # One more than an error lists, so that it can say that there are more.
        query = "SELECT key FROM sessions WHERE tenant = %s AND key >= %s AND key < %s ORDER BY key LIMIT %s"
        values = (self._tenant, *_get_prefix_bounds(prefix), MAX_LISTED_CANDIDATES + 1)
        return [key for (key,) in self._fetch_all(query, values)]

    def _save_info(self, info: SessionInfo) -> None:
        transaction = self._database.transaction
        # Titles and folders come from other tools' files, with whatever characters; keys and ids are checked before.
        title, format_, cwd, model = map(replace_unstorable, (info.title, info.format, info.cwd, info.model))
        stored = transaction.sessions.get(info.key)
        if stored is None:
            values = (info.key, title, format_, cwd, model, info.created_at, info.updated_at)
            values_after = (info.entry_count, info.leaf_id, info.recorded_window)
            row = transaction.fetch_one(_INSERT_SESSION, (self._tenant, *values, *values_after))
            if row is None:
                msg = f"session {info.key!r} was made by another process just now; append to it, or choose another key"
                raise LogConflict(msg)
            transaction.sessions[info.key] = StoredSession(row[0], 0, 0)
            return
        changes = (title, cwd, model, info.updated_at, info.entry_count, info.leaf_id, info.recorded_window)
        if self._location.is_notifying:
            transaction.execute_later(NOTIFY, [(str(stored.number),)])
        transaction.execute_later(_UPDATE_SESSION, [(*changes, stored.byte_count, stored.last_seq, stored.number)])

    def _delete_session(self, key: str) -> None:
        number = self._get_stored(key).number
        if self._location.is_notifying:
            self._database.transaction.execute_later(NOTIFY, [(str(number),)])
        for table in (*_SESSION_TABLES, *(_SEARCH_TABLES if self._has_search_tables else ())):
            self._database.transaction.execute(f"DELETE FROM {table} WHERE session = %s", (number,))  # noqa: S608 -- tables of ours

    def _get_stored(self, key: str) -> StoredSession:
        """Return the numbers of a session in this transaction; raises ``UnknownId`` if it is not there."""
        stored = self._database.transaction.sessions.get(key)
        if stored is None and self._find_info(key) is not None:
            stored = self._database.transaction.sessions.get(key)
        if stored is None:
            raise build_unknown_id_error("session", key)
        return stored

    def _get_number(self, key: str) -> int:
        return self._get_stored(key).number

    # -- entries -------------------------------------------------------------------------------------------------------

    @property
    def _message_decoders(self) -> MessageDecoders:
        if self._decoders is None:
            return load_message_decoders()
        return self._decoders

    def _decode_rows(self, rows: Iterable[Row]) -> list[Entry]:
        wire_decoders = self._message_decoders
        return [decode_entry_row(row[:3], EntryRow(*row[3:]), wire_decoders) for row in rows]

    def _get_last_seq(self, key: str) -> int:
        return self._get_stored(key).last_seq

    def _find_node(self, key: str, id_: str) -> TreeNode | None:
        query = f"{_SELECT_NODES} AND id = %s"
        rows = self._fetch_all(query, (self._get_number(key), replace_unstorable(id_)))
        return TreeNode(*rows[0][1:]) if rows else None

    def _find_nodes(self, info: SessionInfo, ids: Sequence[str]) -> dict[str, TreeNode]:
        """Return the nodes of those ``ids`` that are in the log, with one statement."""
        wanted_ids = [replace_unstorable(entry_id) for entry_id in ids]
        rows = self._fetch_all(_SELECT_NODES_BY_ID, (wanted_ids, self._get_number(info.key)))
        return {entry_id: TreeNode(*columns) for entry_id, *columns in rows}

    def _find_entry_ids(self, key: str, prefix: str) -> list[str]:
        query = "SELECT id FROM entries WHERE session = %s AND id >= %s AND id < %s ORDER BY id LIMIT %s"
        values = (self._get_number(key), *_get_prefix_bounds(prefix), MAX_LISTED_CANDIDATES + 1)
        return [entry_id for (entry_id,) in self._fetch_all(query, values)]

    def _find_identity(self, key: str, id_: str) -> bytes | None:
        query = "SELECT identity FROM entries WHERE session = %s AND id = %s"
        rows = self._fetch_all(query, (self._get_number(key), replace_unstorable(id_)))
        return rows[0][0] if rows else None

    def _insert_entries(
        self,
        key: str,
        placed_entries: Sequence[PlacedEntry],
        decode: MessageDecoder | None,
    ) -> None:
        """Insert entries. The session's numbers are written by the ``_save_info`` that ends every write of entries."""
        wire_decoders = self._message_decoders
        stored = self._get_stored(key)
        rows = []
        columns_by_entry = []
        for placed_entry in placed_entries:
            entry = placed_entry.entry
            _check_entry_id(entry.id)
            columns = encode_full_columns(entry, wire_decoders, decode)
            columns_by_entry.append(columns)
            place = (
                entry.parent,
                placed_entry.parent_seq,
                placed_entry.seq,
                placed_entry.depth,
                placed_entry.compaction_seq,
            )
            rows.append((stored.number, self._tenant, entry.id, *place, *columns))
        new_bytes = count_content_bytes(columns_by_entry)
        stored.byte_count = add_session_bytes(key, stored.byte_count, new_bytes, self._quota)
        self._database.transaction.execute_later(_INSERT_ENTRY, rows)
        self._database.transaction.witness = (stored.number, placed_entries[-1].entry.id)
        stored.last_seq = placed_entries[-1].seq

    def _read_entries_by_id(self, key: str, ids: Sequence[str]) -> list[Entry]:
        if not ids:
            return []
        values = {"session": self._get_number(key), "ids": list(ids)}
        entries = self._decode_rows(self._fetch_all(_SELECT_ENTRIES_BY_ID, values))
        entry_by_id = {entry.id: entry for entry in entries}
        return [entry_by_id[entry_id] for entry_id in ids if entry_id in entry_by_id]

    def _read_path_up(self, key: str, seq: int, keep: int, base: int) -> list[Entry]:
        # Walked here: a recursive query costs a scan a step wherever the server has no statistics yet. Nearly all logs
        # are one line, so that the rows before an entry are its path; where they are not, those between are left out.
        path_rows: list[Row] = []
        wanted: int | None = seq
        limit = FIRST_PATH_ROWS
        while wanted is not None:
            values = {"session": self._get_number(key), "seq": wanted, "limit": limit}
            first_wanted = wanted
            for parent, depth, *columns in self._fetch_all(_SELECT_EARLIER, values):
                row_seq = columns[2]
                if row_seq != wanted:
                    continue
                is_in_range = row_seq == seq or depth > keep or row_seq >= base
                if is_in_range:
                    path_rows.append(tuple(columns))
                # Damage makes no circle.
                has_parent = is_in_range and parent is not None and parent < row_seq
                wanted = parent if has_parent else None
                if wanted is None:
                    break
            if wanted == first_wanted:
                break  # the row is missing
            limit = min(2 * limit, MAX_PATH_ROWS)
        path_rows.reverse()
        return self._decode_rows(path_rows)

    def _read_all_entries(
        self, key: str, kind: str | None = None, after: int = 0, max_tokens: int | None = None
    ) -> list[Entry]:
        query = _SELECT_LATER
        if kind is not None:
            query += " AND kind = %(kind)s"
        if kind not in (None, "message"):
            # The condition of the index of kinds, which is used only if it is seen here.
            query += " AND kind <> 'message'"
        if max_tokens is not None:
            query += " AND size <= %(max_tokens)s"
        values = {"session": self._get_number(key), "after": after, "kind": kind, "max_tokens": max_tokens}
        return self._decode_rows(self._fetch_all(f"{query} ORDER BY seq", values))

    def _open_lazy_entries(self, key: str) -> Sequence[Entry]:
        headers = []
        read_body = partial(self._read_body, key)
        rows = self._fetch_all(_SELECT_HEADERS, (self._get_number(key),))
        for entry_id, parent, kind, seq, at, tokens in rows:
            headers.append(LazyEntry(entry_id, parent, get_entry_body_type(kind), read_body, seq, at, tokens))
        # Two ways to read: one entry by its id, or all in order, in far fewer statements.
        return LazyEntries(headers, partial(self._iter_in_order, key))

    def _iter_in_order(self, key: str) -> Iterator[Entry]:
        """Yield every entry of a session, read in batches, each in a transaction of its own."""
        last_seq = 0
        while True:
            with self._read_transaction():
                entries = self._decode_rows(self._fetch_batch(key, last_seq))
            yield from entries
            if len(entries) < ENTRIES_AT_ONCE:
                return
            last_seq = entries[-1].seq

    def _fetch_batch(self, key: str, after: int) -> list[Row]:
        values = {"session": self._get_number(key), "after": after}
        return self._fetch_all(f"{_SELECT_LATER} ORDER BY seq LIMIT {ENTRIES_AT_ONCE}", values)

    def _read_body(self, key: str, entry_id: str) -> EntryBody:
        with self._read_transaction():
            entries = self._read_entries_by_id(key, [entry_id])
        if not entries:
            raise build_unknown_id_error("entry", entry_id)
        return entries[0].body

    def _iter_damage(self, key: str) -> Iterator[str]:
        # Row by row, so that a damaged entry does not hide those after it.
        last_seq = 0
        while rows := self._fetch_batch(key, last_seq):
            for row in rows:
                try:
                    self._decode_rows([row])
                except StoreCorrupt as error:
                    yield str(error)
            last_seq = rows[-1][2]

    def _find_tip_ids(self, key: str) -> list[str]:
        # Decided here, as the path is walked here: for a join of a log with itself the server needs statistics.
        rows = self._fetch_all(_SELECT_OUTLINE, (self._get_number(key),))
        all_parents = {parent for _, _, parent, _ in rows}
        inner_seqs = set()
        for seq, _, parent, is_label in rows:
            # A label without children is not part of any branch, so it does not make its parent an inner entry.
            if not is_label or seq in all_parents:
                inner_seqs.add(parent)
        tip_ids: list[str] = []
        for seq, entry_id, _, is_label in rows:
            if not is_label and seq not in inner_seqs:
                tip_ids.append(entry_id)
        return tip_ids

    def _read_checkpoint(self, key: str, seq: int) -> bytes | None:
        query = "SELECT state FROM checkpoints WHERE session = %s AND seq = %s"
        rows = self._fetch_all(query, (self._get_number(key), seq))
        return rows[0][0] if rows else None

    def _save_checkpoint(self, key: str, seq: int, state: bytes) -> None:
        values = (self._get_number(key), seq, self._tenant, state)
        self._database.transaction.execute_later(_SAVE_CHECKPOINT, [values])

    # -- search --------------------------------------------------------------------------------------------------------

    @property
    def _has_search_tables(self) -> bool:
        return self._schema_version >= SEARCH_SCHEMA_VERSION

    def _prepare_search(
        self,
        key: str,
        search_terms: Sequence[str],
        tick: ProgressCallback,
    ) -> None:
        """Bring the searchable text up to date; if nothing can be written, a search works without."""
        if self._database.readonly or not search_terms or not self._has_search_tables:
            return
        with suppress(StoreError):
            progress = self._index_next_entries(key)
            while progress is not None:
                tick(*progress)
                progress = self._index_next_entries(key)

    def _index_next_entries(self, key: str) -> tuple[int, int] | None:
        """Add the next batch of a session; return its last ``seq`` and the session's, or None if all is there."""
        # A look first: a write transaction would make every search wait for the session's writer.
        with self._read_transaction():
            if not self._read_unindexed(key):
                return None
        with self._write_transaction():
            texts: list[tuple[int, str | None]] = []
            batch_chars = 0
            for entry in self._read_unindexed(key):
                text = get_searchable_text(entry) if is_searchable_entry(entry) else None
                texts.append((entry.seq, text))
                batch_chars += len(text or "")
                if batch_chars > INDEX_BATCH_CHARS:
                    break
            if not texts:
                return None  # another process indexed them in between
            index_texts(self._database.transaction, self._get_number(key), self._tenant, texts)
            return texts[-1][0], self._get_last_seq(key)

    def _read_unindexed(self, key: str) -> list[Entry]:
        """Return the next searchable entries of a session that have no searchable text yet."""
        session = self._get_number(key)
        upto = get_indexed_seq(self._database.transaction, session)
        values = {"session": session, "after": upto, "kinds": _SEARCHABLE_KINDS}
        query = f"{_SELECT_LATER} AND kind = ANY(%(kinds)s) ORDER BY seq LIMIT {INDEXED_AT_ONCE}"
        return self._decode_rows(self._fetch_all(query, values))

    def _iter_search_candidates(self, key: str, search_terms: Sequence[str]) -> Iterator[Entry]:
        session = self._get_number(key)
        upto = 0
        if self._has_search_tables:
            upto = get_indexed_seq(self._database.transaction, session)
        # Entries after the indexed part first: they are the newest, and nothing is known of them.
        yield from self._iter_late_entries(session, upto)
        if not upto:
            return
        seqs = find_candidate_seqs(self._database.transaction, session, search_terms, upto)
        for start in range(0, len(seqs), CANDIDATES_AT_ONCE):
            values = {"session": session, "seqs": seqs[start : start + CANDIDATES_AT_ONCE]}
            query = f"{_SELECT_ENTRY} AND seq = ANY(%(seqs)s) ORDER BY seq DESC"
            yield from filter(is_searchable_entry, self._decode_rows(self._fetch_all(query, values)))

    def _iter_late_entries(self, session: int, after: int) -> Iterator[Entry]:
        """Yield the searchable entries after a ``seq``, the newest first."""
        before = MAX_SEQ
        while True:
            values = {"session": session, "after": after, "before": before, "kinds": _SEARCHABLE_KINDS}
            condition = "AND seq < %(before)s AND kind = ANY(%(kinds)s)"
            query = f"{_SELECT_LATER} {condition} ORDER BY seq DESC LIMIT {ENTRIES_AT_ONCE}"
            entries = self._decode_rows(self._fetch_all(query, values))
            yield from filter(is_searchable_entry, entries)
            if len(entries) < ENTRIES_AT_ONCE:
                return
            before = entries[-1].seq


def _check_entry_id(entry_id: str) -> None:
    """Raise ``LogConflict`` for an id that PostgreSQL cannot hold as it is."""
    if "\0" in entry_id:
        msg = f"entry id {entry_id[:80]!r} has a null character, which PostgreSQL cannot store; nothing was written"
        raise LogConflict(f"{msg}: give another id")


def _get_prefix_bounds(prefix: str) -> tuple[str, str]:
    """Return lower and upper bound of all texts that begin with ``prefix``."""
    storable_prefix = replace_unstorable(prefix)
    return storable_prefix, storable_prefix + _LAST_CHARACTER
