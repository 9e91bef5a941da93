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
from holdfast.store.base import Held, SessionInfo, SessionStore
from holdfast.store.blobs.blob_names import session_blobs

GRACE = 3_600.0
"""[H] Seconds that a blob no entry names is left alone: far more than there is between storing and naming it."""


class Unused(Struct, frozen=True):
    """What may go: blobs that no session names, drafts of writers that crashed; those younger than ``before`` stay."""

    blobs: tuple[Held, ...] = ()
    drafts: tuple[Held, ...] = ()
    before: float = 0.0
    """Seconds since 1970: what was stored later is not touched."""
    young: int = 0
    """How many are not named and stay because they are young."""
    used: int = 0
    """How many blobs are named."""

    @property
    def bytes(self) -> int:
        """Bytes that would be free."""
        return sum(one.size for one in (*self.blobs, *self.drafts))


class Leaving(Struct, frozen=True):
    """What goes with a session: its entries; and the blobs that only it (or what goes with it) names, for ``gc``."""

    info: SessionInfo
    branches: int | None
    """Tips of its tree; nothing where they are damaged."""
    blobs: tuple[str, ...] = ()
    bytes: int = 0
    """Bytes of those blobs that are there."""
    agents: tuple[str, ...] = ()
    """Sessions of its sub-agents, which stay."""


def unused(store: SessionStore, grace: float = GRACE, now: float | None = None) -> Unused:
    """Return what no session of ``store`` needs; nothing is changed."""
    before = (time.time() if now is None else now) - grace
    held = list(store.blobs.held())  # first what is there, then what is named: what is named meanwhile is found
    named = named_by_all(store)
    loose = [one for one in held if one.is_draft or one.name not in named]
    old = sorted((one for one in loose if one.at < before), key=lambda one: (-one.size, one.name))
    return Unused(
        tuple(one for one in old if not one.is_draft),
        tuple(one for one in old if one.is_draft),
        before,
        len(loose) - len(old),
        len(held) - len(loose),
    )


def collect(store: SessionStore, found: Unused) -> Unused:
    """Remove what was ``found`` and has not been stored again since; return what went."""

    def gone(some: Iterable[Held]) -> tuple[Held, ...]:
        return tuple(one for one in some if store.blobs.discard(one.name, found.before))

    return Unused(gone(found.blobs), gone(found.drafts), found.before, found.young, found.used)


def leaving(store: SessionStore, infos: Iterable[SessionInfo]) -> list[Leaving]:
    """Return what goes if these sessions are removed together; of damaged logs, what can be told."""
    going = {info.key: info for info in infos}
    try:
        told = named_by_all(store, except_=going)
        known = True
    except StoreCorrupt:  # any blob may be named there, so none is told to be theirs alone
        told, known = set(), False
    keys = [info.key for info in store.sessions() if info.key not in going]
    out = []
    for info in going.values():
        alone = tuple(hash_ for hash_ in _named(store, info.key) if hash_ not in told) if known else ()
        told.update(alone)
        size = sum(_size(store, hash_) for hash_ in alone)
        agents = tuple(key for key in keys if key.partition("@")[2] == info.key)
        out.append(Leaving(info, _branches(store, info.key), alone, size, agents))
    return out


def named_by_all(store: SessionStore, except_: Iterable[str] = ()) -> set[str]:
    """Return every hash that a session names, but those ``except_``; a log that cannot be read is an error."""
    left_out = set(except_)
    named: set[str] = set()
    for info in store.sessions():
        if info.key not in left_out:
            with suppress(UnknownId):  # it was removed a moment ago
                named.update(session_blobs(store, info.key))
    return named


def _named(store: SessionStore, key: str) -> Iterable[str]:
    """Return the blobs that a session names; none where its log is damaged."""
    with suppress(StoreCorrupt):
        return session_blobs(store, key)
    return ()


def _branches(store: SessionStore, key: str) -> int | None:
    with suppress(StoreCorrupt):
        return len(store.leaves(key))
    return None


def _size(store: SessionStore, hash_: str) -> int:
    with suppress(UnknownId):
        return store.blobs.size(hash_)
    return 0
