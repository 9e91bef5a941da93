"""How large a store is: entries and bytes by kind, blobs, and the largest of each."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest

from msgspec import Struct

from holdfast.errors import StoreCorrupt, UnknownId
from holdfast.store.base import ProgressCallback, SessionStore, ignore_progress
from holdfast.store.sql.rows import count_content_bytes, encode_full_columns, load_message_decoders
from holdfast.store.tree.placing import KIND_BY_TYPE

LARGEST_COUNT = 5
"""How many of the largest sessions, entries and blobs are named. Chosen by judgement."""


class KindSize(Struct, frozen=True):
    """The entries of one kind in all sessions."""

    kind: str
    count: int
    bytes: int


class LargeThing(Struct, frozen=True):
    """A session, an entry or a blob that is among the largest of its sort."""

    name: str
    bytes: int
    count: int = 0
    """Entries, if it is a session."""


class StoreSize(Struct, frozen=True):
    """Sizes in bytes. Those of entries are of their content, as a quota counts them."""

    session_count: int
    entry_count: int
    entry_bytes: int
    kinds: tuple[KindSize, ...]
    """The largest first."""
    blob_count: int
    blob_bytes: int
    """Bytes that blobs and drafts take in their place."""
    largest_sessions: tuple[LargeThing, ...]
    largest_entries: tuple[LargeThing, ...]
    """Named by session and entry, with a ``/`` between them."""
    largest_blobs: tuple[LargeThing, ...]
    unreadable_sessions: tuple[str, ...] = ()
    """Sessions with damage, which are counted up to it."""


def measure_store(store: SessionStore, *, tick: ProgressCallback = ignore_progress) -> StoreSize:
    """Read every entry and list every blob; ``tick`` is called with the sessions done and their number."""
    infos = store.list_sessions()
    wire_decoders = load_message_decoders()
    counts_by_kind: dict[str, list[int]] = {}
    sessions: list[LargeThing] = []
    large_entries: list[LargeThing] = []
    unreadable_keys: list[str] = []
    for number, info in enumerate(infos):
        session_bytes = 0
        session_entries: list[LargeThing] = []
        try:
            for entry in store.read_lazy_entries(info.key):
                size = count_content_bytes([encode_full_columns(entry, wire_decoders)])
                session_bytes += size
                counts = counts_by_kind.setdefault(KIND_BY_TYPE[type(entry.body)], [0, 0])
                counts[0] += 1
                counts[1] += size
                session_entries = _keep_largest(session_entries, LargeThing(f"{info.key}/{entry.id}", size))
        except StoreCorrupt:
            unreadable_keys.append(info.key)
        except UnknownId:  # removed by another process after it was listed
            continue
        large_entries = _pick_largest([*large_entries, *session_entries])
        sessions.append(LargeThing(info.key, session_bytes, info.entry_count))
        tick(number + 1, len(infos))
    blobs = [LargeThing(item.name, item.size) for item in store.blobs.iter_items()]
    kinds = [KindSize(kind, count, size) for kind, (count, size) in counts_by_kind.items()]
    return StoreSize(
        session_count=len(sessions),
        entry_count=sum(kind.count for kind in kinds),
        entry_bytes=sum(kind.bytes for kind in kinds),
        kinds=tuple(sorted(kinds, key=lambda kind: (-kind.bytes, kind.kind))),
        blob_count=len(blobs),
        blob_bytes=sum(blob.bytes for blob in blobs),
        largest_sessions=tuple(_pick_largest(sessions)),
        largest_entries=tuple(large_entries),
        largest_blobs=tuple(_pick_largest(blobs)),
        unreadable_sessions=tuple(unreadable_keys),
    )


def _keep_largest(things: list[LargeThing], thing: LargeThing) -> list[LargeThing]:
    """Return the largest of ``things``, which are few, and ``thing``."""
    if len(things) == LARGEST_COUNT and thing.bytes <= things[-1].bytes:
        return things
    return _pick_largest([*things, thing])


def _pick_largest(things: Iterable[LargeThing]) -> list[LargeThing]:
    return nlargest(LARGEST_COUNT, things, key=lambda thing: thing.bytes)
