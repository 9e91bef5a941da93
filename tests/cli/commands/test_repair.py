"""``holdfast repair``: damaged files are mended on the disk, and nothing is ever lost or half-done."""

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

ODD = {
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


def is_a_message(result):
    """Return whether a run ended with a message: an exit, and no traceback."""
    return isinstance(result.exception, SystemExit) and "Traceback" not in result.output


def beside(path, what):
    """Return the files beside ``path`` whose names go on with ``what``."""
    return sorted(one for one in path.parent.iterdir() if one.name.startswith(f"{path.name}.{what}"))


@pytest.fixture
def torn(session):
    """Return a session whose last line is half a line, and the bytes before that."""
    whole = session.read_bytes()
    session.write_bytes(whole + b'{"type":"user","uuid":"half')
    session.chmod(0o640)
    return session, whole


def test_a_store_of_an_older_schema_is_told(run, session, home):
    """A sound store of an older Holdfast is brought up to date, and that is said; a dry run says that it would be."""
    assert run("import", session).exit_code == 0
    with closing(sqlite3.connect(home / "store" / "holdfast.db", isolation_level=None)) as db:
        for statement in (
            "DROP INDEX entries_kind",
            "DROP INDEX entries_session",
            "ALTER TABLE searched DROP COLUMN rule",
            "PRAGMA user_version = 2",
        ):
            db.execute(statement)
        db.execute("CREATE INDEX entries_kind ON entries (session, kind)")
    assert "have schema 2; the first write migrates them to 4" in run("repair", "--dry-run").stdout
    (told,) = json.loads(run("repair", "--json").stdout)
    assert (told["fine"], told["schema_before"], told["schema"]) == (True, 2, 4)
    assert "schema" not in run("repair").stdout


def test_a_damaged_file_is_mended_in_place(run, torn):
    """The mended file takes its place and mode; the old one stays beside it, and so does what was left out."""
    path, whole = torn
    before = path.read_bytes()
    result = run("repair", path)
    assert result.exit_code == 0
    assert "line 13: the line is cut off" in result.stdout
    assert path.read_bytes() == whole
    assert path.stat().st_mode & 0o777 == 0o640
    (backup,) = beside(path, "bak-")
    assert backup.read_bytes() == before
    (left,) = beside(path, "left-out-")
    assert left.stat().st_mode & 0o777 == 0o600
    assert json.loads(left.read_text())["text"] == '{"type":"user","uuid":"half'
    assert sorted(path.parent.glob("*.jsonl")) == [path]


def test_a_second_repair_does_nothing(run, torn):
    """A file with nothing wrong is not touched, and nothing is laid beside it."""
    path, _ = torn
    run("repair", path)
    held, there = path.stat(), sorted(path.parent.iterdir())
    result = run("repair", path)
    assert result.exit_code == 0
    assert "no damage found" in result.stdout
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (held.st_ino, held.st_mtime_ns)
    assert sorted(path.parent.iterdir()) == there


def test_a_dry_run_changes_nothing(run, torn, home):
    """Exit code 1 says that something was found; nothing is written anywhere."""
    path, _ = torn
    before, there = path.read_bytes(), sorted(home.iterdir())
    result = run("repair", path, "--dry-run")
    assert result.exit_code == 1
    assert "run it without --dry-run to repair" in result.stdout
    assert (path.read_bytes(), sorted(home.iterdir())) == (before, there)
    run("repair", path)
    assert run("repair", path, "--dry-run").exit_code == 0


def test_it_speaks_json(run, torn, session, home):
    """An object for each file, with each finding's line, kind and what was done; a file that failed has its error."""
    path, _ = torn
    result = run("repair", path, home / "none.jsonl", home, "--json")
    assert result.exit_code == 2
    mended, missing, folder = json.loads(result.stdout)
    assert mended["format"] == "claude-code"
    assert [(one["kind"], one["repair"]) for one in mended["found"]] == [("torn", "left out")]
    assert mended["backup"] == str(beside(path, "bak-")[0])
    assert mended["left_out"] == str(beside(path, "left-out-")[0])
    assert "no such file" in missing["reason"]
    assert "folder" in folder["error"]


def test_the_file_behind_a_link_is_mended(run, torn, home):
    """A link stays a link; what it leads to is mended, with the backup beside that."""
    path, whole = torn
    (home / "elsewhere").mkdir()
    link = home / "elsewhere" / "link.jsonl"
    link.symlink_to(path)
    assert run("repair", link).exit_code == 0
    assert link.is_symlink()
    assert path.read_bytes() == whole
    assert beside(path, "bak-")


def test_a_header_that_is_missing_is_an_error(run, home):
    """Nothing of the file is rewritten, and the message says why."""
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


@pytest.mark.parametrize("what", ODD)
def test_what_is_no_session_is_refused_with_a_message(run, home, what):
    """What is no session file is told as such and stays as it is."""
    path = home / "odd file"
    path.write_bytes(ODD[what])
    result = run("repair", path)
    assert result.exit_code == 2
    assert is_a_message(result)
    assert result.stderr.count("odd file") == 1
    assert path.read_bytes() == ODD[what]
    assert list(home.iterdir()) == [path]


def test_no_names_no_devices(run, home):
    """A folder, an empty name, a pipe without a writer: a message each, and nothing hangs."""
    os.mkfifo(home / "pipe")
    for name in (home, "", home / "pipe", "/dev/null"):
        result = run("repair", name)
        assert result.exit_code == 2
        assert is_a_message(result)


def test_a_file_and_a_store_are_not_both_taken(run, session):
    """``--store`` names the one thing to look through."""
    result = run("repair", session, "--store", "x.db")
    assert result.exit_code == 2
    assert "one of the two" in result.stderr
    assert run("repair", "--store", ":memory:").exit_code == 2


def test_a_file_of_somebody_else_is_left(run, torn, home, without_rights):
    """Without the right to read or to write nothing happens, and the message says what to do."""
    path, _ = torn
    for place, mode in ((home, 0o500), (path, 0)):
        place.chmod(mode)
        with without_rights():
            assert run("repair", path).exit_code == 2
        place.chmod(0o700)
    assert not beside(path, "bak-")


# -- the disk ----------------------------------------------------------------------------------------------------------


def test_a_file_that_changes_meanwhile_is_not_replaced(torn, monkeypatch):
    """A tool that writes on wins: its file stays, and nothing is left beside it."""
    path, _ = torn

    def slowly(lines, tool):
        found = survey_session_file(lines, tool)
        with path.open("ab") as file:
            file.write(b"more\n")
        return found

    monkeypatch.setattr(session_file, "survey_session_file", slowly)
    there = sorted(path.parent.iterdir())
    with pytest.raises(FormatError, match="changed while it was read"):
        repair_file_on_disk(path)
    assert path.read_bytes().endswith(b"halfmore\n")
    assert sorted(path.parent.iterdir()) == there


def test_without_links_the_backup_is_a_copy(torn, monkeypatch):
    """Where a file system has no second names the old file is copied."""
    path, whole = torn
    before = path.read_bytes()

    def refuse(*_):
        raise OSError("no links here")

    monkeypatch.setattr("pathlib.Path.hardlink_to", refuse)
    repair_file_on_disk(path)
    (backup,) = beside(path, "bak-")
    assert backup.read_bytes() == before
    assert backup.stat().st_mode & 0o777 == 0o640
    assert path.read_bytes() == whole


def test_a_full_disk_leaves_the_file_as_it_was(torn, monkeypatch):
    """Whatever fails while the new file is written: the old one stands, and no half one lies about."""
    path, _ = torn
    before, there = path.read_bytes(), sorted(path.parent.iterdir())

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        repair_file_on_disk(path)
    assert (path.read_bytes(), sorted(path.parent.iterdir())) == (before, there)


def test_bytes_that_are_no_text_are_kept_too(run, session):
    """What is left out is kept to the byte, in base64 where it is no UTF-8."""
    session.write_bytes(session.read_bytes() + b"\xff\xfe\x00broken")
    assert run("repair", session).exit_code == 0
    (left,) = beside(session, "left-out-")
    assert base64.b64decode(json.loads(left.read_text())["base64"]) == b"\xff\xfe\x00broken"


def test_a_large_file_costs_little_memory(home, line):
    """Memory is bounded by the longest line and a few words of each, not by the size of the file."""
    path = home / "large.jsonl"
    with path.open("w") as file:
        for number in range(400):
            role = "assistant" if number % 2 else "user"
            content = [{"type": "text", "text": f"{number} " + "word " * 10_000}]
            file.write(line(number, role, content) + "\n")
        file.write('{"half')
    assert path.stat().st_size > 20_000_000
    tracemalloc.start()
    found = repair_file_on_disk(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [one.kind for one in found.findings] == ["torn"]
    assert peak < 3_000_000


# -- the store ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(home):
    """Return a store in which one message is damaged."""
    path = home / "store" / "holdfast.db"
    with open_store(path) as there:
        there.import_entries("talk", make_message_chain("abc"))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE entries SET body = x'00' WHERE id = 'b'")
    return path


def test_the_store_in_use_is_mended(run, store):
    """Without a file the store is looked through; what was damaged is told by session and entry."""
    assert run("doctor").exit_code == 1
    assert run("repair", "--dry-run").exit_code == 1
    result = run("repair")
    assert result.exit_code == 0
    assert "session talk, entry b: " in result.stdout
    assert beside(store, "bak-")
    assert run("doctor").exit_code == 0
    assert "no damage found" in run("repair").stdout


def test_a_store_may_be_given_as_a_file(run, store):
    """A file that begins as a store does is one."""
    (told,) = json.loads(run("repair", store, "--json").stdout)
    assert told["format"] == "holdfast"
    assert [(one["kind"], one["entry_id"]) for one in told["found"]] == [("entry", "b")]
    assert told["backup"] == str(beside(store, "bak-")[0])


def test_no_store_is_nothing_to_repair(run, home):
    """Where there is no store none is made."""
    result = run("repair")
    assert result.exit_code == 0
    assert "it is empty" in result.stdout
    assert list(home.iterdir()) == []


def test_a_session_of_the_store_is_no_file(run, decided):
    """Where the name of a file is a session of the store, what makes a file of it is told."""
    for name in ("repair", "replay"):
        assert f"holdfast export {decided}" in run(name, decided).stderr


def test_a_folder_is_no_store(run, tmp_path):
    """A folder in place of the store is told as one."""
    assert "is a folder" in run("repair", "--store", tmp_path).stderr


def test_a_store_that_is_none_is_named(run, home):
    """Also where only a copy would be repaired the message names the file that was given."""
    with sqlite3.connect(home / "other.db") as database:
        database.execute("CREATE TABLE theirs (x)")
    database.close()
    (home / "torn.db").write_bytes(b"SQLite format 3\x00" + b"\x00" * 200)
    for name in ("other.db", "torn.db"):
        done, tried = (run("repair", name, *more) for more in ((), ("--dry-run",)))
        assert tried.exit_code == done.exit_code == 2
        assert tried.stderr == done.stderr
        assert tried.stderr.startswith(name)
