"""A damaged store is repaired: readable entries stay, unreadable ones are quarantined, and no entry changes its
parent.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from itertools import islice
from pathlib import Path

import hypothesis_strategies
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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

from holdfast.errors import StoreCorrupt, StoreLocked, StoreReplaced
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import DecisionEntry, Entry, MessageEntry, NoteEntry
from holdfast.store.open_store import open_store
from holdfast.store.repair.findings import StoreRepairReport
from holdfast.store.repair.repair_store import repair_store
from holdfast.store.repair.salvage_rows import _iter_readable_rows
from holdfast.store.repair.session_rows import STAND_IN_TEXT
from holdfast.store.repair.sqlite_pages import SqlitePages
from holdfast.store.sqlite import SqliteStore
from holdfast.store.tree.tree import MIN_OUTLINE_ENTRIES


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a store with two sessions, one of them with compactions, decisions and branches."""
    path = tmp_path / "agent.db"
    with open_store(path) as store:
        store.import_entries(SAMPLE_KEY, make_long_session())
        store.append_entries(
            SAMPLE_KEY, [Entry("x", "m2", MessageEntry(build_sized_message(Message.from_text("user", "another way"))))]
        )
        store.label_entry(SAMPLE_KEY, "m2", "here")
        store.import_entries("other", make_message_chain("abcdef"))
    return path


