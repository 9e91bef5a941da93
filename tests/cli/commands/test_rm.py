"""``rm``: it shows what goes, asks, and takes the session and nothing else."""

from __future__ import annotations

import json
import pty
import subprocess
import sys
from contextlib import closing
from os import close, environ, read, write
from sqlite3 import connect

import pytest

from holdfast.errors import UnknownId
from holdfast.store.open_store import open_store


def sessions(home):
    """Return the keys of the sessions that are there."""
    with open_store(home / "store" / "holdfast.db", readonly=True) as store:
        return sorted(info.key for info in store.list_sessions())


def test_nothing_goes_without_a_yes(run, home, decided):
    """Where there is nobody to ask nothing is removed, and the message says what to give."""
    for arguments in ((), ("--json",)):
        result = run("rm", decided, *arguments, given="y\n")
        assert result.exit_code == 2
        assert "--yes" in result.stderr
    assert sessions(home) == [decided]


def test_a_session_goes_and_its_texts_stay(run, home, decided):
    """With ``--yes`` the session goes; what it named is told and left for ``gc``; its recording is not touched."""
    result = run("rm", decided[:4], "--yes")
    assert result.exit_code == 0
    assert f"removed {decided}" in result.stdout
    assert "1 text of " in result.stdout
    assert "holdfast gc" in result.stdout
    assert sessions(home) == []
    assert (home / "session.jsonl").exists()
    with open_store(home / "store" / "holdfast.db") as store:
        assert len(list(store.blobs.iter_hashes())) == 1


@pytest.mark.parametrize("entry", ["c1", "d1"])
def test_a_damaged_session_goes_too(run, home, decided, entry):
    """What cannot be read is told to be damaged and can be removed: whether its tip or what names a blob."""
    with closing(connect(home / "store" / "holdfast.db", isolation_level=None)) as db:
        db.execute("UPDATE entries SET body = x'00' WHERE id = ?", (entry,))
    result = run("rm", decided, "--yes")
    assert result.exit_code == 0, result.stderr
    assert ("damaged" in result.stdout) == (entry == "c1")
    assert sessions(home) == []


def test_a_damaged_session_keeps_no_other_from_going(run, home, decided, talk, write):
    """Blobs that a log may name which cannot be read are told to be nobody's alone."""
    run("import", write(home / "other.jsonl", talk(2, session="77777777")))
    with closing(connect(home / "store" / "holdfast.db", isolation_level=None)) as db:
        db.execute("UPDATE entries SET body = x'00' WHERE id = 'c1'")
    (told,) = json.loads(run("rm", "77777777", "--yes", "--json").stdout)
    assert (told["branches"], told["blobs"]) == (1, [])
    assert sessions(home) == [decided]


def test_json_tells_what_went(run, home, decided):
    """A program reads the same facts."""
    (told,) = json.loads(run("rm", decided, "--yes", "--json").stdout)
    assert told["session"] == decided
    assert (told["branches"], len(told["blobs"])) == (1, 1)
    assert told["entries"] > 12
    assert told["blob_bytes"] > 0
    assert sessions(home) == []


def test_one_unknown_id_keeps_all(run, home, decided):
    """Sessions are found before any is removed; the same one twice is one."""
    result = run("rm", decided, "nowhere", "--yes")
    assert result.exit_code == 2
    assert "'nowhere'" in result.stderr
    assert sessions(home) == [decided]
    assert run("rm", decided, decided[:5], "--yes", "--json").stdout.count('"session"') == 1


def test_sessions_of_sub_agents_stay_and_are_named(run, home, decided):
    """Who removes a session is told which others hang on it; those that go with it are not told."""
    with open_store(home / "store" / "holdfast.db") as store:
        for key in (f"a1@{decided}", f"b2@{decided}", "c3@another"):
            store.create_session(key)
    shown = run("rm", decided, f"b2@{decided}", "--yes").stdout
    assert f"1 session of its sub-agents stays; holdfast rm removes it too: a1@{decided}\n" in shown
    assert "c3" not in shown
    assert sessions(home) == [f"a1@{decided}", "c3@another"]
    assert "sub-agents" not in run("rm", f"a1@{decided}", "--yes").stdout


def test_json_names_the_sub_agents_that_stay(run, home, decided):
    """A program reads the same facts; of many a person is shown the first few."""
    keys = [f"a{number}@{decided}" for number in range(7)]
    with open_store(home / "store" / "holdfast.db") as store:
        for key in keys:
            store.create_session(key)
    (told,) = json.loads(run("rm", decided, "--yes", "--json").stdout)
    assert sorted(told["sub_agents_left"]) == keys
    with open_store(home / "store" / "holdfast.db") as store:
        store.create_session(decided)
    shown = run("rm", decided, "--yes").stdout
    assert "7 sessions of its sub-agents stay; holdfast rm removes them too: " in shown
    assert "and 2 more" in shown
    assert sum(key in shown for key in keys) == 5


def test_a_session_that_is_being_written_stays(run, home, decided):
    """one-writer: somebody else's session is not pulled away under them, nor are the others of the same call."""
    with open_store(home / "store" / "holdfast.db") as store:
        store.create_session("other")
        with store.hold_lease("other"):
            result = run("rm", decided, "other", "--yes")
    assert result.exit_code == 2
    assert "being written" in result.stderr
    assert sessions(home) == sorted([decided, "other"])


@pytest.mark.parametrize("wrong", ["../../x", "CON", "", "x" * 10_000, "-1"])
def test_wrong_ids_are_told(run, home, decided, wrong):
    """Any text that is no session is a message of one line, and makes no store."""
    result = run("rm", "--yes", "--", wrong)
    assert result.exit_code == 2
    assert len(result.stderr) < 400
    assert sessions(home) == [decided]
    missing = run("rm", "x", "--yes", "--store", str(home / "none.db"))
    assert missing.exit_code == 2
    assert "there is no store" in missing.stderr
    assert not (home / "none.db").exists()


@pytest.mark.parametrize(("said", "left"), [("n", 1), ("y", 0)])
def test_a_person_is_asked(home, decided, said, left):
    """At a terminal what goes is shown and asked about; no is the default and changes nothing."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", "rm", decided]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=dict(environ)) as process:
        close(theirs)
        told = b""
        while b"[y/N]" not in told:
            told += read(ours, 1024)
        write(ours, f"{said}\n".encode())
        process.wait(timeout=20)
    close(ours)
    assert decided.encode() in told
    assert b"1 branch" in told
    assert process.returncode == 0
    assert len(sessions(home)) == left


def test_removed_is_removed(run, home, decided):
    """Another command finds nothing of it."""
    run("rm", decided, "--yes")
    assert run("show", decided).exit_code == 2
    with open_store(home / "store" / "holdfast.db") as store, pytest.raises(UnknownId):
        store.read_path(decided)
