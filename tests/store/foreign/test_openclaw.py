"""The database of an OpenClaw agent is read in place."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import zstandard

from holdfast.errors import FormatError, StoreLocked, UnknownId, UnrecognizedContent
from holdfast.formats import Recording, get_full_history_entries, read_recording
from holdfast.state.entries import MessageEntry
from holdfast.store.foreign.open_database import open_foreign_database, recognize_database
from holdfast.store.foreign.other_databases import recognize_foreign_database

SCHEMA = """
CREATE TABLE schema_meta (meta_key TEXT PRIMARY KEY, schema_version INTEGER);
CREATE TABLE session_nodes (
  session_key TEXT PRIMARY KEY, current_session_id TEXT NOT NULL, entry_json TEXT NOT NULL, parent_session_key TEXT,
  spawned_by TEXT, label TEXT, display_name TEXT);
CREATE TABLE session_windows (
  session_id TEXT PRIMARY KEY, session_key TEXT NOT NULL, created_at INTEGER NOT NULL, started_at INTEGER,
  parent_session_key TEXT, spawned_by TEXT, display_name TEXT);
CREATE TABLE transcript_events (
  session_id TEXT NOT NULL, seq INTEGER NOT NULL, event_json TEXT, created_at INTEGER NOT NULL, event_zstd BLOB,
  event_utf8_bytes INTEGER, navigation_json TEXT, PRIMARY KEY (session_id, seq));
CREATE TABLE transcript_event_identities (
  session_id TEXT NOT NULL, event_id TEXT NOT NULL, seq INTEGER NOT NULL, event_type TEXT, parent_id TEXT);
CREATE TABLE session_transcript_cold_archives (session_id TEXT PRIMARY KEY, event_count INTEGER, archive_blob BLOB);
CREATE TABLE session_pending_inputs (session_id TEXT, message_json TEXT, state TEXT, consumed_event_id TEXT);
CREATE TABLE auth_profile_store (store_key TEXT PRIMARY KEY, store_json TEXT NOT NULL);
CREATE TABLE device_auth_tokens (token TEXT);
"""
"""The tables of schema 23, as far as they are read, and some that must not be."""
OLD_SCHEMA = """
CREATE TABLE sessions (session_id TEXT PRIMARY KEY, created_at INTEGER, spawned_by TEXT, display_name TEXT);
CREATE TABLE session_entries (session_key TEXT PRIMARY KEY, session_id TEXT NOT NULL, entry_json TEXT NOT NULL);
CREATE TABLE transcript_events (
  session_id TEXT NOT NULL, seq INTEGER NOT NULL, event_json TEXT NOT NULL, created_at INTEGER NOT NULL,
  PRIMARY KEY (session_id, seq));
"""
"""The tables of July 2026."""
MAIN, CHILD = "agent:main:main", "agent:main:subagent:1"


def create_database(path: Path, schema: str = SCHEMA) -> sqlite3.Connection:
    db = sqlite3.connect(path)
    db.executescript(schema)
    return db


def build_lines(session: str, *texts: str) -> list[str]:
    lines: list[dict[str, Any]] = [{"type": "session", "version": 3, "id": session, "timestamp": "", "cwd": "/w"}]
    parent = None
    for number, text in enumerate(texts):
        role = "assistant" if number % 2 else "user"
        content = {"role": role, "content": [{"type": "text", "text": text}]}
        id_ = f"{session}-{number}"
        lines.append({"type": "message", "id": id_, "parentId": parent, "timestamp": "", "message": content})
        parent = id_
    return [json.dumps(line) for line in lines]


def insert_events(db: sqlite3.Connection, session: str, lines: list[str], at: int) -> None:
    for seq, line in enumerate(lines):
        db.execute(
            "INSERT INTO transcript_events (session_id, seq, event_json, created_at) VALUES (?, ?, ?, ?)",
            (session, seq, line, at + seq),
        )


def insert_window(db: sqlite3.Connection, session: str, key: str, at: int, spawned_by: str | None = None) -> None:
    values = (session, key, at, spawned_by)
    db.execute("INSERT INTO session_windows (session_id, session_key, created_at, spawned_by) VALUES (?,?,?,?)", values)


def compress_event(db: sqlite3.Connection, session: str, seq: int, blob: bytes | None = None) -> None:
    """Store an event as OpenClaw stores long ones, or as ``blob``."""
    (text,) = db.execute(
        "SELECT event_json FROM transcript_events WHERE session_id = ? AND seq = ?", (session, seq)
    ).fetchone()
    packed = zstandard.compress(text.encode()) if blob is None else blob
    db.execute(
        "UPDATE transcript_events SET event_json = NULL, event_zstd = ?, event_utf8_bytes = ? "
        "WHERE session_id = ? AND seq = ?",
        (packed, len(text.encode()), session, seq),
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a database with two sessions of one conversation, the first of which has a sub-agent."""
    path = tmp_path / "openclaw-agent.sqlite"
    with closing(create_database(path)) as db:
        db.execute("INSERT INTO session_nodes VALUES (?, 'w2', '{}', NULL, NULL, 'The main one', NULL)", (MAIN,))
        db.execute("INSERT INTO session_nodes VALUES (?, 'kid', '{}', ?, ?, NULL, 'Helper')", (CHILD, MAIN, MAIN))
        # Inserted in another order than they began.
        for session, key, at in (("w2", MAIN, 3_000), ("kid", CHILD, 2_000), ("w1", MAIN, 1_000)):
            insert_window(db, session, key, at)
            insert_events(db, session, build_lines(session, f"ask {session}", "yes"), at)
        db.execute("INSERT INTO auth_profile_store VALUES ('p', 'the-secret')")
        db.execute("INSERT INTO device_auth_tokens VALUES ('the-secret')")
        db.commit()
    return path