def edit_database(path: Path, query: str, *values: object) -> None:
    """Change the database without the store."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute(query, values)


def query_rows(path: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(query).fetchall()


def list_kinds(report: StoreRepairReport) -> list[str]:
    return [finding.kind for finding in report.findings]


def repair_and_check(path: Path) -> StoreRepairReport:
    """Repair a store, and check that a second repair finds nothing and every session can be read."""
    bytes_before = path.read_bytes()
    dry_run = repair_store(path, dry_run=True)
    assert path.read_bytes() == bytes_before
    found = repair_store(path)
    assert [finding.problem for finding in dry_run.findings] == [finding.problem for finding in found.findings]
    assert repair_store(path).is_undamaged
    with open_store(path, readonly=True) as store:
        for info in store.list_sessions():
            assert store.find_damage(info.key) == []
            assert len(store.read_entries(info.key)) == info.entry_count
            is_same_request(store.open_state(info.key), ConversationState.from_entries(store.read_path(info.key)))
    return found


def test_repair_store_leaves_an_undamaged_store_untouched(file: Path) -> None:
    """An undamaged store is not written, and nothing is created beside it."""
    before, beside = file.read_bytes(), sorted(file.parent.iterdir())
    found = repair_store(file)
    assert found.is_undamaged
    assert found.entry_count == len(make_long_session()) + 8
    assert file.read_bytes() == before
    assert sorted(file.parent.iterdir()) == beside


def test_repair_store_ignores_a_missing_file(tmp_path: Path) -> None:
    """A missing file needs no repair and is not created."""
    assert repair_store(tmp_path / "none.db").is_undamaged
    assert not (tmp_path / "none.db").exists()


@settings(max_examples=12)
@given(st.lists(hypothesis_strategies.log_strategy(), min_size=1, max_size=3))
def test_repair_store_finds_no_damage_in_stored_logs(
    tmp_path_factory: pytest.TempPathFactory, logs: list[list[Entry]]
) -> None:
    """No log that a store accepts is reported as damaged."""
    path = tmp_path_factory.mktemp("store") / "agent.db"
    with open_store(path) as store:
        for number, log in enumerate(logs):
            store.import_entries(f"s{number}", log)
    assert repair_store(path).is_undamaged


# -- one session, without loss -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [entry.id for entry in make_long_session()])
def test_repair_damage_never_quarantines_rows(file: Path, entry: str) -> None:
    """A row whose bytes changed stays as it is: no placeholder replaces it, and the quarantine is empty."""
    edit_database(file, "UPDATE entries SET identity = x'00' WHERE id = ? AND session = 1", entry)
    before = query_rows(file, "SELECT * FROM entries")
    with open_store(file) as store:
        assert store.repair_damage(SAMPLE_KEY) == []
        with pytest.raises(StoreCorrupt, match=entry):
            store.read_entries(SAMPLE_KEY)
    assert query_rows(file, "SELECT * FROM entries") == before
    assert query_rows(file, "SELECT name FROM sqlite_master WHERE name = 'quarantine'") == []


def test_repair_damage_fixes_only_what_loses_nothing(file: Path) -> None:
    """What can be repaired without loss is, in that session alone; a row whose parent is gone and other sessions stay
    as they are.
    """
    edit_database(file, "UPDATE entries SET identity = x'00' WHERE id = 'x' AND session = 1")
    edit_database(file, "UPDATE entries SET parent = parent - 1 WHERE id = 'm3' AND session = 1")
    edit_database(file, "UPDATE entries SET parent = parent - 1 WHERE id = 'd' AND session = 2")
    others = query_rows(file, "SELECT * FROM entries WHERE session = 2")
    with open_store(file) as store:
        with pytest.raises(StoreCorrupt):
            store.read_path(SAMPLE_KEY)
        assert [line.startswith("entry m3: ") for line in store.repair_damage(SAMPLE_KEY)] == [True]
        assert drop_sequence_numbers(store.read_path(SAMPLE_KEY)) == make_long_session()
        is_same_request(store.open_state(SAMPLE_KEY), ConversationState.from_entries(store.read_path(SAMPLE_KEY)))
        assert len(store.find_damage(SAMPLE_KEY)) == 1
    assert query_rows(file, "SELECT * FROM entries WHERE session = 2") == others
    assert not list(file.parent.glob("*.bak*"))


def test_repair_damage_of_a_readonly_store_writes_nothing(file: Path) -> None:
    """A store opened for reading is not repaired."""
    edit_database(file, "UPDATE entries SET parent = parent - 1 WHERE id = 'm3' AND session = 1")
    before = file.read_bytes()
    with open_store(file, readonly=True) as store:
        assert store.repair_damage(SAMPLE_KEY) == []
    assert file.read_bytes() == before


# -- rows whose bytes changed ------------------------------------------------------------------------------------------


def test_repair_store_replaces_a_changed_message_with_a_placeholder(file: Path) -> None:
    """nothing-lost: a message whose bytes changed is quarantined with the reason, and every other entry keeps its place
    and content.
    """
    edit_database(file, "UPDATE entries SET body = ? WHERE id = 'c' AND session = 2", b'{"type":"message"}')
    found = repair_and_check(file)
    assert list_kinds(found) == ["entry"]
    assert (found.findings[0].session_key, found.findings[0].entry_id) == ("other", "c")
    with open_store(file) as store:
        path = store.read_path("other")
        assert list_ids(path) == list("abcdef")
        assert drop_sequence_numbers(path)[:2] == make_message_chain("abcdef")[:2]
        assert drop_sequence_numbers(path)[3:] == make_message_chain("abcdef")[3:]
        assert isinstance(path[2].body, MessageEntry)
        assert path[2].body.sized_message.message.text == STAND_IN_TEXT
    assert query_rows(file, "SELECT reason, session, id, body FROM quarantine") == [
        ("its bytes are not those that were stored", "other", "c", b'{"type":"message"}')
    ]
    assert query_rows(Path(found.backup), "SELECT count(*) FROM entries") == query_rows(
        file, "SELECT count(*) FROM entries"
    )


@pytest.mark.parametrize("entry", [entry.id for entry in make_long_session()])
def test_repair_store_handles_damage_in_any_row(file: Path, entry: str) -> None:
    """parent-first: whichever row is damaged, every other entry keeps its parent and content, and message numbers do
    not change.
    """
    edit_database(file, "UPDATE entries SET identity = x'00' WHERE id = ? AND session = 1", entry)
    found = repair_and_check(file)
    assert [finding.entry_id for finding in found.findings if finding.kind == "entry"] == [entry]
    with open_store(file) as store:
        path, whole = store.read_path(SAMPLE_KEY), make_long_session()
        assert list_ids(path) == list_ids(whole)
        others = [kept for kept in drop_sequence_numbers(path) if kept.id != entry]
        assert others == [kept for kept in whole if kept.id != entry]
        is_message = [isinstance(kept.body, MessageEntry) for kept in path]
        assert is_message == [isinstance(kept.body, MessageEntry) for kept in whole]


def test_repair_store_replaces_an_answer_with_an_assistant_message(file: Path) -> None:
    """The placeholder of an answer has the assistant's role, so that roles still alternate."""
    with open_store(file) as store:
        body = store.get_entry(SAMPLE_KEY, "m2").body
        assert isinstance(body, MessageEntry)
        assert body.sized_message.message.role == "assistant"
    edit_database(file, "UPDATE entries SET identity = x'00' WHERE id = 'm2'")
    repair_and_check(file)
    with open_store(file) as store:
        body = store.get_entry(SAMPLE_KEY, "m2").body
        assert isinstance(body, MessageEntry)
        assert (body.sized_message.message.role, body.sized_message.message.text) == ("assistant", STAND_IN_TEXT)


