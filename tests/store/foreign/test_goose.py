"""The database of goose is read in place."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import FormatError, UnknownId, UnrecognizedContent
from holdfast.formats import Recording, build_state_at_leaf, get_full_history_entries, read_recording
from holdfast.state.entries import CompactionEntry, MessageEntry, NoteEntry
from holdfast.state.view import build_projection
from holdfast.store.foreign.open_database import open_foreign_database, recognize_database

SCHEMA = """
CREATE TABLE schema_version (version INTEGER PRIMARY KEY);
CREATE TABLE sessions (
  id TEXT PRIMARY KEY, name TEXT NOT NULL DEFAULT '', description TEXT NOT NULL DEFAULT '',
  session_type TEXT NOT NULL DEFAULT 'user', working_dir TEXT NOT NULL, created_at TIMESTAMP, provider_name TEXT,
  model_config_json TEXT, parent_session_id TEXT);
CREATE TABLE messages (
  id INTEGER PRIMARY KEY AUTOINCREMENT, message_id TEXT, session_id TEXT NOT NULL, role TEXT NOT NULL,
  content_json TEXT NOT NULL, created_timestamp INTEGER NOT NULL, metadata_json TEXT);
CREATE TABLE provider_secrets (token TEXT);
"""
"""The tables of version 17, as far as they are read, and one that must not be."""
OLD_SCHEMA = """
CREATE TABLE schema_version (version INTEGER PRIMARY KEY);
CREATE TABLE sessions (id TEXT PRIMARY KEY, description TEXT, working_dir TEXT NOT NULL);
CREATE TABLE messages (
  id INTEGER PRIMARY KEY, session_id TEXT, role TEXT, content_json TEXT, created_timestamp INTEGER);
"""
"""The tables of version 1."""
SEEN, HIDDEN = {"userVisible": True, "agentVisible": True}, {"userVisible": True, "agentVisible": False}
AGENT_ONLY = {"userVisible": False, "agentVisible": True}


def create_database(path: Path, schema: str = SCHEMA) -> sqlite3.Connection:
    db = sqlite3.connect(path)
    db.executescript(schema)
    return db


def insert_session(db: sqlite3.Connection, id_: str, parent: str | None = None, kind: str = "user") -> None:
    db.execute(
        "INSERT INTO sessions (id, name, session_type, working_dir, created_at, provider_name, model_config_json, "
        "parent_session_id) VALUES (?, ?, ?, '/w', '2026-10-02 08:00:00', 'google', '{\"model_name\":\"m-1\"}', ?)",
        (id_, f"about {id_}", kind, parent),
    )


def insert_message(
    db: sqlite3.Connection, session: str, role: str, words: Any, at: int = 1_790_000_000, seen: Any = SEEN
) -> None:
    """Insert a message of one text; anything but a text is the content itself."""
    content = json.dumps([{"type": "text", "text": words}]) if isinstance(words, str) else words
    db.execute(
        "INSERT INTO messages (message_id, session_id, role, content_json, created_timestamp, metadata_json) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        (f"msg_{role}_{at}", session, role, content, at, json.dumps(seen)),
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a database with two sessions, one of which has a sub-agent."""
    path = tmp_path / "sessions.db"
    with closing(create_database(path)) as db:
        for id_ in ("20261002_1", "20261002_2"):
            insert_session(db, id_)
            insert_message(db, id_, "user", f"ask {id_}")
            # Its row comes later, but its time is the earlier one.
            insert_message(db, id_, "assistant", "later", 1_790_000_009)
            insert_message(db, id_, "assistant", "sooner", 1_790_000_005)
        insert_session(db, "20261002_3", "20261002_1", "sub_agent")
        insert_message(db, "20261002_3", "user", "task")
        db.commit()
    return path


def read_all_recordings(path: Path) -> list[Recording]:
    with open_foreign_database(path) as database:
        return [database.read_recording(session.id) for session in database.list_root_sessions()]


def list_texts(recording: Recording) -> list[str]:
    bodies = [entry.body for entry in get_full_history_entries(recording)]
    return [body.sized_message.message.text for body in bodies if isinstance(body, MessageEntry)]


def test_goose_database_lists_sessions_with_their_sub_agents(file):
    """Each session that is not a sub-agent's is listed, and messages stand in goose's own order."""
    first, second = read_all_recordings(file)
    assert (first.session, first.title, first.cwd, first.model, first.api) == (
        "20261002_1",
        "about 20261002_1",
        "/w",
        "m-1",
        "gemini",
    )
    assert list_texts(first) == ["ask 20261002_1", "sooner", "later"]
    assert [(agent.session, list_texts(agent)) for agent in first.sidechains] == [("20261002_3", ["task"])]
    assert (second.session, second.sidechains) == ("20261002_2", ())


