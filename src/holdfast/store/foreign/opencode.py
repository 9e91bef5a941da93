"""The database of opencode: read as it stands and never written; and a new one, made of rows.

opencode may be writing while it is read. What it has not yet folded into the file lies in a ``-wal`` beside it; with
one, both are copied to a folder of our own first. Without one the file is read where it is, a session at a time, and
what was read counts only if the file did not change meanwhile.
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
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from holdfast.errors import FormatError, StoreLocked, UnknownId, UnrecognizedContent
from holdfast.formats.base import Recording
from holdfast.formats.opencode.read import OpencodeStoredMessage, OpencodeStoredSession, build_opencode_recording
from holdfast.formats.opencode.rows import encode_opencode_session_info
from holdfast.formats.recognize import SQLITE_MAGIC

COPY_ATTEMPTS = 5
"""[H] How often a database is copied that changes while it is being copied."""
_JOURNAL_SUFFIXES = ("-wal", "-journal")
"""Endings of the files that hold what a database does not yet, or not any more."""
_REQUIRED_COLUMNS = {"session": {"id"}, "message": {"id", "session_id", "data"}, "part": {"id", "message_id", "data"}}
"""The tables and columns that a session is read from; all others may be missing, as in older versions."""
_MAX_LISTED_IDS = 5
"""How many ids a message lists."""


class OpencodeSessionRow(Struct, frozen=True):
    """A session of the database, as a list shows it."""

    id: str
    parent: str = ""
    title: str = ""


def is_sqlite_file(path: Path) -> bool:
    """Return whether the file at ``path`` begins as an SQLite database does."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC


@contextmanager
def open_opencode_database(path: Path) -> Iterator[OpencodeDatabase]:
    """Open the database of opencode at ``path``; nothing is written to it or beside it.

    Raises ``UnrecognizedContent`` for a database of something else and ``FormatError`` for a damaged one.
    """
    with _translate_sqlite_errors(path), _provide_stable_file(path) as (place, mode):
        uri = f"file:{quote(os.fsencode(place))}?{mode}"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
            db.text_factory = bytes
            yield OpencodeDatabase(path, db, place)


@contextmanager
def _translate_sqlite_errors(path: Path) -> Iterator[None]:
    """Give SQLite's errors our names."""
    try:
        yield
    except sqlite3.Error as error:
        raise FormatError(
            f"{path} is damaged ({error}); `sqlite3 {path.name} .recover` saves what can be read into a new database"
        ) from error


