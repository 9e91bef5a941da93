"""The search index is built when a session is searched, never needed for a result, and removed with its session."""

from __future__ import annotations

import sqlite3
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from hashlib import blake2b
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_entries import (
    SAMPLE_KEY,
    make_all_entry_bodies,
    make_long_session,
    make_message_chain,
    make_message_entry_body,
)

from holdfast.errors import UnknownId
from holdfast.messages.message import Message
from holdfast.messages.parts import Text
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.entries import CompactionEntry, Entry, MessageEntry, NoteEntry
from holdfast.store.base import ProgressCallback
from holdfast.store.open_store import open_store
from holdfast.store.search import index as indexing
from holdfast.store.search import search as searching
from holdfast.store.search.search import is_searchable_entry, lower_keeping_length, parse_search_terms, search_entries
from holdfast.store.sqlite import SqliteStore


def query_rows(path: Path, query: str) -> list[tuple[int, ...]]:
    """Return the rows of a query on the file."""
    with closing(sqlite3.connect(path)) as db:
        return db.execute(query).fetchall()


def edit_database(path: Path, statement: str) -> None:
    """Change the database without the store."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(statement)


def search_ids(path: Path, query: str, *, readonly: bool = False) -> list[str]:
    """Return the entry ids that a search finds."""
    with open_store(path, readonly=readonly) as store:
        return [hit.entry_id for hit in store.search_session(SAMPLE_KEY, query)]


@given(st.text(max_size=30))
def test_parse_search_terms_returns_lowercase_parts_of_the_query(text: str) -> None:
    """Each term occurs in the lowercase query, and a quoted term keeps its spaces."""
    for term in parse_search_terms(text):
        assert term in lower_keeping_length(text)
        assert term.strip()
    assert parse_search_terms('say "two words" "half') == ("say", "two words", '"half')


@given(st.text(max_size=30))
def test_lower_keeping_length_keeps_positions(text: str) -> None:
    """A match is marked by position, so no character may become two."""
    assert [char[:1].lower()[:1] for char in text] == list(lower_keeping_length(text)) or len(
        lower_keeping_length(text)
    ) == len(text)


def test_search_session_joins_text_parts(tmp_path: Path) -> None:
    """A word split over two parts, as in a streamed answer, is found and shown whole."""
    pieces = Message("assistant", (Text("The limit stands in configuration_loa"), Text("der.py.")))
    with open_store(tmp_path / "agent.db") as store, open_store(":memory:") as memory:
        for each in (store, memory):
            each.import_entries(SAMPLE_KEY, [Entry("p", None, MessageEntry(build_sized_message(pieces)))])
            assert [hit.snippet for hit in each.search_session(SAMPLE_KEY, "configuration_loader.py")] == [
                "The limit stands in «configuration_loader.py»."
            ]


@given(st.text(min_size=3, max_size=20), st.integers(0, 20), st.integers(1, 12), st.sampled_from([str, str.swapcase]))
def test_index_candidates_include_every_match(text: str, start: int, length: int, change_case: type[str]) -> None:
    """Every text that a search would match is a candidate, for any characters in either case."""
    wanted = parse_search_terms(change_case(text[start : start + length]))
    query = indexing.build_match_query(wanted)
    if not query or not all(term in lower_keeping_length(text) for term in wanted):
        return
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.execute("CREATE TABLE searched (session INTEGER PRIMARY KEY, upto INTEGER, rule INTEGER)")
        db.execute("CREATE TABLE entries (seq INTEGER PRIMARY KEY, session INTEGER)")
        db.executemany("INSERT INTO entries VALUES (?, ?)", [(1, 1), (2, 1), (3, 1), (4, 2)])
        indexing.index_texts(db, 1, [(1, text), (2, None), (3, "other")])
        indexing.index_texts(db, 2, [(4, text)])
        assert 1 in (indexing.find_candidate_seqs(db, 1, query) or [])
        assert indexing.find_candidate_seqs(db, 2, query) == [4]


def test_search_index_is_built_at_the_first_search(tmp_path: Path) -> None:
    """There is no index before the first search, and later entries are indexed at the next one."""
    path = tmp_path / "agent.db"
    with open_store(path) as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("ab"))
    assert query_rows(path, "SELECT name FROM sqlite_schema WHERE name LIKE 'words%'") == []
    assert search_ids(path, "text of") == ["b", "a"]
    with open_store(path) as store:
        store.append_entries(SAMPLE_KEY, make_message_chain("c", "b"))
    assert query_rows(path, "SELECT rowid FROM words WHERE words MATCH 'tex'") == [(1,), (2,)]
    assert search_ids(path, "text c") == ["c"]
    assert query_rows(path, "SELECT upto FROM searched") == [(3,)]


def test_search_index_is_emptied_when_a_session_is_removed(tmp_path: Path) -> None:
    """The index stores no text; removing a session empties it, and the next search of another session builds it
    again.
    """
    path = tmp_path / "agent.db"
    with open_store(path) as store:
        store.import_entries("other", make_message_chain("ab"))
        store.import_entries(SAMPLE_KEY, [Entry("z", None, make_message_entry_body("zebra crossing"))])
        assert store.search_session("other", "text")
        assert store.search_session(SAMPLE_KEY, "zebra")
        assert query_rows(path, "SELECT count(*) FROM words WHERE text IS NOT NULL") == [(0,)]
        store.remove_session(SAMPLE_KEY)
        assert (
            query_rows(path, "SELECT count(*) FROM words")
            == query_rows(path, "SELECT count(*) FROM searched")
            == [(0,)]
        )
        assert len(store.search_session("other", "text")) == 2
        assert query_rows(path, "SELECT count(*) FROM words") == [(2,)]


def test_search_index_of_an_older_version_is_rebuilt(tmp_path: Path) -> None:
    """Text that an older version did not index is found at once when reading and with a new index when writing, also
    from a schema without the rule number.
    """
    path = tmp_path / "agent.db"
    summary = Entry("s", "b", CompactionEntry(2, Message.from_text("user", "the zebra was found"), author="model"))
    with open_store(path) as store:
        for key in (SAMPLE_KEY, "other"):
            store.import_entries(key, [*make_message_chain("ab"), summary])
            assert store.search_session(key, "text")
    edit_database(path, "INSERT INTO words (words) VALUES ('delete-all')")
    for statement in ("INSERT INTO words (rowid, text) VALUES (1, 'text of a')", "UPDATE searched SET rule = rule - 1"):
        edit_database(path, statement)
    assert search_ids(path, "zebra", readonly=True) == ["s"]
    edit_database(path, "ALTER TABLE searched DROP COLUMN rule")
    edit_database(path, "ALTER TABLE sessions DROP COLUMN recorded_window")
    edit_database(path, "PRAGMA user_version = 3")
    assert search_ids(path, "zebra", readonly=True) == search_ids(path, "zebra") == ["s"]
    assert query_rows(path, "SELECT rowid FROM words WHERE words MATCH 'zeb'") == [(3,)]
    progress: list[tuple[int, int]] = []
    with open_store(path) as store:
        assert [
            hit.entry_id for hit in store.search_session("other", "zebra", tick=lambda *done: progress.append(done))
        ] == ["s"]
        assert [
            hit.entry_id for hit in store.search_session("other", "zebra", tick=lambda *_: progress.append((0, 0)))
        ] == ["s"]
    assert progress == [(6, 6)]


def test_index_version_changes_with_the_indexed_text() -> None:
    """Whoever changes what is indexed of an entry must raise ``INDEX_VERSION``, so that older indexes are not used."""
    samples = [Entry(f"e{at}", None, body) for at, body in enumerate(make_all_entry_bodies())]
    texts = [searching.get_searchable_text(entry) if is_searchable_entry(entry) else None for entry in samples]
    rule = (indexing.GRAM_CHARS, indexing.MAX_INDEXED_CHARS, indexing.ALWAYS_CANDIDATE, texts)
    digests = {3: "7ab7284ad07cc0e9"}
    assert digests[indexing.INDEX_VERSION] == blake2b(repr(rule).encode(), digest_size=8).hexdigest()


def test_search_session_of_a_readonly_store_writes_nothing(tmp_path: Path) -> None:
    """A read-only store finds indexed and unindexed text, and its file keeps its bytes."""
    path = tmp_path / "agent.db"
    with open_store(path) as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("ab"))
        store.search_session(SAMPLE_KEY, "text")
        store.append_entries(SAMPLE_KEY, make_message_chain("c", "b"))
    before = path.read_bytes()
    assert search_ids(path, "text of", readonly=True) == ["c", "b", "a"]
    assert path.read_bytes() == before


def test_search_session_creates_no_store(tmp_path: Path) -> None:
    """A search in a store that does not exist creates nothing."""
    with open_store(tmp_path / "agent.db") as store, pytest.raises(LookupError):
        store.search_session(SAMPLE_KEY, "anything")
    assert list(tmp_path.iterdir()) == []


def test_search_session_rebuilds_a_missing_index(tmp_path: Path) -> None:
    """A missing index changes no result for any session, and is built again."""
    path = tmp_path / "agent.db"
    with open_store(path) as store:
        for key in (SAMPLE_KEY, "other"):
            store.import_entries(key, make_message_chain("ab"))
            store.search_session(key, "text")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("DROP TABLE words")
    assert search_ids(path, "text of", readonly=True) == search_ids(path, "text of") == ["b", "a"]
    with open_store(path) as store:
        store.append_entries("other", make_message_chain("c", "b"))
        assert len(store.search_session("other", "text of")) == 3
    assert query_rows(path, "SELECT count(*) FROM words") == [(5,)]


def test_search_session_works_without_fts5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without FTS5 every entry is scanned, and appending and removing still work."""
    monkeypatch.setattr(indexing, "_CREATE_TABLE", "CREATE VIRTUAL TABLE words USING no_such_module(text)")
    path = tmp_path / "agent.db"
    with open_store(path) as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("ab"))
        assert [hit.entry_id for hit in store.search_session(SAMPLE_KEY, "text of")] == ["b", "a"]
        assert store.append_entries(SAMPLE_KEY, make_message_chain("c", "b")).is_leaf_moved
        store.remove_session(SAMPLE_KEY)


