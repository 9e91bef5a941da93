"""A database that SQLite cannot read through, copied row by row: what is damaged itself is passed over."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.store.repair.pages import Pages, Values
from holdfast.store.repair.session import QUARANTINE, TABLE
from holdfast.store.tree.placing import KINDS

TABLES = {"sessions": "session", "entries": "seq", TABLE: "number"}
"""What is copied, with the column that is the row's number; all else is derived."""
GAP = 500
"""[H] Numbers in a row that are tried behind one that cannot be read: a page holds fewer."""

LARGEST = 2**63 - 1
"""The largest number that a row can have."""
_UNREADABLE = (sqlite3.DatabaseError, UnicodeDecodeError)
"""What a damaged file makes ``sqlite3`` raise; the last where SQLite's own words quote bytes that are no text."""


def salvage(source: sqlite3.Connection, file: Path, target: sqlite3.Connection) -> int:
    """Copy what can be read of ``file`` into ``target``, which has the tables; return how many entries there were.

    First by SQLite, which knows what is a row and what was deleted; then page by page what it does not reach.
    """
    target.execute(QUARANTINE)
    with suppress(*_UNREADABLE):
        source.text_factory = _text
        source.execute("PRAGMA writable_schema = ON")  # a file shorter than its header says is then read all the same
        for table, key in TABLES.items():
            _copied(source, target, table, key)
    entry, session = (_insert(table, _names(target, table)) for table in ("entries", "sessions"))
    for number, values in Pages(file).rows():
        if _is_entry(values):
            _put(target, entry, (number, *values[1:]))
        elif _is_session(values):
            _put(target, session, (number, *values[1:], 0)[: len(_SESSION)])
    return int(target.execute("SELECT count(*) FROM entries").fetchone()[0])


def _insert(table: str, names: list[str]) -> str:
    """Return how a row is written, unless the table has one with its number or its name."""
    marks = ", ".join("?" * len(names))
    return f"INSERT OR IGNORE INTO {table} ({', '.join(names)}) VALUES ({marks})"  # noqa: S608 -- names of our own schema


def _names(db: sqlite3.Connection, table: str) -> list[str]:
    """Return the columns of a table; none where it cannot be found any more."""
    try:
        return [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    except _UNREADABLE:
        return []


def _put(target: sqlite3.Connection, insert: str, row: Values) -> None:
    """Write a row; one whose values have other types than the columns is no row."""
    with suppress(sqlite3.IntegrityError):
        target.execute(insert, row)


_ENTRY = (None, int, int | None, int, int, str, str, int | None, str, int, bytes, bytes, *[bytes | None] * 4)
_SESSION = (None, str, str, str, str, str, int | None, int | None, int, str | None, int)
"""The types of the values in a row of a table; the first is the row's number, which lies elsewhere."""


def _is_entry(values: Values) -> bool:
    return len(values) == len(_ENTRY) and _fits(values, _ENTRY) and values[6] in KINDS


def _is_session(values: Values) -> bool:
    return len(values) in (len(_SESSION) - 1, len(_SESSION)) and _fits(values, _SESSION)


def _fits(values: Values, types: tuple[Any, ...]) -> bool:
    return all(
        value is None if type_ is None else isinstance(value, type_)
        for value, type_ in zip(values, types, strict=False)
    )


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _copied(source: sqlite3.Connection, target: sqlite3.Connection, table: str, key: str) -> None:
    """Copy the rows of one table that can be read."""
    there = _names(source, table)
    names = [name for name in _names(target, table) if name in there]
    if key in names:
        for row in _rows(source, table, key, names):
            _put(target, _insert(table, names), row)


def _rows(source: sqlite3.Connection, table: str, key: str, names: list[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows that can be read in the order of their numbers, over every hole."""
    said = f"SELECT {key}, {', '.join(names)} FROM {table} WHERE {key}"  # noqa: S608
    last, misses = 0, 0
    while misses < GAP and last < LARGEST:
        try:
            row = source.execute(f"{said} > ? ORDER BY {key} LIMIT 1", (last,)).fetchone()
            if row is None:
                return
        except _UNREADABLE:
            row = None
        if row is None or row[0] <= last:  # a tree out of order leads back, and round in circles
            row = _one(source, f"{said} = ?", last + 1)
        last, misses = (row[0], 0) if row is not None else (last + 1, misses + 1)
        if row is not None:
            yield row[1:]


def _one(source: sqlite3.Connection, query: str, number: int) -> tuple[Any, ...] | None:
    try:
        row: tuple[Any, ...] | None = source.execute(query, (number,)).fetchone()
    except _UNREADABLE:
        return None
    return row
