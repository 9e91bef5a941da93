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

from holdfast.errors import FormatError, StoreLocked, UnknownId, Unrecognised
from holdfast.formats.base import Recording
from holdfast.formats.opencode.read import Held, Stored, recording
from holdfast.formats.opencode.rows import info_of
from holdfast.formats.recognize import DATABASE

TRIES = 5
"""[H] How often a database is copied that changes while it is being copied."""
_BESIDE = ("-wal", "-journal")
"""Endings of the files that hold what a database does not yet, or not any more."""
_NEEDED = {"session": {"id"}, "message": {"id", "session_id", "data"}, "part": {"id", "message_id", "data"}}
"""The tables and columns that a session is read from; all others may be missing, as in older versions."""
_SHOWN = 5
"""How many ids a message lists."""


class Listed(Struct, frozen=True):
    """A session of the database, as a list shows it."""

    id: str
    parent: str = ""
    title: str = ""


def is_database(path: Path) -> bool:
    """Return whether the file at ``path`` begins as an SQLite database does."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(DATABASE)) == DATABASE


@contextmanager
def opened(path: Path) -> Iterator[Foreign]:
    """Open the database of opencode at ``path``; nothing is written to it or beside it.

    Raises ``Unrecognised`` for a database of something else and ``FormatError`` for a damaged one.
    """
    with _named(path), _standing(path) as (place, mode):
        uri = f"file:{quote(os.fsencode(place))}?{mode}"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
            db.text_factory = bytes
            yield Foreign(path, db, place)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Give SQLite's errors our names."""
    try:
        yield
    except sqlite3.Error as error:
        raise FormatError(
            f"{path} is damaged ({error}); `sqlite3 {path.name} .recover` saves what can be read into a new database"
        ) from error


@contextmanager
def _standing(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield where the database stands still, and how to open it there."""
    if not any(_size(path, ending) for ending in _BESIDE):
        yield path, "mode=ro&immutable=1"
        return
    with TemporaryDirectory(prefix="holdfast-") as folder:
        copy = Path(folder) / "copy.db"
        for _ in range(TRIES):
            before = _state(path)
            for ending in ("", *_BESIDE):
                with suppress(FileNotFoundError):
                    copyfile(_beside(path, ending), _beside(copy, ending))
            if _state(path) == before:
                yield copy, "mode=ro"
                return
            for ending in _BESIDE:
                _beside(copy, ending).unlink(missing_ok=True)
    raise _busy(path)


def _busy(path: Path) -> StoreLocked:
    return StoreLocked(f"opencode wrote to {path} while it was read; try again, or when opencode has ended")


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _size(path: Path, ending: str) -> int:
    try:
        return _beside(path, ending).stat().st_size
    except FileNotFoundError:
        return 0


def _state(path: Path) -> tuple[int, int, int]:
    """Return what changes with the file: a ``-wal`` that only grows may be cut anywhere, one begun anew is not read."""
    told = path.stat()
    return told.st_mtime_ns, told.st_size, told.st_ino


class Foreign:
    """An open database of opencode."""

    def __init__(self, path: Path, db: sqlite3.Connection, place: Path) -> None:
        self._path, self._db, self._place = path, db, place
        self._before = _state(place)
        self._columns = {table: self._columns_of(table) for table in _NEEDED}
        missing = [f"{table}.{name}" for table, names in _NEEDED.items() for name in names - self._columns[table]]
        if missing:
            raise Unrecognised(
                f"this is an SQLite database, but not opencode's: {', '.join(sorted(missing))} is missing; opencode "
                "keeps its sessions in ~/.local/share/opencode/opencode.db"
            )
        self._listed = self._list()

    def _columns_of(self, table: str) -> set[str]:
        return {_text(row[1]) for row in self._db.execute(f"PRAGMA table_info({table})")}

    def _list(self) -> dict[str, Listed]:
        names = [name if name in self._columns["session"] else "NULL" for name in ("parent_id", "title")]
        what = f"SELECT id, {', '.join(names)} FROM session ORDER BY {self._order('session')}"  # noqa: S608 -- our names
        found = self._db.execute(what)
        return {_text(row[0]): Listed(*(_text(value) for value in row)) for row in found}

    def _order(self, table: str) -> str:
        return "time_created, id" if "time_created" in self._columns[table] else "id"

    def roots(self, wanted: str = "") -> list[Listed]:
        """Return the sessions that are no sub-agent's, the oldest first; or the one whose id begins as ``wanted``."""
        if not wanted:
            return [one for one in self._listed.values() if one.parent not in self._listed]
        found = [one for one in self._listed.values() if one.id.startswith(wanted)]
        if len(found) == 1 or wanted in self._listed:
            return [self._listed.get(wanted, found[0])]
        what = "several sessions begin" if found else "no session begins"
        shown = ", ".join(one.id for one in (found or self.roots())[-_SHOWN:])
        raise UnknownId(f"{what} with {wanted!r}; the last ones are {shown or 'none, the database is empty'}")

    def recording(self, id_: str) -> Recording:
        """Return a session with those of its sub-agents, and of theirs.

        Raises ``StoreLocked`` where opencode wrote meanwhile.
        """
        with _named(self._path):
            below = tuple([self._recording(one) for one in self._below(id_)])
            found = self._recording(id_, below)
        if _state(self._place) != self._before:
            raise _busy(self._path)
        return found

    def _below(self, id_: str) -> list[str]:
        """Return the sessions of sub-agents under ``id_``."""
        found, rest = [id_], [one for one in self._listed.values() if one.parent]
        for parent in found:
            found += [one.id for one in rest if one.parent == parent and one.id not in found]
        return found[1:]

    def _recording(self, id_: str, below: tuple[Recording, ...] = ()) -> Recording:
        row = self._db.execute("SELECT * FROM session WHERE id = ?", (id_,))
        columns = dict(zip((name for name, *_ in row.description), row.fetchone(), strict=True))
        return recording(Held(id_, info_of(columns), self._messages(id_)), below)

    def _messages(self, session: str) -> Iterator[Stored]:
        """Yield the messages of a session, read one after the other."""
        what = f"SELECT id, data FROM message WHERE session_id = ? ORDER BY {self._order('message')}"  # noqa: S608
        for id_, data in self._db.execute(what, (session,)):
            parts = self._db.execute("SELECT id, data FROM part WHERE message_id = ? ORDER BY id", (_text(id_),))
            yield Stored(_text(id_), _bytes(data), tuple((_text(name), _bytes(raw)) for name, raw in parts))


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else "" if value is None else str(value)


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else _text(value).encode()


def database(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> bytes:
    """Return a database as opencode makes it, with ``rows`` in its tables; made in memory."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(files("holdfast.data").joinpath("opencode.sql").read_text("utf-8"))
        for table, held in rows.items():
            _insert(db, table, held)
        db.commit()
        return db.serialize()


def _insert(db: sqlite3.Connection, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
    for row in rows:
        into, places = ", ".join(row), ", ".join("?" * len(row))
        db.execute(f"INSERT INTO {table} ({into}) VALUES ({places})", list(row.values()))  # noqa: S608 -- our names
