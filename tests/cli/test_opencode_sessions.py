"""Import, replay and export of sessions of opencode and Gemini CLI."""

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


def build_exported_session(id_: str, turns: int) -> dict[str, Any]:
    """Return a session of ``turns`` turns as opencode exports it."""
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


def write_database(path: Path, *turns: int) -> Path:
    """Write a database with one session for each number of turns."""
    stored_sessions = [
        stored_session
        for at, many in enumerate(turns)
        for stored_session in iter_opencode_sessions(
            read_recording(json.dumps(build_exported_session(f"ses_{at}x", many)).encode())
        )
    ]
    path.write_bytes(foreign.build_opencode_database(build_opencode_rows(stored_sessions)))
    return path


@pytest.fixture
def opencode_database(home: Path) -> Path:
    return write_database(home / "opencode.db", 3, 2)


def import_sessions(run: Any, *arguments: Any) -> list[dict[str, Any]]:
    result = run("import", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_import_adds_every_session_of_an_opencode_database(run, opencode_database):
    """Each becomes a session under its own id, and importing again adds nothing."""
    first, second = import_sessions(run, opencode_database), import_sessions(run, opencode_database)
    assert [report["session"] for report in first] == ["ses_0x", "ses_1x"]
    assert [(report["added"], report["already_there"]) for report in second] == [
        (0, report["added"]) for report in first
    ]
    listed = json.loads(run("ls", "--json").stdout)
    assert {
        (listed_session["key"], listed_session["title"], listed_session["format"]) for listed_session in listed
    } == {
        ("ses_0x", "About ses_0x", "opencode"),
        ("ses_1x", "About ses_1x", "opencode"),
    }


def test_import_adds_only_the_new_entries_of_a_grown_database(run, opencode_database, home):
    """Only new entries are added."""
    first_reports = import_sessions(run, opencode_database)
    second_reports = import_sessions(run, write_database(home / "later.db", 4, 2))
    assert [report["already_there"] for report in second_reports] == [report["added"] for report in first_reports]
    assert [report["added"] > 0 for report in second_reports] == [True, False]


def test_import_session_selects_one_session_of_a_database(run, opencode_database):
    """``--session`` selects by prefix, ``--as`` gives it another id."""
    assert [report["session"] for report in import_sessions(run, opencode_database, "--session", "ses_1")] == ["ses_1x"]
    assert [
        report["session"] for report in import_sessions(run, opencode_database, "--session", "ses_1", "--as", "mine")
    ] == ["mine"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--as", "mine"], "has 2; choose one with --session"),
        (["--session", "ses_"], "several sessions begin with 'ses_'"),
        (["--session", "nothing"], "no session begins with 'nothing'"),
    ],
)
@pytest.mark.parametrize("command", ["import", "replay"])
def test_import_and_replay_refuse_an_ambiguous_session(run, opencode_database, command, arguments, expected):
    """A prefix of several sessions or of none is refused with what there is."""
    if command == "replay" and "--as" in arguments:
        return
    result = run(command, opencode_database, *arguments)
    assert (result.exit_code, expected in result.stderr) == (2, True), result.stderr


def test_import_session_needs_a_database(run, session):
    """``--session`` applies to databases only."""
    result = run("import", session, "--session", "x")
    assert (result.exit_code, "is not a database" in result.stderr) == (2, True)


def test_import_refuses_a_database_without_sessions(run, home):
    """A database without sessions is refused in one line."""
    result = run("import", write_database(home / "empty.db"))
    assert (result.exit_code, "has no sessions" in result.stderr) == (2, True)


def test_import_and_replay_suggest_recovery_of_a_damaged_database(run, opencode_database):
    """What SQLite cannot read is one line that suggests ``.recover``."""
    opencode_database.write_bytes(opencode_database.read_bytes()[:5_000])
    for command in ("import", "replay"):
        result = run(command, opencode_database)
        assert (result.exit_code, ".recover" in result.stderr) == (2, True), result.output
        assert "Traceback" not in result.output


