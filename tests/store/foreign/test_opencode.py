"""The database of opencode is read in place, and built from recordings."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import FormatError, StoreLocked, UnknownId, UnrecognizedContent
from holdfast.formats import export_bytes, get_branch_entries, read_recording
from holdfast.formats.base import Recording
from holdfast.formats.opencode.rows import build_opencode_rows
from holdfast.formats.opencode.write import iter_opencode_sessions
from holdfast.state.entries import MessageEntry, NoteEntry
from holdfast.store.foreign import opencode as foreign

AT = 1_795_294_800_000
USER = {"role": "user", "agent": "build", "model": {"providerID": "p", "modelID": "m"}}
ANSWER = {
    "role": "assistant",
    "parentID": "msg_1",
    "modelID": "m",
    "providerID": "p",
    "mode": "build",
    "finish": "stop",
}
CALL = {"type": "tool_use", "id": "c1", "name": "bash", "input": {"a": [1, 2]}}
TEXT = {"type": "text", "text": "hello"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a database as opencode makes it, without sessions."""
    return _create_database(tmp_path / "opencode.db")


def _create_database(path: Path) -> Path:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(files("holdfast.data").joinpath("opencode.sql").read_text("utf-8"))
        db.execute(
            "INSERT INTO project (id, worktree, time_created, time_updated, sandboxes) VALUES ('p','/w',0,0,'[]')"
        )
        db.commit()
    return path


def insert_session(db: sqlite3.Connection, id_: str, turns: int = 1, parent: str | None = None) -> None:
    """Insert a session of ``turns`` turns."""
    db.execute(
        "INSERT INTO session (id, project_id, parent_id, slug, directory, title, version, time_created, time_updated) "
        "VALUES (?, 'p', ?, 's', '/w', ?, '1.18.33', ?, ?)",
        (id_, parent, f"about {id_}", AT, AT),
    )
    for number in range(2 * turns):
        insert_message(db, id_, number, USER if number % 2 == 0 else ANSWER, TEXT | {"text": f"{id_} {number}"})
    db.commit()


def insert_message(db: sqlite3.Connection, session: str, number: int, info: Any, *parts: Any) -> None:
    """Insert a message; a value that is not an object is inserted as it is."""
    name, at = f"msg_{session}_{number:03}", AT + number
    info = info | {"time": {"created": at, "completed": at}} if isinstance(info, dict) else info
    db.execute("INSERT INTO message VALUES (?, ?, ?, ?, ?)", (name, session, at, at, _encode(info)))
    for place, part in enumerate(parts):
        db.execute(
            "INSERT INTO part VALUES (?, ?, ?, ?, ?, ?)", (f"prt_{name}{place}", name, session, at, at, _encode(part))
        )


def _encode(value: Any) -> Any:
    return json.dumps(value, separators=(",", ":")) if isinstance(value, dict) else value


def list_texts(recording: Recording) -> list[str]:
    return [
        entry.body.sized_message.message.text
        for entry in get_branch_entries(recording)
        if isinstance(entry.body, MessageEntry)
    ]


def read_all_recordings(file: Path) -> list[Recording]:
    with foreign.open_opencode_database(file) as database:
        return [database.read_recording(info.id) for info in database.list_root_sessions()]


@pytest.fixture
def file_with_sessions(file: Path) -> Path:
    """Return a database with two sessions, one of which has a sub-agent with one of its own."""
    with closing(sqlite3.connect(file)) as db:
        insert_session(db, "ses_a", 2)
        insert_session(db, "ses_b")
        insert_session(db, "ses_c", parent="ses_a")
        insert_session(db, "ses_d", parent="ses_c")
    return file


def test_list_root_sessions_lists_sessions_with_their_sidechains(file_with_sessions: Path) -> None:
    """Each root session is listed, and its sub-agents' sessions, nested ones too, come with it."""
    first, second = read_all_recordings(file_with_sessions)
    assert (first.session, first.title, first.cwd, first.model) == ("ses_a", "about ses_a", "/w", "m")
    assert list_texts(first) == [f"ses_a {number}" for number in range(4)]
    assert [sidechain.session for sidechain in first.sidechains] == ["ses_c", "ses_d"]
    assert (list_texts(second), second.sidechains) == (["ses_b 0", "ses_b 1"], ())