@contextmanager
def _provide_stable_file(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield where the database stands still, and how to open it there."""
    if not any(_get_sibling_size(path, ending) for ending in _JOURNAL_SUFFIXES):
        yield path, "mode=ro&immutable=1"
        return
    with TemporaryDirectory(prefix="holdfast-") as folder:
        copy = Path(folder) / "copy.db"
        for _ in range(COPY_ATTEMPTS):
            before = _get_file_stamp(path)
            for ending in ("", *_JOURNAL_SUFFIXES):
                with suppress(FileNotFoundError):
                    copyfile(_get_sibling_path(path, ending), _get_sibling_path(copy, ending))
            if _get_file_stamp(path) == before:
                yield copy, "mode=ro"
                return
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
    """Return what changes with the file: a ``-wal`` that only grows may be cut anywhere, one begun anew is not read."""
    file_stat = path.stat()
    return file_stat.st_mtime_ns, file_stat.st_size, file_stat.st_ino


class OpencodeDatabase:
    """An open database of opencode."""

    def __init__(self, path: Path, db: sqlite3.Connection, place: Path) -> None:
        self._path, self._db, self._place = path, db, place
        self._before = _get_file_stamp(place)
        self._columns = {table: self._read_columns(table) for table in _REQUIRED_COLUMNS}
        missing = [
            f"{table}.{name}" for table, names in _REQUIRED_COLUMNS.items() for name in names - self._columns[table]
        ]
        if missing:
            raise UnrecognizedContent(
                f"this is an SQLite database, but not opencode's: {', '.join(sorted(missing))} is missing; opencode "
                "keeps its sessions in ~/.local/share/opencode/opencode.db"
            )
        self._listed = self._read_sessions()

    def _read_columns(self, table: str) -> set[str]:
        return {_decode_text(row[1]) for row in self._db.execute(f"PRAGMA table_info({table})")}

    def _read_sessions(self) -> dict[str, OpencodeSessionRow]:
        names = [name if name in self._columns["session"] else "NULL" for name in ("parent_id", "title")]
        query = f"SELECT id, {', '.join(names)} FROM session ORDER BY {self._build_order_clause('session')}"  # noqa: S608 -- our names
        rows = self._db.execute(query)
        return {_decode_text(row[0]): OpencodeSessionRow(*(_decode_text(value) for value in row)) for row in rows}

    def _build_order_clause(self, table: str) -> str:
        return "time_created, id" if "time_created" in self._columns[table] else "id"

    def list_root_sessions(self, id_prefix: str = "") -> list[OpencodeSessionRow]:
        """Return the sessions that are no sub-agent's, the oldest first; or the one whose id begins as
        ``id_prefix``.
        """
        if not id_prefix:
            return [
                listed_session for listed_session in self._listed.values() if listed_session.parent not in self._listed
            ]
        matches = [
            listed_session for listed_session in self._listed.values() if listed_session.id.startswith(id_prefix)
        ]
        if len(matches) == 1 or id_prefix in self._listed:
            return [self._listed.get(id_prefix, matches[0])]
        problem = "several sessions begin" if matches else "no session begins"
        recent_ids = ", ".join(
            listed_session.id for listed_session in (matches or self.list_root_sessions())[-_MAX_LISTED_IDS:]
        )
        raise UnknownId(
            f"{problem} with {id_prefix!r}; the last ones are {recent_ids or 'none, the database is empty'}"
        )

    def read_recording(self, id_: str) -> Recording:
        """Return a session with those of its sub-agents, and of theirs.

        Raises ``StoreLocked`` where opencode wrote meanwhile.
        """
        with _translate_sqlite_errors(self._path):
            below = tuple([self._read_one_recording(session_id) for session_id in self._find_subagent_sessions(id_)])
            result = self._read_one_recording(id_, below)
        if _get_file_stamp(self._place) != self._before:
            raise _build_busy_error(self._path)
        return result

    def _find_subagent_sessions(self, id_: str) -> list[str]:
        """Return the sessions of sub-agents under ``id_``."""
        session_ids, subagents = [id_], [subagent for subagent in self._listed.values() if subagent.parent]
        for parent in session_ids:
            session_ids += [
                subagent.id for subagent in subagents if subagent.parent == parent and subagent.id not in session_ids
            ]
        return session_ids[1:]

    def _read_one_recording(self, id_: str, below: tuple[Recording, ...] = ()) -> Recording:
        row = self._db.execute("SELECT * FROM session WHERE id = ?", (id_,))
        columns = dict(zip((name for name, *_ in row.description), row.fetchone(), strict=True))
        return build_opencode_recording(
            OpencodeStoredSession(id_, encode_opencode_session_info(columns), self._iter_messages(id_)), below
        )

    def _iter_messages(self, session: str) -> Iterator[OpencodeStoredMessage]:
        """Yield the messages of a session, read one after the other."""
        query = f"SELECT id, data FROM message WHERE session_id = ? ORDER BY {self._build_order_clause('message')}"  # noqa: S608
        for id_, data in self._db.execute(query, (session,)):
            parts = self._db.execute("SELECT id, data FROM part WHERE message_id = ? ORDER BY id", (_decode_text(id_),))
            yield OpencodeStoredMessage(
                _decode_text(id_),
                _encode_value(data),
                tuple((_decode_text(name), _encode_value(raw)) for name, raw in parts),
            )


def _decode_text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else "" if value is None else str(value)


def _encode_value(value: Any) -> bytes:
    return value if isinstance(value, bytes) else _decode_text(value).encode()


def build_opencode_database(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> bytes:
    """Return a database as opencode makes it, with ``rows`` in its tables; made in memory."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(files("holdfast.data").joinpath("opencode.sql").read_text("utf-8"))
        for table, table_rows in rows.items():
            _insert_rows(db, table, table_rows)
        db.commit()
        return db.serialize()


def _insert_rows(db: sqlite3.Connection, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
    for row in rows:
        into, places = ", ".join(row), ", ".join("?" * len(row))
        db.execute(f"INSERT INTO {table} ({into}) VALUES ({places})", list(row.values()))  # noqa: S608 -- our names