def test_repair_store_quarantines_a_damaged_label(file: Path) -> None:
    """Nothing depends on a label, so it is quarantined without a placeholder."""
    edit_database(file, "UPDATE entries SET body = x'00' WHERE kind = 'label'")
    assert list_kinds(repair_and_check(file)) == ["entry"]
    assert query_rows(file, "SELECT kind FROM quarantine") == [("label",)]
    with open_store(file) as store:
        assert store.read_labels(SAMPLE_KEY) == {}


def test_repair_store_keeps_formats_of_other_versions(file: Path) -> None:
    """Bytes that are as they were stored are not damage, though this version cannot decode them."""
    edit_database(file, "UPDATE entries SET api = 'martian' WHERE id = 'c' AND session = 2")
    assert repair_store(file).is_undamaged


# -- parents -----------------------------------------------------------------------------------------------------------


def test_repair_store_restores_an_overwritten_parent(file: Path) -> None:
    """The digest of an entry covers its parent, so an overwritten parent is found again."""
    (first,) = query_rows(file, "SELECT seq FROM entries WHERE id = 'a' AND session = 2")
    edit_database(file, "UPDATE entries SET parent = ? WHERE id = 'd' AND session = 2", *first)
    found = repair_and_check(file)
    assert list_kinds(found) == ["parent"]
    assert query_rows(file, "SELECT 1 FROM sqlite_schema WHERE name = 'quarantine'") == []
    with open_store(file) as store:
        assert drop_sequence_numbers(store.read_path("other")) == make_message_chain("abcdef")


@pytest.mark.parametrize("gone", [["c"], ["b", "c"], ["a"], ["a", "b", "c", "d"]])
def test_repair_store_replaces_lost_rows_with_placeholders(file: Path, gone: list[str]) -> None:
    """Lost rows get as many placeholder messages as are missing, and everything after them is there."""
    marks = ", ".join("?" * len(gone))
    edit_database(file, f"DELETE FROM entries WHERE session = 2 AND id IN ({marks})", *gone)
    found = repair_and_check(file)
    assert "parent" in list_kinds(found)
    with open_store(file) as store:
        path = store.read_path("other")
        assert len(path) == 6
        assert [entry.id for entry in path if not entry.id.startswith("lost")] == [
            id_ for id_ in "abcdef" if id_ not in gone
        ]
        texts = [entry.body.sized_message.message.text for entry in path if isinstance(entry.body, MessageEntry)]
        assert texts.count(STAND_IN_TEXT) == len(gone)


def test_repair_store_gives_siblings_one_placeholder_parent(file: Path) -> None:
    """Two branches that forked at a lost row fork at its placeholder."""
    with open_store(file) as store:
        sibling = Entry("y", "c", MessageEntry(build_sized_message(Message.from_text("user", "else"))))
        store.append_entries("other", [sibling])
    edit_database(file, "DELETE FROM entries WHERE session = 2 AND id = 'c'")
    repair_and_check(file)
    with open_store(file) as store:
        first, second = store.read_path("other", "f"), store.read_path("other", "y")
        assert first[:3] == second[:3]
        assert (first[3].body, second[3].body) == (make_message_chain("abcdef")[3].body, sibling.body)


def test_repair_store_recomputes_depth_and_base(file: Path) -> None:
    """Columns derived from the tree are recomputed from it."""
    edit_database(file, "UPDATE entries SET depth = 99, base = 7 WHERE id = 'e' AND session = 2")
    assert list_kinds(repair_and_check(file)) == ["index"]


_DAMAGING_STATEMENTS = (
    "DELETE FROM entries WHERE seq = ?",
    "UPDATE entries SET body = x'7b7d', raw = x'7b7d' WHERE seq = ?",
    "UPDATE entries SET identity = x'' WHERE seq = ?",
    "UPDATE entries SET kind = 'martian' WHERE seq = ?",
    "UPDATE entries SET parent = NULL WHERE seq = ?",
    "UPDATE entries SET parent = 99 WHERE seq = ?",
    "UPDATE entries SET parent = seq WHERE seq = ?",
    "UPDATE entries SET parent = seq + 1 WHERE seq = ?",
    "UPDATE entries SET depth = 0, base = seq WHERE seq = ?",
    "UPDATE entries SET session = 2 WHERE seq = ?",
    "UPDATE sessions SET leaf = 'x', entries = 7 WHERE session <> ?",
    "DELETE FROM sessions WHERE session <> ?",
)


