"""The real clients, where they are installed: most machines have none, and some take 400 MB."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import example_counts
import pytest


def require_client(program: Path, hint: str) -> Path:
    """Return the program of a client; without it the test is skipped, or fails with ``HOLDFAST_COUNTS=thorough``."""
    if program.is_file():
        return program
    if example_counts.IS_THOROUGH:
        pytest.fail(hint)
    pytest.skip(hint)


def find_program(variable: str, command: str) -> Path:
    """Return the path of a client, which need not exist: the one in a variable, else the one on the PATH."""
    return Path(os.environ.get(variable) or shutil.which(command) or command)


@pytest.fixture(scope="session")
def claude():
    """Return the program of Claude Code."""
    hint = (
        "there is no Claude Code to run the plugin in: set HOLDFAST_CLAUDE to its program, or put claude on the PATH "
        "(npm install --prefix FOLDER @anthropic-ai/claude-code@2.1.332)"
    )
    return require_client(find_program("HOLDFAST_CLAUDE", "claude"), hint)


@pytest.fixture(scope="session")
def codex():
    """Return the program of Codex."""
    hint = (
        "there is no Codex to run: set HOLDFAST_CODEX to its program, or put codex on the PATH "
        "(npm install --prefix FOLDER @openai/codex@0.171.0)"
    )
    return str(require_client(find_program("HOLDFAST_CODEX", "codex"), hint))


@pytest.fixture(scope="session")
def pi():
    """Return the program of pi."""
    hint = (
        "there is no pi to run the extension in: set HOLDFAST_PI to a folder with one, or put pi on the PATH "
        "(npm install --prefix FOLDER node@22 @earendil-works/pi-coding-agent@1.6.0)"
    )
    folder = os.environ.get("HOLDFAST_PI")
    program = Path(folder, "node_modules", ".bin", "pi") if folder else Path(shutil.which("pi") or "pi")
    return require_client(program, hint)
