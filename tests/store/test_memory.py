"""The store in memory obeys the rules of every store."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.store import open_store
from holdfast.store.base import BlobStore, Quota, SessionStore
from holdfast.store.blobs import MemoryBlobs
from holdfast.store.memory import MemoryStore
from holdfast.testing.store import BlobStoreRules, SessionStoreRules


@pytest.mark.usefixtures("impatient")
class TestMemoryStore(SessionStoreRules):
    """Every rule but lasting."""

    durable = False

    def open(self, place: Path) -> SessionStore:
        """Return an empty store."""
        return MemoryStore()

    def limited(self, place: Path, quota: Quota) -> SessionStore:
        """Return an empty store with a quota."""
        return open_store(":memory:", quota=quota)


class TestMemoryBlobs(BlobStoreRules):
    """Every rule of blobs."""

    def open(self, place: Path) -> BlobStore:
        """Return an empty blob store."""
        return MemoryBlobs()
