"""``holdfast repair``: damaged files and stores are repaired on disk, and nothing is lost or left half-done."""

from __future__ import annotations

import base64
import json
import os
import sqlite3
import tracemalloc
from contextlib import closing

import pytest
from sample_entries import make_message_chain

from holdfast.cli.files import repair_session_file as session_file
from holdfast.cli.files.repair_session_file import repair_file_on_disk
from holdfast.errors import FormatError
from holdfast.formats.repair.survey import survey_session_file
from holdfast.store.open_store import open_store

NOT_SESSIONS = {
    "empty": b"",
    "blank": b"\n \n\n",
    "binary": bytes(range(256)),
    "text": b"hello\nworld\n",
    "nul": b"\x00" * 10,
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "utf-16": '{"type":"user"}'.encode("utf-16"),
    "unknown JSON": b'{"a": 1}',
    "request": b'{"model":"m","messages":[{"role":"user","content":"hi"}]}',
    "store": b"SQLite format 3\x00" + b"\xff" * 4096,
}


def ended_with_message(result):
    """Return whether a command exited with a message instead of a traceback."""
    return isinstance(result.exception, SystemExit) and "Traceback" not in result.output


def list_files_beside(path, suffix):
    """Return the files beside ``path`` whose names continue with ``suffix``."""
    return sorted(file for file in path.parent.iterdir() if file.name.startswith(f"{path.name}.{suffix}"))


@pytest.fixture
def torn_session(session):
    """Return a session whose last line is cut off, and its bytes before that line."""
    whole = session.read_bytes()
    session.write_bytes(whole + b'{"type":"user","uuid":"half')
    session.chmod(0o640)
    return session, whole


def test_repair_migrates_an_older_schema_and_reports_it(run, session, home):
    """A sound store of an older version is migrated and reported; a dry run says that it would be."""
    assert run("import", session).exit_code == 0
    with closing(sqlite3.connect(home / "store" / "holdfast.db", isolation_level=None)) as db:
        for statement in (
            "DROP INDEX entries_kind",
            "DROP INDEX entries_session",
            "ALTER TABLE searched DROP COLUMN rule",
            "ALTER TABLE sessions DROP COLUMN recorded_window",
            "PRAGMA user_version = 2",
        ):
            db.execute(statement)
        db.execute("CREATE INDEX entries_kind ON entries (session, kind)")
    assert "have schema 2; the first write migrates them to 5" in run("repair", "--dry-run").stdout
    (report,) = json.loads(run("repair", "--json").stdout)
    assert (report["fine"], report["schema_before"], report["schema"]) == (True, 2, 5)
    assert "schema" not in run("repair").stdout


def test_repair_fixes_a_file_in_place_with_a_backup(run, torn_session):
    """The repaired file keeps name and mode; the old file and the removed lines are stored beside it."""
    path, whole = torn_session
    bytes_before = path.read_bytes()
    result = run("repair", path)
    assert result.exit_code == 0
    assert "line 13: the line is cut off" in result.stdout
    assert path.read_bytes() == whole
    assert path.stat().st_mode & 0o777 == 0o640
    (backup,) = list_files_beside(path, "bak-")
    assert backup.read_bytes() == bytes_before
    (removed,) = list_files_beside(path, "left-out-")
    assert removed.stat().st_mode & 0o777 == 0o600
    assert json.loads(removed.read_text())["text"] == '{"type":"user","uuid":"half'
    assert sorted(path.parent.glob("*.jsonl")) == [path]


def test_repair_twice_changes_nothing(run, torn_session):
    """A sound file is not touched, and no file is created beside it."""
    path, _ = torn_session
    run("repair", path)
    stat_before, files_before = path.stat(), sorted(path.parent.iterdir())
    result = run("repair", path)
    assert result.exit_code == 0
    assert "no damage found" in result.stdout
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (stat_before.st_ino, stat_before.st_mtime_ns)
    assert sorted(path.parent.iterdir()) == files_before


def test_repair_dry_run_exits_1_and_changes_nothing(run, torn_session, home):
    """Exit code 1 says that damage was found; nothing is written."""
    path, _ = torn_session
    bytes_before, files_before = path.read_bytes(), sorted(home.iterdir())
    result = run("repair", path, "--dry-run")
    assert result.exit_code == 1
    assert "run it without --dry-run to repair" in result.stdout
    assert (path.read_bytes(), sorted(home.iterdir())) == (bytes_before, files_before)
    run("repair", path)
    assert run("repair", path, "--dry-run").exit_code == 0


