"""Search on PostgreSQL finds the same with its texts, without them, and with outdated ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from postgres_server import PostgresServer
from sample_entries import SAMPLE_KEY, make_message_entry_body

from holdfast.state.entries import Entry
from holdfast.store.open_store import open_store

TEXTS = (
    "The quick brown fox",
    "100% of it_is done",
    "100 of it is done",
    r"a back\slash",
    "null\0character \ud83d surrogate",
    "İstanbul GROSS",
    "x",
)
"""Texts with the characters that patterns, indexes and the server treat in a way of their own."""
QUERIES = (
    "quick fox",
    "100% of",
    "it_is",
    r"back\slash",
    "null\0char",
    "istanbul",
    "gross",
    "x",
    "\ud83d",
    '"brown fox"',
)


def make_entries(first: int = 0) -> list[Entry]:
    """Return a chain of messages with these texts."""
    entries = []
    for number, text in enumerate(TEXTS, first):
        parent = f"e{number - 1}" if number else None
        entries.append(Entry(f"e{number}", parent, make_message_entry_body(text), time_ms=number))
    return entries


@pytest.mark.parametrize("way", ["indexed", "older_tables", "readonly", "outdated"])
def test_search_finds_the_same_whatever_is_indexed(postgres_server: PostgresServer, tmp_path: Path, way: str) -> None:
    """Every query finds what a store in memory finds."""
    with open_store(":memory:") as memory, open_store(postgres_server.url(schema=f"search_{way}")) as store:
        for each in (memory, store):
            each.import_entries(SAMPLE_KEY, make_entries())
        if way == "older_tables":
            postgres_server.run_sql(
                f"DROP TABLE search_{way}.searched_texts, search_{way}.searched;"
                f"UPDATE search_{way}.schema_version SET version = 1",
                "store",
            )
        if way == "outdated":
            store.search_session(SAMPLE_KEY, "quick")
            for each in (memory, store):
                each.append_entries(SAMPLE_KEY, make_entries(len(TEXTS)))
            postgres_server.run_sql(f"UPDATE search_{way}.searched SET upto = 3", "store")
        is_readonly = way == "readonly"
        with open_store(postgres_server.url(schema=f"search_{way}"), readonly=is_readonly) as searched:
            for query in QUERIES:
                expected = [hit.entry_id for hit in memory.search_session(SAMPLE_KEY, query)]
                assert expected, query
                assert [hit.entry_id for hit in searched.search_session(SAMPLE_KEY, query)] == expected, query