@settings(max_examples=20)
@given(
    hypothesis_strategies.log_strategy(),
    st.lists(st.tuples(st.sampled_from(_DAMAGING_STATEMENTS), st.integers(1, 30)), min_size=1, max_size=4),
)
def test_repair_store_fixes_any_damage_in_one_run(
    tmp_path_factory: pytest.TempPathFactory, log: list[Entry], damages: list[tuple[str, int]]
) -> None:
    """nothing-lost, parent-first: however rows are damaged, the undamaged ones are all there and reachable, and the
    next repair finds nothing.
    """
    path = tmp_path_factory.mktemp("store") / "agent.db"
    with open_store(path) as store:
        store.import_entries(SAMPLE_KEY, log)
    for query, number in damages:
        edit_database(path, query, number)
    touched = {number for _, number in damages}
    repair_store(path)
    assert repair_store(path).is_undamaged
    with open_store(path, readonly=True) as store:
        found = {}
        for info in store.list_sessions():
            assert store.find_damage(info.key) == []
            for entry in store.read_entries(info.key):
                found[entry.id] = entry.body
                assert store.read_path(info.key, entry.id)[-1] == entry
    for number, entry in enumerate(log, 1):
        if number not in touched:
            assert found[entry.id] == entry.body


# -- derived data ------------------------------------------------------------------------------------------------------


def test_repair_store_recomputes_session_rows(file: Path) -> None:
    """Entry counts are recomputed, and a leaf that does not exist becomes the last entry."""
    edit_database(file, "UPDATE sessions SET entries = 3, leaf = 'nowhere' WHERE key = 'other'")
    assert list_kinds(repair_and_check(file)) == ["session"]
    with open_store(file) as store:
        assert (store.get_session("other").leaf_id, store.get_session("other").entry_count) == ("f", 6)


def test_repair_store_restores_a_missing_session_row(file: Path) -> None:
    """Entries whose session is missing from the list are listed again."""
    edit_database(file, "DELETE FROM sessions WHERE key = 'other'")
    assert "session" in list_kinds(repair_and_check(file))
    with open_store(file) as store:
        assert drop_sequence_numbers(store.read_path("lost-2")) == make_message_chain("abcdef")


@pytest.mark.parametrize("min_entries", [0, MIN_OUTLINE_ENTRIES])
def test_repair_store_rebuilds_checkpoints(file: Path, monkeypatch: pytest.MonkeyPatch, min_entries: int) -> None:
    """An unreadable checkpoint, also the one of an imported leaf, is rebuilt to the same state."""
    monkeypatch.setattr("holdfast.store.tree.tree.MIN_OUTLINE_ENTRIES", min_entries)
    with open_store(file) as store:
        for info in store.list_sessions():
            store.import_entries(info.key, store.read_entries(info.key))
    before = query_rows(file, "SELECT seq, state FROM checkpoints ORDER BY seq")
    edit_database(file, "UPDATE checkpoints SET state = x'c0ffee'")
    assert list_kinds(repair_and_check(file)) == ["index"] * (1 if min_entries else 2)
    assert query_rows(file, "SELECT seq, state FROM checkpoints ORDER BY seq") == before


def test_repair_store_rebuilds_indexes(file: Path) -> None:
    """A damaged SQLite or search index is derived data and is rebuilt."""
    with open_store(file) as store:
        assert store.search_session(SAMPLE_KEY, "result")
    edit_database(file, "UPDATE words_data SET block = zeroblob(40) WHERE id > 10")
    assert list_kinds(repair_and_check(file)) == ["index"]
    with open_store(file) as store:
        assert store.search_session(SAMPLE_KEY, "result")


def test_repair_store_restores_blobs_from_messages(file: Path) -> None:
    """A missing blob is restored from the message it was taken from; one that no message contains is reported as
    lost.
    """
    text = "long output " * 50
    result = ToolResult("c", "bash", (Text(text),))
    with open_store(file) as store:
        hash_ = store.blobs.store_content(text)
        short = Edit(Span(6, 7, 0), (replace(result, content=(Text("short"),)),), "spill", blob_hash=hash_)
        lost = [Edit(Span(6, 7, 0), (), "spill", blob_hash=name) for name in ("0" * 64, "no hash")]
        store.append_entries("other", [Entry("r", "f", MessageEntry(build_sized_message(Message("tool", (result,)))))])
        store.append_entries("other", [Entry("s", "r", DecisionEntry((short, *lost)))])
        store.blobs.remove_blob(hash_)
    dry_run = repair_store(file, dry_run=True)
    assert list_kinds(dry_run) == ["blob"] * 3
    repair_store(file)
    with open_store(file) as store:
        assert store.blobs.read_text(hash_) == text
    assert ["lost" in finding.action for finding in repair_store(file).findings] == [True, True]


