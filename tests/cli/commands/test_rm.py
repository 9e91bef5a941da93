"""``holdfast rm``: it shows what will be removed, asks, and removes the session and nothing else."""

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


def list_session_keys(home):
    """Return the keys of the stored sessions."""
    with open_store(home / "store" / "holdfast.db", readonly=True) as store:
        return sorted(info.key for info in store.list_sessions())


def test_rm_without_confirmation_exits_2_and_removes_nothing(run, home, edited_session):
    """Without a terminal to ask at, the message says to give --yes."""
    for arguments in ((), ("--json",)):
        result = run("rm", edited_session, *arguments, stdin="y\n")
        assert result.exit_code == 2
        assert "--yes" in result.stderr
    assert list_session_keys(home) == [edited_session]


def test_rm_removes_the_session_and_leaves_its_texts_to_gc(run, home, edited_session):
    """With ``--yes`` the session is removed; its stored texts are reported and left for ``gc``, its recording is not
    touched.
    """
    result = run("rm", edited_session[:4], "--yes")
    assert result.exit_code == 0
    assert f"removed {edited_session}" in result.stdout
    assert "1 text of " in result.stdout
    assert "holdfast gc" in result.stdout
    assert list_session_keys(home) == []
    assert (home / "session.jsonl").exists()
    with open_store(home / "store" / "holdfast.db") as store:
        assert len(list(store.blobs.iter_hashes())) == 1


@pytest.mark.parametrize("entry", ["c1", "d1"])
def test_rm_removes_a_damaged_session(run, home, edited_session, entry):
    """A session with an unreadable entry is reported as damaged and can be removed."""
    with closing(connect(home / "store" / "holdfast.db", isolation_level=None)) as db:
        db.execute("UPDATE entries SET body = x'00' WHERE id = ?", (entry,))
    result = run("rm", edited_session, "--yes")
    assert result.exit_code == 0, result.stderr
    assert ("damaged" in result.stdout) == (entry == "c1")
    assert list_session_keys(home) == []


def test_rm_is_not_blocked_by_another_damaged_session(run, home, edited_session, make_session_lines, write_lines):
    """Stored texts that an unreadable log may refer to are not reported as unused."""
    run("import", write_lines(home / "other.jsonl", make_session_lines(2, session="77777777")))
    with closing(connect(home / "store" / "holdfast.db", isolation_level=None)) as db:
        db.execute("UPDATE entries SET body = x'00' WHERE id = 'c1'")
    (report,) = json.loads(run("rm", "77777777", "--yes", "--json").stdout)
    assert (report["branches"], report["blobs"]) == (1, [])
    assert list_session_keys(home) == [edited_session]


def test_rm_json_prints_what_was_removed(run, home, edited_session):
    """A program reads the same facts."""
    (report,) = json.loads(run("rm", edited_session, "--yes", "--json").stdout)
    assert report["session"] == edited_session
    assert (report["branches"], len(report["blobs"])) == (1, 1)
    assert report["entries"] > 12
    assert report["blob_bytes"] > 0
    assert list_session_keys(home) == []


def test_rm_with_an_unknown_id_removes_nothing(run, home, edited_session):
    """All sessions are resolved before any is removed, and the same one given twice counts once."""
    result = run("rm", edited_session, "nowhere", "--yes")
    assert result.exit_code == 2
    assert "'nowhere'" in result.stderr
    assert list_session_keys(home) == [edited_session]
    assert run("rm", edited_session, edited_session[:5], "--yes", "--json").stdout.count('"session"') == 1


def test_rm_names_the_sub_agent_sessions_that_stay(run, home, edited_session):
    """Sub-agent sessions that stay are named; those removed with it are not."""
    with open_store(home / "store" / "holdfast.db") as store:
        for key in (f"a1@{edited_session}", f"b2@{edited_session}", "c3@another"):
            store.create_session(key)
    printed = run("rm", edited_session, f"b2@{edited_session}", "--yes").stdout
    assert f"1 session of its sub-agents stays; holdfast rm removes it too: a1@{edited_session}\n" in printed
    assert "c3" not in printed
    assert list_session_keys(home) == [f"a1@{edited_session}", "c3@another"]
    assert "sub-agents" not in run("rm", f"a1@{edited_session}", "--yes").stdout


def test_rm_json_lists_the_sub_agent_sessions_that_stay(run, home, edited_session):
    """JSON lists all of them, text only the first few."""
    keys = [f"a{number}@{edited_session}" for number in range(7)]
    with open_store(home / "store" / "holdfast.db") as store:
        for key in keys:
            store.create_session(key)
    (report,) = json.loads(run("rm", edited_session, "--yes", "--json").stdout)
    assert sorted(report["sub_agents_left"]) == keys
    with open_store(home / "store" / "holdfast.db") as store:
        store.create_session(edited_session)
    printed = run("rm", edited_session, "--yes").stdout
    assert "7 sessions of its sub-agents stay; holdfast rm removes them too: " in printed
    assert "and 2 more" in printed
    assert sum(key in printed for key in keys) == 5


def test_rm_keeps_a_session_that_is_being_written(run, home, edited_session):
    """one-writer: a session with a writer is not removed, nor are the others of the same call."""
    with open_store(home / "store" / "holdfast.db") as store:
        store.create_session("other")
        with store.hold_lease("other"):
            result = run("rm", edited_session, "other", "--yes")
    assert result.exit_code == 2
    assert "being written" in result.stderr
    assert list_session_keys(home) == sorted([edited_session, "other"])


@pytest.mark.parametrize("wrong", ["../../x", "CON", "", "x" * 10_000, "-1"])
def test_rm_exits_2_for_wrong_ids(run, home, edited_session, wrong):
    """Text that is no session id gets a short message, and no store is created."""
    result = run("rm", "--yes", "--", wrong)
    assert result.exit_code == 2
    assert len(result.stderr) < 400
    assert list_session_keys(home) == [edited_session]
    missing = run("rm", "x", "--yes", "--store", str(home / "none.db"))
    assert missing.exit_code == 2
    assert "there is no store" in missing.stderr
    assert not (home / "none.db").exists()


@pytest.mark.parametrize(("answer", "sessions_left"), [("n", 1), ("y", 0)])
def test_rm_asks_at_a_terminal(home, edited_session, answer, sessions_left):
    """At a terminal what will be removed is shown and confirmed; no is the default and changes nothing."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", "rm", edited_session]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=dict(environ)) as process:
        close(theirs)
        printed = b""
        while b"[y/N]" not in printed:
            printed += read(ours, 1024)
        write(ours, f"{answer}\n".encode())
        process.wait(timeout=20)
    close(ours)
    assert edited_session.encode() in printed
    assert b"1 branch" in printed
    assert process.returncode == 0
    assert len(list_session_keys(home)) == sessions_left


def test_rm_leaves_nothing_for_other_commands(run, home, edited_session):
    """Another command finds nothing of a removed session."""
    run("rm", edited_session, "--yes")
    assert run("show", edited_session).exit_code == 2
    with open_store(home / "store" / "holdfast.db") as store, pytest.raises(UnknownId):
        store.read_path(edited_session)