def test_goose_database_equals_its_json_export(file):
    """What goose exports is the same session, entry for entry."""
    with closing(sqlite3.connect(file)) as db:
        query = "SELECT message_id, role, content_json, created_timestamp, metadata_json FROM messages"
        rows = db.execute(f"{query} WHERE session_id = '20261002_1' ORDER BY created_timestamp, id").fetchall()
    keys = ("id", "role", "content", "created", "metadata")
    conversation = [
        dict(zip(keys, (row[0], row[1], json.loads(row[2]), row[3], json.loads(row[4])), strict=True)) for row in rows
    ]
    export = {"id": "20261002_1", "name": "about 20261002_1", "working_dir": "/w", "provider_name": "google"}
    export |= {"model_config": {"model_name": "m-1"}, "message_count": 3, "conversation": conversation}
    recording = read_recording(json.dumps(export, indent=2).encode())
    from_database = read_all_recordings(file)[0]
    assert list(recording.entries) == list(from_database.entries)
    assert (recording.title, recording.api) == (from_database.title, from_database.api)


def test_goose_database_reads_a_compaction_from_the_visibility_of_rows(file):
    """Hidden rows stay in the history; the model sees the summary and what came after it."""
    with closing(sqlite3.connect(file)) as db:
        db.execute("UPDATE messages SET metadata_json = ? WHERE session_id = '20261002_1'", (json.dumps(HIDDEN),))
        insert_message(db, "20261002_1", "user", "SUMMARY", 1_790_000_010, AGENT_ONLY)
        insert_message(db, "20261002_1", "assistant", "Your context was compacted.", 1_790_000_011, AGENT_ONLY)
        insert_message(db, "20261002_1", "user", "go on", 1_790_000_012)
        db.commit()
    first = read_all_recordings(file)[0]
    assert [type(entry.body) for entry in first.entries].count(CompactionEntry) == 1
    assert len(list_texts(first)) == 4
    shown = [item.message.text for item in build_projection(build_state_at_leaf(first))]
    assert "SUMMARY" in shown[0]
    assert shown[1:] == ["go on"]


def test_goose_database_of_the_first_version_is_read(tmp_path):
    """Columns that an older version lacks are not asked for; times in ms are read as such."""
    path = tmp_path / "sessions.db"
    with closing(create_database(path, OLD_SCHEMA)) as db:
        db.execute("INSERT INTO sessions VALUES ('20250901_1', 'old', '/w')")
        content = json.dumps([{"type": "text", "text": "hi"}])
        db.execute("INSERT INTO messages VALUES (1, '20250901_1', 'user', ?, 1756700000000)", (content,))
        db.commit()
    (recording,) = read_all_recordings(path)
    assert (recording.title, list_texts(recording)) == ("old", ["hi"])
    assert recording.entries[0].time_ms == 1_756_700_000_000


@pytest.mark.parametrize("content", [b"\xff\xfe", b"{broken", b'{"type":"text"}', 5, b""])
def test_goose_database_keeps_a_damaged_row_as_a_note(file, content):
    """Content that is no list costs that message alone, and the message is named."""
    with closing(sqlite3.connect(file)) as db:
        insert_message(db, "20261002_2", "user", content, 1_790_000_007)
        db.commit()
    second = read_all_recordings(file)[1]
    assert list_texts(second) == ["ask 20261002_2", "sooner", "later"]
    assert "msg_user_1790000007" in second.problems[0].message
    assert [type(entry.body) for entry in second.entries].count(NoteEntry) == 1


def test_goose_database_chooses_a_session_by_its_beginning(file):
    """A prefix of several sessions or of none is refused with what there is."""
    with open_foreign_database(file) as database:
        assert [session.id for session in database.list_root_sessions("20261002_2")] == ["20261002_2"]
        for prefix, words in (("2026", "several sessions begin"), ("x", "no session begins")):
            with pytest.raises(UnknownId, match=f"{words}.*20261002_2"):
                database.list_root_sessions(prefix)


def test_goose_database_reads_the_wal_without_writing(file):
    """Changes in the ``-wal`` of a running goose are read, and nothing is written to the folder."""
    with closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        insert_session(db, "20261003_1")
        db.commit()
        before = {path.name: path.read_bytes() for path in file.parent.iterdir()}
        assert "sessions.db-wal" in before
        assert [recording.session for recording in read_all_recordings(file)][-1] == "20261003_1"
        assert {path.name: path.read_bytes() for path in file.parent.iterdir()} == before


def test_goose_database_without_a_column_is_refused(file):
    """A database that lacks what a session needs is refused with the names."""
    with closing(sqlite3.connect(file)) as db:
        db.execute("ALTER TABLE messages DROP COLUMN role")
        db.commit()
    with pytest.raises(UnrecognizedContent, match=r"messages\.role is missing"):
        read_all_recordings(file)


def test_truncated_goose_database_is_a_format_error(file):
    """A truncated file is an error that says what to do."""
    whole = file.read_bytes()
    for damaged in (whole[:300], whole[: len(whole) // 2]):
        file.write_bytes(damaged)
        with pytest.raises(FormatError, match=r"damaged .*recover"):
            read_all_recordings(file)


def test_recognize_database_says_what_to_do_with_one_of_goose(file):
    """A repair of it is refused by name, and never taken for a store of ours."""
    assert "goose" in recognize_database(file)
    assert ".recover" in recognize_database(file)