# -- files that SQLite cannot read -------------------------------------------------------------------------------------


def test_iter_readable_rows_handles_row_numbers_out_of_order(tmp_path: Path) -> None:
    """A row number overwritten by a smaller one causes no endless loop, and the rows after it are read."""
    path = tmp_path / "some.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE some (number INTEGER PRIMARY KEY, word TEXT)")
        db.executemany("INSERT INTO some VALUES (?, ?)", [(n, f"word{n}") for n in range(1, 10)])
        db.commit()
    whole = bytearray(path.read_bytes())
    at = whole.index(b"word6") - 4
    assert whole[at] == 6
    whole[at] = 2
    path.write_bytes(whole)
    with closing(sqlite3.connect(path)) as db:
        read = list(islice(_iter_readable_rows(db, "some", "number", ["word"]), 100))
    assert read == [(f"word{n}",) for n in (1, 2, 3, 4, 5, 7, 8, 9)]


def test_repair_store_saves_readable_rows_into_a_new_file(tmp_path: Path) -> None:
    """damage-is-an-error: overwritten pages lose only their own rows; the rest is in a new file, with the old one
    beside it.
    """
    path, entries = tmp_path / "agent.db", make_message_chain([f"e{n}" for n in range(400)])
    with open_store(path) as store:
        store.import_entries(SAMPLE_KEY, entries)
    whole = path.read_bytes()
    page = [at for at in range(8192, len(whole), 8192) if whole[at] == 0x0D and b"text of" in whole[at : at + 8192]][3]
    path.write_bytes(whole[:page] + b"\xa5" * 8192 + whole[page + 8192 :])
    damaged = path.read_bytes()
    dry_run = repair_store(path, dry_run=True)
    assert dry_run.findings[0].kind == "file"
    assert path.read_bytes() == damaged
    found = repair_store(path)
    assert found.findings[0].kind == "file"
    assert Path(found.backup).read_bytes() == damaged
    assert repair_store(path).is_undamaged
    with open_store(path) as store:
        saved = {entry.id: entry.body for entry in store.read_path(SAMPLE_KEY)}
    intact = [entry for entry in entries if saved.get(entry.id) == entry.body]
    assert len(entries) > len(intact) > 200
    assert len(saved) == 400
    assert (path.stat().st_mode & 0o777) == 0o600


def test_repair_store_handles_damage_in_any_page(tmp_path: Path) -> None:
    """damage-is-an-error: whichever page is overwritten, even the header, exactly the rows on other pages are read."""
    path, entries = tmp_path / "agent.db", make_message_chain([f"e{n}" for n in range(120)])
    with open_store(path) as store:
        store.import_entries(SAMPLE_KEY, entries)
        assert store.search_session(SAMPLE_KEY, "text")
    whole = path.read_bytes()
    for at in range(0, len(whole), 8192):
        for file in tmp_path.iterdir():
            file.unlink()
        path.write_bytes(whole[:at] + b"\xa5" * 8192 + whole[at + 8192 :])
        assert not repair_store(path).is_undamaged
        with open_store(path) as store:
            (info,) = store.list_sessions()
            assert store.find_damage(info.key) == []
            saved = {entry.id: entry.body for entry in store.read_entries(info.key)}
        intact = [entry for entry in entries if saved.get(entry.id) == entry.body]
        assert len(intact) == 120 - whole[at : at + 8192].count(b"text of e")


def test_sqlite_pages_reads_overflow_pages_and_the_wal(tmp_path: Path) -> None:
    """Messages on many pages and pages that are only in the write-ahead log are found without a header."""
    path = tmp_path / "agent.db"
    long = [Entry("long", "e9", MessageEntry(build_sized_message(Message.from_text("user", "é" * 60_000))))]
    with open_store(path) as store:
        store.import_entries(SAMPLE_KEY, make_message_chain([f"e{n}" for n in range(10)]))
        store.import_entries("second", make_message_chain([f"x{n}" for n in range(200)]))
    with open_store(path) as store:
        store.remove_session("second")
    with open_store(path, readonly=True) as reader:
        assert reader.list_sessions()
        with open_store(path) as store:
            store.append_entries(SAMPLE_KEY, long)
            found = {values[5] for _, values in SqlitePages(path).iter_rows() if len(values) == 16}
    assert found == {*(f"e{n}" for n in range(10)), "long"}
    with open_store(path) as store:
        entry = store.get_entry(SAMPLE_KEY, "long")
    edit_database(path, "PRAGMA wal_checkpoint (TRUNCATE)")
    path.write_bytes(b"\x00" * 100 + path.read_bytes()[100:])
    assert repair_store(path).findings[0].kind == "file"
    with open_store(path) as store:
        assert [info.key for info in store.list_sessions()] == [SAMPLE_KEY]
        assert store.read_path(SAMPLE_KEY)[-1] == entry


