"""The SQLite store obeys the rules of every store and those of a file on disk."""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace
from sample_entries import (
    SAMPLE_KEY,
    drop_sequence_numbers,
    is_same_request,
    list_ids,
    make_long_session,
    make_message_chain,
)
from store_conformance import SessionStoreRules

from holdfast.errors import StoreCorrupt, StoreError, StoreLocked
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import BranchSummaryEntry, CompactionEntry, Entry, MessageEntry, NoteEntry
from holdfast.store import sqlite
from holdfast.store.base import Quota, SessionStore
from holdfast.store.open_store import open_store
from holdfast.store.repair.repair_store import repair_store
from holdfast.store.sql.database import SqliteFile
from holdfast.store.sql.migrations import MIGRATIONS
from holdfast.store.sqlite import ROWS_AT_ONCE, SqliteStore, build_kind_condition
from holdfast.store.tree.active import decode_checkpoint, encode_checkpoint
from holdfast.store.tree.placing import place_entries
from holdfast.store.tree.tree import make_entry_ids


@pytest.mark.usefixtures("short_lease_wait")
class TestSqliteStore(SessionStoreRules):
    """The common rules, also after opening the file again."""

    def open(self, place: Path) -> SessionStore:
        """Return the store in a file of ``place``."""
        return open_store(place / "agent.db")

    def open_limited(self, place: Path, quota: Quota) -> SessionStore:
        """Return the store with a quota."""
        return open_store(place / "agent.db", quota=quota)


@contextmanager
def set_umask(mask: int) -> Iterator[None]:
    """Create files under this umask."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def decode_plain(raw: bytes) -> Message:
    """Decode the test's own wire format: a JSON string is a user message."""
    return Message.from_text("user", msgspec.json.decode(raw, type=str))


def make_wire_entry(name: str, parent: str | None, text: str, role: str = "user") -> Entry:
    """Build an entry in that wire format."""
    slot = replace(build_sized_message(Message.from_text(role, text)), api="plain", raw=Raw(msgspec.json.encode(text)))  # type: ignore[arg-type]
    return Entry(name, parent, MessageEntry(slot, Raw(b'{"line": 1}')))


