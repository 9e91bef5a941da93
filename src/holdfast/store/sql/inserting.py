"""Entries into their table: a long conversation in few statements."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import chain, groupby

from holdfast.store.sql.rows import BARE, COLUMNS, Columns
from holdfast.store.tree.placing import Placed

_PLACE = ("session", "id", "parent", "seq", "depth", "base")
_BARE = (*_PLACE, *BARE)
VALUES = 999
"""Values of one statement: with more it is no quicker. [M]"""
ROWS_AT_ONCE = VALUES // len(_BARE)
"""Messages of one statement: a quarter less time than with one each. [M]"""


def _inserting(columns: Sequence[str], rows: int = 1) -> str:
    """Return the statement. With ``FAIL`` SQLite keeps nothing to undo it by: its whole transaction is undone."""
    row = f"({', '.join('?' * len(columns))})"
    return f"INSERT OR FAIL INTO entries ({', '.join(columns)}) VALUES {', '.join([row] * rows)}"  # noqa: S608 -- only constants are put into SQL


_ANY, _ONE, _MANY = _inserting((*_PLACE, *COLUMNS)), _inserting(_BARE), _inserting(_BARE, ROWS_AT_ONCE)


def insert(db: sqlite3.Connection, session: int, placed: Sequence[Placed], says: Sequence[Columns]) -> None:
    """Insert what the entries of a session say where ``placed`` has them; in that order, so that parents come first."""
    rows = [
        (session, one.entry.id, one.parent, one.seq, one.depth, one.base, *said)
        for one, said in zip(placed, says, strict=True)
    ]
    for width, alike in groupby(rows, len):
        run = [*alike]
        is_bare = width == len(_BARE)
        whole = len(run) - len(run) % ROWS_AT_ONCE if is_bare else 0
        for start in range(0, whole, ROWS_AT_ONCE):
            db.execute(_MANY, [*chain.from_iterable(run[start : start + ROWS_AT_ONCE])])
        db.executemany(_ONE if is_bare else _ANY, run[whole:])
