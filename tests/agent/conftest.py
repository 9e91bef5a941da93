"""A working folder for the agent's tools, and a function that calls them in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import msgspec
import pytest

from holdfast.agent.tools import run_tool_call
from holdfast.agent.workspace import Workspace, allow_command, open_workspace
from holdfast.messages.message import get_result_text
from holdfast.messages.parts import ToolCall, ToolResult


@pytest.fixture
def folder(tmp_path):
    """Return the working folder; a file beside it must stay untouched."""
    inside = tmp_path / "work"
    inside.mkdir()
    (tmp_path / "secret.txt").write_text("SECRET")
    return inside


@pytest.fixture
def workspace(folder) -> Workspace:
    """Return a workspace in which every command is allowed."""
    return open_workspace(folder, ask_permission=allow_command)


@pytest.fixture
def call(workspace) -> Callable[..., tuple[str, bool]]:
    """Return a function that calls a tool and returns the text of its result and whether it is an error."""

    def run_call(name: str, arguments: Any = None, /, *, at: Workspace = workspace, **named: Any) -> tuple[str, bool]:
        json_arguments = arguments if isinstance(arguments, str) else msgspec.json.encode(named).decode()
        result: ToolResult = anyio.run(run_tool_call, at, ToolCall("c1", name, json_arguments))
        assert (result.call_id, result.name) == ("c1", name)
        return get_result_text(result), result.is_error

    return run_call
