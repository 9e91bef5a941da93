"""Import and replay of sessions in OpenClaw's database."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

SCHEMA = """
CREATE TABLE session_windows (session_id TEXT PRIMARY KEY, session_key TEXT NOT NULL, created_at INTEGER NOT NULL);
CREATE TABLE transcript_events (
  session_id TEXT NOT NULL, seq INTEGER NOT NULL, event_json TEXT NOT NULL, created_at INTEGER NOT NULL,
  PRIMARY KEY (session_id, seq));
"""


def build_lines(session: str, turns: int) -> list[str]:
    """Return the lines of a session as OpenClaw writes them."""
    head = {"timestamp": "2026-10-02T08:00:00.000Z"}
    lines = [{"type": "session", "version": 3, "id": session, "cwd": "/w"} | head]
    parent = None
    for number in range(2 * turns):
        message = {"role": "user", "content": f"question {number}"}
        if number % 2:
            usage = {"input": 500, "output": 9, "cacheRead": 0, "cacheWrite": 0}
            message = {"role": "assistant", "content": [{"type": "text", "text": f"answer {number}"}]}
            message |= {"api": "anthropic-messages", "model": "m", "usage": usage, "stopReason": "stop"}
        id_ = f"e{number}"
        lines.append({"type": "message", "id": id_, "parentId": parent, "message": message} | head)
        parent = id_
    return [json.dumps(line) for line in lines]


@pytest.fixture
def openclaw_database(home: Path) -> Path:
    """Return a database with sessions of two turns and of one, where OpenClaw keeps it."""
    path = home / ".openclaw" / "agents" / "main" / "agent" / "openclaw-agent.sqlite"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as db:
        db.executescript(SCHEMA)
        for number, (session, turns) in enumerate((("first", 2), ("second", 1))):
            db.execute("INSERT INTO session_windows VALUES (?, 'agent:main:main', ?)", (session, number))
            for seq, line in enumerate(build_lines(session, turns)):
                db.execute(
                    "INSERT INTO transcript_events VALUES (?, ?, ?, ?)", (session, seq, line, 100 * number + seq)
                )
        db.commit()
    return path


def test_import_adds_every_session_of_an_openclaw_database(run, openclaw_database):
    """Each becomes a session under its own id, importing again adds nothing, and ``show`` lists its messages."""
    first, second = (json.loads(run("import", openclaw_database, "--json").stdout) for _ in range(2))
    assert [(report["session"], report["format"], report["problems"]) for report in first] == [
        ("first", "pi", []),
        ("second", "pi", []),
    ]
    assert [(report["added"], report["already_there"]) for report in second] == [
        (0, report["added"]) for report in first
    ]
    listed = {row["key"]: row for row in json.loads(run("ls", "--json").stdout)}
    assert (listed["first"]["title"], listed["first"]["model"]) == ("question 0", "m")
    assert "answer 3" in run("show", "first").output


def test_import_continues_a_session_that_openclaw_moved_into_its_database(run, openclaw_database, home):
    """The session was imported from its file before OpenClaw moved it: only what is new is added."""
    old_file = home / "first.jsonl"
    old_file.write_text("\n".join(build_lines("first", 1)) + "\n")
    (before,) = json.loads(run("import", old_file, "--json").stdout)
    (after,) = json.loads(run("import", openclaw_database, "--session", "first", "--json").stdout)
    assert after["already_there"] == before["added"]
    assert after["added"] > 0


def test_import_session_selects_one_session_of_an_openclaw_database(run, openclaw_database):
    """Without ``--session`` a command that takes one session says how to choose it."""
    chosen = json.loads(run("import", openclaw_database, "--session", "sec", "--json").stdout)
    assert [report["session"] for report in chosen] == ["second"]
    refused = run("import", openclaw_database, "--as", "mine")
    assert (refused.exit_code, "choose one with --session" in refused.stderr) == (2, True)


def test_replay_latest_and_doctor_find_openclaw(run, openclaw_database):
    """The newest session is found where OpenClaw keeps it, and ``doctor`` counts the database as readable."""
    result = run("replay", "--latest", "--json", "--no-cuts", "--policy", "append-only")
    assert [row["requests"] for row in json.loads(result.stdout)] == [1], result.output
    checks = {check["subject"]: check for check in json.loads(run("doctor", "--json").stdout)["checks"]}
    assert (checks["OpenClaw"]["state"], checks["OpenClaw"]["text"][:13]) == ("ok", "1 database in")


@pytest.mark.parametrize(("command", "exit_code"), [("repair", 2), ("lint", 1)])
def test_repair_and_lint_refuse_an_openclaw_database(run, openclaw_database, command, exit_code):
    """What is read and nothing else is refused with what to do, and is not touched."""
    before = openclaw_database.read_bytes()
    result = run(command, openclaw_database)
    assert (result.exit_code, "holdfast import" in " ".join(result.output.split())) == (exit_code, True), result.output
    assert openclaw_database.read_bytes() == before


def test_replay_latest_passes_over_a_database_without_sessions(run, openclaw_database, home):
    """A database that holds logins alone, as before 2026.8, may be the newest file and is no session."""
    other = home / ".openclaw" / "agents" / "other" / "agent" / "openclaw-agent.sqlite"
    other.parent.mkdir(parents=True)
    with closing(sqlite3.connect(other)) as db:
        db.executescript("CREATE TABLE schema_meta (a); CREATE TABLE auth_profile_store (b);")
    os.utime(other, (4_000_000_000, 4_000_000_000))
    result = run("replay", "--latest", "--json", "--no-cuts", "--policy", "append-only")
    assert [row["requests"] for row in json.loads(result.stdout)] == [1], result.output
    openclaw_database.unlink()
    refused = run("replay", "--latest")
    assert (refused.exit_code, "agents/*/sessions/*.jsonl" in " ".join(refused.output.split())) == (2, True)