def test_sqlite_pages_ignores_free_pages(tmp_path: Path) -> None:
    """Free pages may still hold deleted rows, and those are not read."""
    path = tmp_path / "agent.db"
    with open_store(path) as store:
        store.import_entries(SAMPLE_KEY, make_message_chain([f"e{n}" for n in range(600)]))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA secure_delete = OFF")
        db.execute("DELETE FROM entries WHERE seq > 10")
    assert len([number for number, values in SqlitePages(path).iter_rows() if len(values) == 16]) == 10


def test_repair_store_keeps_a_file_it_cannot_read_at_all(tmp_path: Path) -> None:
    """A file without one readable entry is not replaced by an empty one."""
    path = tmp_path / "agent.db"
    with open_store(path) as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("abc"))
    path.write_bytes(path.read_bytes()[:8192])
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="no entry in it"):
        repair_store(path)
    assert path.read_bytes() == before
    assert not [entry for entry in tmp_path.iterdir() if "new" in entry.name or "bak" in entry.name]


@pytest.mark.parametrize(
    "content", [b"x" * 4096, b"short", *(b"SQLite format 3\x00" + end for end in (b"", b"\xff" * 5000))]
)
def test_repair_store_refuses_a_file_that_is_no_store(tmp_path: Path, content: bytes) -> None:
    """A file that is not a store is an error and stays as it is."""
    path = tmp_path / "agent.db"
    path.write_bytes(content)
    for dry_run in (True, False):
        with pytest.raises(StoreCorrupt):
            repair_store(path, dry_run=dry_run)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_repair_store_refuses_a_foreign_database(tmp_path: Path) -> None:
    """A database of another program is not touched."""
    path = tmp_path / "agent.db"
    edit_database(path, "CREATE TABLE theirs (x)")
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="another program"):
        repair_store(path)
    assert path.read_bytes() == before


def test_repair_store_repairs_rows_of_an_open_store(file: Path) -> None:
    """Another store object that is open on the file continues with the repaired rows."""
    with open_store(file) as store:
        assert store.read_path("other")
        edit_database(file, "UPDATE entries SET identity = x'00' WHERE id = 'c' AND session = 2")
        assert list_kinds(repair_store(file)) == ["entry"]
        assert len(store.read_path("other")) == 6
        store.append_entries(
            "other", [Entry("g", "f", MessageEntry(build_sized_message(Message.from_text("user", "go on"))))]
        )
    assert repair_store(file).is_undamaged


# -- programs that have the file open ----------------------------------------------------------------------------------

HOLD_OPEN_SCRIPT = """
import sys
from holdfast.store.open_store import open_store
with open_store(sys.argv[1]) as store:
    store.label_entry("session", "e1", "held")
    print("open", flush=True)
    sys.stdin.read()
"""
WATCH_PATH_SCRIPT = """
import os, sys
from holdfast.store.repair.repair_store import repair_store
there = []
sys.addaudithook(lambda event, _: event in ("os.rename", "os.remove", "os.link") and there.append(os.path.exists(path)))
path = sys.argv[1]
assert repair_store(path).findings[0].kind == "file"
assert there and all(there), there
"""


def create_damaged_store(path: Path) -> list[Entry]:
    """Create a store with a page that SQLite cannot read; return its entries."""
    entries = make_message_chain([f"e{n}" for n in range(400)])
    with open_store(path) as store:
        store.import_entries(SAMPLE_KEY, entries)
    damage_page(path)
    return entries


def damage_page(path: Path) -> None:
    """Overwrite a page of entries in the middle of a store, also for processes that have it open."""
    whole = path.read_bytes()
    page = [at for at in range(8192, len(whole), 8192) if whole[at] == 0x0D and b"text of" in whole[at : at + 8192]][3]
    with path.open("r+b") as file:
        file.seek(page)
        file.write(b"\xa5" * 8192)


def list_file_names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir() if entry.is_file())


