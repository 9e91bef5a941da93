"""Every table of the schema is treated by the code that lists tables by hand: removing a session, and salvage."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sample_entries import SAMPLE_KEY, make_long_session

from holdfast.store.open_store import open_store
from holdfast.store.repair.repair_store import repair_store
from holdfast.store.repair.salvage_rows import SALVAGED_TABLES

WORD_INDEX_TABLES = {"words", "words_config", "words_data", "words_docsize", "words_idx"}
"""The word index with the tables that SQLite makes for it. It is derived from the entries."""
DERIVED_TABLES = WORD_INDEX_TABLES | {"checkpoints", "searched"}
"""Tables that are made again from the others, so that a salvage need not copy them."""
INDEX_ROWS_TABLE = "words_docsize"
"""The table of the word index with a row for each entry; the others have rows without any entry."""


def list_tables(path: Path) -> set[str]:
    """Return the names of all tables in the database, without those of SQLite itself."""
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite!_%' ESCAPE '!'"
        )
        return {name for (name,) in rows}


def count_rows(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a store with a single session, that has rows in every table."""
    path = tmp_path / "agent.db"
    with open_store(path) as store:
        store.import_entries(SAMPLE_KEY, make_long_session())
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE entries SET body = x'7b7d' WHERE id = 'm11'")
    assert not repair_store(path).is_undamaged  # which puts that row into quarantine
    with open_store(path) as store:
        assert store.search_session(SAMPLE_KEY, "result")
    return path


def test_remove_session_deletes_its_rows_from_every_table(file: Path) -> None:
    """A removed session has no rows left in any table.

    A table that is added to the schema must be filled by the fixture and emptied by ``SqliteStore._delete_session``.
    """
    row_tables = list_tables(file) - WORD_INDEX_TABLES | {INDEX_ROWS_TABLE}
    for table in row_tables:
        assert count_rows(file, table), f"the fixture leaves {table} empty, so the test would prove nothing about it"
    with open_store(file) as store:
        store.remove_session(SAMPLE_KEY)
    assert not {table for table in row_tables if count_rows(file, table)}


def test_salvage_copies_every_table_that_is_not_derived(file: Path) -> None:
    """A table that is added to the schema must be copied by ``salvage_rows`` or be listed here as derived."""
    assert list_tables(file) == SALVAGED_TABLES.keys() | DERIVED_TABLES