def edit_database(path: Path, statement: str, *values: object) -> None:
    """Change the database without the store."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(statement, values)


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o377])
def test_sqlite_store_creates_private_files(tmp_path: Path, mask: int) -> None:
    """private-files: files are 0600 and directories 0700 whatever the umask, including ``-wal``, ``-shm``, locks and
    blobs.
    """
    with set_umask(mask), open_store(tmp_path / "deep" / "er" / "agent.db") as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("ab"))
        store.blobs.store_content("text")
        with store.hold_lease(SAMPLE_KEY):
            created = list((tmp_path / "deep").rglob("*"))
    names = {path.name for path in created}
    assert {"agent.db", "agent.db-wal", "agent.db-shm", "agent.db.blobs", "agent.db.locks"} <= names
    for path in [*created, tmp_path / "deep"]:
        if path.exists():
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_sqlite_store_creates_no_file_when_reading(tmp_path: Path) -> None:
    """A store that was never written reads as empty and still does not exist."""
    with open_store(tmp_path / "none" / "agent.db") as store:
        assert store.list_sessions() == []
        with pytest.raises(StoreError):
            store.get_session("x")
    assert list(tmp_path.iterdir()) == []


def test_sqlite_store_finds_a_file_created_after_opening(tmp_path: Path) -> None:
    """A store opened before its file existed finds it once another process creates it."""
    with open_store(tmp_path / "agent.db") as reader, open_store(tmp_path / "agent.db") as writer:
        assert reader.list_sessions() == []
        writer.import_entries(SAMPLE_KEY, make_message_chain("ab"))
        assert reader.get_session(SAMPLE_KEY).entry_count == 2
        writer.append_entries(SAMPLE_KEY, make_message_chain("c", "b"))
        assert list_ids(reader.read_path(SAMPLE_KEY)) == ["a", "b", "c"]


def test_sqlite_store_accepts_an_empty_file(tmp_path: Path) -> None:
    """A file of no bytes, left by a crash or by ``touch``, is a store without sessions."""
    (tmp_path / "agent.db").touch()
    with open_store(tmp_path / "agent.db") as store:
        assert store.list_sessions() == []
        assert store.import_entries(SAMPLE_KEY, make_message_chain("ab")).added_count == 2


def test_sqlite_store_refuses_dangling_links_fifos_and_directories(tmp_path: Path) -> None:
    """private-files: a dangling link, a FIFO and a directory are refused, and nothing is created through them."""
    (tmp_path / "link.db").symlink_to(tmp_path / "elsewhere.db")
    os.mkfifo(tmp_path / "fifo.db")
    (tmp_path / "dir.db").mkdir()
    for name in ("link.db", "fifo.db", "dir.db"):
        with open_store(tmp_path / name) as store:
            with pytest.raises(StoreError, match=name):
                store.import_entries(SAMPLE_KEY, make_message_chain("a"))
            with pytest.raises(StoreError, match=name):
                store.list_sessions()
    assert not (tmp_path / "elsewhere.db").exists()


def test_readonly_sqlite_store_refuses_writes(tmp_path: Path) -> None:
    """A store opened for reading refuses a write and changes no byte."""
    with open_store(tmp_path / "agent.db") as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("ab"))
    before = (tmp_path / "agent.db").read_bytes()
    with open_store(tmp_path / "agent.db", readonly=True) as store:
        assert list_ids(store.read_path(SAMPLE_KEY)) == ["a", "b"]
        with pytest.raises(StoreError, match="reading only"):
            store.append_entries(SAMPLE_KEY, make_message_chain("c", "b"))
    assert (tmp_path / "agent.db").read_bytes() == before


def test_sqlite_file_sets_the_requested_durability(tmp_path: Path) -> None:
    """durable-as-promised: ``process`` uses a write-ahead log without a flush for each commit, ``power`` flushes
    each.
    """
    for durability, level in (("process", 1), ("power", 2)):
        database = SqliteFile(tmp_path / f"{durability}.db", durability)  # type: ignore[arg-type]
        with database.write_transaction():
            assert database.db.execute("PRAGMA synchronous").fetchone() == (level,)
            assert database.db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        database.close()


# -- versions and damage -----------------------------------------------------------------------------------------------


def test_schema_version_counts_the_migrations(tmp_path: Path) -> None:
    """The version is the number of migrations, and a released migration keeps its name and place."""
    with open_store(tmp_path / "agent.db") as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("a"))
    with closing(sqlite3.connect(tmp_path / "agent.db")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
        strict = db.execute("SELECT count(*) FROM pragma_table_list WHERE schema = 'main' AND strict").fetchone()
    assert [step.__name__ for step in MIGRATIONS][:5] == [
        "m001_sessions_entries_checkpoints",
        "m002_search_and_quota",
        "m003_entries_in_order",
        "m004_rule_of_the_index",
        "m005_recorded_window",
    ]
    assert strict == (4,)


def test_sqlite_store_refuses_a_newer_schema(tmp_path: Path) -> None:
    """A database of a later version is refused for reading and writing, with its number and what to do."""
    with open_store(tmp_path / "agent.db") as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("a"))
    edit_database(tmp_path / "agent.db", "PRAGMA user_version = 99")
    with open_store(tmp_path / "agent.db") as store:
        for verb in (store.list_sessions, lambda: store.append_entries(SAMPLE_KEY, make_message_chain("b", "a"))):
            with pytest.raises(StoreCorrupt, match=r"schema 99 .* update holdfast"):
                verb()


def test_sqlite_store_migrates_a_schema_it_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older schema that cannot be read as it is is migrated on the first read, and a failed migration changes
    nothing.
    """

    def add(db: sqlite3.Connection) -> None:
        db.execute("ALTER TABLE sessions ADD COLUMN more TEXT")

    def fail(db: sqlite3.Connection) -> None:
        db.execute("DROP TABLE checkpoints")
        db.execute("no SQL")

    with open_store(tmp_path / "agent.db") as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("ab"))
    for last, version in ((fail, len(MIGRATIONS)), (add, len(MIGRATIONS) + 1)):
        monkeypatch.setattr("holdfast.store.sql.migrations.MIGRATIONS", (*MIGRATIONS, last))
        monkeypatch.setattr("holdfast.store.sql.database.OLDEST_READABLE_VERSION", len(MIGRATIONS) + 1)
        with open_store(tmp_path / "agent.db") as store:
            if last is fail:
                with pytest.raises(StoreError, match=r"agent\.db"):
                    store.list_sessions()
            else:
                assert list_ids(store.read_path(SAMPLE_KEY)) == ["a", "b"]
        with closing(sqlite3.connect(tmp_path / "agent.db")) as db:
            assert db.execute("PRAGMA user_version").fetchone() == (version,)
            assert db.execute("SELECT count(*) FROM checkpoints").fetchone() == (0,)


def create_older_store(path: Path, schema: int) -> None:
    """Create a store with the schema of that release, with two messages."""
    with open_store(path) as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("ab"))
    steps = {
        5: ["ALTER TABLE sessions DROP COLUMN recorded_window"],
        4: ["ALTER TABLE searched DROP COLUMN rule"],
        3: [
            "DROP INDEX entries_kind",
            "DROP INDEX entries_session",
            "CREATE INDEX entries_kind ON entries (session, kind)",
        ],
        2: ["DROP INDEX entries_kind", "DROP TABLE searched", "ALTER TABLE sessions DROP COLUMN bytes"],
    }
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for step, statements in steps.items():
            for statement in statements if step > schema else ():
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {schema}")