def test_repair_json_prints_an_object_for_each_file(run, torn_session, session, home):
    """Each object has the findings with line, kind and repair, or the error of a failed file."""
    path, _ = torn_session
    result = run("repair", path, home / "none.jsonl", home, "--json")
    assert result.exit_code == 2
    repaired, missing, folder = json.loads(result.stdout)
    assert repaired["format"] == "claude-code"
    assert [(finding["kind"], finding["repair"]) for finding in repaired["found"]] == [("torn", "left out")]
    assert repaired["backup"] == str(list_files_beside(path, "bak-")[0])
    assert repaired["left_out"] == str(list_files_beside(path, "left-out-")[0])
    assert "no such file" in missing["reason"]
    assert "folder" in folder["error"]


def test_repair_follows_a_link(run, torn_session, home):
    """The link stays, its target is repaired, and the backup is beside the target."""
    path, whole = torn_session
    (home / "elsewhere").mkdir()
    link = home / "elsewhere" / "link.jsonl"
    link.symlink_to(path)
    assert run("repair", link).exit_code == 0
    assert link.is_symlink()
    assert path.read_bytes() == whole
    assert list_files_beside(path, "bak-")


def test_repair_exits_2_for_a_missing_header(run, home):
    """The file stays as it is, and the message says why."""
    line = (
        '{"type":"message","id":"a","parentId":null,"timestamp":"2026-01-01","message":{"role":"user","content":"x"}}'
    )
    path = home / "pi.jsonl"
    path.write_text(f"{line}\nbroken\n")
    result = run("repair", path)
    assert result.exit_code == 2
    assert "header" in result.stderr
    assert path.read_text() == f"{line}\nbroken\n"
    assert sorted(home.iterdir()) == [path]


@pytest.mark.parametrize("kind", NOT_SESSIONS)
def test_repair_refuses_a_file_that_is_no_session(run, home, kind):
    """Such a file is named in an error and stays as it is."""
    path = home / "odd file"
    path.write_bytes(NOT_SESSIONS[kind])
    result = run("repair", path)
    assert result.exit_code == 2
    assert ended_with_message(result)
    assert result.stderr.count("odd file") == 1
    assert path.read_bytes() == NOT_SESSIONS[kind]
    assert list(home.iterdir()) == [path]


def test_repair_refuses_folders_devices_and_pipes(run, home):
    """Each gets an error, and none makes the command hang."""
    os.mkfifo(home / "pipe")
    for name in (home, "", home / "pipe", "/dev/null"):
        result = run("repair", name)
        assert result.exit_code == 2
        assert ended_with_message(result)


def test_repair_refuses_a_file_together_with_a_store(run, session):
    """``--store`` names the one thing to repair."""
    result = run("repair", session, "--store", "x.db")
    assert result.exit_code == 2
    assert "one of the two" in result.stderr
    assert run("repair", "--store", ":memory:").exit_code == 2


def test_repair_exits_2_without_permission(run, torn_session, home, without_root):
    """Without the permission to read or write nothing changes."""
    path, _ = torn_session
    for path_without_rights, mode in ((home, 0o500), (path, 0)):
        path_without_rights.chmod(mode)
        with without_root():
            assert run("repair", path).exit_code == 2
        path_without_rights.chmod(0o700)
    assert not list_files_beside(path, "bak-")


# -- the disk ----------------------------------------------------------------------------------------------------------


def test_repair_file_on_disk_keeps_a_file_that_changed_meanwhile(torn_session, monkeypatch):
    """If the tool writes on while the file is read, its file stays and nothing is left beside it."""
    path, _ = torn_session

    def survey_while_file_grows(lines, tool):
        survey = survey_session_file(lines, tool)
        with path.open("ab") as file:
            file.write(b"more\n")
        return survey

    monkeypatch.setattr(session_file, "survey_session_file", survey_while_file_grows)
    files_before = sorted(path.parent.iterdir())
    with pytest.raises(FormatError, match="changed while it was read"):
        repair_file_on_disk(path)
    assert path.read_bytes().endswith(b"halfmore\n")
    assert sorted(path.parent.iterdir()) == files_before


