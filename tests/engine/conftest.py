"""Fixtures of the engine tests: a store on disk, a full disk, and a target with a small window."""

from __future__ import annotations

import pytest

from holdfast.config import get_target
from holdfast.errors import StoreReadOnly
from holdfast.store.sqlite import SqliteStore


@pytest.fixture
def store_path(tmp_path):
    """Return the path of the store."""
    return tmp_path / "store.db"


@pytest.fixture
def store(store_path):
    """Open a store on disk."""
    with SqliteStore(store_path) as new_store:
        yield new_store


@pytest.fixture
def anthropic():
    """Return a Claude target with a small window, so that short texts exceed its limits."""
    return get_target("anthropic", "claude-opus-5-5", window=30_000)


@pytest.fixture
def fill_disk(monkeypatch):
    """Return a function that makes a store refuse new blobs, as on a full disk."""

    def refuse_blobs(store):
        def raise_read_only(_):
            raise StoreReadOnly("no space left: 0 bytes free; free some")

        monkeypatch.setattr(store.blobs, "store_content", raise_read_only)

    return refuse_blobs