@pytest.mark.parametrize("schema", [1, 2, 3, 4])
def test_readonly_sqlite_store_reads_older_schemas(tmp_path: Path, schema: int) -> None:
    """Reading and searching an older store read-only changes no byte of it."""
    create_older_store(tmp_path / "agent.db", schema)
    before = (tmp_path / "agent.db").read_bytes()
    with open_store(tmp_path / "agent.db", readonly=True) as store:
        assert list_ids(store.read_path(SAMPLE_KEY)) == list_ids(store.read_entries(SAMPLE_KEY)) == ["a", "b"]
        assert list_ids(store.read_entries(SAMPLE_KEY, "message")) == ["a", "b"]
        assert list_ids(store.read_tips(SAMPLE_KEY)) == ["b"]
        assert [info.recorded_window for info in store.list_sessions()] == [None]
        assert store.read_entries(SAMPLE_KEY, "note") == []
        assert [found.entry_id for found in store.search_session(SAMPLE_KEY, "text of b")] == ["b"]
    assert (tmp_path / "agent.db").read_bytes() == before


@pytest.mark.parametrize("schema", [1, 2, 3, 4])
def test_migrated_store_has_the_newest_schema(tmp_path: Path, schema: int) -> None:
    """After migration a store has the tables, indexes and content of one created today."""
    create_older_store(tmp_path / "old.db", schema)
    with open_store(tmp_path / "new.db") as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("ab"))
    with open_store(tmp_path / "old.db") as store:
        assert list_ids(store.read_entries(SAMPLE_KEY)) == ["a", "b"]
        assert not store.append_entries(SAMPLE_KEY, []).is_leaf_moved
    found = []
    for name in ("old.db", "new.db"):
        with closing(sqlite3.connect(tmp_path / name)) as db:
            found.append(set(db.execute("SELECT type, name, tbl_name FROM sqlite_schema").fetchall()))
            assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    assert found[0] == found[1]


def test_migration_2_counts_bytes_and_indexes_text(tmp_path: Path) -> None:
    """The second migration counts existing bytes as if they had been counted from the start, and makes the text
    searchable.
    """
    create_older_store(tmp_path / "old.db", 1)
    with open_store(tmp_path / "new.db") as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("ab"))
    for name in ("old.db", "new.db"):
        with open_store(tmp_path / name) as store:
            store.append_entries(SAMPLE_KEY, make_message_chain("c", "b"))
            assert [found.entry_id for found in store.search_session(SAMPLE_KEY, "text of")] == ["c", "b", "a"]
    sizes = []
    for name in ("old.db", "new.db"):
        with closing(sqlite3.connect(tmp_path / name)) as db:
            sizes.append(db.execute("SELECT bytes FROM sessions").fetchone()[0])
    assert sizes[0] == sizes[1] > 0


def test_sqlite_store_refuses_a_foreign_database(tmp_path: Path) -> None:
    """A database of another program gets none of our tables."""
    edit_database(tmp_path / "agent.db", "CREATE TABLE theirs (x)")
    before = (tmp_path / "agent.db").read_bytes()
    with open_store(tmp_path / "agent.db") as store:
        for verb in (store.list_sessions, lambda: store.import_entries(SAMPLE_KEY, make_message_chain("a"))):
            with pytest.raises(StoreCorrupt, match="another program"):
                verb()
    assert (tmp_path / "agent.db").read_bytes() == before


@pytest.mark.parametrize("content", [b"not a database, only text that is long enough" * 40, b"\x00" * 5000, b"x"])
def test_sqlite_store_refuses_a_file_that_is_no_database(tmp_path: Path, content: bytes) -> None:
    """A file that is not a database is refused with a clear error and keeps its bytes."""
    (tmp_path / "agent.db").write_bytes(content)
    with open_store(tmp_path / "agent.db") as store:
        for verb in (store.list_sessions, lambda: store.import_entries(SAMPLE_KEY, make_message_chain("a"))):
            with pytest.raises(StoreCorrupt, match=r"agent\.db"):
                verb()
    assert (tmp_path / "agent.db").read_bytes() == content


def test_sqlite_store_raises_on_damaged_pages(tmp_path: Path) -> None:
    """damage-is-an-error: overwritten pages raise ``StoreCorrupt`` or leave the entries as they were, and never yield
    other text.
    """
    entries = make_message_chain([f"e{n}" for n in range(300)])
    with open_store(tmp_path / "agent.db") as store:
        store.import_entries(SAMPLE_KEY, entries)
    whole = (tmp_path / "agent.db").read_bytes()
    error_count = 0
    for at in range(0, len(whole), 4096):
        (tmp_path / "agent.db").write_bytes(whole[:at] + b"\xa5" * 512 + whole[at + 512 :])
        with open_store(tmp_path / "agent.db") as store:
            try:
                assert drop_sequence_numbers(store.read_path(SAMPLE_KEY)) == entries
            except (StoreError, LookupError):
                error_count += 1
    assert error_count > len(whole) // 4096 // 3


