"""Entries into their table: a long conversation in few statements."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import chain, groupby, repeat
from typing import Any

from msgspec.structs import astuple

from holdfast.store.placing import Placed
from holdfast.store.rows import BARE, COLUMNS, Row

_PLACE = ("session", "id", "parent", "seq", "depth", "base")
_BARE = (*_PLACE, *COLUMNS[:BARE])
VALUES = 999
"""Values of one statement: SQLite before 3.32 takes no more."""
ROWS_AT_ONCE = VALUES // len(_BARE)
"""Messages of one statement: a fifth less time than with one each. [M]"""


def _inserting(columns: Sequence[str], rows: int = 1) -> str:
    row = f"({', '.join('?' * len(columns))})"
    return f"INSERT INTO entries ({', '.join(columns)}) VALUES {', '.join([row] * rows)}"  # noqa: S608 -- only constants are put into SQL


_ANY, _ONE, _MANY = _inserting((*_PLACE, *COLUMNS)), _inserting(_BARE), _inserting(_BARE, ROWS_AT_ONCE)


def insert(db: sqlite3.Connection, session: int, placed: Sequence[Placed], rows: Sequence[Row]) -> None:
    """Insert ``rows`` of a session where ``placed`` says; the order is kept, so that parents come first."""
    if len(rows) < ROWS_AT_ONCE:
        db.executemany(_ANY, map(_columns, repeat(session), placed, rows))
        return
    for bare, run in groupby(zip(placed, rows, strict=True), _is_bare):
        columns = [(_bare if bare else _columns)(session, *one) for one in run]
        whole = len(columns) - len(columns) % ROWS_AT_ONCE if bare else 0
        for start in range(0, whole, ROWS_AT_ONCE):
            db.execute(_MANY, [*chain.from_iterable(columns[start : start + ROWS_AT_ONCE])])
        db.executemany(_ONE if bare else _ANY, columns[whole:])


def _is_bare(one: tuple[Placed, Row]) -> bool:
    """Whether nothing is stored of a message but its bytes."""
    return one[1].body is None and one[1].origin is None


def _columns(session: int, one: Placed, row: Row) -> tuple[Any, ...]:
    """Return what an entry is, behind where it stands."""
    node = one.node
    return session, one.entry.id, one.parent, node.seq, node.depth, node.base, *astuple(row)


def _bare(session: int, one: Placed, row: Row) -> tuple[Any, ...]:
    """Return the columns of a message of which nothing is stored but its bytes.

    ``sqlite3`` looks for somebody who adapts what is no number, text or ``bytearray``: a fifth of the whole time. [M]
    """
    node, raw = one.node, bytearray(row.raw or b"")
    digest, identity = bytearray(row.digest), bytearray(row.identity)
    id_, parent, kind, at, api, size = one.entry.id, one.parent, row.kind, row.at, row.api, row.size
    return session, id_, parent, node.seq, node.depth, node.base, kind, at, api, size, digest, identity, raw
