"""The commands on sessions of opencode and of Gemini CLI: in, replayed, and out."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.formats import read_recording
from holdfast.formats.opencode.rows import build_opencode_rows
from holdfast.formats.opencode.write import iter_opencode_sessions
from holdfast.store.foreign import opencode as foreign


def exported(id_: str, turns: int) -> dict[str, Any]:
    """Return a session of so many turns as opencode exports it."""
    messages = []
    for number in range(2 * turns):
        name = f"msg_{number:012x}{id_}"
        about: dict[str, Any] = {"id": name, "sessionID": id_, "time": {"created": 1_000 + number, "completed": 1_000}}
        if number % 2:
            tokens = {"input": 500, "output": 9, "reasoning": 0, "cache": {"read": 0, "write": 0}}
            about |= {"role": "assistant", "parentID": name, "modelID": "m", "providerID": "p", "finish": "stop"}
            about |= {
                "mode": "build",
                "agent": "build",
                "path": {"cwd": "/w", "root": "/w"},
                "cost": 0,
                "tokens": tokens,
            }
        else:
            about |= {"role": "user", "agent": "build", "model": {"providerID": "p", "modelID": "m"}}
        part = {
            "id": f"prt_{number:012x}{id_}",
            "sessionID": id_,
            "messageID": name,
            "type": "text",
            "text": f"say {number}",
        }
        messages.append({"info": about, "parts": [part]})
    info = {"id": id_, "slug": "s", "projectID": "global", "directory": "/w", "title": f"About {id_}", "version": "1"}
    return {"info": info | {"time": {"created": 1_000, "updated": 1_000}}, "messages": messages}


def database(path: Path, *turns: int) -> Path:
    """Write a database with a session for each number of turns."""
    helds = [
        held
        for at, many in enumerate(turns)
        for held in iter_opencode_sessions(read_recording(json.dumps(exported(f"ses_{at}x", many)).encode()))
    ]
    path.write_bytes(foreign.build_opencode_database(build_opencode_rows(helds)))
    return path


@pytest.fixture
def held(home: Path) -> Path:
    return database(home / "opencode.db", 3, 2)


def imported(run: Any, *arguments: Any) -> list[dict[str, Any]]:
    result = run("import", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_import_takes_every_session_of_a_database(run, held):
    """Each becomes a session of the store under its own id; importing again adds nothing."""
    first, second = imported(run, held), imported(run, held)
    assert [one["session"] for one in first] == ["ses_0x", "ses_1x"]
    assert [(one["added"], one["already_there"]) for one in second] == [(0, one["added"]) for one in first]
    listed = json.loads(run("ls", "--json").stdout)
    assert {(one["key"], one["title"], one["format"]) for one in listed} == {
        ("ses_0x", "About ses_0x", "opencode"),
        ("ses_1x", "About ses_1x", "opencode"),
    }


def test_import_of_a_database_that_grew(run, held, home):
    """Only what is new is added."""
    before = imported(run, held)
    after = imported(run, database(home / "later.db", 4, 2))
    assert [one["already_there"] for one in after] == [one["added"] for one in before]
    assert [one["added"] > 0 for one in after] == [True, False]


def test_import_of_one_session(run, held):
    """``--session`` names it by its beginning, ``--as`` gives it another id."""
    assert [one["session"] for one in imported(run, held, "--session", "ses_1")] == ["ses_1x"]
    assert [one["session"] for one in imported(run, held, "--session", "ses_1", "--as", "mine")] == ["mine"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--as", "mine"], "has 2; choose one with --session"),
        (["--session", "ses_"], "several sessions begin with 'ses_'"),
        (["--session", "nothing"], "no session begins with 'nothing'"),
    ],
)
@pytest.mark.parametrize("command", ["import", "replay"])
def test_sessions_that_cannot_be_meant(run, held, command, arguments, said):
    """What names several sessions or none is refused with what there is."""
    if command == "replay" and "--as" in arguments:
        return
    result = run(command, held, *arguments)
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr


def test_session_of_a_file_that_is_no_database(run, session):
    """``--session`` is for databases."""
    result = run("import", session, "--session", "x")
    assert (result.exit_code, "is not a database" in result.stderr) == (2, True)


def test_an_empty_database(run, home):
    """A database without sessions is refused in one line."""
    result = run("import", database(home / "empty.db"))
    assert (result.exit_code, "has no sessions" in result.stderr) == (2, True)


def test_a_damaged_database(run, held):
    """What SQLite cannot read is one line that says what saves it."""
    held.write_bytes(held.read_bytes()[:5_000])
    for command in ("import", "replay"):
        result = run(command, held)
        assert (result.exit_code, ".recover" in result.stderr) == (2, True), result.output
        assert "Traceback" not in result.output


def test_damage_is_told_without_a_line(run, held):
    """What is wrong inside a database has no line; it is told with what it is in."""
    with closing(sqlite3.connect(held)) as db:
        db.execute("UPDATE part SET data = '{' WHERE session_id = 'ses_1x' AND message_id LIKE 'msg_000000000000%'")
        db.commit()
    result = run("import", held)
    assert result.exit_code == 0
    assert "  part prt_" in result.stdout
    assert "line 0" not in result.stdout


def test_replay_of_a_database(run, held):
    """Each session is a row of its own for each policy."""
    result = run("replay", held, "--policy", "append-only", "--json", "--no-cuts")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [row["file"].rpartition("#")[2] for row in rows] == ["ses_0x", "ses_1x"]
    assert [row["requests"] for row in rows] == [3, 2]


def test_export_as_a_database(run, held, home):
    """What was imported goes out as a database that holds the same session."""
    imported(run, held)
    assert run("export", "ses_0x", "-o", home / "out.db").exit_code == 0
    with foreign.open_opencode_database(held) as old, foreign.open_opencode_database(home / "out.db") as new:
        assert [one.id for one in new.list_root_sessions()] == ["ses_0x"]
        assert new.read_recording("ses_0x").entries == old.read_recording("ses_0x").entries


def test_a_database_needs_a_file(run, held):
    """A database is not printed."""
    imported(run, held)
    for more in ([], ["--json"]):
        result = run("export", "ses_0x", *more)
        assert (result.exit_code, "-o FILE" in result.stderr) == (2, True)


@pytest.mark.parametrize("form", ["opencode", "opencode-json", "gemini-cli"])
def test_export_of_another_tools_session(run, session, home, form):
    """A session of Claude Code becomes one of theirs, which is taken in again and says the same."""
    imported(run, session)
    assert run("export", "5e55", "--format", form, "-o", home / "out").exit_code == 0
    (back,) = imported(run, home / "out", "--as", "back")
    assert (back["format"], back["problems"]) == ("gemini-cli" if form == "gemini-cli" else "opencode", [])
    first, second = (json.loads(run("show", key, "--json").stdout) for key in ("5e55", "back"))
    assert json.dumps(second).count("function_1_1 is in src/module_1.py") == 1
    assert len(first) > 0


def test_what_is_exported_either_way_is_the_same_session(run, decided, home):
    """What opencode imports, and the database, are read as one: the second adds nothing, a compaction neither."""
    assert run("export", decided, "--format", "opencode-json", "-o", home / "first.json").exit_code == 0
    (first,) = imported(run, home / "first.json", "--as", "back")
    assert run("export", "back", "--format", "opencode", "-o", home / "second.db").exit_code == 0
    (second,) = imported(run, home / "second.db", "--as", "back")
    assert (second["added"], second["already_there"]) == (0, first["added"])


def test_the_newest_session_of_opencode(run, home, write, talk):
    """``replay --latest`` and ``--all`` look into the database too, and ``doctor`` names it."""
    older = write(home / ".claude" / "projects" / "-w" / "a.jsonl", talk(2))
    os.utime(older, (1, 1))
    folder = home / ".local" / "share" / "opencode"
    folder.mkdir(parents=True)
    path = database(folder / "opencode.db", 1, 2)
    asked = ("--json", "--no-cuts", "--policy", "sliding")
    assert [one["file"] for one in json.loads(run("replay", "--latest", *asked).stdout)] == [f"{path}#ses_1x"]
    every = [one["file"] for one in json.loads(run("replay", "--all", *asked).stdout)]
    assert every == [f"{path}#ses_0x", f"{path}#ses_1x", str(older)]
    os.utime(path, (0, 0))
    assert [one["file"] for one in json.loads(run("replay", "--latest", *asked).stdout)] == [str(older)]
    path.with_name("opencode.db-wal").touch()
    assert json.loads(run("replay", "--latest", *asked).stdout)[0]["file"].startswith(str(path))
    found = {one["subject"]: one["text"] for one in json.loads(run("doctor", "--json").stdout)["checks"]}
    assert found["opencode"] == f"1 database in {folder}, the newest now"
