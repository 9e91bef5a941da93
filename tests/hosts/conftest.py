"""The real Claude Code, where it is installed: most machines have none, and it takes 400 MB."""

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
