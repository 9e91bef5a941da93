"""What nothing needs any more: told first, and removed only when somebody says so.

A blob is stored before the entry that names it, by whatever process, so a young one may be about to be named: it stays
for a time of grace, and one that is stored again is young again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress

from msgspec import Struct

from holdfast.errors import StoreCorrupt, UnknownId
from holdfast.store.base import BlobItem, SessionInfo, SessionStore
from holdfast.store.blobs.blob_names import read_session_blobs

GRACE_SECONDS = 3_600.0
"""[H] Seconds that a blob no entry names is left alone: far more than there is between storing and naming it."""


class UnusedBlobs(Struct, frozen=True):
    """What may go: blobs that no session names, drafts of writers that crashed; those younger than ``cutoff_time``
    stay.
    """

    blobs: tuple[BlobItem, ...] = ()
    drafts: tuple[BlobItem, ...] = ()
    cutoff_time: float = 0.0
    """Seconds since 1970: what was stored later is not touched."""
    young_count: int = 0
    """How many are not named and stay because they are young."""
    named_count: int = 0
    """How many blobs are named."""

    @property
    def bytes(self) -> int:
        """Bytes that would be free."""
        return sum(blob.size for blob in (*self.blobs, *self.drafts))


class RemovalPreview(Struct, frozen=True):
    """What goes with a session: its entries; and the blobs that only it (or what goes with it) names, for ``gc``."""

    info: SessionInfo
    branch_count: int | None
    """Tips of its tree; nothing where they are damaged."""
    exclusive_blobs: tuple[str, ...] = ()
    bytes: int = 0
    """Bytes of those blobs that are there."""
    subagent_keys: tuple[str, ...] = ()
    """Sessions of its sub-agents, which stay."""


def find_unused_blobs(store: SessionStore, grace: float = GRACE_SECONDS, now: float | None = None) -> UnusedBlobs:
    """Return what no session of ``store`` needs; nothing is changed."""
    before = (time.time() if now is None else now) - grace
    blobs = list(store.blobs.iter_items())  # first what is there, then what is named: what is named meanwhile is found
    named_hashes = collect_all_named_hashes(store)
    loose = [blob for blob in blobs if blob.is_draft or blob.name not in named_hashes]
    old = sorted((blob for blob in loose if blob.stored_at < before), key=lambda blob: (-blob.size, blob.name))
    return UnusedBlobs(
        tuple(blob for blob in old if not blob.is_draft),
        tuple(blob for blob in old if blob.is_draft),
        before,
        len(loose) - len(old),
        len(blobs) - len(loose),
    )


def remove_unused_blobs(store: SessionStore, unused: UnusedBlobs) -> UnusedBlobs:
    """Remove what was ``unused`` and has not been stored again since; return what went."""

    def gone(candidates: Iterable[BlobItem]) -> tuple[BlobItem, ...]:
        return tuple(blob for blob in candidates if store.blobs.remove_if_older(blob.name, unused.cutoff_time))

    return UnusedBlobs(
        gone(unused.blobs), gone(unused.drafts), unused.cutoff_time, unused.young_count, unused.named_count
    )


def preview_removal(store: SessionStore, infos: Iterable[SessionInfo]) -> list[RemovalPreview]:
    """Return what goes if these sessions are removed together; of damaged logs, what can be told."""
    going = {info.key: info for info in infos}
    try:
        named_hashes = collect_all_named_hashes(store, excluded_keys=going)
        can_read_logs = True
    except StoreCorrupt:  # any blob may be named there, so none is told to be theirs alone
        named_hashes, can_read_logs = set(), False
    keys = [info.key for info in store.list_sessions() if info.key not in going]
    out = []
    for info in going.values():
        alone = (
            tuple(hash_ for hash_ in _read_named_hashes(store, info.key) if hash_ not in named_hashes)
            if can_read_logs
            else ()
        )
        named_hashes.update(alone)
        size = sum(_get_blob_size(store, hash_) for hash_ in alone)
        agents = tuple(key for key in keys if key.partition("@")[2] == info.key)
        out.append(RemovalPreview(info, _count_branches(store, info.key), alone, size, agents))
    return out


def collect_all_named_hashes(store: SessionStore, excluded_keys: Iterable[str] = ()) -> set[str]:
    """Return every hash that a session names, but those ``excluded_keys``; a log that cannot be read is an error."""
    left_out = set(excluded_keys)
    named_hashes: set[str] = set()
    for info in store.list_sessions():
        if info.key not in left_out:
            with suppress(UnknownId):  # it was removed a moment ago
                named_hashes.update(read_session_blobs(store, info.key))
    return named_hashes


def _read_named_hashes(store: SessionStore, key: str) -> Iterable[str]:
    """Return the blobs that a session names; none where its log is damaged."""
    with suppress(StoreCorrupt):
        return read_session_blobs(store, key)
    return ()


def _count_branches(store: SessionStore, key: str) -> int | None:
    with suppress(StoreCorrupt):
        return len(store.read_tips(key))
    return None


def _get_blob_size(store: SessionStore, hash_: str) -> int:
    with suppress(UnknownId):
        return store.blobs.get_size(hash_)
    return 0
