"""A folder to work in, and calls of tools in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import msgspec
import pytest

from holdfast.agent.tools import answered
from holdfast.agent.workspace import Workplace, everything_allowed, workplace
from holdfast.messages.message import result_text
from holdfast.messages.parts import ToolCall, ToolResult


@pytest.fixture
def folder(tmp_path):
    """Return the working folder; beside it lies a file that no tool may touch."""
    inside = tmp_path / "work"
    inside.mkdir()
    (tmp_path / "secret.txt").write_text("SECRET")
    return inside


@pytest.fixture
def place(folder) -> Workplace:
    """Return a workplace in which every command is allowed."""
    return workplace(folder, allow=everything_allowed)


@pytest.fixture
def call(place) -> Callable[..., tuple[str, bool]]:
    """Return a function that calls a tool and returns what it says, and whether that is an error."""

    def go(name: str, arguments: Any = None, /, *, at: Workplace = place, **named: Any) -> tuple[str, bool]:
        given = arguments if isinstance(arguments, str) else msgspec.json.encode(named).decode()
        result: ToolResult = anyio.run(answered, at, ToolCall("c1", name, given))
        assert (result.call_id, result.name) == ("c1", name)
        return result_text(result), result.is_error

    return go
