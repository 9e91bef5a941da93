"""Real clients run only on request: ``HOLDFAST_CLIENTS=FOLDER pytest -m clients tests/clients``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

MARK = "clients"


def pytest_configure(config):
    config.addinivalue_line("markers", f"{MARK}: tests with real clients; they run only with -m {MARK}")


def pytest_collection_modifyitems(config, items):
    """Deselect the tests of real clients unless -m names their marker."""
    if MARK in config.option.markexpr:
        return
    deselected = [item for item in items if item.get_closest_marker(MARK)]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if not item.get_closest_marker(MARK)]


@pytest.fixture
def clients_folder():
    """Return the folder in which the clients are installed."""
    folder = os.environ.get("HOLDFAST_CLIENTS")
    if not folder:
        pytest.skip("HOLDFAST_CLIENTS names no folder with clients; see CONTRIBUTING.md")
    return Path(folder)
