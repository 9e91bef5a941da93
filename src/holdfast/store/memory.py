"""Sessions in memory: the same verbs and the same errors as on disk, gone with the process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile

from msgspec.structs import replace

from holdfast.errors import StoreError, StoreLocked
from holdfast.state.entries import Entry
from holdfast.store.base import LEASE_WAIT, Decode, Quota, SessionInfo, Tick
from holdfast.store.blobs.blob_total import weighed
from holdfast.store.blobs.blobs import MemoryBlobs
from holdfast.store.search.search import is_searched
from holdfast.store.sql.rows import check_types, decoders, full, identity, weight
from holdfast.store.tree.placing import Node, Placed, place
from holdfast.store.tree.tree import SHOWN, TreeStore, now_ms


@dataclass
class _Session:
    """One session's rows."""

    info: SessionInfo
    rows: dict[int, Placed] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    points: dict[int, bytes] = field(default_factory=dict)
    bytes: int = 0


class MemoryStore(TreeStore):
    """A store that nobody keeps."""

    def __init__(self, clock: Callable[[], int] = now_ms, quota: Quota = Quota()) -> None:
        super().__init__(MemoryBlobs(quota), clock)
        self._quota = quota.session_bytes
        self._held: dict[str, _Session] = {}
        self._seq = 0
        self._undo: list[Callable[[], object]] = []
        self._turn = threading.RLock()
        self._leases: dict[str, threading.Lock] = {}
        self._closed = False

    def take(self, info: SessionInfo, path: Sequence[Entry]) -> None:
        """Hold the session of ``info`` as far as ``path``, which another store read: nothing of it is proven again."""
        with self._writing():
            placed = place(path, dict[str, Node]().get, self._seq + 1)
            held = _Session(replace(info, entries=len(placed), leaf=path[-1].id if path else None))
            for one in placed:
                held.rows[one.seq] = replace(one, entry=replace(one.entry, seq=one.seq))
                held.ids[one.entry.id] = self._seq = one.seq
            self._held[info.key] = held

    @contextmanager
    def writing(self, key: str) -> Iterator[None]:
        """Hold the session's lease among the threads of this process."""
        lock = self._leases.setdefault(key, threading.Lock())
        if not lock.acquire(timeout=LEASE_WAIT):
            msg = f"session {key!r} is being written by somebody else (waited {LEASE_WAIT:g} s); wait for it to end"
            raise StoreLocked(msg)
        try:
            yield
        finally:
            lock.release()

    def close(self) -> None:
        """Refuse every further verb."""
        self._closed = True

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._turn:
            self._check_open()
            yield

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._turn:
            self._check_open()
            self._undo.clear()
            try:
                yield
            except BaseException:
                while self._undo:
                    self._undo.pop()()
                raise

    def _check_open(self) -> None:
        if self._closed:
            msg = "the store in memory was closed; open another"
            raise StoreError(msg)

    def _all(self) -> list[SessionInfo]:
        return [held.info for held in self._held.values()]

    def _info(self, key: str) -> SessionInfo | None:
        held = self._held.get(key)
        return None if held is None else held.info

    def _keys(self, prefix: str) -> list[str]:
        return sorted(key for key in self._held if key.startswith(prefix))[: SHOWN + 1]

    def _save(self, info: SessionInfo) -> None:
        held = self._held.get(info.key)
        if held is None:
            self._held[info.key] = _Session(info)
            self._undo.append(lambda: self._held.pop(info.key))
            return
        before, held.info = held.info, info
        self._undo.append(lambda: setattr(held, "info", before))

    def _forget(self, key: str) -> None:
        held = self._held.pop(key)
        self._undo.append(lambda: self._held.update({key: held}))

    def _last(self) -> int:
        return self._seq

    def _node(self, key: str, id_: str) -> Node | None:
        held = self._held[key]
        return held.rows[held.ids[id_]] if id_ in held.ids else None

    def _ids(self, key: str, prefix: str) -> list[str]:
        return sorted(id_ for id_ in self._held[key].ids if id_.startswith(prefix))[: SHOWN + 1]

    def _identity(self, key: str, id_: str) -> bytes | None:
        held = self._held[key]
        return identity(held.rows[held.ids[id_]].entry) if id_ in held.ids else None

    def _insert(self, key: str, placed: Sequence[Placed], decode: Decode | None) -> None:  # noqa: ARG002
        held = self._held[key]
        for one in placed:
            check_types(one.entry)
        self._weigh(held, placed)
        for one in placed:
            held.rows[one.seq] = replace(one, entry=replace(one.entry, seq=one.seq))
            held.ids[one.entry.id] = self._seq = one.seq
        self._undo.append(lambda: self._withdraw(held, placed))

    def _weigh(self, held: _Session, placed: Sequence[Placed]) -> None:
        """Count what is about to be inserted; ``QuotaExceeded`` if it is too much."""
        if self._quota:
            before, known = held.bytes, decoders()
            more = weight(full(one.entry, known) for one in placed)
            held.bytes = weighed(held.info.key, before, more, self._quota)
            self._undo.append(lambda: setattr(held, "bytes", before))

    def _withdraw(self, held: _Session, placed: Sequence[Placed]) -> None:
        for one in placed:
            del held.rows[one.seq], held.ids[one.entry.id]
        self._seq -= len(placed)

    def _get(self, key: str, ids: Sequence[str]) -> list[Entry]:
        held = self._held[key]
        return [held.rows[held.ids[id_]].entry for id_ in ids if id_ in held.ids]

    def _up(self, key: str, seq: int, keep: int, base: int) -> list[Entry]:
        rows, found = self._held[key].rows, []
        at: int | None = seq
        while at is not None and (at == seq or rows[at].depth > keep or at >= base):
            found.append(rows[at].entry)
            at = rows[at].parent
        return found[::-1]

    def _every(self, key: str, kind: str | None = None, after: int = 0) -> list[Entry]:
        rows = takewhile(lambda one: one.seq > after, reversed(self._held[key].rows.values()))
        entries = [one.entry for one in rows][::-1]
        return entries if kind is None else [e for e in entries if e.body.__struct_config__.tag == kind]

    def _unreadable(self, key: str) -> Iterator[str]:  # noqa: ARG002 -- values cannot be damaged
        return iter(())

    def _outline(self, info: SessionInfo, new: Sequence[Entry] = ()) -> None:
        """Nothing is saved: what is here is read as quickly as an outline."""

    def _tips(self, key: str) -> list[str]:
        rows = self._held[key].rows
        parents = {one.parent for one in rows.values()}
        labels = {seq for seq, one in rows.items() if one.entry.body.__struct_config__.tag == "label"}
        held = {one.parent for seq, one in rows.items() if seq not in labels or seq in parents}
        return [one.entry.id for seq, one in rows.items() if seq not in held and seq not in labels]

    def _ready(self, key: str, wanted: Sequence[str], tick: Tick) -> None:
        """Nothing is to be made ready: every entry is looked at."""

    def _matching(self, key: str, wanted: Sequence[str]) -> Iterator[Entry]:  # noqa: ARG002
        return filter(is_searched, reversed(self._every(key)))

    def _checkpoint(self, key: str, seq: int) -> bytes | None:
        return self._held[key].points.get(seq)

    def _save_checkpoint(self, key: str, seq: int, state: bytes) -> None:
        points = self._held[key].points
        points[seq] = state
        self._undo.append(lambda: points.pop(seq))