def test_read_path_raises_on_changed_bytes(tmp_path: Path) -> None:
    """damage-is-an-error: a message whose stored bytes changed is named and never returned."""
    with SqliteStore(tmp_path / "agent.db", wire_decoders={"plain": decode_plain}) as store:
        store.import_entries(SAMPLE_KEY, [make_wire_entry("a", None, "yes"), make_wire_entry("b", "a", "no")])
    edit_database(tmp_path / "agent.db", "UPDATE entries SET raw = ? WHERE id = 'b'", b'"yes"')
    with SqliteStore(tmp_path / "agent.db", wire_decoders={"plain": decode_plain}) as store:
        assert list_ids(store.read_path(SAMPLE_KEY, "a")) == ["a"]
        with pytest.raises(StoreCorrupt, match="entry b"):
            store.read_path(SAMPLE_KEY)


def test_find_damage_lists_every_damaged_entry(tmp_path: Path) -> None:
    """Every unreadable entry is listed by its id, and an undamaged session has none."""
    with SqliteStore(tmp_path / "agent.db") as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("abcd"))
        store.import_entries("other", make_message_chain("ab"))
    edit_database(tmp_path / "agent.db", "UPDATE entries SET body = ? WHERE id IN ('c', 'd')", b"{}")
    with SqliteStore(tmp_path / "agent.db", readonly=True) as store:
        assert [line.split()[1] for line in store.find_damage(SAMPLE_KEY)] == ["c", "d"]
        assert store.find_damage("other") == []


# -- bytes -------------------------------------------------------------------------------------------------------------


def test_wire_bytes_are_the_only_stored_form(tmp_path: Path) -> None:
    """stored-once-verified: where the wire bytes decode to the message only they are stored, and the value is decoded
    from them.
    """
    with SqliteStore(tmp_path / "agent.db", wire_decoders={"plain": decode_plain}) as store:
        entry = make_wire_entry("a", None, "hello")
        store.import_entries(SAMPLE_KEY, [entry])
        assert drop_sequence_numbers(store.read_path(SAMPLE_KEY)) == [entry]
    with closing(sqlite3.connect(tmp_path / "agent.db")) as db:
        row = db.execute("SELECT raw, body, raws, origin, api FROM entries").fetchone()
    assert row == (b'"hello"', None, None, b'{"line": 1}', "plain")


def test_value_beyond_its_wire_bytes_is_stored_too(tmp_path: Path) -> None:
    """loads-what-was-saved: a value that holds more than its bytes comes back as it was, and so do the bytes."""
    named = Message("tool", (ToolResult("c", "name that a reader looked up", (Text("x", raw=Raw(b"{ }")),)),))
    slot = replace(build_sized_message(named), api="plain", raw=Raw(b'"x"'))
    with SqliteStore(tmp_path / "agent.db", wire_decoders={"plain": decode_plain}) as store:
        store.import_entries(SAMPLE_KEY, [Entry("a", None, MessageEntry(slot))])
        assert drop_sequence_numbers(store.read_path(SAMPLE_KEY)) == [Entry("a", None, MessageEntry(slot))]


@pytest.mark.parametrize("count", [1, ROWS_AT_ONCE - 1, ROWS_AT_ONCE, ROWS_AT_ONCE + 1, 2 * ROWS_AT_ONCE + 3])
def test_append_entries_stores_a_batch_like_single_appends(tmp_path: Path, count: int) -> None:
    """However many messages are appended at once, each row equals the one of a single append."""
    links = [(f"e{n}", f"e{n - 1}" if n else None) for n in range(count)]
    entries = [
        replace(entry, body=replace(entry.body, recording_envelope=None))  # type: ignore[union-attr]
        for entry in (make_wire_entry(id_, parent, f"text of {id_}", "user") for id_, parent in links)
    ]
    for name, runs in (("alone", [[entry] for entry in entries]), ("together", [entries])):
        with SqliteStore(tmp_path / name, wire_decoders={"plain": decode_plain}, clock=lambda: 1) as store:
            store.create_session(SAMPLE_KEY)
            for run in runs:
                store.append_entries(SAMPLE_KEY, run, decode=decode_plain)
            assert drop_sequence_numbers(store.read_path(SAMPLE_KEY)) == entries
    with closing(sqlite3.connect(tmp_path / "together")) as db:
        assert db.execute("SELECT DISTINCT typeof(digest), typeof(raw) FROM entries").fetchall() == [("blob", "blob")]
        db.execute("ATTACH ? AS other", (str(tmp_path / "alone"),))
        for table in ("entries", "sessions"):
            together, alone = (db.execute(f"SELECT * FROM {base}.{table}").fetchall() for base in ("main", "other"))
            assert together == alone