def test_opencode_database_equals_its_json_export(file_with_sessions: Path) -> None:
    """A session has the same entries read from rows and read from the JSON made from them."""
    first = read_all_recordings(file_with_sessions)[0]
    assert read_recording(export_bytes(first, "opencode-json")).entries == first.entries


def test_opencode_call_ids_ignore_json_whitespace(tmp_path: Path) -> None:
    """A call keeps its whitespace in a database we wrote, and importing that after its export adds nothing."""
    body = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [CALL]}]}
    recording = read_recording(json.dumps(body).encode())
    file = tmp_path / "new.db"
    file.write_bytes(foreign.build_opencode_database(build_opencode_rows(iter_opencode_sessions(recording))))
    exported = read_recording(export_bytes(recording, "opencode-json"))
    assert [entry.id for entry in read_all_recordings(file)[0].entries] == [entry.id for entry in exported.entries]


def test_list_root_sessions_accepts_a_unique_prefix(file_with_sessions: Path) -> None:
    """A session may be named by a unique prefix; an unknown or ambiguous one is refused with the existing ids."""
    with foreign.open_opencode_database(file_with_sessions) as database:
        assert [info.id for info in database.list_root_sessions("ses_c")] == ["ses_c"]
        with pytest.raises(UnknownId, match=r"several sessions begin with 'ses_'.*ses_a, ses_b"):
            database.list_root_sessions("ses_")
        with pytest.raises(UnknownId, match=r"no session begins with 'x'.*ses_b"):
            database.list_root_sessions("x")