def test_repair_store_refuses_to_replace_a_file_in_use(tmp_path: Path) -> None:
    """Another program would write on into the old file, so it is named and nothing is changed."""
    path = tmp_path / "agent.db"
    with open_store(path) as store:
        store.import_entries("session", make_message_chain([f"e{n}" for n in range(400)]))
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_OPEN_SCRIPT, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        edit_database(path, "PRAGMA wal_checkpoint (TRUNCATE)")
        damage_page(path)
        before = path.read_bytes()
        assert repair_store(path, dry_run=True).findings[0].kind == "file"
        with pytest.raises(StoreLocked, match="another program has the old one open"):
            repair_store(path)
        assert path.read_bytes() == before
        assert list_file_names(path) == ["agent.db", "agent.db-shm", "agent.db-wal"]
        child.communicate("")
    found = repair_store(path)
    assert found.findings[0].kind == "file"
    assert list_file_names(path) == ["agent.db", Path(found.backup).name]


def test_open_store_refuses_writes_after_its_file_was_replaced(tmp_path: Path) -> None:
    """A store that is still open when its file is replaced acknowledges nothing more and loses nothing."""
    path = tmp_path / "agent.db"
    create_damaged_store(path)
    with open_store(path) as store:
        store.label_entry(SAMPLE_KEY, "e1", "before")
        repair_store(path)
        with pytest.raises(StoreCorrupt, match="replaced or taken away since it was opened"):
            store.label_entry(SAMPLE_KEY, "e1", "after")
    assert repair_store(path).is_undamaged
    with open_store(path) as store:
        store.label_entry(SAMPLE_KEY, "e1", "after")
        assert store.read_path(SAMPLE_KEY)


@pytest.mark.parametrize("removed", ["-wal", "-shm"])
def test_sqlite_store_refuses_writes_after_its_wal_is_removed(removed: str, tmp_path: Path) -> None:
    """Without its ``-wal`` a write would be lost, so it raises, and acknowledged entries are in the file once it is
    closed.
    """
    file = tmp_path / "store.db"
    with SqliteStore(file) as store:
        store.create_session("k")
        store.append_entries("k", [Entry("a", None, NoteEntry("before"))])
        for ending in {"-wal", removed}:
            file.with_name(file.name + ending).unlink()
        with pytest.raises(StoreReplaced, match=r"store\.db-wal was replaced or taken away since it was opened"):
            store.append_entries("k", [Entry("b", "a", NoteEntry("after"))])
    with SqliteStore(file) as store:
        assert [entry.id for entry in store.read_entries("k")] == ["a"]
        store.append_entries("k", [Entry("b", "a", NoteEntry("after"))])


@pytest.mark.parametrize("is_there", [False, True], ids=["gone", "replaced"])
def test_store_that_only_read_refuses_writes_after_its_file_is_gone(tmp_path: Path, *, is_there: bool) -> None:
    """A store that was only read may not write into another file at its path, and nothing is created."""
    path, copy = tmp_path / "agent.db", tmp_path / "copy.db"
    for store_path in (path, copy):
        create_damaged_store(store_path)
    with open_store(path) as store:
        assert list(store.list_sessions())
        for file in (path, path.with_name("agent.db-wal"), path.with_name("agent.db-shm")):
            file.unlink(missing_ok=True)
        if is_there:
            copy.rename(path)
        for write in (lambda: store.label_entry(SAMPLE_KEY, "e1", "after"), lambda: store.hold_lease(SAMPLE_KEY)):
            with pytest.raises(StoreReplaced, match="replaced or taken away since it was opened"):
                write()
    assert path.exists() == is_there


def test_repair_store_replaces_the_file_by_one_rename(tmp_path: Path) -> None:
    """There is a store at the path at every moment, and nothing of SQLite's is left behind."""
    path = tmp_path / "agent.db"
    create_damaged_store(path)
    subprocess.run([sys.executable, "-c", WATCH_PATH_SCRIPT, path], check=True)
    assert len(list_file_names(path)) == 2
    assert repair_store(path).is_undamaged