def test_search_session_finds_long_and_many_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text too long for the index is scanned, and many texts are indexed in several batches."""
    monkeypatch.setattr(indexing, "MAX_INDEXED_CHARS", 500)
    monkeypatch.setattr(indexing, "INDEX_BATCH_CHARS", 100)
    path = tmp_path / "agent.db"
    with open_store(path) as store:
        store.import_entries(
            SAMPLE_KEY,
            [
                Entry("long", None, make_message_entry_body("hay " * 300 + "needle")),
                *make_message_chain("abcdefgh", "long"),
            ],
        )
        assert [hit.entry_id for hit in store.search_session(SAMPLE_KEY, "needle")] == ["long"]
        assert len(store.search_session(SAMPLE_KEY, "text of")) == 8
    assert query_rows(path, "SELECT count(*) FROM words") == [(9,)]


def test_search_entries_stops_at_the_limit(tmp_path: Path) -> None:
    """A search that has found enough reads no further."""
    with open_store(tmp_path / "agent.db") as store:
        store.import_entries(SAMPLE_KEY, make_long_session())
        entries = iter(store.read_entries(SAMPLE_KEY, "message"))
        assert len(search_entries(entries, store.blobs, parse_search_terms("result"), 1)) == 1
        assert len(list(entries)) > 5


def test_search_session_ignores_notes(tmp_path: Path) -> None:
    """Notes are not messages and are not found."""
    with open_store(tmp_path / "agent.db") as store:
        store.import_entries(SAMPLE_KEY, [Entry("n", None, NoteEntry("a setting", b"zebra", {"of": "zebra"}))])
        assert store.search_session(SAMPLE_KEY, "zebra") == []


def test_search_session_raises_unknown_id_for_a_session_removed_meanwhile(tmp_path: Path) -> None:
    """A session removed by another process during the search is reported as unknown."""

    class SlowStore(SqliteStore):
        def _prepare_search(self, key: str, search_terms: Sequence[str], tick: ProgressCallback) -> None:
            with open_store(tmp_path / "agent.db") as other:
                other.remove_session(key)
            super()._prepare_search(key, search_terms, tick)

    with SlowStore(tmp_path / "agent.db") as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("ab"))
        with pytest.raises(UnknownId, match=SAMPLE_KEY):
            store.search_session(SAMPLE_KEY, "text of b")


def test_search_session_cost_is_independent_of_other_sessions(tmp_path: Path) -> None:
    """However many other sessions contain the same words, a search of one session does the same work."""
    call_counts: list[int] = []
    with open_store(tmp_path / "agent.db") as store:
        for count in (4, 36):
            for other in range(count):
                entries = [
                    Entry(f"{count}-{other}-{at}", None, make_message_entry_body(f"kelp {at}")) for at in range(20)
                ]
                store.import_entries(f"{count}-{other}", entries)
                assert store.search_session(f"{count}-{other}", "kelp", 1)
            store.import_entries(f"mine-{count}", [Entry(f"mine-{count}", None, make_message_entry_body("kelp"))])
            assert [hit.entry_id for hit in store.search_session(f"mine-{count}", "kelp")] == [f"mine-{count}"]
            profile: Counter[str] = Counter()
            sys.setprofile(lambda _frame, event, _what, profile=profile: profile.update([event]))
            store.search_session(f"mine-{count}", "kelp")
            sys.setprofile(None)
            call_counts.append(profile.total())
    assert call_counts[1] < 1.5 * call_counts[0]


def test_search_index_is_rebuilt_after_an_older_process_wrote_it(tmp_path: Path) -> None:
    """Where an older process indexed another session meanwhile, this session is indexed from the start."""
    path = tmp_path / "agent.db"
    with open_store(path) as store:
        for key in (SAMPLE_KEY, "other"):
            store.import_entries(key, make_message_chain("ab"))
            assert store.search_session(key, "text")
    edit_database(path, "UPDATE searched SET rule = 1 WHERE session = (SELECT max(session) FROM searched)")
    with open_store(path) as store:
        store.append_entries(SAMPLE_KEY, make_message_chain("c", "b"))
        assert [hit.entry_id for hit in store.search_session(SAMPLE_KEY, "text")] == ["c", "b", "a"]
    assert search_ids(path, "text") == ["c", "b", "a"]
