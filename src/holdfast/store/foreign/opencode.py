"""The database of opencode: read without writing to it, and created from rows.

opencode 1 keeps sessions in ``session``, ``message`` and ``part``. opencode 2 writes the same file, but into
``session_v2`` and ``session_message``, and leaves the old tables as they are; it copied the sessions that it found at
its first start (ccusage#1644, 2026-08-26; opencode#49641, 2026-09-18). A session that is in both is read from the new
tables, unless it was continued with opencode 1 after that.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, NoReturn

from holdfast.errors import UnrecognizedContent
from holdfast.formats.base import Recording
from holdfast.formats.opencode.read import (
    FORMAT,
    OpencodeStoredMessage,
    OpencodeStoredSession,
    build_opencode_recording,
)
from holdfast.formats.opencode.rows import encode_opencode_session_info
from holdfast.formats.opencode.session_messages import SessionMessageRow, iter_stored_messages
from holdfast.store.foreign.other_databases import recognize_foreign_database
from holdfast.store.foreign.session_list import ForeignSessionRow, choose_sessions, list_descendants
from holdfast.store.foreign.sqlite_files import (
    StableDatabase,
    decode_column_text,
    encode_column_value,
    get_column_number,
    is_sqlite_file,
    open_stable_database,
    translate_sqlite_errors,
)

__all__ = [
    "FORMAT",
    "OpencodeDatabase",
    "build_opencode_database",
    "is_sqlite_file",
    "open_opencode_database",
]
_OLD_COLUMNS = {"session": {"id"}, "message": {"id", "session_id", "data"}, "part": {"id", "message_id", "data"}}
"""Tables and columns without which no session of opencode 1 can be read; others may be missing, as in older versions.
"""
_NEW_COLUMNS = {"session_message": {"id", "session_id", "type", "data"}}
"""The same for opencode 2. Its sessions are in ``session_v2``, in betas in ``session``."""
_SESSION_TABLES = ("session", "session_v2")


@contextmanager
def open_opencode_database(path: Path) -> Iterator[OpencodeDatabase]:
    """Open the database of opencode at ``path`` read-only for the block; no file is written beside it either.

    Raises ``UnrecognizedContent`` for another program's database and ``FormatError`` for a damaged one.
    """
    with open_stable_database(path) as database:
        yield OpencodeDatabase(database)


class OpencodeDatabase:
    """An open database of opencode."""

    def __init__(self, database: StableDatabase) -> None:
        self._database = database
        self._db = database.connection
        tables = (*_SESSION_TABLES, "message", "part", "session_message")
        self._columns = {table: self._database.list_columns(table) for table in tables}
        old_missing = self._list_missing_columns(_OLD_COLUMNS)
        new_missing = self._list_missing_columns(_NEW_COLUMNS)
        if old_missing and (new_missing or "id" not in self._columns["session_v2"]):
            self._raise_unrecognized(old_missing)
        self._has_old_messages = not old_missing
        self._has_new_messages = not new_missing
        self._sessions = self._read_sessions()

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection, which cannot write; texts are bytes."""
        return self._db

    def _list_missing_columns(self, required: Mapping[str, set[str]]) -> list[str]:
        missing: list[str] = []
        for table, names in required.items():
            missing += [f"{table}.{name}" for name in names - self._columns[table]]
        return missing

    def _raise_unrecognized(self, missing: list[str]) -> NoReturn:
        """Raise the error for a database of another program, with its name if it is known."""
        if owner := recognize_foreign_database(self._database.list_tables()):
            raise UnrecognizedContent(owner)
        raise UnrecognizedContent(
            f"this is an SQLite database, but not opencode's: {', '.join(sorted(missing))} is missing; opencode "
            "keeps its sessions in ~/.local/share/opencode/opencode.db"
        )

    def _read_sessions(self) -> dict[str, ForeignSessionRow]:
        """Return all sessions, oldest first; one that is in both tables as the new one has it."""
        rows: dict[str, tuple[float, ForeignSessionRow]] = {}
        for table in _SESSION_TABLES:
            columns = self._columns[table]
            if "id" not in columns:
                continue
            # Columns that an older version lacks are empty.
            names = [name if name in columns else "NULL" for name in ("id", "parent_id", "title", "time_created")]
            for *texts, time in self._db.execute(f"SELECT {', '.join(names)} FROM {table}"):  # noqa: S608 -- our names
                session = ForeignSessionRow(*(decode_column_text(value) for value in texts))
                rows[session.id] = (get_column_number(time), session)
        # opencode's own order; ids alone wrap around every 795 days.
        ordered = sorted(rows.values(), key=lambda row: (row[0], row[1].id))
        return {session.id: session for _, session in ordered}

    def _build_order_clause(self, table: str) -> str:
        if "time_created" in self._columns[table]:
            return "time_created, id"
        return "id"

    def list_root_sessions(self, id_prefix: str = "") -> list[ForeignSessionRow]:
        """Return the sessions that are not a sub-agent's, oldest first; or the one with an id that begins with
        ``id_prefix``.

        Raises ``UnknownId``, with the newest candidates, if there is no such session or more than one.
        """
        return choose_sessions(self._sessions, id_prefix)

    def read_recording(self, id_: str) -> Recording:
        """Return a session with the sessions of its sub-agents, at any depth.

        Raises ``StoreLocked`` if opencode wrote in the meantime.
        """
        with translate_sqlite_errors(self._database.path):
            descendants = list_descendants(self._sessions, id_)
            subagents = [self._read_one_recording(session_id) for session_id in descendants]
            recording = self._read_one_recording(id_, tuple(subagents))
        self._database.raise_if_changed()
        return recording

    def _read_one_recording(self, id_: str, sidechains: tuple[Recording, ...] = ()) -> Recording:
        is_new = self._is_read_from_new_tables(id_)
        row: dict[str, Any] = {}
        for table in _SESSION_TABLES if is_new else reversed(_SESSION_TABLES):
            if "id" in self._columns[table]:
                cursor = self._db.execute(f"SELECT * FROM {table} WHERE id = ?", (id_,))  # noqa: S608 -- our names
                names = [column[0] for column in cursor.description]
                row |= dict(zip(names, cursor.fetchone() or (), strict=False))
        info = encode_opencode_session_info(row)
        if is_new:
            folder = decode_column_text(row.get("directory")) or "/"
            messages = iter_stored_messages(self._iter_session_messages(id_), folder)
        else:
            messages = self._iter_messages(id_) if self._has_old_messages else iter(())
        session = OpencodeStoredSession(id_, info, messages)
        return build_opencode_recording(session, sidechains)

    def _is_read_from_new_tables(self, id_: str) -> bool:
        """Return whether the messages of a session are read from the tables of opencode 2."""
        if not self._has_new_messages:
            return False
        new_count, new_time = self._count_messages("session_message", id_)
        old_count, old_time = self._count_messages("message", id_) if self._has_old_messages else (0, 0)
        if not new_count or not old_count:
            return bool(new_count)
        # In betas of mid-2026 both tables belong to ``session``; only newer messages were missing in one of them.
        query = "SELECT count(*) FROM session_v2 WHERE id = ?"
        is_moved = "id" in self._columns["session_v2"] and self._db.execute(query, (id_,)).fetchone()[0] > 0
        return new_time > old_time or (is_moved and new_time == old_time)

    def _count_messages(self, table: str, session: str) -> tuple[int, float]:
        """Return the number of messages of a session in a table, and the time of the newest (0 if unknown)."""
        time = "max(time_created)" if "time_created" in self._columns[table] else "0"
        query = f"SELECT count(*), {time} FROM {table} WHERE session_id = ?"  # noqa: S608 -- our names
        count, newest = self._db.execute(query, (session,)).fetchone()
        return count, get_column_number(newest)

    def _iter_session_messages(self, session: str) -> Iterator[SessionMessageRow]:
        """Yield the rows of a session of opencode 2, then what its user typed and the model did not get yet."""
        columns = self._columns["session_message"]
        order = "seq" if "seq" in columns else self._build_order_clause("session_message")
        time = "time_created" if "time_created" in columns else "0"
        query = f"SELECT id, type, {time}, data FROM session_message WHERE session_id = ? ORDER BY {order}"  # noqa: S608
        seen: set[str] = set()
        for raw_id, type_, created, data in self._db.execute(query, (session,)):
            id_ = decode_column_text(raw_id)
            seen.add(id_)
            at = int(created) if isinstance(created, int | float) else 0
            yield SessionMessageRow(id_, decode_column_text(type_), at, encode_column_value(data))
        for row in self._iter_waiting_prompts(session):
            if row.id not in seen:
                yield row

    def _iter_waiting_prompts(self, session: str) -> Iterator[SessionMessageRow]:
        """Yield what the user typed while the agent worked and the model did not get: ``promoted_seq`` is empty.

        A prompt has the id of the message that it becomes.
        """
        columns = self._database.list_columns("session_input")
        if not {"id", "session_id", "promoted_seq"} <= columns:
            return
        content = next((name for name in ("data", "prompt") if name in columns), "NULL")
        kind = "type" if "type" in columns else "'user'"
        order = "admitted_seq" if "admitted_seq" in columns else "id"
        query = (
            f"SELECT id, {kind}, {content} FROM session_input "  # noqa: S608 -- our names
            f"WHERE session_id = ? AND promoted_seq IS NULL ORDER BY {order}"
        )
        for id_, type_, data in self._db.execute(query, (session,)):
            if decode_column_text(type_) == "user":
                yield SessionMessageRow(decode_column_text(id_), "user", 0, encode_column_value(data))

    def _iter_messages(self, session: str) -> Iterator[OpencodeStoredMessage]:
        """Yield the messages of a session, reading one after the other."""
        order = self._build_order_clause("message")
        message_query = f"SELECT id, data FROM message WHERE session_id = ? ORDER BY {order}"  # noqa: S608
        part_query = "SELECT id, data FROM part WHERE message_id = ? ORDER BY id"
        for raw_id, data in self._db.execute(message_query, (session,)):
            message_id = decode_column_text(raw_id)
            parts = []
            for part_id, part_data in self._db.execute(part_query, (message_id,)):
                parts.append((decode_column_text(part_id), encode_column_value(part_data)))
            yield OpencodeStoredMessage(message_id, encode_column_value(data), tuple(parts))


def build_opencode_database(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> bytes:
    """Return the bytes of a database with opencode's schema and ``rows`` by table; it is made in memory."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(files("holdfast.data").joinpath("opencode.sql").read_text("utf-8"))
        for table, table_rows in rows.items():
            _insert_rows(db, table, table_rows)
        db.commit()
        return db.serialize()


def _insert_rows(db: sqlite3.Connection, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
    for row in rows:
        columns = ", ".join(row)
        places = ", ".join("?" * len(row))
        statement = f"INSERT INTO {table} ({columns}) VALUES ({places})"  # noqa: S608 -- our names
        db.execute(statement, list(row.values()))
