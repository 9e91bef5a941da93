"""The real Claude Code and pi, where they are installed: most machines have neither."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import example_counts
import pytest

INSTALL_HINT = (
    "there is no Claude Code to run the plugin in: set HOLDFAST_CLAUDE to its program, or put claude on the PATH "
    "(npm install --prefix FOLDER @anthropic-ai/claude-code@2.1.332)"
)


@pytest.fixture(scope="session")
def claude():
    """Return the program of Claude Code. Without it the test is skipped, or fails with ``HOLDFAST_COUNTS=thorough``."""
    program = os.environ.get("HOLDFAST_CLAUDE") or shutil.which("claude")
    if program and Path(program).is_file():
        return program
    if example_counts.IS_THOROUGH:
        pytest.fail(INSTALL_HINT)
    pytest.skip(INSTALL_HINT)


PI_INSTALL_HINT = (
    "there is no pi to run the extension in: set HOLDFAST_PI to a folder with one, or put pi on the PATH "
    "(npm install --prefix FOLDER node@22 @earendil-works/pi-coding-agent@1.6.0)"
)


@pytest.fixture(scope="session")
def pi():
    """Return the program of pi. Without it the test is skipped, or fails with ``HOLDFAST_COUNTS=thorough``."""
    folder = os.environ.get("HOLDFAST_PI")
    program = Path(folder, "node_modules", ".bin", "pi") if folder else Path(shutil.which("pi") or "pi")
    if program.is_file():
        return program
    if example_counts.IS_THOROUGH:
        pytest.fail(PI_INSTALL_HINT)
    pytest.skip(PI_INSTALL_HINT)