@pytest.mark.parametrize("count", [3, 2 * ROWS_AT_ONCE + 3])
def test_failed_batch_insert_leaves_nothing(tmp_path: Path, count: int) -> None:
    """nothing-lost, crash-keeps-acknowledged: when one row cannot be written, no other row of its statement or
    transaction is stored.
    """
    messages = [
        replace(build_sized_message(Message.from_text("user", text)), api="plain", raw=Raw(b'"%s"' % text.encode()))
        for text in "ab"
    ]
    entries = [Entry(f"e{n}", f"e{n - 1}" if n else None, MessageEntry(messages[0])) for n in range(count)]
    with SqliteStore(tmp_path / "agent.db", wire_decoders={"plain": decode_plain}) as store:
        store.import_entries(SAMPLE_KEY, [Entry(f"e{count - 2}", None, MessageEntry(messages[1]))])
        before = (store.list_sessions(), store.read_path(SAMPLE_KEY))
        placed = place_entries(entries, lambda _: None, 10)
        with pytest.raises(StoreError, match="UNIQUE"), store._write_transaction():
            store._insert_entries(SAMPLE_KEY, placed, decode_plain)
        assert (
            (store.list_sessions(), store.read_path(SAMPLE_KEY))
            == before
            == (store.list_sessions(), store.read_entries(SAMPLE_KEY))
        )
        store.append_entries(SAMPLE_KEY, [make_wire_entry("z", f"e{count - 2}", "later")])
        assert list_ids(store.read_path(SAMPLE_KEY)) == [f"e{count - 2}", "z"]


def test_remove_session_deletes_all_its_rows(tmp_path: Path) -> None:
    """No table keeps a row of the removed session or refers to one, and other sessions keep all of theirs."""
    tables = ("sessions", "entries", "checkpoints", "searched")
    with open_store(tmp_path / "agent.db") as store, closing(sqlite3.connect(tmp_path / "agent.db")) as db:
        for key in (SAMPLE_KEY, "other"):
            store.import_entries(key, make_long_session())
            store.search_session(key, "text of")
        counts_before = [db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables]
        path = store.read_path("other")
        store.remove_session(SAMPLE_KEY)
        counts = [db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables]
        assert counts[:3] == [count // 2 for count in counts_before[:3]]
        assert min(counts_before) > 0
        assert counts[3] <= 1
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        assert store.read_path("other") == path


def test_append_entries_keeps_the_order_of_mixed_kinds(tmp_path: Path) -> None:
    """A note, or a message that needs more columns, between many plain messages keeps its place."""
    count = 2 * ROWS_AT_ONCE
    entries = [make_wire_entry(f"e{n}", f"e{n - 1}" if n else None, f"text {n}") for n in range(count)]
    plain_entries = [replace(entry, body=replace(entry.body, recording_envelope=None)) for entry in entries]  # type: ignore[union-attr]
    mixed = [
        *plain_entries[:ROWS_AT_ONCE],
        *entries[ROWS_AT_ONCE : ROWS_AT_ONCE + 1],
        *plain_entries[ROWS_AT_ONCE + 1 :],
    ]
    mixed[-1] = replace(mixed[-1], body=NoteEntry("a remark"))
    with SqliteStore(tmp_path / "agent.db", wire_decoders={"plain": decode_plain}) as store:
        store.create_session(SAMPLE_KEY)
        store.append_entries(SAMPLE_KEY, mixed, decode=decode_plain)
        assert drop_sequence_numbers(store.read_path(SAMPLE_KEY)) == mixed


def test_unknown_wire_format_is_named_in_the_error(tmp_path: Path) -> None:
    """Bytes in a format that this version cannot decode are an error that names the format."""
    with SqliteStore(tmp_path / "agent.db", wire_decoders={"plain": decode_plain}) as store:
        store.import_entries(SAMPLE_KEY, [make_wire_entry("a", None, "hello")])
    with SqliteStore(tmp_path / "agent.db", wire_decoders={}) as store, pytest.raises(StoreCorrupt, match="'plain'"):
        store.read_path(SAMPLE_KEY)


def test_import_entries_ignores_changed_sizes(tmp_path: Path) -> None:
    """A better estimator or reader does not make a known file a new one: only bytes and parent count."""
    unwired = build_sized_message(Message.from_text("user", "no bytes"))
    bodies = [make_wire_entry("a", None, "hello").body, MessageEntry(unwired), BranchSummaryEntry(unwired, "b")]
    entries = [Entry(f"e{n}", f"e{n - 1}" if n else None, body) for n, body in enumerate(bodies)]
    remeasured = [
        replace(
            entry,
            time_ms=7,
            body=replace(entry.body, sized_message=replace(entry.body.sized_message, tokens=99, digest=b"new")),
        )  # type: ignore[union-attr]
        for entry in entries
    ]
    with SqliteStore(tmp_path / "agent.db", wire_decoders={"plain": decode_plain}) as store:
        store.import_entries(SAMPLE_KEY, entries)
        assert store.import_entries(SAMPLE_KEY, remeasured).is_unchanged


# -- cost --------------------------------------------------------------------------------------------------------------


def test_open_state_decodes_only_the_active_part(tmp_path: Path) -> None:
    """opening-costs-one-branch: opening decodes the kept tail and later entries, however long the history; listing
    decodes nothing.
    """
    decoded = []

    def count_and_decode(raw: bytes) -> Message:
        decoded.append(raw)
        return decode_plain(raw)

    for count in (30, 600):
        entries = [make_wire_entry(f"e{n}", f"e{n - 1}" if n else None, f"text {n}") for n in range(count)]
        with SqliteStore(tmp_path / f"{count}.db", wire_decoders={"plain": count_and_decode}) as store:
            store.import_entries(SAMPLE_KEY, entries)
            store.append_entries(
                SAMPLE_KEY, [make_compaction("c", f"e{count - 1}", count - 5), make_wire_entry("z", "c", "later")]
            )
            decoded.clear()
            assert len(store.open_state(SAMPLE_KEY).history.sized_messages) == count + 1
            assert len(decoded) == 6
            store.list_sessions()
            store.get_session(SAMPLE_KEY)
            assert len(decoded) == 6


def test_entry_queries_use_indexes_without_sorting(tmp_path: Path) -> None:
    """opening-costs-one-branch: entries of a session come in order from an index, and those of a rare kind are found
    without scanning the others.
    """
    session, queries = (
        "(SELECT session FROM sessions WHERE key = 'k')",
        [sqlite._SELECT_ALL_ENTRIES, sqlite._SELECT_NEW_SEARCHABLE, sqlite._SELECT_LATE_SEARCHABLE],
    )
    with open_store(tmp_path / "agent.db") as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("ab"))
    with closing(sqlite3.connect(tmp_path / "agent.db")) as db:

        def explain(query: str) -> str:
            rows = db.execute(f"EXPLAIN QUERY PLAN {query}", [1] * query.count("?"))
            return "; ".join(row[3] for row in rows)

        for query in (*queries, sqlite._SELECT_TIPS):
            assert "SEARCH e USING INDEX entries_session (session=?" in explain(query), query
            assert "TEMP B-TREE" not in explain(query), query
        for kind, index in (
            ("note", "entries_kind (session=? AND kind=?)"),
            ("message", "entries_session (session=?)"),
        ):
            found = explain(
                f"SELECT * FROM entries e WHERE e.session = {session} AND {build_kind_condition(kind)} ORDER BY e.seq"
            )
            assert f"SEARCH e USING INDEX {index}" in found
            assert "TEMP B-TREE" not in found


