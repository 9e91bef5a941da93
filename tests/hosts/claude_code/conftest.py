"""Claude Code with a copy of our plugin, against a strict provider."""

from __future__ import annotations

import shutil

import pytest
from claude_client import PLUGIN, ClaudeClient


@pytest.fixture
def plugin(tmp_path):
    """Return a copy of the plugin: Claude Code writes its types into the folder of a plugin."""
    return shutil.copytree(PLUGIN, tmp_path / "plugin")


@pytest.fixture
def start_client(claude, plugin, strict_provider, tmp_path):
    """Return a function that returns a client with the plugin, and its provider, which answers by a script."""

    def start(*script):
        served = strict_provider(window=1_000_000, script=script)
        return ClaudeClient(claude, tmp_path, served.url, [plugin]), served.provider

    return start
