"""A store on disk, one whose disk is full, and a model with a small window."""

from __future__ import annotations

import pytest

from holdfast.config import get_target
from holdfast.errors import StoreReadOnly
from holdfast.store.sqlite import SqliteStore


@pytest.fixture
def place(tmp_path):
    """Where the store lies."""
    return tmp_path / "store.db"


@pytest.fixture
def store(place):
    """A store on disk."""
    with SqliteStore(place) as opened:
        yield opened


@pytest.fixture
def anthropic():
    """Claude with a small window, so that little text is much."""
    return get_target("anthropic", "claude-opus-5-5", window=30_000)


@pytest.fixture
def full(monkeypatch):
    """Make the blobs of a store refuse what they are given, as on a full disk."""

    def fill(store):
        def put(_):
            raise StoreReadOnly("no space left: 0 bytes free; free some")

        monkeypatch.setattr(store.blobs, "store_content", put)

    return fill
