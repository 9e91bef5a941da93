"""Import and replay of sessions of goose."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

SCHEMA = """
CREATE TABLE schema_version (version INTEGER PRIMARY KEY);
CREATE TABLE sessions (
  id TEXT PRIMARY KEY, name TEXT, working_dir TEXT NOT NULL, created_at TIMESTAMP, model_config_json TEXT);
CREATE TABLE messages (
  id INTEGER PRIMARY KEY AUTOINCREMENT, message_id TEXT, session_id TEXT, role TEXT, content_json TEXT,
  created_timestamp INTEGER, metadata_json TEXT);
"""


@pytest.fixture
def goose_database(home: Path) -> Path:
    """Return a database with sessions of two turns and of one, where goose keeps it."""
    path = home / ".local" / "share" / "goose" / "sessions" / "sessions.db"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as db:
        db.executescript(SCHEMA)
        for number, turns in (1, 2), (2, 1):
            id_ = f"20261002_{number}"
            model = json.dumps({"model_name": "m"})
            db.execute("INSERT INTO sessions VALUES (?, ?, '/w', ?, ?)", (id_, f"About {id_}", id_, model))
            for turn in range(turns):
                for role, words in ("user", f"question {turn}"), ("assistant", f"answer {turn}"):
                    content = json.dumps([{"type": "text", "text": words}])
                    db.execute(
                        "INSERT INTO messages (message_id, session_id, role, content_json, created_timestamp) "
                        "VALUES (?, ?, ?, ?, ?)",
                        (f"{role}{turn}", id_, role, content, 1_790_000_000 + turn),
                    )
        db.commit()
    return path


def test_import_adds_every_session_of_a_goose_database(run, goose_database):
    """Each becomes a session under its own id, importing again adds nothing, and ``show`` lists its messages."""
    first, second = (json.loads(run("import", goose_database, "--json").stdout) for _ in range(2))
    assert [(report["session"], report["format"], report["problems"]) for report in first] == [
        ("20261002_1", "goose", []),
        ("20261002_2", "goose", []),
    ]
    assert [(report["added"], report["already_there"]) for report in second] == [
        (0, report["added"]) for report in first
    ]
    listed = {row["key"]: row for row in json.loads(run("ls", "--json").stdout)}
    assert (listed["20261002_1"]["title"], listed["20261002_1"]["model"]) == ("About 20261002_1", "m")
    assert "answer 1" in run("show", "20261002_1").output


def test_import_session_selects_one_session_of_a_goose_database(run, goose_database):
    """Without ``--session`` a command that takes one session says how to choose it."""
    chosen = json.loads(run("import", goose_database, "--session", "20261002_2", "--json").stdout)
    assert [report["session"] for report in chosen] == ["20261002_2"]
    refused = run("import", goose_database, "--as", "mine")
    assert (refused.exit_code, "choose one with --session" in refused.stderr) == (2, True)


def test_replay_latest_and_doctor_find_goose(run, goose_database):
    """The newest session is found where goose keeps it, and ``doctor`` counts the database as readable."""
    result = run("replay", "--latest", "--json", "--no-cuts", "--policy", "append-only")
    assert [row["requests"] for row in json.loads(result.stdout)] == [1], result.output
    checks = {check["subject"]: check for check in json.loads(run("doctor", "--json").stdout)["checks"]}
    assert checks["goose"]["text"].startswith("1 database in")


@pytest.mark.parametrize(("command", "exit_code"), [("repair", 2), ("lint", 1)])
def test_repair_and_lint_refuse_a_goose_database(run, goose_database, command, exit_code):
    """What is read and nothing else is refused with what to do, and is not touched."""
    before = goose_database.read_bytes()
    result = run(command, goose_database)
    assert (result.exit_code, "holdfast import" in " ".join(result.output.split())) == (exit_code, True), result.output
    assert goose_database.read_bytes() == before
