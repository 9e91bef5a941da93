"""Read everything that a store has, and name what is wrong with it: damaged entries, missing and altered blobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from msgspec import Struct

from holdfast.errors import StoreCorrupt, UnknownId
from holdfast.store.base import ProgressCallback, SessionStore, ignore_progress
from holdfast.store.blobs.blob_names import read_session_blobs


class DamagedSession(Struct, frozen=True):
    """A session with entries that cannot be read, and a line for each of them."""

    key: str
    problems: tuple[str, ...]


class WrongBlob(Struct, frozen=True):
    """A blob that an entry names and that is missing or altered, or an altered one that no entry names."""

    hash: str
    session: str = ""
    """The first session that names it; empty if none does."""
    entry_id: str = ""


class StoreCheck(Struct, frozen=True):
    """What was read, and what is wrong."""

    session_count: int = 0
    entry_count: int = 0
    damaged_sessions: tuple[DamagedSession, ...] = ()
    blob_count: int = 0
    blob_bytes: int = 0
    """Bytes that all blobs take in their place."""
    missing_blobs: tuple[WrongBlob, ...] = ()
    altered_blobs: tuple[WrongBlob, ...] = ()
    unnamed_count: int = 0
    """Blobs that no session names, as after the removal of one. That is no fault: ``holdfast gc`` removes them.

    A damaged session may name some of them, so with one it is not known, and ``gc`` removes nothing.
    """
    unnamed_bytes: int = 0
    draft_count: int = 0

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.damaged_sessions or self.missing_blobs or self.altered_blobs)


def check_store(
    store: SessionStore,
    *,
    tick_sessions: ProgressCallback = ignore_progress,
    tick_blobs: ProgressCallback = ignore_progress,
) -> StoreCheck:
    """Read every entry of every session and every blob; nothing is changed.

    A blob is stored before the entry that names it, so one that is stored or named during the check is not taken to be
    missing.
    """
    infos = store.list_sessions()
    damaged_sessions = []
    named_blobs: dict[str, WrongBlob] = {}
    for number, info in enumerate(infos):
        with suppress(UnknownId):  # removed by another process after it was listed
            problems = tuple(_find_session_damage(store, info.key))
            if problems:
                damaged_sessions.append(DamagedSession(info.key, problems))
            for hash_, entry_id in _read_named_blobs(store, info.key):
                named_blobs.setdefault(hash_, WrongBlob(hash_, info.key, entry_id))
        tick_sessions(number + 1, len(infos))
    # After the names: every blob that a session names was stored before it was named.
    items_and_drafts = list(store.blobs.iter_items())
    items = [item for item in items_and_drafts if not item.is_draft]
    altered_blobs = []
    for number, item in enumerate(items):
        if not _is_unaltered(store, item.name):
            altered_blobs.append(named_blobs.get(item.name, WrongBlob(item.name)))
        tick_blobs(number + 1, len(items))
    found_hashes = {item.name for item in items}
    missing_blobs = []
    for hash_, blob in named_blobs.items():
        # Looked for once more: a list of a bucket may be a moment behind.
        if hash_ not in found_hashes and not _has_blob(store, hash_):
            missing_blobs.append(blob)
    unnamed_items = [item for item in items if item.name not in named_blobs]
    return StoreCheck(
        session_count=len(infos),
        entry_count=sum(info.entry_count for info in infos),
        damaged_sessions=tuple(damaged_sessions),
        blob_count=len(items),
        blob_bytes=sum(item.size for item in items),
        missing_blobs=tuple(missing_blobs),
        altered_blobs=tuple(altered_blobs),
        unnamed_count=len(unnamed_items),
        unnamed_bytes=sum(item.size for item in unnamed_items),
        draft_count=len(items_and_drafts) - len(items),
    )


def _find_session_damage(store: SessionStore, key: str) -> list[str]:
    try:
        return store.find_damage(key)
    except StoreCorrupt as error:
        return [str(error)]


def _read_named_blobs(store: SessionStore, key: str) -> Iterator[tuple[str, str]]:
    """Yield the blobs that a session names with the entry that does; none if its log is damaged."""
    with suppress(StoreCorrupt):
        yield from read_session_blobs(store, key).items()


def _has_blob(store: SessionStore, hash_: str) -> bool:
    """Return whether the blob exists; a name that is no hash, which an imported entry may have, is never one."""
    with suppress(UnknownId):
        return store.blobs.has_blob(hash_)
    return False


def _is_unaltered(store: SessionStore, hash_: str) -> bool:
    try:
        store.blobs.count_characters(hash_)
    except StoreCorrupt:
        return False
    except UnknownId:  # removed by a collector after it was listed
        return True
    return True