@pytest.mark.parametrize("at", [2**63, -(2**63), 10**30])
def test_entry_time_beyond_64_bits_is_dropped(tmp_path: Path, at: int) -> None:
    """loads-what-was-saved: an entry with a time that no column can hold is stored without one, and the session's times
    ignore it.
    """
    with open_store(tmp_path / "agent.db") as store:
        store.import_entries(SAMPLE_KEY, [replace(entry, time_ms=at) for entry in make_message_chain("ab")])
        store.import_entries(
            SAMPLE_KEY,
            [replace(entry, time_ms=time) for entry, time in zip(make_message_chain("cd", "b"), (7, at), strict=True)],
        )
        assert [entry.time_ms for entry in store.read_path(SAMPLE_KEY)] == [None, None, 7, None]
        assert abs(store.get_session(SAMPLE_KEY).created_at) < 2**63 > store.get_session(SAMPLE_KEY).updated_at


def test_make_entry_ids_returns_ascending_unique_ids() -> None:
    """unique-entry-ids: a batch has as many ids as requested, all different, of 32 hex digits, in ascending order."""
    batches = [make_entry_ids(count) for count in (0, 1, 2, 1_000)]
    assert list(map(len, batches)) == [0, 1, 2, 1_000]
    assert len({id_ for batch in batches for id_ in batch}) == 1_003
    assert all(batch == sorted(batch) for batch in batches)
    assert all(re.fullmatch("[0-9a-f]{32}", id_) for batch in batches for id_ in batch)
    assert len({id_[:4] for id_ in batches[-1]}) > 900  # so the first digits still distinguish them


def test_append_entries_verifies_only_foreign_decoders(tmp_path: Path) -> None:
    """loads-what-was-saved, stored-once-verified: bytes decoded by the store's own decoder are not decoded again,
    others are verified.
    """
    decoded = []

    def count_and_decode(raw: bytes) -> Message:
        decoded.append(raw)
        return decode_plain(raw)

    changed = replace(build_sized_message(Message.from_text("user", "another")), api="plain", raw=Raw(b'"bytes"'))
    entries = [
        make_wire_entry("a", None, "one"),
        make_wire_entry("b", "a", "two"),
        Entry("c", "b", MessageEntry(changed)),
    ]
    with SqliteStore(tmp_path / "agent.db", wire_decoders={"plain": count_and_decode}) as store:
        store.create_session(SAMPLE_KEY)
        store.append_entries(SAMPLE_KEY, entries[:1], decode=count_and_decode)
        assert decoded == []
        store.append_entries(SAMPLE_KEY, entries[1:], decode=decode_plain)
        assert decoded == [b'"two"', b'"bytes"']
        assert drop_sequence_numbers(store.read_path(SAMPLE_KEY)) == entries
    with closing(sqlite3.connect(tmp_path / "agent.db")) as db:
        assert db.execute("SELECT body IS NULL FROM entries ORDER BY seq").fetchall() == [(1,), (1,), (0,)]