def test_opencode_database_reads_the_wal_without_writing(file_with_sessions: Path) -> None:
    """Changes in the ``-wal`` of a running opencode are read, and nothing is written to the folder."""
    with closing(sqlite3.connect(file_with_sessions)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        insert_session(db, "ses_new")
        before = _read_folder(file_with_sessions.parent)
        assert "opencode.db-wal" in before
        assert [recording.session for recording in read_all_recordings(file_with_sessions)] == [
            "ses_a",
            "ses_b",
            "ses_new",
        ]
        assert _read_folder(file_with_sessions.parent) == before


def _read_folder(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_opencode_database_in_wal_mode_is_read_without_new_files(file_with_sessions: Path) -> None:
    """A database in WAL mode is read where nothing can be created beside it."""
    with closing(sqlite3.connect(file_with_sessions)) as db:
        db.execute("PRAGMA journal_mode = WAL")
    before = _read_folder(file_with_sessions.parent)
    assert [recording.session for recording in read_all_recordings(file_with_sessions)] == ["ses_a", "ses_b"]
    assert _read_folder(file_with_sessions.parent) == before


def test_opencode_database_changed_while_open_raises_store_locked(file_with_sessions: Path) -> None:
    """What was read while opencode checkpointed its file is discarded."""
    with foreign.open_opencode_database(file_with_sessions) as database:
        os.utime(file_with_sessions, ns=(1, 1))
        with pytest.raises(StoreLocked, match="try again"):
            database.read_recording("ses_a")


def test_opencode_database_needs_only_the_essential_columns(tmp_path: Path) -> None:
    """Only the columns that a session cannot do without are required."""
    with closing(sqlite3.connect(tmp_path / "old.db")) as db:
        db.executescript(
            "CREATE TABLE session (id TEXT); CREATE TABLE message (id TEXT, session_id TEXT, data TEXT);"
            "CREATE TABLE part (id TEXT, message_id TEXT, data TEXT); INSERT INTO session VALUES ('ses_x');"
        )
        db.execute("INSERT INTO message VALUES ('m', 'ses_x', ?)", (_encode(USER),))
        db.execute("INSERT INTO part VALUES ('p', 'm', ?)", (_encode(TEXT),))
        db.commit()
    assert [list_texts(recording) for recording in read_all_recordings(tmp_path / "old.db")] == [["hello"]]


@pytest.mark.parametrize("missing", ["part", "message", "session"])
def test_opencode_database_without_a_table_is_refused(file: Path, missing: str) -> None:
    """A database that lacks a table is refused with the name of the missing table."""
    with closing(sqlite3.connect(file)) as db:
        db.execute(f"DROP TABLE {missing}")
        db.commit()
    with pytest.raises(UnrecognizedContent, match=rf"not opencode's: {missing}\..*id.* missing"):
        read_all_recordings(file)


@pytest.mark.parametrize("part", [b"\xff\xfe", b"{broken", "[1]", 5, "", b"{}"])
def test_damaged_opencode_part_is_kept_as_a_note(file: Path, part: Any) -> None:
    """A part that is not an object is kept as a note and reported, and all others are read."""
    with closing(sqlite3.connect(file)) as db:
        insert_session(db, "ses_a")
        insert_message(db, "ses_a", 2, USER, part, TEXT)
        db.commit()
    (recording,) = read_all_recordings(file)
    assert list_texts(recording)[-1] == "hello"
    notes = [entry.body for entry in recording.entries if isinstance(entry.body, NoteEntry)]
    kept = part if isinstance(part, bytes) else str(part).encode()
    assert kept in [note.raw for note in notes]
    assert "prt_msg_ses_a_0020" in recording.problems[0].message


def test_damaged_opencode_message_is_kept_as_a_note(file: Path) -> None:
    """A message that is not an object is kept as a note and reported, and the others are read."""
    with closing(sqlite3.connect(file)) as db:
        insert_session(db, "ses_a")
        insert_message(db, "ses_a", 2, b'{"role":', TEXT)
        insert_message(db, "ses_a", 3, USER, TEXT)
        db.commit()
    (recording,) = read_all_recordings(file)
    assert list_texts(recording) == ["ses_a 0", "ses_a 1", "hello"]
    assert "msg_ses_a_002 is no JSON object" in recording.problems[0].message
    assert list_texts(read_recording(export_bytes(recording, "opencode-json"))) == list_texts(recording)


def test_truncated_opencode_database_is_a_format_error(file_with_sessions: Path) -> None:
    """A truncated or overwritten file is an error that says what to do, not SQLite's traceback."""
    whole = file_with_sessions.read_bytes()
    for damaged in (whole[:300], whole[: len(whole) // 2], whole[:4096] + bytes(len(whole) - 4096)):
        file_with_sessions.write_bytes(damaged)
        with pytest.raises(FormatError, match=r"damaged .*recover|not opencode's"):
            read_all_recordings(file_with_sessions)


def test_is_sqlite_file_reads_the_first_bytes(tmp_path: Path) -> None:
    """A wrong header, a directory and a missing file are not SQLite files."""
    (tmp_path / "x").write_bytes(b"SQLite format 2\x00")
    assert not foreign.is_sqlite_file(tmp_path / "x")
    assert not foreign.is_sqlite_file(tmp_path)
    assert not foreign.is_sqlite_file(tmp_path / "none")


# -- building a database -----------------------------------------------------------------------------------------------


@pytest.fixture
def rebuilt(file_with_sessions: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Return a database, and one built from everything that was read from it."""
    new = tmp_path / "new.db"
    new.write_bytes(
        foreign.build_opencode_database(
            build_opencode_rows(
                session
                for recording in read_all_recordings(file_with_sessions)
                for session in iter_opencode_sessions(recording)
            )
        )
    )
    return file_with_sessions, new


def test_build_opencode_database_round_trips_entries(rebuilt: tuple[Path, Path]) -> None:
    """A database built from what was read has the same entries under the same ids, sub-agents' too."""
    old, new = (read_all_recordings(file) for file in rebuilt)
    entries = [[recording.entries for root in read for recording in (root, *root.sidechains)] for read in (old, new)]
    assert entries[0] == entries[1]


def test_build_opencode_database_keeps_rows_and_integrity(rebuilt: tuple[Path, Path]) -> None:
    """Ids, owners, times and JSON of messages and parts are those that were read, and the database passes SQLite's
    checks.
    """
    old, new = (sqlite3.connect(file) for file in rebuilt)
    with closing(old), closing(new):
        for what in ("id, session_id, time_created FROM message", "id, message_id, session_id, data FROM part"):
            assert (
                new.execute(f"SELECT {what} ORDER BY id").fetchall()
                == old.execute(f"SELECT {what} ORDER BY id").fetchall()
            )
        datas = [
            [json.loads(data) for (data,) in db.execute("SELECT data FROM message ORDER BY id")] for db in (old, new)
        ]
        assert datas[0] == datas[1]
        assert new.execute("PRAGMA foreign_key_check").fetchall() == []
        assert new.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert (
            new.execute("SELECT count(*) FROM migration").fetchone()
            == old.execute("SELECT count(*) FROM migration").fetchone()
        )
