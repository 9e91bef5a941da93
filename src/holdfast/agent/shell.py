"""Tools that run programs: ``run_bash`` where it is allowed, ``run_grep`` and ``run_find``.

The docstrings and descriptions of the argument structs are sent to the model, so their wording is part of every
request.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from holdfast.agent import grep as grepping
from holdfast.agent.processes import run_process
from holdfast.agent.workspace import ToolAnswer, Workspace
from holdfast.errors import FormatError

DEFAULT_COMMAND_SECONDS = 120
"""Seconds that a command may take if the model does not say how many."""
MAX_COMMAND_SECONDS = 1_800
"""Most seconds that a command may take: a build or a test suite may take half an hour."""
SEARCH_SECONDS = 30
"""Seconds that a search may take. A regular expression with nested repeats can run for ever. Chosen by judgement."""
MAX_SEARCH_LINES = 2_000
"""Lines that ``run_grep`` shows, and paths that ``run_find`` does; more call for a narrower search."""
SKIPPED_FOLDERS = (
    ".git", ".hg", ".svn", "__pycache__", "node_modules", ".venv", ".tox", ".mypy_cache", ".ruff_cache",
    ".pytest_cache",
)  # fmt: skip
"""Folders that a search skips: caches and dependencies that tools keep for themselves."""

SearchFolder = Annotated[str, Meta(description="Only below this folder, or this file; . is the working folder.")]


class BashArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """Runs a shell command in the working folder. Each call is a shell of its own, without input.

    What it starts in the background ends with it. Its output comes back, standard error in it, with the exit code.
    """

    command: Annotated[str, Meta(description="The command, as bash reads it.", min_length=1)]
    seconds: Annotated[
        int,
        Meta(
            description=f"When to end it: {DEFAULT_COMMAND_SECONDS} if not said, {MAX_COMMAND_SECONDS} at most.",
            ge=1,
            le=MAX_COMMAND_SECONDS,
        ),
    ] = DEFAULT_COMMAND_SECONDS


class GrepArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """Finds lines in files by a regular expression, as PATH:LINE: TEXT."""

    pattern: Annotated[str, Meta(description="A regular expression of Python; (?i) at its start ignores case.")]
    glob: Annotated[str, Meta(description='Only files of such a name: "*.py", "src/**/test_*.py".')] = ""
    folder: SearchFolder = "."


class FindArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """Finds files by their names, the last changed first."""

    pattern: Annotated[str, Meta(description='A pattern of names: "*.py", or of paths: "src/**/test_*.py".')]
    folder: SearchFolder = "."


async def run_bash(workspace: Workspace, arguments: BashArguments) -> ToolAnswer:
    """Run a command and return its output and exit code; an error if it failed or was not allowed."""
    command = arguments.command.encode("utf-8", "replace").decode()
    if "\0" in command:
        raise FormatError("the command has a NUL character, which no shell accepts; let printf write it")
    if not await workspace.ask_permission(command):
        refusal = "the user did not allow this command, and it was not run; go on without it, or say why it is needed"
        return ToolAnswer(refusal, is_error=True)
    # A command written by a model must not read the API keys of the program that runs it.
    environment = dict(os.environ)
    for name in workspace.hidden_variables:
        environment.pop(name, None)
    shell = shutil.which("bash") or "sh"
    process_result = await run_process(
        [shell, "-c", command],
        workspace.root,
        arguments.seconds,
        environment,
    )
    output = process_result.output.rstrip("\n") or "(no output)"
    exit_code = process_result.exit_code
    if exit_code is None:
        ending = (
            f"ended after {arguments.seconds} seconds; give more seconds, at most {MAX_COMMAND_SECONDS}, or do less"
        )
    elif exit_code < 0:
        # A negative exit code is the signal that ended the program.
        ending = f"ended by signal {-exit_code}"
    else:
        ending = f"exit code {exit_code}"
    return ToolAnswer(f"{output}\n[{ending}]", is_error=exit_code != 0)


async def run_grep(workspace: Workspace, arguments: GrepArguments) -> ToolAnswer:
    """Return the lines that match. Raises ``FormatError`` and ``OSError``."""
    folder = workspace.resolve_path(arguments.folder)
    if not folder.exists():
        raise FormatError(f"{arguments.folder} does not exist; give a folder or a file below the working folder")
    output = await _run_search(workspace, folder, arguments.pattern, arguments.glob)
    return ToolAnswer(output or "no line matches")


async def run_find(workspace: Workspace, arguments: FindArguments) -> ToolAnswer:
    """Return the files with matching names. Raises ``FormatError`` and ``OSError``."""
    folder = workspace.resolve_path(arguments.folder)
    if not folder.is_dir():
        raise FormatError(f"{arguments.folder} is not a folder; give a folder below the working folder")
    output = await _run_search(workspace, folder, None, arguments.pattern)
    return ToolAnswer(output or "no file has such a name")


async def _run_search(workspace: Workspace, folder: Path, pattern: str | None, glob: str) -> str:
    """Run ``grep.py`` and return its output. Raises ``FormatError`` and ``OSError``."""
    # A process of its own can be killed if the expression never ends; a thread cannot.
    request = json.dumps([workspace.get_shown_path(folder), pattern, glob, MAX_SEARCH_LINES, SKIPPED_FOLDERS])
    # Isolated (-I), so that no module in the searched folder is imported.
    command = [sys.executable, "-I", str(Path(grepping.__file__)), request]
    process_result = await run_process(command, workspace.root, SEARCH_SECONDS)
    output = process_result.output
    if process_result.exit_code is None:
        raise FormatError(f"the search took over {SEARCH_SECONDS} seconds; give a simpler pattern, a glob or a folder")
    if process_result.exit_code == grepping.BAD_PATTERN_EXIT:
        raise FormatError(f"{pattern!r} is not a regular expression: {output}; escape its special characters")
    if process_result.exit_code:
        raise FormatError(f"the search failed: {output.strip()[-300:]}; give another folder or glob")
    return output.rstrip("\n")
