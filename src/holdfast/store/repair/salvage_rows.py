"""A database that SQLite cannot read through, copied row by row: what is damaged itself is passed over."""

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
"""What is copied, with the column that is the row's number; all else is derived."""
MAX_MISSES = 500
"""[H] Numbers in a row that are tried behind one that cannot be read: a page holds fewer."""

MAX_ROW_NUMBER = 2**63 - 1
"""The largest number that a row can have."""
_READ_ERRORS = (sqlite3.DatabaseError, UnicodeDecodeError)
"""What a damaged file makes ``sqlite3`` raise; the last where SQLite's own words quote bytes that are no text."""


def salvage_rows(source: sqlite3.Connection, file: Path, target: sqlite3.Connection) -> int:
    """Copy what can be read of ``file`` into ``target``, which has the tables; return how many entries there were.

    First by SQLite, which knows what is a row and what was deleted; then page by page what it does not reach.
    """
    target.execute(CREATE_QUARANTINE)
    with suppress(*_READ_ERRORS):
        source.text_factory = _decode_lossy
        source.execute("PRAGMA writable_schema = ON")  # a file shorter than its header says is then read all the same
        for table, key in SALVAGED_TABLES.items():
            _copy_table(source, target, table, key)
    entry, session = (_build_insert(table, _read_column_names(target, table)) for table in ("entries", "sessions"))
    for number, values in SqlitePages(file).iter_rows():
        if _is_entry_row(values):
            _insert_row(target, entry, (number, *values[1:]))
        elif _is_session_row(values):
            _insert_row(target, session, (number, *values[1:], 0)[: len(_SESSION_TYPES)])
    return int(target.execute("SELECT count(*) FROM entries").fetchone()[0])


def _build_insert(table: str, names: list[str]) -> str:
    """Return how a row is written, unless the table has one with its number or its name."""
    marks = ", ".join("?" * len(names))
    return f"INSERT OR IGNORE INTO {table} ({', '.join(names)}) VALUES ({marks})"  # noqa: S608 -- names of our own schema


def _read_column_names(db: sqlite3.Connection, table: str) -> list[str]:
    """Return the columns of a table; none where it cannot be found any more."""
    try:
        return [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    except _READ_ERRORS:
        return []


def _insert_row(target: sqlite3.Connection, insert: str, row: RowValues) -> None:
    """Write a row; one whose values have other types than the columns is no row."""
    with suppress(sqlite3.IntegrityError):
        target.execute(insert, row)


_ENTRY_TYPES = (None, int, int | None, int, int, str, str, int | None, str, int, bytes, bytes, *[bytes | None] * 4)
_SESSION_TYPES = (None, str, str, str, str, str, int | None, int | None, int, str | None, int)
"""The types of the values in a row of a table; the first is the row's number, which lies elsewhere."""


def _is_entry_row(values: RowValues) -> bool:
    return len(values) == len(_ENTRY_TYPES) and _has_value_types(values, _ENTRY_TYPES) and values[6] in ENTRY_KINDS


def _is_session_row(values: RowValues) -> bool:
    return len(values) in (len(_SESSION_TYPES) - 1, len(_SESSION_TYPES)) and _has_value_types(values, _SESSION_TYPES)


def _has_value_types(values: RowValues, types: tuple[Any, ...]) -> bool:
    return all(
        value is None if type_ is None else isinstance(value, type_)
        for value, type_ in zip(values, types, strict=False)
    )


def _decode_lossy(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _copy_table(source: sqlite3.Connection, target: sqlite3.Connection, table: str, key: str) -> None:
    """Copy the rows of one table that can be read."""
    there = _read_column_names(source, table)
    names = [name for name in _read_column_names(target, table) if name in there]
    if key in names:
        for row in _iter_readable_rows(source, table, key, names):
            _insert_row(target, _build_insert(table, names), row)


def _iter_readable_rows(
    source: sqlite3.Connection, table: str, key: str, names: list[str]
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows that can be read in the order of their numbers, over every hole."""
    query = f"SELECT {key}, {', '.join(names)} FROM {table} WHERE {key}"  # noqa: S608
    last, misses = 0, 0
    while misses < MAX_MISSES and last < MAX_ROW_NUMBER:
        try:
            row = source.execute(f"{query} > ? ORDER BY {key} LIMIT 1", (last,)).fetchone()
            if row is None:
                return
        except _READ_ERRORS:
            row = None
        if row is None or row[0] <= last:  # a tree out of order leads back, and round in circles
            row = _fetch_row(source, f"{query} = ?", last + 1)
        last, misses = (row[0], 0) if row is not None else (last + 1, misses + 1)
        if row is not None:
            yield row[1:]


def _fetch_row(source: sqlite3.Connection, query: str, number: int) -> tuple[Any, ...] | None:
    try:
        row: tuple[Any, ...] | None = source.execute(query, (number,)).fetchone()
    except _READ_ERRORS:
        return None
    return row
