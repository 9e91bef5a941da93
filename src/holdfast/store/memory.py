"""A store in memory: the same operations and errors as on disk, gone when the process ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from msgspec.structs import replace

from holdfast.errors import StoreError, StoreLocked
from holdfast.state.entries import BranchSummaryEntry, Entry, LabelEntry, MessageEntry
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
from holdfast.store.tree.placing import KIND_BY_TYPE, PlacedEntry, TreeNode, place_entries
from holdfast.store.tree.tree import MAX_LISTED_CANDIDATES, TreeStore, get_time_ms


@dataclass
class _MemorySession:
    """The rows of one session."""

    info: SessionInfo
    rows: dict[int, PlacedEntry] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    checkpoints: dict[int, bytes] = field(default_factory=dict)
    bytes: int = 0


class MemoryStore(TreeStore):
    """A store whose content is lost with the process."""

    def __init__(self, clock: Callable[[], int] = get_time_ms, quota: Quota = Quota()) -> None:
        super().__init__(MemoryBlobStore(quota), clock)
        self._quota = quota.session_bytes
        self._sessions: dict[str, _MemorySession] = {}
        self._seq = 0
        self._undo: list[Callable[[], object]] = []
        """What reverts the changes of the current transaction, in the order in which they were made."""
        self._turn = threading.RLock()
        """Held during a transaction."""
        self._leases: dict[str, threading.Lock] = {}
        self._closed = False

    def adopt_session(self, info: SessionInfo, path: Sequence[Entry]) -> None:
        """Add the session ``info`` with the entries ``path``, which another store has read and checked already."""
        with self._write_transaction():
            placed_entries = place_entries(path, dict[str, TreeNode]().get, self._seq + 1)
            leaf_id = path[-1].id if path else None
            session = _MemorySession(replace(info, entry_count=len(placed_entries), leaf_id=leaf_id))
            self._add_rows(session, placed_entries)
            self._sessions[info.key] = session

    @contextmanager
    def hold_lease(self, key: str) -> Iterator[None]:
        """Hold the session's lease among the threads of this process."""
        # ``setdefault`` is atomic, so two threads that come together get the same lock.
        lock = self._leases.setdefault(key, threading.Lock())
        if not lock.acquire(timeout=LEASE_WAIT):
            msg = f"session {key!r} is being written by another task (waited {LEASE_WAIT:g} s); wait for it to end"
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
                # In reverse order: a later change may depend on an earlier one, such as a new session.
                while self._undo:
                    revert = self._undo.pop()
                    revert()
                raise

    def _check_open(self) -> None:
        if self._closed:
            msg = "the store in memory was closed; open another"
            raise StoreError(msg)

    def _list_infos(self) -> list[SessionInfo]:
        return [session.info for session in self._sessions.values()]

    def _find_info(self, key: str) -> SessionInfo | None:
        session = self._sessions.get(key)
        return None if session is None else session.info

    def _find_keys(self, prefix: str) -> list[str]:
        keys = sorted(key for key in self._sessions if key.startswith(prefix))
        return keys[: MAX_LISTED_CANDIDATES + 1]

    def _save_info(self, info: SessionInfo) -> None:
        session = self._sessions.get(info.key)
        if session is None:
            self._sessions[info.key] = _MemorySession(info)
            self._undo.append(lambda: self._sessions.pop(info.key))
            return
        old_info = session.info
        session.info = info
        self._undo.append(lambda: setattr(session, "info", old_info))

    def _delete_session(self, key: str) -> None:
        session = self._sessions.pop(key)
        self._undo.append(lambda: self._sessions.update({key: session}))

    def _get_last_seq(self, key: str) -> int:  # noqa: ARG002 -- numbers are shared by all sessions
        return self._seq

    def _find_node(self, key: str, id_: str) -> TreeNode | None:
        session = self._sessions[key]
        seq = session.ids.get(id_)
        return None if seq is None else session.rows[seq]

    def _find_entry_ids(self, key: str, prefix: str) -> list[str]:
        entry_ids = sorted(entry_id for entry_id in self._sessions[key].ids if entry_id.startswith(prefix))
        return entry_ids[: MAX_LISTED_CANDIDATES + 1]

    def _find_identity(self, key: str, id_: str) -> bytes | None:
        session = self._sessions[key]
        seq = session.ids.get(id_)
        if seq is None:
            return None
        return compute_entry_identity(session.rows[seq].entry)

    def _insert_entries(
        self,
        key: str,
        placed_entries: Sequence[PlacedEntry],
        decode: MessageDecoder | None,  # noqa: ARG002
    ) -> None:
        session = self._sessions[key]
        # The same refusals as on disk, so that a test in memory finds values that cannot be stored.
        for placed_entry in placed_entries:
            check_entry_storable(placed_entry.entry)
        self._count_bytes(session, placed_entries)
        self._add_rows(session, placed_entries)
        self._undo.append(lambda: self._remove_rows(session, placed_entries))

    def _add_rows(self, session: _MemorySession, placed_entries: Sequence[PlacedEntry]) -> None:
        for placed_entry in placed_entries:
            seq = placed_entry.seq
            session.rows[seq] = replace(placed_entry, entry=replace(placed_entry.entry, seq=seq))
            session.ids[placed_entry.entry.id] = seq
            self._seq = seq

    def _count_bytes(self, session: _MemorySession, placed_entries: Sequence[PlacedEntry]) -> None:
        """Add the bytes of new entries to the session's; raises ``QuotaExceeded`` if they are too many."""
        if not self._quota:
            return  # encoding entries only to count them is not worth it without a limit
        old_bytes = session.bytes
        wire_decoders = load_message_decoders()
        columns = (encode_full_columns(placed_entry.entry, wire_decoders) for placed_entry in placed_entries)
        new_bytes = count_content_bytes(columns)
        session.bytes = add_session_bytes(session.info.key, old_bytes, new_bytes, self._quota)
        self._undo.append(lambda: setattr(session, "bytes", old_bytes))

    def _remove_rows(self, session: _MemorySession, placed_entries: Sequence[PlacedEntry]) -> None:
        for placed_entry in placed_entries:
            del session.rows[placed_entry.seq], session.ids[placed_entry.entry.id]
        self._seq -= len(placed_entries)

    def _read_entries_by_id(self, key: str, ids: Sequence[str]) -> list[Entry]:
        session = self._sessions[key]
        seqs = []
        for entry_id in ids:
            if entry_id in session.ids:
                seqs.append(session.ids[entry_id])
        return [session.rows[seq].entry for seq in seqs]

    def _read_path_up(self, key: str, seq: int, keep: int, base: int) -> list[Entry]:
        rows = self._sessions[key].rows
        entries = []
        # Stops where the recursive query of the SQLite store does.
        ancestor: int | None = seq
        while ancestor is not None:
            row = rows[ancestor]
            is_wanted = ancestor == seq or row.depth > keep or ancestor >= base
            if not is_wanted:
                break
            entries.append(row.entry)
            ancestor = row.parent_seq
        return entries[::-1]

    def _read_all_entries(
        self, key: str, kind: str | None = None, after: int = 0, max_tokens: int | None = None
    ) -> list[Entry]:
        rows = self._sessions[key].rows
        entries = []
        # From the end: a caller that asks for entries after ``after`` wants the few newest of a long log.
        for seq in reversed(rows):
            if seq <= after:
                break
            entry = rows[seq].entry
            if kind is not None and KIND_BY_TYPE[type(entry.body)] != kind:
                continue
            if max_tokens is not None and _count_message_tokens(entry) > max_tokens:
                continue
            entries.append(entry)
        entries.reverse()
        return entries

    def _iter_damage(self, key: str) -> Iterator[str]:  # noqa: ARG002 -- values cannot be damaged
        return iter(())

    def _save_outline(self, info: SessionInfo, new: Sequence[Entry] = ()) -> None:
        """Save nothing: reading the branch in memory is as fast as reading an outline."""

    def _find_tip_ids(self, key: str) -> list[str]:
        rows = self._sessions[key].rows
        all_parents = {row.parent_seq for row in rows.values()}
        labels: set[int] = set()
        for seq, row in rows.items():
            if isinstance(row.entry.body, LabelEntry):
                labels.add(seq)
        inner_seqs = set()
        for seq, row in rows.items():
            # A label without children is not part of any branch, so it does not make its parent an inner entry.
            is_bare_label = seq in labels and seq not in all_parents
            if not is_bare_label:
                inner_seqs.add(row.parent_seq)
        tip_ids: list[str] = []
        for seq, row in rows.items():
            if seq not in inner_seqs and seq not in labels:
                tip_ids.append(row.entry.id)
        return tip_ids

    def _prepare_search(
        self,
        key: str,
        search_terms: Sequence[str],
        tick: ProgressCallback,
    ) -> None:
        """Do nothing: every entry is a candidate."""

    def _iter_search_candidates(self, key: str, search_terms: Sequence[str]) -> Iterator[Entry]:  # noqa: ARG002
        return filter(is_searchable_entry, reversed(self._read_all_entries(key)))

    def _read_checkpoint(self, key: str, seq: int) -> bytes | None:
        return self._sessions[key].checkpoints.get(seq)

    def _save_checkpoint(self, key: str, seq: int, state: bytes) -> None:
        checkpoints = self._sessions[key].checkpoints
        checkpoints[seq] = state
        self._undo.append(lambda: checkpoints.pop(seq))


def _count_message_tokens(entry: Entry) -> int:
    """Return the estimated tokens of a message; 0 for any other entry."""
    if isinstance(entry.body, MessageEntry | BranchSummaryEntry):
        return entry.body.sized_message.tokens
    return 0
