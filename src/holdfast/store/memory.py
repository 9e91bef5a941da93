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
from holdfast.store.base import LEASE_WAIT, MessageDecoder, ProgressCallback, Quota, SessionInfo
from holdfast.store.blobs.blob_total import add_session_bytes
from holdfast.store.blobs.blobs import MemoryBlobStore
from holdfast.store.search.search import is_searchable_entry
from holdfast.store.sql.rows import (
    check_entry_storable,
    compute_entry_identity,
    count_content_bytes,
    encode_full_columns,
    load_message_decoders,
)
from holdfast.store.tree.placing import PlacedEntry, TreeNode, place_entries
from holdfast.store.tree.tree import MAX_LISTED_CANDIDATES, TreeStore, get_time_ms


@dataclass
class _MemorySession:
    """One session's rows."""

    info: SessionInfo
    rows: dict[int, PlacedEntry] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    checkpoints: dict[int, bytes] = field(default_factory=dict)
    bytes: int = 0


class MemoryStore(TreeStore):
    """A store that nobody keeps."""

    def __init__(self, clock: Callable[[], int] = get_time_ms, quota: Quota = Quota()) -> None:
        super().__init__(MemoryBlobStore(quota), clock)
        self._quota = quota.session_bytes
        self._held: dict[str, _MemorySession] = {}
        self._seq = 0
        self._undo: list[Callable[[], object]] = []
        self._turn = threading.RLock()
        self._leases: dict[str, threading.Lock] = {}
        self._closed = False

    def adopt_session(self, info: SessionInfo, path: Sequence[Entry]) -> None:
        """Hold the session of ``info`` as far as ``path``, which another store read: nothing of it is proven again."""
        with self._write_transaction():
            placed_entries = place_entries(path, dict[str, TreeNode]().get, self._seq + 1)
            session = _MemorySession(
                replace(info, entry_count=len(placed_entries), leaf_id=path[-1].id if path else None)
            )
            for placed_entry in placed_entries:
                session.rows[placed_entry.seq] = replace(
                    placed_entry, entry=replace(placed_entry.entry, seq=placed_entry.seq)
                )
                session.ids[placed_entry.entry.id] = self._seq = placed_entry.seq
            self._held[info.key] = session

    @contextmanager
    def hold_lease(self, key: str) -> Iterator[None]:
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
    def _read_transaction(self) -> Iterator[None]:
        with self._turn:
            self._check_open()
            yield

    @contextmanager
    def _write_transaction(self) -> Iterator[None]:
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

    def _list_infos(self) -> list[SessionInfo]:
        return [session.info for session in self._held.values()]

    def _find_info(self, key: str) -> SessionInfo | None:
        session = self._held.get(key)
        return None if session is None else session.info

    def _find_keys(self, prefix: str) -> list[str]:
        return sorted(key for key in self._held if key.startswith(prefix))[: MAX_LISTED_CANDIDATES + 1]

    def _save_info(self, info: SessionInfo) -> None:
        session = self._held.get(info.key)
        if session is None:
            self._held[info.key] = _MemorySession(info)
            self._undo.append(lambda: self._held.pop(info.key))
            return
        before, session.info = session.info, info
        self._undo.append(lambda: setattr(session, "info", before))

    def _delete_session(self, key: str) -> None:
        session = self._held.pop(key)
        self._undo.append(lambda: self._held.update({key: session}))

    def _get_last_seq(self) -> int:
        return self._seq

    def _find_node(self, key: str, id_: str) -> TreeNode | None:
        session = self._held[key]
        return session.rows[session.ids[id_]] if id_ in session.ids else None

    def _find_entry_ids(self, key: str, prefix: str) -> list[str]:
        return sorted(id_ for id_ in self._held[key].ids if id_.startswith(prefix))[: MAX_LISTED_CANDIDATES + 1]

    def _find_identity(self, key: str, id_: str) -> bytes | None:
        session = self._held[key]
        return compute_entry_identity(session.rows[session.ids[id_]].entry) if id_ in session.ids else None

    def _insert_entries(self, key: str, placed_entries: Sequence[PlacedEntry], decode: MessageDecoder | None) -> None:  # noqa: ARG002
        session = self._held[key]
        for placed_entry in placed_entries:
            check_entry_storable(placed_entry.entry)
        self._count_bytes(session, placed_entries)
        for placed_entry in placed_entries:
            session.rows[placed_entry.seq] = replace(
                placed_entry, entry=replace(placed_entry.entry, seq=placed_entry.seq)
            )
            session.ids[placed_entry.entry.id] = self._seq = placed_entry.seq
        self._undo.append(lambda: self._remove_rows(session, placed_entries))

    def _count_bytes(self, session: _MemorySession, placed_entries: Sequence[PlacedEntry]) -> None:
        """Count what is about to be inserted; ``QuotaExceeded`` if it is too much."""
        if self._quota:
            before, wire_decoders = session.bytes, load_message_decoders()
            new_bytes = count_content_bytes(
                encode_full_columns(placed_entry.entry, wire_decoders) for placed_entry in placed_entries
            )
            session.bytes = add_session_bytes(session.info.key, before, new_bytes, self._quota)
            self._undo.append(lambda: setattr(session, "bytes", before))

    def _remove_rows(self, session: _MemorySession, placed_entries: Sequence[PlacedEntry]) -> None:
        for placed_entry in placed_entries:
            del session.rows[placed_entry.seq], session.ids[placed_entry.entry.id]
        self._seq -= len(placed_entries)

    def _read_entries_by_id(self, key: str, ids: Sequence[str]) -> list[Entry]:
        session = self._held[key]
        return [session.rows[session.ids[id_]].entry for id_ in ids if id_ in session.ids]

    def _read_path_up(self, key: str, seq: int, keep: int, base: int) -> list[Entry]:
        rows, entries = self._held[key].rows, []
        at: int | None = seq
        while at is not None and (at == seq or rows[at].depth > keep or at >= base):
            entries.append(rows[at].entry)
            at = rows[at].parent_seq
        return entries[::-1]

    def _read_all_entries(self, key: str, kind: str | None = None, after: int = 0) -> list[Entry]:
        rows = takewhile(lambda placed_entry: placed_entry.seq > after, reversed(self._held[key].rows.values()))
        entries = [placed_entry.entry for placed_entry in rows][::-1]
        return entries if kind is None else [e for e in entries if e.body.__struct_config__.tag == kind]

    def _iter_damage(self, key: str) -> Iterator[str]:  # noqa: ARG002 -- values cannot be damaged
        return iter(())

    def _save_outline(self, info: SessionInfo, new: Sequence[Entry] = ()) -> None:
        """Nothing is saved: what is here is read as quickly as an outline."""

    def _find_tip_ids(self, key: str) -> list[str]:
        rows = self._held[key].rows
        parents = {placed_entry.parent_seq for placed_entry in rows.values()}
        labels = {seq for seq, placed_entry in rows.items() if placed_entry.entry.body.__struct_config__.tag == "label"}
        inner_seqs = {
            placed_entry.parent_seq for seq, placed_entry in rows.items() if seq not in labels or seq in parents
        }
        return [
            placed_entry.entry.id for seq, placed_entry in rows.items() if seq not in inner_seqs and seq not in labels
        ]

    def _prepare_search(self, key: str, search_terms: Sequence[str], tick: ProgressCallback) -> None:
        """Nothing is to be made ready: every entry is looked at."""

    def _iter_search_candidates(self, key: str, search_terms: Sequence[str]) -> Iterator[Entry]:  # noqa: ARG002
        return filter(is_searchable_entry, reversed(self._read_all_entries(key)))

    def _read_checkpoint(self, key: str, seq: int) -> bytes | None:
        return self._held[key].checkpoints.get(seq)

    def _save_checkpoint(self, key: str, seq: int, state: bytes) -> None:
        points = self._held[key].checkpoints
        points[seq] = state
        self._undo.append(lambda: points.pop(seq))
