"""Databases of other tools, opened without writing to them.

Their tool may be writing meanwhile. Changes that are not in the file yet are in a ``-wal`` beside it; if there is one,
both are copied to a folder of our own first. Otherwise the file is read where it is, a session at a time, and the
result counts only if the file did not change in between.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from holdfast.errors import FormatError, StoreLocked
from holdfast.formats.recognize import SQLITE_MAGIC

COPY_ATTEMPTS = 5
"""Number of tries to copy a database that changes meanwhile.

Chosen by judgement: a copy takes well under a second, and an agent writes in bursts while a model answers.
"""
_JOURNAL_SUFFIXES = ("-wal", "-journal")
"""Endings of the files with changes that are not in the database yet, or not committed."""


def is_sqlite_file(path: Path) -> bool:
    """Return whether the file at ``path`` begins like an SQLite database."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC


class StableDatabase:
    """An open database of another tool, which cannot be written; texts in its rows are bytes."""

    def __init__(self, path: Path, connection: sqlite3.Connection, place: Path) -> None:
        self.path = path
        self.connection = connection
        self._place = place
        """Where the database is read: ``path`` or a copy."""
        self._stamp = _get_file_stamp(place)

    def list_tables(self) -> set[str]:
        """Return the names of all tables."""
        query = "SELECT name FROM sqlite_master WHERE type = 'table'"
        return {decode_column_text(row[0]) for row in self.connection.execute(query)}

    def list_columns(self, table: str) -> set[str]:
        """Return the names of a table's columns, none if there is no such table. ``table`` is a name of ours."""
        return {decode_column_text(row[1]) for row in self.connection.execute(f"PRAGMA table_info({table})")}

    def raise_if_changed(self) -> None:
        """Raise ``StoreLocked`` if the tool wrote since the database was opened."""
        # Immutable mode takes no lock, so a write in between may have mixed old and new pages.
        if _get_file_stamp(self._place) != self._stamp:
            raise _build_busy_error(self.path)


@contextmanager
def open_stable_database(path: Path) -> Iterator[StableDatabase]:
    """Open the database at ``path`` read-only for the block; no file is written beside it either.

    Raises ``FormatError`` for a damaged one, and ``StoreLocked`` if its tool writes without a pause.
    """
    with translate_sqlite_errors(path), _provide_stable_file(path) as (place, mode):
        uri = f"file:{quote(os.fsencode(place))}?{mode}"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
            # Bytes, not text: a value that is not UTF-8 must not make its row unreadable.
            db.text_factory = bytes
            db.execute("BEGIN")
            yield StableDatabase(path, db, place)


@contextmanager
def translate_sqlite_errors(path: Path) -> Iterator[None]:
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
    return StoreLocked(
        f"{path} was written to while it was read; try again, or when the program that uses it has ended"
    )


def _get_sibling_path(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _get_sibling_size(path: Path, ending: str) -> int:
    try:
        return _get_sibling_path(path, ending).stat().st_size
    except FileNotFoundError:
        return 0


def _get_file_stamp(path: Path) -> tuple[int, int, int]:
    """Return time, size and inode of the database file, which change when its tool writes to it.

    The ``-wal`` may change: one that grew is valid at any length, and one that was started anew is ignored by
    SQLite.
    """
    file_stat = path.stat()
    return file_stat.st_mtime_ns, file_stat.st_size, file_stat.st_ino


def decode_column_text(value: Any) -> str:
    """Return a value of a text column as text; empty for NULL, and U+FFFD for what is not UTF-8."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value)


def encode_column_value(value: Any) -> bytes:
    """Return a value of a column as bytes, those of a text or a blob unchanged."""
    if isinstance(value, bytes):
        return value
    return decode_column_text(value).encode()


def get_column_number(value: Any) -> float:
    """Return a value of a number column, 0 for anything else."""
    return value if isinstance(value, int | float) else 0
