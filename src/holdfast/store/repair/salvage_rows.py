"""Copies a database that SQLite cannot read completely, row by row, leaving out the rows that are damaged."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.store.repair.session_rows import CREATE_QUARANTINE, QUARANTINE_TABLE
from holdfast.store.repair.sqlite_pages import RowValues, SqlitePages
from holdfast.store.tree.placing import ENTRY_KINDS

SALVAGED_TABLES = {"sessions": "session", "entries": "seq", QUARANTINE_TABLE: "number"}
"""The tables that are copied, each with the column of the row number.

All other tables are derived from these; ``tests/store/test_schema_tables.py`` fails for a table that is neither.
"""
MAX_MISSES = 500
"""Row numbers in a row that are tried after one that cannot be read.

Chosen by judgement: a page holds fewer rows, so this reaches past one damaged page; each number costs a query.
"""

MAX_ROW_NUMBER = 2**63 - 1
"""Largest number that a row can have."""
_READ_ERRORS = (sqlite3.DatabaseError, UnicodeDecodeError)
"""Exceptions of ``sqlite3`` for a damaged file; UnicodeDecodeError if a message of SQLite quotes damaged bytes."""


def salvage_rows(source: sqlite3.Connection, file: Path, target: sqlite3.Connection) -> int:
    """Copy the readable rows of ``file`` into ``target``, which has the tables; return the number of entries.

    First through SQLite, which knows which rows were deleted; then page by page the rows that SQLite cannot reach.
    """
    target.execute(CREATE_QUARANTINE)
    with suppress(*_READ_ERRORS):
        source.text_factory = _decode_lossy
        # Makes SQLite read a file that is shorter than its header says.
        source.execute("PRAGMA writable_schema = ON")
        for table, key in SALVAGED_TABLES.items():
            _copy_table(source, target, table, key)
    insert_entry = _build_insert("entries", _read_column_names(target, "entries"))
    insert_session = _build_insert("sessions", _read_column_names(target, "sessions"))
    for number, values in SqlitePages(file).iter_rows():
        if _is_entry_row(values):
            _insert_row(target, insert_entry, (number, *values[1:]))
        elif _is_session_row(values):
            later_values = _LATER_SESSION_VALUES[len(values) - _OLDEST_SESSION_LENGTH :]
            _insert_row(target, insert_session, (number, *values[1:], *later_values))
    return int(target.execute("SELECT count(*) FROM entries").fetchone()[0])


def _build_insert(table: str, names: list[str]) -> str:
    """Return the statement that inserts a row unless the table has one with the same number or name."""
    marks = ", ".join("?" * len(names))
    # IGNORE: the pages hold rows again that SQLite could read, and older versions of them.
    return f"INSERT OR IGNORE INTO {table} ({', '.join(names)}) VALUES ({marks})"  # noqa: S608 -- names of our own schema


def _read_column_names(db: sqlite3.Connection, table: str) -> list[str]:
    """Return the columns of a table, or an empty list if the table cannot be read."""
    try:
        return [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    except _READ_ERRORS:
        return []


def _insert_row(target: sqlite3.Connection, insert: str, row: RowValues) -> None:
    """Insert a row, unless a value has another type than its column: then the bytes were no row of this table."""
    with suppress(sqlite3.IntegrityError):
        target.execute(insert, row)


_ENTRY_TYPES = (None, int, int | None, int, int, str, str, int | None, str, int, bytes, bytes, *[bytes | None] * 4)
_SESSION_TYPES = (None, str, str, str, str, str, int | None, int | None, int, str | None, int, int | None)
"""Types of the values in a row of each table. The first is None: the row number is stored elsewhere."""
_LATER_SESSION_VALUES = (0, None)
"""What a row of an older schema lacks at its end: the bytes of the session, and its recorded window."""
_OLDEST_SESSION_LENGTH = len(_SESSION_TYPES) - len(_LATER_SESSION_VALUES)


def _is_entry_row(values: RowValues) -> bool:
    return len(values) == len(_ENTRY_TYPES) and _has_value_types(values, _ENTRY_TYPES) and values[6] in ENTRY_KINDS


def _is_session_row(values: RowValues) -> bool:
    has_row_length = _OLDEST_SESSION_LENGTH <= len(values) <= len(_SESSION_TYPES)
    return has_row_length and _has_value_types(values, _SESSION_TYPES)


def _has_value_types(values: RowValues, types: tuple[Any, ...]) -> bool:
    for value, type_ in zip(values, types, strict=False):
        if type_ is None:
            if value is not None:
                return False
        elif not isinstance(value, type_):
            return False
    return True


def _decode_lossy(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _copy_table(
    source: sqlite3.Connection,
    target: sqlite3.Connection,
    table: str,
    key: str,
) -> None:
    """Copy the readable rows of one table, with the columns that both databases have."""
    source_names = _read_column_names(source, table)
    names = []
    for name in _read_column_names(target, table):
        if name in source_names:
            names.append(name)
    if key not in names:
        return
    insert = _build_insert(table, names)
    for row in _iter_readable_rows(source, table, key, names):
        _insert_row(target, insert, row)


def _iter_readable_rows(
    source: sqlite3.Connection,
    table: str,
    key: str,
    names: list[str],
) -> Iterator[tuple[Any, ...]]:
    """Yield the readable rows in the order of their numbers, skipping those that cannot be read."""
    query = f"SELECT {key}, {', '.join(names)} FROM {table} WHERE {key}"  # noqa: S608
    last = 0
    misses = 0
    while misses < MAX_MISSES and last < MAX_ROW_NUMBER:
        try:
            row = source.execute(f"{query} > ? ORDER BY {key} LIMIT 1", (last,)).fetchone()
            if row is None:
                return
        except _READ_ERRORS:
            row = None
        # A damaged tree may lead back to an earlier row, and then round in circles.
        if row is None or row[0] <= last:
            row = _fetch_row(source, f"{query} = ?", last + 1)
        if row is None:
            last += 1
            misses += 1
        else:
            last = row[0]
            misses = 0
            yield row[1:]


def _fetch_row(source: sqlite3.Connection, query: str, number: int) -> tuple[Any, ...] | None:
    try:
        row: tuple[Any, ...] | None = source.execute(query, (number,)).fetchone()
    except _READ_ERRORS:
        return None
    return row
