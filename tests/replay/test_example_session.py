"""The long example session: what its readers rely on, in the shipped file and in a newly made one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from datetime import datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast.messages.size.tokens import estimate_text_tokens

ROOT = Path(__file__).resolve().parents[2]
HOME = "/home/dev/holdfast"
SHIPPED = ROOT / "examples" / "long-session.jsonl"


def make_session(source: Path, out: Path) -> Path:
    """Run the script on ``source``; return the file it wrote."""
    script = ROOT / "examples" / "make_long_session.py"
    subprocess.run([sys.executable, str(script), "--source", str(source), "--out", str(out)], check=True, timeout=100)
    return out


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the sources, so that edits meanwhile do not matter."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("src", "tests", "docs"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def new_session(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a session made from those sources."""
    return make_session(source, tmp_path_factory.mktemp("made") / "session.jsonl")


@pytest.fixture(params=["shipped", pytest.param("new_session", marks=pytest.mark.long)])
def session(request: pytest.FixtureRequest) -> Path:
    """Return the file under examples/, then the new one."""
    return SHIPPED if request.param == "shipped" else request.getfixturevalue("new_session")


@cache
def read_lines(session: Path) -> list[dict[str, Any]]:
    """Return the lines of a session as values."""
    return [json.loads(line) for line in session.read_text("utf-8").split("\n") if line]


def list_blocks(line: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """Return the blocks of one kind in a line."""
    content = line.get("message", {}).get("content", "")
    return [block for block in content if block["type"] == kind] if isinstance(content, list) else []


def get_text(line: dict[str, Any]) -> str:
    """Return the text that a line adds to the conversation."""
    content = line.get("message", {}).get("content", "")
    if isinstance(content, str):
        return content
    return "\n".join(str(block.get("text") or block.get("content") or block.get("input") or "") for block in content)


def test_example_session_size(session: Path) -> None:
    """The session has at least 400 messages, 8 to 14 of them typed by the user, in under 3 MB."""
    answers = {line["message"]["id"] for line in read_lines(session) if line["type"] == "assistant"}
    users = [line for line in read_lines(session) if line["type"] == "user"]
    typed = [line for line in users if isinstance(line["message"]["content"], str)]
    assert len(answers) + len(users) >= 400
    assert 8 <= len(typed) <= 14
    assert session.stat().st_size < 3_000_000


def test_example_session_has_large_results(session: Path) -> None:
    """Three tool results exceed 50 KB, and none exceeds 100 KB."""
    sizes = [
        len(block["content"].encode()) for line in read_lines(session) for block in list_blocks(line, "tool_result")
    ]
    assert sum(size > 50_000 for size in sizes) >= 3
    assert max(sizes) <= 102_400


def test_example_session_overflows_a_64k_window_twice(session: Path) -> None:
    """The conversation exceeds a window of 64,000 at least twice: over 150,000 tokens in all."""
    assert sum(estimate_text_tokens(get_text(line)) for line in read_lines(session)) > 150_000


def test_example_session_pairs_calls_and_results(session: Path) -> None:
    """Each call has its own id and one result, which comes before the next answer."""
    open_calls: set[str] = set()
    known: set[str] = set()
    message = ""
    for line in read_lines(session):
        if line["type"] == "assistant" and line["message"]["id"] != message:
            assert not open_calls
            message = line["message"]["id"]
        for block in list_blocks(line, "tool_use"):
            assert block["id"] not in known
            open_calls.add(block["id"])
            known.add(block["id"])
        for block in list_blocks(line, "tool_result"):
            open_calls.remove(block["tool_use_id"])
    assert known
    assert not open_calls


def test_example_session_is_one_tree(session: Path) -> None:
    """Each line but the first has an earlier parent, and the lines of one answer report the same usage."""
    known: set[str | None] = {None}
    usage: dict[str, Any] = {}
    for line in read_lines(session):
        if "uuid" in line:
            assert line["parentUuid"] in known
            assert line["uuid"] not in known
            known.add(line["uuid"])
        if line["type"] == "assistant":
            assert usage.setdefault(line["message"]["id"], line["message"]["usage"]) == line["message"]["usage"]
    assert sum("uuid" in line and line["parentUuid"] is None for line in read_lines(session)) == 1


def test_example_session_has_every_kind_of_line(session: Path) -> None:
    """Every other kind of line and several blocks in one answer occur, and no compaction is recorded."""
    found = read_lines(session)
    assert {line["type"] for line in found} == {"user", "assistant", "progress", "system", "file-history-snapshot"}
    ids = [line["message"]["id"] for line in found if line["type"] == "assistant"]
    assert len(ids) > len(set(ids)) + 50
    assert not any(line.get("isCompactSummary") or line.get("subtype") == "compact_boundary" for line in found)
    assert any(list_blocks(line, "thinking") for line in found)


def test_example_session_times_have_pauses(session: Path) -> None:
    """Time never goes back, two pauses exceed five minutes and a third exceeds an hour."""
    stamps = [datetime.fromisoformat(line["timestamp"]) for line in read_lines(session) if "timestamp" in line]
    gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(stamps)]
    assert min(gaps) >= 0
    assert sum(300 < gap < 3_600 for gap in gaps) >= 2
    assert sum(gap > 3_600 for gap in gaps) == 1


def test_example_session_contains_no_local_paths(session: Path) -> None:
    """No path of the machine that made it occurs: everything is in one neutral directory."""
    text = session.read_text("utf-8")
    for path in {str(ROOT), sys.prefix, str(Path(tempfile.gettempdir(), tempfile.gettempprefix()))} - {HOME, "/usr"}:
        assert path not in text
    for line in read_lines(session):
        assert line.get("cwd", HOME) == HOME
        for block in list_blocks(line, "tool_use"):
            path = block["input"].get("file_path", block["input"].get("path", HOME))
            assert path.startswith(HOME)
        output = str(line.get("toolUseResult", ""))
        assert all(path.startswith((HOME, "/usr/")) for path in re.findall(r'^  File "(/[^"]+)', output, re.MULTILINE))


def test_example_session_ends_with_an_old_reference(session: Path) -> None:
    """The last answer names an error that no tool has shown for two hundred lines."""
    found = read_lines(session)
    last_shown = max(at for at, line in enumerate(found) if "HF-E5127" in str(list_blocks(line, "tool_result")))
    assert "HF-E5127" in get_text(found[-1])
    assert len(found) - last_shown > 200


@pytest.mark.long
def test_make_long_session_is_deterministic(source: Path, new_session: Path, tmp_path: Path) -> None:
    """The same sources give the same bytes."""
    assert make_session(source, tmp_path / "again.jsonl").read_bytes() == new_session.read_bytes()
