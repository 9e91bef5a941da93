"""Tools that run programs: ``bash`` where it is allowed, ``grep`` and ``find``."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from holdfast.agent import grep as grepping
from holdfast.agent.processes import ran
from holdfast.agent.workspace import Answered, Workplace
from holdfast.errors import FormatError

SECONDS, MOST_SECONDS = 120, 1_800
"""[H] Seconds that a command has if it is not said, and at most: a build or a test suite may take half an hour."""
SEARCHED = 30
"""[H] Seconds that a search has."""
FOUND = 2_000
"""[H] Lines that a search shows, and paths that ``find`` does."""
SKIPPED = (
    ".git", ".hg", ".svn", "__pycache__", "node_modules", ".venv", ".tox", ".mypy_cache", ".ruff_cache",
    ".pytest_cache",
)  # fmt: skip
"""Folders that a search passes over: what tools keep for themselves."""

Folder = Annotated[str, Meta(description="Only below this folder, or this file; . is the working folder.")]


class Bash(Struct, frozen=True, forbid_unknown_fields=True):
    """Runs a shell command in the working folder. Each call is a shell of its own, without input.

    What it starts in the background ends with it. Its output comes back, standard error in it, with the exit code.
    """

    command: Annotated[str, Meta(description="The command, as bash reads it.", min_length=1)]
    seconds: Annotated[
        int, Meta(description=f"When to end it: {SECONDS} if not said, {MOST_SECONDS} at most.", ge=1, le=MOST_SECONDS)
    ] = SECONDS


class Grep(Struct, frozen=True, forbid_unknown_fields=True):
    """Finds lines in files by a regular expression, as PATH:LINE: TEXT."""

    pattern: Annotated[
        str, Meta(description="A regular expression of Python; (?i) at its start takes capitals for small letters.")
    ]
    glob: Annotated[str, Meta(description='Only files of such a name: "*.py", "src/**/test_*.py".')] = ""
    folder: Folder = "."


class Find(Struct, frozen=True, forbid_unknown_fields=True):
    """Finds files by their names, the last changed first."""

    pattern: Annotated[str, Meta(description='A pattern of names: "*.py", or of paths: "src/**/test_*.py".')]
    folder: Folder = "."


async def bash(place: Workplace, asked: Bash) -> Answered:
    """Return what a command printed and its exit code; an error where it failed or was not allowed."""
    command = asked.command.encode("utf-8", "replace").decode()
    if "\0" in command:
        raise FormatError("the command holds a NUL character, which no shell takes; let printf write it")
    if not await place.allow(command):
        return Answered(
            "the user did not allow this command, and it was not run; go on without it, or say why", is_error=True
        )
    shown = {name: value for name, value in os.environ.items() if name not in place.hidden}
    shell = shutil.which("bash") or "sh"
    done = await ran([shell, "-c", command], place.root, asked.seconds, shown)
    output = done.output.rstrip("\n") or "(no output)"
    if done.code is None:
        text = f"{output}\n[ended after {asked.seconds} seconds; give more seconds, at most {MOST_SECONDS}, or do less]"
        return Answered(text, is_error=True)
    how = f"exit code {done.code}" if done.code >= 0 else f"ended by signal {-done.code}"
    return Answered(f"{output}\n[{how}]", is_error=done.code != 0)


async def grep(place: Workplace, asked: Grep) -> Answered:
    """Return the lines that match. Raises ``FormatError`` and ``OSError``."""
    folder = place.path(asked.folder)
    if not folder.exists():
        raise FormatError(f"{asked.folder} is not there; give a folder or a file below the working folder")
    return Answered(await _searched(place, folder, asked.pattern, asked.glob) or "no line matches")


async def find(place: Workplace, asked: Find) -> Answered:
    """Return the files whose names match. Raises ``FormatError`` and ``OSError``."""
    folder = place.path(asked.folder)
    if not folder.is_dir():
        raise FormatError(f"{asked.folder} is no folder; give one below the working folder")
    return Answered(await _searched(place, folder, None, asked.pattern) or "no file has such a name")


async def _searched(place: Workplace, folder: Path, pattern: str | None, glob: str) -> str:
    """Return what a search prints. Raises ``FormatError`` and ``OSError``."""
    told = json.dumps([place.name(folder), pattern, glob, FOUND, SKIPPED])
    done = await ran([sys.executable, "-I", str(Path(grepping.__file__)), told], place.root, SEARCHED)
    if done.code is None:
        raise FormatError(f"the search took over {SEARCHED} seconds; give a simpler pattern, a glob or a folder")
    if done.code == grepping.BAD:
        raise FormatError(f"{pattern!r} is no regular expression: {done.output}; escape what it means literally")
    if done.code:
        raise FormatError(f"the search broke off: {done.output.strip()[-300:]}; give another folder or glob")
    return done.output.rstrip("\n")
