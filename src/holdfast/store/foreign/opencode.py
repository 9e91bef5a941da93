"""The database of opencode: read without writing to it, and created from rows.

opencode 1 keeps sessions in ``session``, ``message`` and ``part``. opencode 2 writes the same file, but into
``session_v2`` and ``session_message``, and leaves the old tables as they are; it copied the sessions that it found at
its first start (ccusage#1644, 2026-08-26; opencode#49641, 2026-09-18). A session that is in both is read from the new
tables, unless it was continued with opencode 1 after that.

opencode may be writing meanwhile. Changes that are not in the file yet are in a ``-wal`` beside it; if there is
one, both are copied to a folder of our own first. Otherwise the file is read where it is, a session at a time, and
the result counts only if the file did not change in between.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any, NoReturn
from urllib.parse import quote

from msgspec import Struct

from holdfast.errors import FormatError, StoreLocked, UnknownId, UnrecognizedContent
from holdfast.formats.base import Recording
from holdfast.formats.opencode.read import (
    FORMAT,
    OpencodeStoredMessage,
    OpencodeStoredSession,
    build_opencode_recording,
)
from holdfast.formats.opencode.rows import encode_opencode_session_info
from holdfast.formats.opencode.session_messages import SessionMessageRow, iter_stored_messages
from holdfast.formats.recognize import SQLITE_MAGIC
from holdfast.store.foreign.other_databases import recognize_foreign_database

COPY_ATTEMPTS = 5
"""Number of tries to copy a database that changes meanwhile.

Chosen by judgement: a copy takes well under a second, and opencode writes in bursts while a model answers.
"""
__all__ = [
    "FORMAT",
    "OpencodeDatabase",
    "OpencodeSessionRow",
    "build_opencode_database",
    "is_sqlite_file",
    "open_opencode_database",
    "recognize_database",
]
_JOURNAL_SUFFIXES = ("-wal", "-journal")
"""Endings of the files with changes that are not in the database yet, or not committed."""
_OLD_COLUMNS = {"session": {"id"}, "message": {"id", "session_id", "data"}, "part": {"id", "message_id", "data"}}
"""Tables and columns without which no session of opencode 1 can be read; others may be missing, as in older versions.
"""
_NEW_COLUMNS = {"session_message": {"id", "session_id", "type", "data"}}
"""The same for opencode 2. Its sessions are in ``session_v2``, in betas in ``session``."""
_SESSION_TABLES = ("session", "session_v2")
_MAX_LISTED_IDS = 5
"""Number of session ids that an error lists."""


class OpencodeSessionRow(Struct, frozen=True):
    """A session of the database as a list shows it."""

    id: str
    parent: str = ""
    title: str = ""


def is_sqlite_file(path: Path) -> bool:
    """Return whether the file at ``path`` begins like an SQLite database."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC


def recognize_database(path: Path) -> str:
    """Return whose database is at ``path``: ``FORMAT`` for opencode's, else what it is and what to do.

    Empty if its tables are not known or cannot be read; a store of Holdfast counts as unknown.
    """
    with suppress(FormatError, sqlite3.Error), _provide_stable_file(path) as (place, mode):
        uri = f"file:{quote(os.fsencode(place))}?{mode}"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
            names = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if {"session", "message", "part"} <= names or {"session_v2", "session_message"} <= names:
            return FORMAT
        if {"sessions", "entries"} <= names:
            return ""
        return recognize_foreign_database(names)
    return ""


@contextmanager
def open_opencode_database(path: Path) -> Iterator[OpencodeDatabase]:
    """Open the database of opencode at ``path`` read-only for the block; no file is written beside it either.

    Raises ``UnrecognizedContent`` for another program's database and ``FormatError`` for a damaged one.
    """
    with _translate_sqlite_errors(path), _provide_stable_file(path) as (place, mode):
        uri = f"file:{quote(os.fsencode(place))}?{mode}"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
            # Bytes, not text: a value that is not UTF-8 must not make its row unreadable.
            db.text_factory = bytes
            yield OpencodeDatabase(path, db, place)


@contextmanager
def _translate_sqlite_errors(path: Path) -> Iterator[None]:
    """Raise ``FormatError`` for errors of SQLite in the block."""
    try:
        yield
    except sqlite3.Error as error:
        raise FormatError(
            f"{path} is damaged ({error}); `sqlite3 {path.name} .recover` saves what can be read into a new database"
        ) from error


