"""Garbage collection of blobs: unused ones are listed first and removed only on request.

A blob is stored before the entry that names it, possibly by another process. A young blob may be about to be named,
so it stays for a grace period; storing it again makes it young again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import StoreCorrupt, UnknownId
from holdfast.store.base import BlobItem, SessionInfo, SessionStore
from holdfast.store.blobs.blob_names import read_session_blobs

GRACE_SECONDS = 3_600.0
"""Seconds for which a blob that no entry names is kept.

Chosen by judgement: far more than lies between storing a blob and appending the entry that names it, also when a
summary is written in between. Waiting longer costs only disk space.
"""


class UnusedBlobs(Struct, frozen=True):
    """Blobs that no session names, and drafts of writers that crashed. Those younger than ``cutoff_time`` are not
    listed.
    """

    blobs: tuple[BlobItem, ...] = ()
    drafts: tuple[BlobItem, ...] = ()
    cutoff_time: float = 0.0
    """Seconds since 1970; anything stored later is kept."""
    young_count: int = 0
    """Number of unnamed blobs and drafts that are kept because they are young."""
    named_count: int = 0
    """Number of blobs that a session names."""

    @property
    def bytes(self) -> int:
        """Bytes that removing them would free."""
        return sum(blob.size for blob in (*self.blobs, *self.drafts))


class RemovalPreview(Struct, frozen=True):
    """The entries that a removal of a session deletes, and the blobs that become garbage by it.

    Those are the blobs that only this session, or the others removed with it, names.
    """

    info: SessionInfo
    branch_count: int | None
    """Number of tips of its tree; None if its log is damaged."""
    exclusive_blobs: tuple[str, ...] = ()
    bytes: int = 0
    """Bytes of those blobs, as far as they exist."""
    subagent_keys: tuple[str, ...] = ()
    """Keys of its sub-agents' sessions, which stay."""


def find_unused_blobs(store: SessionStore, grace: float = GRACE_SECONDS, now: float | None = None) -> UnusedBlobs:
    """Return the blobs that no session of ``store`` needs, without changing the store.

    ``grace`` is in seconds, ``now`` in seconds since 1970 (default: the clock).
    """
    if now is None:
        now = time.time()
    cutoff_time = now - grace
    # List the blobs before reading the names: a blob that is named in between is then found to be named.
    items = list(store.blobs.iter_items())
    named_hashes = collect_all_named_hashes(store)
    unnamed_items = [item for item in items if item.is_draft or item.name not in named_hashes]
    old_items = [item for item in unnamed_items if item.stored_at < cutoff_time]
    old_items.sort(key=lambda item: (-item.size, item.name))
    return UnusedBlobs(
        blobs=tuple(item for item in old_items if not item.is_draft),
        drafts=tuple(item for item in old_items if item.is_draft),
        cutoff_time=cutoff_time,
        young_count=len(unnamed_items) - len(old_items),
        named_count=len(items) - len(unnamed_items),
    )


def remove_unused_blobs(store: SessionStore, unused: UnusedBlobs) -> UnusedBlobs:
    """Remove the ``unused`` blobs that were not stored again since; return those that were removed."""

    def remove_old(items: Iterable[BlobItem]) -> tuple[BlobItem, ...]:
        removed_items: list[BlobItem] = []
        for item in items:
            if store.blobs.remove_if_older(item.name, unused.cutoff_time):
                removed_items.append(item)
        return tuple(removed_items)

    return replace(
        unused,
        blobs=remove_old(unused.blobs),
        drafts=remove_old(unused.drafts),
    )


def preview_removal(store: SessionStore, infos: Iterable[SessionInfo]) -> list[RemovalPreview]:
    """Return the effects of removing these sessions together; for damaged logs, as far as they can be read."""
    removed_infos = {info.key: info for info in infos}
    can_read_logs = True
    named_hashes: set[str] = set()
    try:
        named_hashes = collect_all_named_hashes(store, excluded_keys=removed_infos)
    except StoreCorrupt:
        # The damaged log may name any blob, so none can be said to belong to the removed sessions alone.
        can_read_logs = False
    remaining_keys = [info.key for info in store.list_sessions() if info.key not in removed_infos]
    previews = []
    for info in removed_infos.values():
        exclusive_hashes: list[str] = []
        if can_read_logs:
            for hash_ in _read_named_hashes(store, info.key):
                if hash_ not in named_hashes:
                    exclusive_hashes.append(hash_)
        named_hashes.update(exclusive_hashes)  # a blob that two removed sessions name is counted once
        size = sum(_get_blob_size(store, hash_) for hash_ in exclusive_hashes)
        # The key of a subagent's session ends in "@" and the key of the session that started it.
        subagent_keys: list[str] = []
        for key in remaining_keys:
            _, _, parent_key = key.partition("@")
            if parent_key == info.key:
                subagent_keys.append(key)
        preview = RemovalPreview(
            info,
            _count_branches(store, info.key),
            tuple(exclusive_hashes),
            size,
            tuple(subagent_keys),
        )
        previews.append(preview)
    return previews


def collect_all_named_hashes(store: SessionStore, excluded_keys: Iterable[str] = ()) -> set[str]:
    """Return the hash of every blob that a session names, without the sessions ``excluded_keys``.

    Raises ``StoreCorrupt`` if a log cannot be read: a blob that it names must not be taken for garbage.
    """
    excluded = set(excluded_keys)
    named_hashes: set[str] = set()
    for info in store.list_sessions():
        if info.key in excluded:
            continue
        with suppress(UnknownId):  # removed by another process after it was listed
            named_hashes.update(read_session_blobs(store, info.key))
    return named_hashes


def _read_named_hashes(store: SessionStore, key: str) -> Iterable[str]:
    """Return the blobs that a session names, or no blobs if its log is damaged."""
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