def make_compaction(name: str, parent: str, keep: int) -> Entry:
    """Build a compaction that keeps messages from index ``keep`` on."""
    return Entry(name, parent, CompactionEntry(keep, Message.from_text("user", "summary"), 5))


@pytest.mark.parametrize("damage", ["DELETE FROM checkpoints", "UPDATE checkpoints SET state = x'c0ffee'"])
def test_damaged_checkpoint_costs_only_a_full_fold(tmp_path: Path, damage: str) -> None:
    """A missing or unreadable checkpoint costs a walk from the root and changes nothing else."""
    with open_store(tmp_path / "agent.db") as store:
        store.import_entries(SAMPLE_KEY, make_long_session())
    edit_database(tmp_path / "agent.db", damage)
    with open_store(tmp_path / "agent.db") as store:
        assert store.read_active_entries(SAMPLE_KEY).compaction is None
        assert is_same_request(
            store.open_state(SAMPLE_KEY), ConversationState.from_entries(store.read_path(SAMPLE_KEY))
        )
        store.append_entries(SAMPLE_KEY, [make_compaction("c3", "m11", 9)])
        assert store.read_active_entries(SAMPLE_KEY).compaction is not None


def test_decode_checkpoint_rejects_flipped_bits() -> None:
    """A checkpoint with any flipped bit is rejected or equal to the stored one."""
    branch = ConversationState.from_entries(make_long_session())
    saved = encode_checkpoint(branch, [], CompactionEntry(9, Message.from_text("user", "summary"), 5))
    assert saved is not None
    whole = decode_checkpoint(saved)
    assert whole is not None
    found = []
    for byte in range(len(saved)):
        flipped = bytearray(saved)
        flipped[byte] ^= 1 << byte % 8
        found.append(decode_checkpoint(bytes(flipped)))
    assert found.count(None) > 0.99 * len(saved)
    assert all(state in (None, whole) for state in found)  # base64 has unused bits


def test_sqlite_store_refuses_an_old_sqlite_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a SQLite too old for the store every operation says so, and ``repair_store`` does not touch the file."""
    file = tmp_path / "agent.db"
    with open_store(file) as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("a"))
    before = file.read_bytes()
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 31, 1))
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.31.1")
    with open_store(file) as store, open_store(tmp_path / "new.db") as new:
        verbs = (
            store.list_sessions,
            new.list_sessions,
            partial(new.import_entries, SAMPLE_KEY, make_message_chain("a")),
            partial(repair_store, file),
        )
        for verb in verbs:
            with pytest.raises(StoreError, match=r"3\.31\.1, .* 3\.37 or newer"):
                verb()
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if "new" in path.name] == []


# -- other writers -----------------------------------------------------------------------------------------------------


def test_append_entries_raises_store_locked_after_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write blocked by another writer raises ``StoreLocked``, writes nothing and works later."""
    monkeypatch.setattr("holdfast.store.sql.database.BUSY_WAIT", 0.05)
    with (
        open_store(tmp_path / "agent.db") as store,
        closing(_lock_from_elsewhere(store, tmp_path / "agent.db")) as other,
    ):
        with pytest.raises(StoreLocked, match="try again"):
            store.append_entries(SAMPLE_KEY, make_message_chain("b", "a"))
        assert list_ids(store.read_path(SAMPLE_KEY)) == ["a"]
        other.execute("COMMIT")
        assert store.append_entries(SAMPLE_KEY, make_message_chain("b", "a")).is_leaf_moved


def test_lock_waits_do_not_add_up_after_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a write timed out, all following ones together wait less, until one succeeds; then the full wait applies
    again.
    """
    monkeypatch.setattr("holdfast.store.sql.database.BUSY_WAIT", 1.0)
    monkeypatch.setattr("holdfast.store.sql.database.BRIEF_WAIT", 0.01)

    with (
        open_store(tmp_path / "agent.db") as store,
        closing(_lock_from_elsewhere(store, tmp_path / "agent.db")) as other,
    ):
        first, others = _measure_wait(store), sum(_measure_wait(store) for _ in range(5))
        other.execute("COMMIT")
        assert store.append_entries(SAMPLE_KEY, make_message_chain("b", "a")).is_leaf_moved
        other.execute("BEGIN IMMEDIATE")
        assert min(first, _measure_wait(store)) > others


def test_lock_waits_of_many_writers_do_not_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right after a timeout twenty writers together wait less than one full wait."""
    monkeypatch.setattr("holdfast.store.sql.database.BUSY_WAIT", 2.0)
    monkeypatch.setattr("holdfast.store.sql.database.BRIEF_WAIT", 0.4)
    with (
        open_store(tmp_path / "agent.db") as store,
        closing(_lock_from_elsewhere(store, tmp_path / "agent.db")) as other,
    ):
        assert _measure_wait(store) > sum(_measure_wait(store) for _ in range(20))
        time.sleep(0.5)
        assert _measure_wait(store) > sum(_measure_wait(store) for _ in range(20))
        other.execute("COMMIT")
        assert store.append_entries(SAMPLE_KEY, make_message_chain("b", "a")).is_leaf_moved