def test_import_reports_database_damage_by_part(run, opencode_database):
    """Damage inside a database has no line number, so the message names the part."""
    with closing(sqlite3.connect(opencode_database)) as db:
        db.execute("UPDATE part SET data = '{' WHERE session_id = 'ses_1x' AND message_id LIKE 'msg_000000000000%'")
        db.commit()
    result = run("import", opencode_database)
    assert result.exit_code == 0
    assert "  part prt_" in result.stdout
    assert "line 0" not in result.stdout


def test_replay_reports_each_session_of_a_database(run, opencode_database):
    """Each session is a row of its own for each policy."""
    result = run("replay", opencode_database, "--policy", "append-only", "--json", "--no-cuts")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [row["file"].rpartition("#")[2] for row in rows] == ["ses_0x", "ses_1x"]
    assert [row["requests"] for row in rows] == [3, 2]


def test_export_writes_an_opencode_database(run, opencode_database, home):
    """An imported session is exported as a database with the same entries."""
    import_sessions(run, opencode_database)
    assert run("export", "ses_0x", "-o", home / "out.db").exit_code == 0
    with (
        foreign.open_opencode_database(opencode_database) as old,
        foreign.open_opencode_database(home / "out.db") as new,
    ):
        assert [stored_session.id for stored_session in new.list_root_sessions()] == ["ses_0x"]
        assert new.read_recording("ses_0x").entries == old.read_recording("ses_0x").entries


def test_export_as_a_database_needs_a_file(run, opencode_database):
    """A database is not printed."""
    import_sessions(run, opencode_database)
    for more in ([], ["--json"]):
        result = run("export", "ses_0x", *more)
        assert (result.exit_code, "-o FILE" in result.stderr) == (2, True)


@pytest.mark.parametrize("form", ["opencode", "opencode-json", "gemini-cli"])
def test_export_converts_a_session_to_opencode_and_gemini_cli(run, session, home, form):
    """A Claude Code session is exported in their format, and imported again with the same text."""
    import_sessions(run, session)
    assert run("export", "5e55", "--format", form, "-o", home / "out").exit_code == 0
    (copy,) = import_sessions(run, home / "out", "--as", "back")
    assert (copy["format"], copy["problems"]) == ("gemini-cli" if form == "gemini-cli" else "opencode", [])
    first, second = (json.loads(run("show", key, "--json").stdout) for key in ("5e55", "back"))
    assert json.dumps(second).count("function_1_1 is in src/module_1.py") == 1
    assert len(first) > 0


def test_export_as_json_and_as_database_are_the_same_session(run, edited_session, home):
    """The second import adds nothing, a compaction included."""
    assert run("export", edited_session, "--format", "opencode-json", "-o", home / "first.json").exit_code == 0
    (first,) = import_sessions(run, home / "first.json", "--as", "back")
    assert run("export", "back", "--format", "opencode", "-o", home / "second.db").exit_code == 0
    (second,) = import_sessions(run, home / "second.db", "--as", "back")
    assert (second["added"], second["already_there"]) == (0, first["added"])


def test_replay_latest_and_all_include_opencodes_database(run, home, write_lines, make_session_lines):
    """Both look into the database, and ``doctor`` names it."""
    older = write_lines(home / ".claude" / "projects" / "-w" / "a.jsonl", make_session_lines(2))
    os.utime(older, (1, 1))
    folder = home / ".local" / "share" / "opencode"
    folder.mkdir(parents=True)
    path = write_database(folder / "opencode.db", 1, 2)
    options = ("--json", "--no-cuts", "--policy", "sliding")
    assert [row["file"] for row in json.loads(run("replay", "--latest", *options).stdout)] == [f"{path}#ses_1x"]
    every = [row["file"] for row in json.loads(run("replay", "--all", *options).stdout)]
    assert every == [f"{path}#ses_0x", f"{path}#ses_1x", str(older)]
    os.utime(path, (0, 0))
    assert [row["file"] for row in json.loads(run("replay", "--latest", *options).stdout)] == [str(older)]
    path.with_name("opencode.db-wal").touch()
    assert json.loads(run("replay", "--latest", *options).stdout)[0]["file"].startswith(str(path))
    texts_by_subject = {
        check["subject"]: check["text"] for check in json.loads(run("doctor", "--json").stdout)["checks"]
    }
    assert texts_by_subject["opencode"] == f"1 database in {folder}, the newest now"
