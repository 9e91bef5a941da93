"""A database that SQLite cannot read through, copied row by row: what lies on damaged pages is passed over."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

from holdfast.store.repairing.session import QUARANTINE, TABLE

TABLES = {"sessions": "session", "entries": "seq", TABLE: "number"}
"""What is copied, with the column that is the row's number; all else is derived."""
GAP = 10_000
"""[H] Numbers in a row that are tried behind one that cannot be read: a page holds far fewer."""


def salvage(source: sqlite3.Connection, target: sqlite3.Connection) -> int:
    """Copy what can be read into ``target``, which has the tables; return how many entries there were."""
    source.text_factory = _text
    target.execute("PRAGMA defer_foreign_keys = ON")
    target.execute(QUARANTINE)
    copied = {table: _copied(source, target, table, key) for table, key in TABLES.items()}
    return copied["entries"]


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _copied(source: sqlite3.Connection, target: sqlite3.Connection, table: str, key: str) -> int:
    """Copy one table; return how many of its rows could be read and taken."""
    columns = [row[1] for row in target.execute(f"PRAGMA table_info({table})")]
    there = _columns(source, table)
    names = [name for name in columns if name in there]
    if key not in names:
        return 0
    insert = f"INSERT OR IGNORE INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608 -- names of our own schema
    count = 0
    for row in _rows(source, table, key, names):
        try:
            count += target.execute(insert, row).rowcount
        except sqlite3.IntegrityError:
            continue
    return count


def _columns(source: sqlite3.Connection, table: str) -> set[str]:
    """Return the columns of a table; none where it cannot be found any more."""
    try:
        return {row[1] for row in source.execute(f"PRAGMA table_info({table})")}
    except sqlite3.DatabaseError:
        return set()


def _rows(source: sqlite3.Connection, table: str, key: str, names: list[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows that can be read in the order of their numbers, over every hole."""
    at = key if key in names else "rowid"
    said = f"SELECT {at}, {', '.join(names)} FROM {table} WHERE {at}"  # noqa: S608
    last, misses = 0, 0
    while misses < GAP:
        try:
            row = source.execute(f"{said} > ? ORDER BY {at} LIMIT 1", (last,)).fetchone()
            if row is None:
                return
        except sqlite3.DatabaseError:
            row = _one(source, f"{said} = ?", last + 1)
        last, misses = (row[0], 0) if row is not None else (last + 1, misses + 1)
        if row is not None:
            yield row[1:]


def _one(source: sqlite3.Connection, query: str, number: int) -> tuple[Any, ...] | None:
    try:
        row: tuple[Any, ...] | None = source.execute(query, (number,)).fetchone()
    except sqlite3.DatabaseError:
        return None
    return row