def test_repair_file_on_disk_copies_the_backup_without_hard_links(torn_session, monkeypatch):
    """On a file system without hard links the backup is a copy."""
    path, whole = torn_session
    bytes_before = path.read_bytes()

    def refuse(*_):
        raise OSError("no links here")

    monkeypatch.setattr("pathlib.Path.hardlink_to", refuse)
    repair_file_on_disk(path)
    (backup,) = list_files_beside(path, "bak-")
    assert backup.read_bytes() == bytes_before
    assert backup.stat().st_mode & 0o777 == 0o640
    assert path.read_bytes() == whole


def test_repair_file_on_disk_keeps_the_file_when_writing_fails(torn_session, monkeypatch):
    """If writing the new file fails the old one stays, and no partial file is left."""
    path, _ = torn_session
    bytes_before, files_before = path.read_bytes(), sorted(path.parent.iterdir())

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        repair_file_on_disk(path)
    assert (path.read_bytes(), sorted(path.parent.iterdir())) == (bytes_before, files_before)


def test_repair_keeps_removed_bytes_as_base64(run, session):
    """Removed bytes that are not UTF-8 are kept exactly, in base64."""
    session.write_bytes(session.read_bytes() + b"\xff\xfe\x00broken")
    assert run("repair", session).exit_code == 0
    (removed,) = list_files_beside(session, "left-out-")
    assert base64.b64decode(json.loads(removed.read_text())["base64"]) == b"\xff\xfe\x00broken"


def test_repair_file_on_disk_uses_memory_for_the_longest_line_only(home, make_session_line):
    """Memory is bounded by the longest line, not by the size of the file."""
    path = home / "large.jsonl"
    with path.open("w") as file:
        for number in range(400):
            role = "assistant" if number % 2 else "user"
            content = [{"type": "text", "text": f"{number} " + "word " * 10_000}]
            file.write(make_session_line(number, role, content) + "\n")
        file.write('{"half')
    assert path.stat().st_size > 20_000_000
    tracemalloc.start()
    report = repair_file_on_disk(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [finding.kind for finding in report.findings] == ["torn"]
    assert peak < 3_000_000


# -- the store ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(home):
    """Return a store in which one message is damaged."""
    path = home / "store" / "holdfast.db"
    with open_store(path) as opened:
        opened.import_entries("talk", make_message_chain("abc"))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE entries SET body = x'00' WHERE id = 'b'")
    return path


def test_repair_without_a_file_repairs_the_store(run, store):
    """Without a file the store is repaired, and damage is reported by session and entry."""
    assert run("doctor").exit_code == 1
    assert run("repair", "--dry-run").exit_code == 1
    result = run("repair")
    assert result.exit_code == 0
    assert "session talk, entry b: " in result.stdout
    assert list_files_beside(store, "bak-")
    assert run("doctor").exit_code == 0
    assert "no damage found" in run("repair").stdout


def test_repair_accepts_a_store_as_a_file(run, store):
    """A file with a store's header is repaired as one."""
    (report,) = json.loads(run("repair", store, "--json").stdout)
    assert report["format"] == "holdfast"
    assert [(finding["kind"], finding["entry_id"]) for finding in report["found"]] == [("entry", "b")]
    assert report["backup"] == str(list_files_beside(store, "bak-")[0])


def test_repair_reports_a_missing_store_and_creates_none(run, home):
    """A store that does not exist needs no repair and is not created."""
    result = run("repair")
    assert result.exit_code == 0
    assert "it is empty" in result.stdout
    assert list(home.iterdir()) == []


def test_repair_and_replay_suggest_export_for_a_session_id(run, edited_session):
    """If the file name is a session of the store, the message suggests ``holdfast export``."""
    for name in ("repair", "replay"):
        assert f"holdfast export {edited_session}" in run(name, edited_session).stderr


def test_repair_refuses_a_folder_as_store(run, tmp_path):
    """A folder in place of the store is named as one."""
    assert "is a folder" in run("repair", "--store", tmp_path).stderr


def test_repair_names_a_file_that_is_no_store(run, home):
    """Also in a dry run, which repairs a copy, the message names the given file."""
    with sqlite3.connect(home / "other.db") as database:
        database.execute("CREATE TABLE theirs (x)")
    database.close()
    (home / "torn.db").write_bytes(b"SQLite format 3\x00" + b"\x00" * 200)
    for name in ("other.db", "torn.db"):
        done, tried = (run("repair", name, *more) for more in ((), ("--dry-run",)))
        assert tried.exit_code == done.exit_code == 2
        assert tried.stderr == done.stderr
        assert tried.stderr.startswith(name)
