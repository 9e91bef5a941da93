"""Import and replay of sessions of Copilot CLI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def build_event(type_: str, id_: str, **data: Any) -> dict[str, Any]:
    return {"type": type_, "id": id_, "timestamp": "2026-10-02T08:00:00.000Z", "parentId": None, "data": data}


@pytest.fixture
def session_folder(home: Path) -> Path:
    """Return the folder of a session of two turns, where the client keeps it."""
    events = [build_event("session.start", "s", sessionId="S-1", selectedModel="m", context={"cwd": "/w"})]
    for turn in range(2):
        events.append(build_event("user.message", f"u{turn}", content=f"question {turn}"))
        events.append(build_event("assistant.message", f"a{turn}", content=f"answer {turn}", messageId=f"m{turn}"))
    folder = home / ".copilot" / "session-state" / "S-1"
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


def test_import_takes_the_folder_of_a_copilot_cli_session(run, session_folder):
    """The folder and the file in it are the same session."""
    first = json.loads(run("import", session_folder, "--json").stdout)
    second = json.loads(run("import", session_folder / "events.jsonl", "--json").stdout)
    assert [(report["session"], report["format"], report["problems"]) for report in first] == [
        ("S-1", "copilot-cli", [])
    ]
    assert (second[0]["added"], second[0]["already_there"]) == (0, first[0]["added"])
    (listed,) = json.loads(run("ls", "--json").stdout)
    assert (listed["title"], listed["cwd"], listed["model"]) == ("question 0", "/w", "m")


def test_replay_latest_and_doctor_find_copilot_cli(run, session_folder):
    """The newest session is found where the client keeps it, and ``doctor`` counts it as readable."""
    result = run("replay", "--latest", "--json", "--no-cuts", "--policy", "append-only")
    assert [row["requests"] for row in json.loads(result.stdout)] == [2], result.output
    checks = {check["subject"]: check for check in json.loads(run("doctor", "--json").stdout)["checks"]}
    assert checks["Copilot CLI"]["text"].startswith("1 session in")


def test_repair_refuses_a_copilot_cli_session(run, session_folder):
    """A session that is read but not repaired is refused with what to do, and is not touched."""
    before = (session_folder / "events.jsonl").read_bytes()
    result = run("repair", session_folder / "events.jsonl")
    assert (result.exit_code, "import it as it is" in result.output) == (2, True), result.output
    assert (session_folder / "events.jsonl").read_bytes() == before