def test_repair_store_keeps_the_wal_with_the_old_file(tmp_path: Path) -> None:
    """The write-ahead log of an unreadable file is read, kept with the backup and not found by the new file; a link
    stays a link.
    """
    path, link = tmp_path / "agent.db", tmp_path / "link.db"
    link.symlink_to(path)
    with open_store(path) as store:
        store.import_entries(SAMPLE_KEY, make_message_chain([f"e{n}" for n in range(400)]))
    with open_store(path, readonly=True) as reader:
        assert reader.list_sessions()
        with open_store(path) as store:
            store.append_entries(
                SAMPLE_KEY,
                [
                    Entry(
                        "late", "e399", MessageEntry(build_sized_message(Message.from_text("user", "in the log alone")))
                    )
                ],
            )
        log = path.with_name("agent.db-wal").read_bytes()
    assert log
    path.write_bytes(b"\x00" * 100 + path.read_bytes()[100:])
    path.with_name("agent.db-wal").write_bytes(log)
    found = repair_store(link)
    assert found.findings[0].kind == "file"
    backup = Path(found.backup)
    assert backup.with_name(f"{backup.name}-wal").read_bytes() == log
    assert len(list_file_names(path)) == 4
    assert link.is_symlink()
    with open_store(path) as store:
        assert "late" in list_ids(store.read_path(SAMPLE_KEY))


def test_store_accepts_an_entry_numbered_zero(tmp_path: Path) -> None:
    """damage-is-an-error: a flipped bit can make row 1 row 0; nothing else is wrong then, and new entries follow it."""
    with open_store(tmp_path / "agent.db") as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("a"))
    edit_database(tmp_path / "agent.db", "UPDATE entries SET seq = 0")
    assert repair_store(tmp_path / "agent.db").is_undamaged
    with open_store(tmp_path / "agent.db") as store:
        store.append_entries(SAMPLE_KEY, make_message_chain("b", "a"))
        assert list_ids(store.read_path(SAMPLE_KEY)) == ["a", "b"]


def test_repair_store_decodes_a_damaged_value_from_its_wire_bytes(tmp_path: Path) -> None:
    """The digest proves the wire bytes, so a damaged decoded value is decoded from them again."""
    wire_bytes = Raw(b'{"role":"tool","tool_call_id":"c","content":"what it found"}')
    message = Message("tool", (ToolResult("c", "read", (Text("what it found"),)),))
    body = MessageEntry(replace(build_sized_message(message), api="openai-chat", raw=wire_bytes))
    with open_store(tmp_path / "agent.db") as store:
        store.import_entries(
            SAMPLE_KEY, [*make_message_chain("a"), Entry("b", "a", body), *make_message_chain("c", "b")]
        )
    edit_database(tmp_path / "agent.db", "UPDATE entries SET body = x'c1' WHERE id = 'b'")
    assert list_kinds(repair_and_check(tmp_path / "agent.db")) == ["entry"]
    with open_store(tmp_path / "agent.db", readonly=True) as store:
        assert list_ids(store.read_path(SAMPLE_KEY)) == ["a", "b", "c"]
        assert store.read_path(SAMPLE_KEY)[1].body.sized_message.message.parts[0].content == (Text("what it found"),)
    assert query_rows(tmp_path / "agent.db", "SELECT id, body FROM quarantine") == [("b", b"\xc1")]


@pytest.mark.parametrize(
    ("sound", "damaged"),
    [(b"model TEXT NOT NULL", b"mo\xe4el TEXT NOT NULL"), (b"CREATE INDEX entries_s", b"CRE\xc1TE INDEX entries_s")],
)
def test_repair_store_recovers_from_a_damaged_schema(file: Path, sound: bytes, damaged: bytes) -> None:
    """damage-is-an-error: a renamed column or schema text that is not UTF-8 is reported, and nothing is lost."""
    with open_store(file) as store:
        before = {info.key: drop_sequence_numbers(store.read_entries(info.key)) for info in store.list_sessions()}
    file.write_bytes(file.read_bytes().replace(sound, damaged, 1))
    with open_store(file) as store, pytest.raises(StoreCorrupt, match=r"`holdfast repair` saves what can be read"):
        store.list_sessions()
    assert "file" in list_kinds(repair_and_check(file))
    with open_store(file, readonly=True) as store:
        assert {
            info.key: drop_sequence_numbers(store.read_entries(info.key)) for info in store.list_sessions()
        } == before


def test_repair_store_quarantines_a_row_whose_kind_is_not_text(file: Path) -> None:
    """damage-is-an-error: bytes that are not text where text should be damage only their own row."""
    edit_database(file, "UPDATE entries SET kind = CAST(x'6de9' AS TEXT) WHERE id = 'm2'")
    with open_store(file) as store, pytest.raises(StoreCorrupt, match=r"`holdfast repair` saves what can be read"):
        store.read_entries(SAMPLE_KEY)
    assert "entry" in list_kinds(repair_and_check(file))
    with open_store(file, readonly=True) as store:
        path = store.read_path(SAMPLE_KEY)
        assert [entry.id for entry in path if STAND_IN_TEXT in str(entry.body)] == ["m2"]
        assert len(store.read_path("other")) == 6