def test_lock_waits_at_creation_do_not_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A locked file that is not yet a store is waited for once, not at each attempt."""
    monkeypatch.setattr("holdfast.store.sql.database.BUSY_WAIT", 1.0)
    monkeypatch.setattr("holdfast.store.sql.database.BRIEF_WAIT", 0.01)
    with closing(sqlite3.connect(tmp_path / "agent.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with open_store(tmp_path / "agent.db") as store:
            first, others = _measure_wait(store), sum(_measure_wait(store) for _ in range(5))
            other.execute("COMMIT")
            assert store.import_entries(SAMPLE_KEY, make_message_chain("a")).leaf == "a"
    assert first > others


def test_lock_waits_stay_brief_while_the_lock_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries that are further apart than a full wait, as those of an agent between model calls are, stay brief as long
    as each finds the lock held.
    """
    monkeypatch.setattr("holdfast.store.sql.database.BUSY_WAIT", 0.3)
    monkeypatch.setattr("holdfast.store.sql.database.BRIEF_WAIT", 0.01)
    with (
        open_store(tmp_path / "agent.db") as store,
        closing(_lock_from_elsewhere(store, tmp_path / "agent.db")) as other,
    ):
        assert _measure_wait(store) >= 0.3
        for _ in range(3):
            time.sleep(0.35)
            assert _measure_wait(store) < 0.3
        other.execute("COMMIT")


def test_lock_wait_is_full_again_some_time_after_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timeout says nothing about a writer that is met much later and finishes soon."""
    monkeypatch.setattr("holdfast.store.sql.database.BUSY_WAIT", 0.5)
    monkeypatch.setattr("holdfast.store.sql.database.BRIEF_WAIT_PERIOD", 0.5)
    monkeypatch.setattr("holdfast.store.sql.database.BRIEF_WAIT", 0.0)
    with (
        open_store(tmp_path / "agent.db") as store,
        closing(_lock_from_elsewhere(store, tmp_path / "agent.db")) as other,
    ):
        with pytest.raises(StoreLocked, match="try again"):
            store.append_entries(SAMPLE_KEY, make_message_chain("b", "a"))
        time.sleep(0.6)
        soon = threading.Timer(0.1, other.execute, ["COMMIT"])
        soon.start()
        assert store.append_entries(SAMPLE_KEY, make_message_chain("b", "a")).is_leaf_moved
        soon.join()


def _measure_wait(store: SessionStore) -> float:
    """Return the seconds until a write timed out."""
    began = time.monotonic()
    with pytest.raises(StoreLocked, match="try again"):
        store.append_entries(SAMPLE_KEY, make_message_chain("b", "a"))
    return time.monotonic() - began


def _lock_from_elsewhere(store: SessionStore, path: Path) -> sqlite3.Connection:
    store.import_entries(SAMPLE_KEY, make_message_chain("a"))
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    return other


def test_import_entries_interrupted_changes_nothing(tmp_path: Path) -> None:
    """^C in the middle of an import leaves the store as it was, and usable."""
    decoded = []

    def decode_then_interrupt(raw: bytes) -> Message:
        decoded.append(raw)
        if len(decoded) == 3:
            raise KeyboardInterrupt
        return decode_plain(raw)

    entries = [make_wire_entry(f"e{n}", f"e{n - 1}" if n else None, str(n)) for n in range(5)]
    with SqliteStore(tmp_path / "agent.db", wire_decoders={"plain": decode_then_interrupt}) as store:
        with pytest.raises(KeyboardInterrupt):
            store.import_entries(SAMPLE_KEY, entries)
        assert store.list_sessions() == []
        assert store.import_entries(SAMPLE_KEY, entries).added_count == 5


def test_memory_store_does_not_import_sqlite3() -> None:
    """Importing ``holdfast.store`` and using a memory store do not load sqlite3."""
    script = (
        "import sys, holdfast.store.open_store as s; s.open_store(':memory:').create_session('x'); "
        "sys.exit('sqlite3' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_hold_lease_creates_nothing_beside_a_wrong_file(tmp_path: Path) -> None:
    """A file that is not a database is refused before a lock is created beside it."""
    notes = tmp_path / "notes.txt"
    notes.write_text("hello " * 200)
    with open_store(notes) as store, pytest.raises(StoreCorrupt, match="no database"), store.hold_lease(SAMPLE_KEY):
        pass
    assert list(tmp_path.iterdir()) == [notes]