def read_all_recordings(path: Path) -> list[Recording]:
    with open_foreign_database(path) as database:
        return [database.read_recording(session.id) for session in database.list_root_sessions()]


def list_texts(recording: Recording) -> list[str]:
    bodies = [entry.body for entry in get_full_history_entries(recording)]
    return [body.sized_message.message.text for body in bodies if isinstance(body, MessageEntry)]


def test_openclaw_database_lists_sessions_with_their_sub_agents(file):
    """The newest session is last, and a sub-agent belongs to the session that was there when it began."""
    first, second = read_all_recordings(file)
    assert (first.session, first.title, first.cwd, first.format) == ("w1", "The main one", "/w", "pi")
    assert list_texts(first) == ["ask w1", "yes"]
    assert [(agent.session, agent.title, list_texts(agent)) for agent in first.sidechains] == [
        ("kid", "Helper", ["ask kid", "yes"])
    ]
    assert (second.session, second.sidechains, second.problems) == ("w2", (), ())


@pytest.mark.parametrize("names", [("spawned_by", None), (None, "spawned_by"), (None, "parent_session_key")])
def test_openclaw_database_knows_sub_agents_by_their_conversation(file, names):
    """Either table may name the parent of a sub-agent; a fork or a thread, which has one too, stands for itself."""
    in_window, in_node = names
    with closing(sqlite3.connect(file)) as db:
        db.execute("UPDATE session_nodes SET spawned_by = NULL, parent_session_key = NULL")
        if in_window:
            db.execute(f"UPDATE session_windows SET {in_window} = ? WHERE session_id = 'kid'", (MAIN,))
        if in_node:
            db.execute(f"UPDATE session_nodes SET {in_node} = ? WHERE session_key = ?", (MAIN, CHILD))
        insert_window(db, "a-fork", "agent:main:thread:1", 4_000)
        db.execute("UPDATE session_windows SET parent_session_key = ? WHERE session_id = 'a-fork'", (MAIN,))
        insert_events(db, "a-fork", build_lines("a-fork", "hi"), 4_000)
        db.commit()
    families = [(found.session, [agent.session for agent in found.sidechains]) for found in read_all_recordings(file)]
    assert families == [("w1", ["kid"]), ("w2", []), ("a-fork", [])]


def test_openclaw_database_that_changes_meanwhile_is_busy(file):
    """What was read while OpenClaw wrote is not used."""
    with open_foreign_database(file) as database, closing(sqlite3.connect(file)) as db:
        insert_events(db, "w3", build_lines("w3", "new" * 5_000), 9_000)
        db.commit()
        with pytest.raises(StoreLocked, match="try again"):
            database.read_recording("w1")


def test_openclaw_database_equals_the_session_file(file):
    """What OpenClaw moved into the database is the same session as its file, entry for entry."""
    from_file = read_recording("\n".join([*build_lines("w1", "ask w1", "yes"), ""]).encode())
    assert list(read_all_recordings(file)[0].entries) == list(from_file.entries)


def test_openclaw_database_reads_compressed_events(file):
    """A compressed event gives the same entries as the event itself."""
    before = read_all_recordings(file)[0]
    with closing(sqlite3.connect(file)) as db:
        for seq in range(3):
            compress_event(db, "w1", seq)
        db.commit()
    assert read_all_recordings(file)[0].entries == before.entries


@pytest.mark.parametrize(
    ("blob", "reason"),
    [
        (b"\x28\xb5\x2f\xfd\x00", "damaged"),
        (b"no frame", "damaged"),
        (zstandard.compress(b"{}"), "2 bytes instead of"),
        # A frame header that claims 4 GiB.
        (b"\x28\xb5\x2f\xfd\xa0" + b"\xff" * 4, "longer than 67,108,864 bytes"),
    ],
)
def test_openclaw_database_counts_events_that_cannot_be_read(file, blob, reason):
    """A damaged frame costs that event alone; the message after it keeps its place by the table of identities."""
    with closing(sqlite3.connect(file)) as db:
        compress_event(db, "w1", 1, blob)
        db.execute("INSERT INTO transcript_event_identities VALUES ('w1', 'w1-0', 1, 'message', NULL)")
        db.commit()
    first = read_all_recordings(file)[0]
    assert list_texts(first) == ["yes"]
    (problem,) = first.problems
    assert "1 of 3 events of session w1" in problem.reason
    assert reason in problem.reason


