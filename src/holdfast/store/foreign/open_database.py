"""The databases of tools that keep their sessions in one, recognized by their tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.store.foreign import opencode
from holdfast.store.foreign.goose import GOOSE_TABLES, GooseDatabase
from holdfast.store.foreign.openclaw import EVENT_COLUMNS, EVENT_TABLE, OpenclawDatabase
from holdfast.store.foreign.opencode import OpencodeDatabase
from holdfast.store.foreign.other_databases import recognize_foreign_database
from holdfast.store.foreign.session_list import ForeignDatabase
from holdfast.store.foreign.sqlite_files import StableDatabase, open_stable_database

_OPENCODE_TABLES = (frozenset({"session", "message", "part"}), frozenset({"session_v2", "session_message"}))
"""Sets of tables, one of which opencode's database has."""


@contextmanager
def open_foreign_database(path: Path) -> Iterator[ForeignDatabase]:
    """Open the database at ``path`` read-only for the block; no file is written beside it either.

    Raises ``UnrecognizedContent`` for that of a program that has no reader, and ``FormatError`` for a damaged one.
    """
    with open_stable_database(path) as database:
        yield _make_reader(database)


def _make_reader(database: StableDatabase) -> ForeignDatabase:
    tables = database.list_tables()
    is_opencode = any(marks <= tables for marks in _OPENCODE_TABLES)
    # Databases of other agents have tables of these names too.
    if not is_opencode and tables >= GOOSE_TABLES and "content_json" in database.list_columns("messages"):
        return GooseDatabase(database)
    if EVENT_TABLE in tables and database.list_columns(EVENT_TABLE) >= EVENT_COLUMNS:
        return OpenclawDatabase(database)
    # The error of opencode's reader names the program of any database that is none of these.
    return OpencodeDatabase(database)


def recognize_database(path: Path) -> str:
    """Return whose database is at ``path``: ``opencode.FORMAT`` for opencode's, else what it is and what to do.

    Empty if its tables are not known or cannot be read; a store of Holdfast counts as unknown.
    """
    try:
        with open_stable_database(path) as database:
            names = database.list_tables()
    except HoldfastError:
        return ""
    if any(tables <= names for tables in _OPENCODE_TABLES):
        return opencode.FORMAT
    if {"sessions", "entries"} <= names:
        return ""
    return recognize_foreign_database(names)
