"""The SQLite store obeys the rules of every store, and those of a file."""

from __future__ import annotations

from pathlib import Path

from holdfast.store import open_store
from holdfast.store.base import BlobStore, SessionStore
from holdfast.store.blobs import FileBlobs
from holdfast.testing.store import BlobStoreRules, SessionStoreRules


class TestSqliteStore(SessionStoreRules):
    """Every rule, also after opening the file again."""

    def open(self, place: Path) -> SessionStore:
        """Return the store in a file of ``place``."""
        return open_store(place / "agent.db")


class TestFileBlobs(BlobStoreRules):
    """Every rule of blobs."""

    def open(self, place: Path) -> BlobStore:
        """Return the blobs under ``place``."""
        return FileBlobs(place / "blobs")