@contextmanager
def _provide_stable_file(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield a path where the database does not change, and SQLite's URI parameters for opening it there."""
    has_journal = any(_get_sibling_size(path, ending) for ending in _JOURNAL_SUFFIXES)
    if not has_journal:
        # Immutable: SQLite then creates no files beside a database that is not ours.
        yield path, "mode=ro&immutable=1"
        return
    with TemporaryDirectory(prefix="holdfast-") as folder:
        copy = Path(folder) / "copy.db"
        for _ in range(COPY_ATTEMPTS):
            stamp_before = _get_file_stamp(path)
            for ending in ("", *_JOURNAL_SUFFIXES):
                with suppress(FileNotFoundError):
                    copyfile(_get_sibling_path(path, ending), _get_sibling_path(copy, ending))
            if _get_file_stamp(path) == stamp_before:
                yield copy, "mode=ro"
                return
            # A journal that is gone by the next try must not be left beside the new copy.
            for ending in _JOURNAL_SUFFIXES:
                _get_sibling_path(copy, ending).unlink(missing_ok=True)
    raise _build_busy_error(path)


def _build_busy_error(path: Path) -> StoreLocked:
    return StoreLocked(f"opencode wrote to {path} while it was read; try again, or when opencode has ended")


def _get_sibling_path(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _get_sibling_size(path: Path, ending: str) -> int:
    try:
        return _get_sibling_path(path, ending).stat().st_size
    except FileNotFoundError:
        return 0


def _get_file_stamp(path: Path) -> tuple[int, int, int]:
    """Return time, size and inode of the database file, which change when opencode writes to it.

    The ``-wal`` may change: one that grew is valid at any length, and one that was started anew is ignored by
    SQLite.
    """
    file_stat = path.stat()
    return file_stat.st_mtime_ns, file_stat.st_size, file_stat.st_ino


class OpencodeDatabase:
    """An open database of opencode."""

    def __init__(self, path: Path, db: sqlite3.Connection, place: Path) -> None:
        self._path = path
        self._db = db
        self._place = place
        """Where the database is read: ``path`` or a copy."""
        self._stamp = _get_file_stamp(place)
        tables = (*_SESSION_TABLES, "message", "part", "session_message")
        self._columns = {table: self._read_columns(table) for table in tables}
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
        names = {
            _decode_text(row[0]) for row in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        if owner := recognize_foreign_database(names):
            raise UnrecognizedContent(owner)
        raise UnrecognizedContent(
            f"this is an SQLite database, but not opencode's: {', '.join(sorted(missing))} is missing; opencode "
            "keeps its sessions in ~/.local/share/opencode/opencode.db"
        )

    def _read_columns(self, table: str) -> set[str]:
        return {_decode_text(row[1]) for row in self._db.execute(f"PRAGMA table_info({table})")}

    def _read_sessions(self) -> dict[str, OpencodeSessionRow]:
        """Return all sessions, oldest first; one that is in both tables as the new one has it."""
        rows: dict[str, tuple[float, OpencodeSessionRow]] = {}
        for table in _SESSION_TABLES:
            columns = self._columns[table]
            if "id" not in columns:
                continue
            # Columns that an older version lacks are empty.
            names = [name if name in columns else "NULL" for name in ("id", "parent_id", "title", "time_created")]
            for *texts, time in self._db.execute(f"SELECT {', '.join(names)} FROM {table}"):  # noqa: S608 -- our names
                session = OpencodeSessionRow(*(_decode_text(value) for value in texts))
                rows[session.id] = (time if isinstance(time, int | float) else 0, session)
        # opencode's own order; ids alone wrap around every 795 days.
        ordered = sorted(rows.values(), key=lambda row: (row[0], row[1].id))
        return {session.id: session for _, session in ordered}

    def _build_order_clause(self, table: str) -> str:
        if "time_created" in self._columns[table]:
            return "time_created, id"
        return "id"

    def list_root_sessions(self, id_prefix: str = "") -> list[OpencodeSessionRow]:
        """Return the sessions that are not a sub-agent's, oldest first; or the one with an id that begins with
        ``id_prefix``.

        Raises ``UnknownId``, with the newest candidates, if there is no such session or more than one.
        """
        if not id_prefix:
            root_sessions: list[OpencodeSessionRow] = []
            for session in self._sessions.values():
                if session.parent not in self._sessions:
                    root_sessions.append(session)
            return root_sessions
        if id_prefix in self._sessions:
            return [self._sessions[id_prefix]]
        matches = []
        for session in self._sessions.values():
            if session.id.startswith(id_prefix):
                matches.append(session)
        if len(matches) == 1:
            return matches
        problem = "several sessions begin" if matches else "no session begins"
        candidates = matches or self.list_root_sessions()
        recent_ids = ", ".join(session.id for session in candidates[-_MAX_LISTED_IDS:])
        raise UnknownId(
            f"{problem} with {id_prefix!r}; the last ones are {recent_ids or 'none, the database is empty'}"
        )

    def read_recording(self, id_: str) -> Recording:
        """Return a session with the sessions of its sub-agents, at any depth.

        Raises ``StoreLocked`` if opencode wrote in the meantime.
        """
        with _translate_sqlite_errors(self._path):
            subagents = [self._read_one_recording(session_id) for session_id in self._find_subagent_sessions(id_)]
            recording = self._read_one_recording(id_, tuple(subagents))
        # Immutable mode takes no lock, so a write in between may have mixed old and new pages.
        if _get_file_stamp(self._place) != self._stamp:
            raise _build_busy_error(self._path)
        return recording

    def _find_subagent_sessions(self, id_: str) -> list[str]:
        """Return the ids of the sessions of sub-agents below ``id_``, nearest first."""
        found_ids = [id_]
        for parent_id in found_ids:  # grows while it is walked
            for session in self._sessions.values():
                if session.parent == parent_id and session.id not in found_ids:
                    found_ids.append(session.id)
        return found_ids[1:]

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
            messages = iter_stored_messages(self._iter_session_messages(id_), _decode_text(row.get("directory")) or "/")
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
        return count, newest if isinstance(newest, int | float) else 0

    def _iter_session_messages(self, session: str) -> Iterator[SessionMessageRow]:
        """Yield the rows of a session of opencode 2, then what its user typed and the model did not get yet."""
        columns = self._columns["session_message"]
        order = "seq" if "seq" in columns else self._build_order_clause("session_message")
        time = "time_created" if "time_created" in columns else "0"
        query = f"SELECT id, type, {time}, data FROM session_message WHERE session_id = ? ORDER BY {order}"  # noqa: S608
        seen: set[str] = set()
        for raw_id, type_, created, data in self._db.execute(query, (session,)):
            id_ = _decode_text(raw_id)
            seen.add(id_)
            at = int(created) if isinstance(created, int | float) else 0
            yield SessionMessageRow(id_, _decode_text(type_), at, _encode_value(data))
        for row in self._iter_waiting_prompts(session):
            if row.id not in seen:
                yield row

    def _iter_waiting_prompts(self, session: str) -> Iterator[SessionMessageRow]:
        """Yield what the user typed while the agent worked and the model did not get: ``promoted_seq`` is empty.

        A prompt has the id of the message that it becomes.
        """
        columns = self._read_columns("session_input")
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
            if _decode_text(type_) == "user":
                yield SessionMessageRow(_decode_text(id_), "user", 0, _encode_value(data))

    def _iter_messages(self, session: str) -> Iterator[OpencodeStoredMessage]:
        """Yield the messages of a session, reading one after the other."""
        order = self._build_order_clause("message")
        message_query = f"SELECT id, data FROM message WHERE session_id = ? ORDER BY {order}"  # noqa: S608
        part_query = "SELECT id, data FROM part WHERE message_id = ? ORDER BY id"
        for raw_id, data in self._db.execute(message_query, (session,)):
            message_id = _decode_text(raw_id)
            parts = []
            for part_id, part_data in self._db.execute(part_query, (message_id,)):
                parts.append((_decode_text(part_id), _encode_value(part_data)))
            yield OpencodeStoredMessage(message_id, _encode_value(data), tuple(parts))


def _decode_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value)


def _encode_value(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return _decode_text(value).encode()


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
