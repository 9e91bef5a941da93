"""Fixtures of the command line tests: an empty home, a store in it, and recorded sessions."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import holdfast_command
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Text, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import CompactionEntry, DecisionEntry, Entry
from holdfast.store.base import SessionStore
from holdfast.store.open_store import open_store

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty home folder that is also the working folder; nothing of the real user is visible."""
    for name in (
        "CLAUDE_CONFIG_DIR",
        "CODEX_HOME",
        "OPENCLAW_STATE_DIR",
        "PI_CODING_AGENT_DIR",
        "XDG_DATA_HOME",
        "XDG_CONFIG_HOME",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"COLUMNS": "100", "HOLDFAST_STORE": str(tmp_path / "store" / "holdfast.db")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run() -> Run:
    """Return a function that runs ``holdfast`` with arguments and standard input."""

    def invoke(*arguments: str | Path, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(holdfast_command, [str(argument) for argument in arguments], stdin)

    return invoke


def _make_session_line(number: int, role: str, content: Any, *, session: str = "5e551011-aaaa") -> str:
    """Return one line of a Claude Code session."""
    message: dict[str, Any] = {"role": role, "content": content}
    if role == "assistant":
        usage = {"input_tokens": 500 * (number + 1), "output_tokens": 20}
        message |= {"id": f"msg_{number}", "type": "message", "model": "claude-sonnet-4-5", "usage": usage}
    return json.dumps(
        {
            "type": role,
            "uuid": f"u{number}",
            "parentUuid": f"u{number - 1}" if number else None,
            "sessionId": session,
            "timestamp": f"2026-01-01T00:{number // 60:02}:{number % 60:02}.000Z",
            "cwd": "/srv/shop",
            "message": message,
        }
    )


def _make_session_lines(turns: int, *, session: str = "5e551011-aaaa", words: int = 5) -> list[str]:
    """Return the lines of a session with ``turns`` turns: a question, a call, its result, an answer."""
    lines = []
    for turn in range(turns):
        first_line = 4 * turn
        path = f"src/module_{turn}.py"
        call = {"type": "tool_use", "id": f"toolu_{turn}", "name": "Read", "input": {"file_path": path}}
        text = "\n".join(f"def function_{turn}_{n}(): return {n}" for n in range(words))
        result = {"type": "tool_result", "tool_use_id": f"toolu_{turn}", "content": text}
        lines += [
            _make_session_line(first_line, "user", f"Please read {path} and go on.", session=session),
            _make_session_line(first_line + 1, "assistant", [call], session=session),
            _make_session_line(first_line + 2, "user", [result], session=session),
            _make_session_line(
                first_line + 3,
                "assistant",
                [{"type": "text", "text": f"function_{turn}_1 is in {path}"}],
                session=session,
            ),
        ]
    return lines


@pytest.fixture
def session(home: Path) -> Path:
    """Return a short recorded session."""
    return _write_lines(home / "session.jsonl", _make_session_lines(3))


@pytest.fixture
def long_session(home: Path) -> Path:
    """Return a recorded session that is several times as long as a window of 16,000 tokens."""
    return _write_lines(home / "long.jsonl", _make_session_lines(24, session="10009-bbbb", words=150))


def _write_lines(path: Path, lines: list[str]) -> Path:
    """Write ``lines`` to ``path`` and return it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def make_session_lines() -> Callable[..., list[str]]:
    """Return the function that makes the lines of a Claude Code session."""
    return _make_session_lines


@pytest.fixture
def make_session_line() -> Callable[..., str]:
    """Return the function that makes one line of a Claude Code session."""
    return _make_session_line


@pytest.fixture
def write_lines() -> Callable[[Path, list[str]], Path]:
    """Return the function that writes lines to a file."""
    return _write_lines


@pytest.fixture
def store(home: Path) -> Iterator[SessionStore]:
    """Open the store that the commands use."""
    with open_store(home / "store" / "holdfast.db") as opened:
        yield opened


@pytest.fixture
def edited_session(run: Run, session: Path, home: Path) -> str:
    """Return the key of a session of 12 messages: entry d1 spilled #6, then c1 replaced #0 to #3 by a summary."""
    assert run("import", session).exit_code == 0
    key = "5e551011-aaaa"
    with open_store(home / "store" / "holdfast.db") as store:
        sized_message = ConversationState.from_entries(store.read_path(key)).history.sized_messages[6]
        result = sized_message.message.results[0]
        blob = store.blobs.store_content(get_result_text(result))
        short = ToolResult(result.call_id, result.name, (Text("[short]"),))
        saves = sized_message.tokens - build_sized_message(Message("tool", (short,))).tokens
        edit = Edit(Span(6, 7, 0), (short,), "spill", "a result was too long", saves, blob)
        summary = Message.from_text("user", "what happened before")
        compaction = CompactionEntry(
            4, summary, build_sized_message(summary).tokens, tokens_before=900, tokens_after=500
        )
        store.append_entries(
            key,
            [
                Entry("d1", store.get_session(key).leaf_id, DecisionEntry((edit,)), time_ms=0),
                Entry("c1", "d1", compaction),
            ],
        )
    return key


@pytest.fixture
def count_calls() -> Callable[[Callable[[], object]], int]:
    """Return a function that counts the function calls an action takes."""

    def run_and_count(action: Callable[[], object]) -> int:
        counter: Counter[str] = Counter()
        profiler_before = sys.getprofile()
        sys.setprofile(lambda _frame, event, _argument: counter.update([event]))
        try:
            action()
        finally:
            sys.setprofile(profiler_before)
        return counter.total()

    return run_and_count