def test_openclaw_database_needs_no_table_of_identities(file):
    """Without it what follows an unreadable event follows the conversation."""
    with closing(sqlite3.connect(file)) as db:
        db.execute("DROP TABLE transcript_event_identities")
        compress_event(db, "w1", 2, b"")
        db.commit()
    assert list_texts(read_all_recordings(file)[0]) == ["ask w1"]


def test_openclaw_database_tells_of_archived_and_waiting_words(file):
    """An archived session is listed with what to do; words that wait for a turn are counted."""
    with closing(sqlite3.connect(file)) as db:
        insert_window(db, "old", "agent:main:other", 500)
        db.execute("INSERT INTO session_transcript_cold_archives VALUES ('old', 41, NULL)")
        for state, consumed in (("queued", None), ("queued", "e"), ("cancelled", None)):
            db.execute("INSERT INTO session_pending_inputs VALUES ('w2', '{}', ?, ?)", (state, consumed))
        db.commit()
    old, _, second = read_all_recordings(file)
    assert (old.session, old.entries) == ("old", ())
    assert "41 events of session old are in an archive of OpenClaw" in old.problems[0].reason
    assert second.skipped_counts == {"input that waits": 1}


def test_openclaw_database_reads_no_secret(file):
    """Tables of logins and tokens are never asked for, and nothing of them is in what is read."""
    statements: list[str] = []
    with open_foreign_database(file) as database:
        database._database.connection.set_trace_callback(statements.append)
        recordings = [database.read_recording(session.id) for session in database.list_root_sessions()]
    assert statements
    for word in ("auth", "token", "device", "entry_json"):
        assert not any(word in statement for statement in statements)
    assert "the-secret" not in repr(recordings)


def test_openclaw_database_of_an_older_version_is_read(tmp_path):
    """Other names of tables and missing columns are no obstacle."""
    path = tmp_path / "openclaw-agent.sqlite"
    with closing(create_database(path, OLD_SCHEMA)) as db:
        db.execute("INSERT INTO sessions VALUES ('w1', 1, NULL, 'About it'), ('kid', 2, ?, NULL)", (MAIN,))
        db.execute("INSERT INTO session_entries VALUES (?, 'w1', '{}'), (?, 'kid', '{}')", (MAIN, CHILD))
        for session in ("w1", "kid"):
            insert_events(db, session, build_lines(session, "hi"), 1)
        db.commit()
    (recording,) = read_all_recordings(path)
    assert (recording.title, list_texts(recording)) == ("About it", ["hi"])
    assert [agent.session for agent in recording.sidechains] == ["kid"]


def test_openclaw_database_chooses_a_session_by_its_beginning(file):
    """A prefix of several sessions or of none is refused with what there is."""
    with open_foreign_database(file) as database:
        assert [session.id for session in database.list_root_sessions("w2")] == ["w2"]
        assert [session.id for session in database.list_root_sessions("ki")] == ["kid"]
        for prefix, words in (("w", "several sessions begin"), ("x", "no session begins")):
            with pytest.raises(UnknownId, match=f"{words}.*w2"):
                database.list_root_sessions(prefix)


def test_openclaw_database_reads_the_wal_without_writing(file):
    """Changes in the ``-wal`` of a running OpenClaw are read, and nothing is written to the folder."""
    with closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        insert_events(db, "w3", build_lines("w3", "new"), 9_000)
        db.commit()
        before = {path.name: path.read_bytes() for path in file.parent.iterdir()}
        assert f"{file.name}-wal" in before
        assert [recording.session for recording in read_all_recordings(file)][-1] == "w3"
        assert {path.name: path.read_bytes() for path in file.parent.iterdir()} == before


def test_truncated_openclaw_database_is_a_format_error(file):
    """A truncated file is an error that says what to do."""
    whole = file.read_bytes()
    for damaged in (whole[:300], whole[: len(whole) // 2]):
        file.write_bytes(damaged)
        with pytest.raises(FormatError, match=r"damaged .*recover"):
            read_all_recordings(file)


def test_openclaw_database_without_sessions_says_where_they_are(tmp_path):
    """Before sessions were kept in it, the database held logins alone; the one of all agents has none either."""
    path = tmp_path / "openclaw-agent.sqlite"
    with closing(create_database(path, "CREATE TABLE schema_meta (a); CREATE TABLE auth_profile_store (b);")):
        pass
    with pytest.raises(UnrecognizedContent, match=r"agents/\*/sessions/\*\.jsonl"):
        read_all_recordings(path)
    assert "openclaw-agent.sqlite" in recognize_foreign_database({"subagent_runs", "task_runs", "schema_meta"})


def test_recognize_database_says_what_to_do_with_one_of_openclaw(file):
    """A repair of it is refused by name, and never taken for a store of ours."""
    assert "OpenClaw" in recognize_database(file)
    assert ".recover" in recognize_database(file)
