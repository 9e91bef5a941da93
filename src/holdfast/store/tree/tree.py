"""The operations of a session store, in terms of a dozen primitives that each store implements.

Everything that is the same for all stores is here: which ids are meant, when the leaf moves, which entries an
import skips, and which entries a request needs.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, suppress
from os import urandom
from typing import Self

from msgspec.structs import replace

from holdfast.errors import LogConflict, StoreCorrupt, UnknownId
from holdfast.messages.message import Message
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import CompactionEntry, DecisionEntry, Entry, LabelEntry
from holdfast.state.fold.fold_entries import apply_entries
from holdfast.state.lazy_entries import LazyEntry, get_entry_headers, get_entry_type, load_entry
from holdfast.store.base import (
    ActiveEntries,
    AppendResult,
    BlobStore,
    ImportResult,
    MessageDecoder,
    ProgressCallback,
    SearchHit,
    SessionInfo,
    ignore_progress,
)
from holdfast.store.search.search import parse_search_terms, search_entries
from holdfast.store.sql.rows import compute_entry_identity, get_storable_time
from holdfast.store.tree.active import decode_checkpoint, encode_checkpoint, resume_state, select_message_entries
from holdfast.store.tree.branch_copy import copy_branch_entries
from holdfast.store.tree.outline import decode_outline, encode_outline, reduce_to_sizes, strip_entry_text
from holdfast.store.tree.placing import PlacedEntry, TreeNode, check_session_key, place_entries

ENTRIES_AT_ONCE = 100
"""Entries of an import that are read and written in one batch. Measured: larger batches are no faster, and hold more.
"""
MIN_OUTLINE_ENTRIES = 64
"""Smallest number of entries for which an outline is saved.

Chosen by judgement: reading fewer entries takes about as long as reading an outline.
"""
MAX_LISTED_CANDIDATES = 5
"""Number of candidates that the error for an ambiguous prefix lists."""


def make_entry_id() -> str:
    """Return a new random entry id."""
    return urandom(16).hex()


def make_entry_ids(count: int) -> list[str]:
    """Return ``count`` new random entry ids in ascending order, so that an index grows in few places."""
    random_hex = urandom(16 * count).hex()
    ids = [random_hex[start : start + 32] for start in range(0, len(random_hex), 32)]
    return sorted(ids)


def get_time_ms() -> int:
    """Return the time in ms since 1970, for display: no decision depends on it."""
    return time.time_ns() // 1_000_000


class TreeStore(ABC):
    """The operations of ``SessionStore``; subclasses read and write rows and make them atomic."""

    def __init__(self, blobs: BlobStore, clock: Callable[[], int] = get_time_ms) -> None:
        self._blobs = blobs
        self._clock = clock

    # -- primitives ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def _read_transaction(self) -> AbstractContextManager[None]:
        """Return a context manager for reads that all see the store at the same moment."""

    @abstractmethod
    def _write_transaction(self) -> AbstractContextManager[None]:
        """Return a context manager for writes that are made all together, or not at all if an error is raised."""

    @abstractmethod
    def _list_infos(self) -> list[SessionInfo]: ...

    @abstractmethod
    def _find_info(self, key: str) -> SessionInfo | None: ...

    @abstractmethod
    def _find_keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with ``prefix``, sorted.

        An implementation may stop after ``MAX_LISTED_CANDIDATES + 1``: an ambiguous prefix is an error that lists only
        the first few of them, and says if there are more.
        """

    @abstractmethod
    def _save_info(self, info: SessionInfo) -> None:
        """Create or change the session ``info.key``."""

    @abstractmethod
    def _delete_session(self, key: str) -> None: ...

    @abstractmethod
    def _get_last_seq(self, key: str) -> int:
        """Return the ``seq`` after which the next entry of session ``key`` is numbered, or 0.

        That is the highest one of the session, or of the whole store where sessions share their numbers.
        """

    @abstractmethod
    def _find_node(self, key: str, id_: str) -> TreeNode | None: ...

    @abstractmethod
    def _find_entry_ids(self, key: str, prefix: str) -> list[str]:
        """Return the ids of entries that begin with ``prefix``, sorted; it may stop as ``_find_keys`` may."""

    @abstractmethod
    def _find_identity(self, key: str, id_: str) -> bytes | None: ...

    @abstractmethod
    def _insert_entries(
        self,
        key: str,
        placed_entries: Sequence[PlacedEntry],
        decode: MessageDecoder | None,
    ) -> None: ...

    @abstractmethod
    def _read_entries_by_id(self, key: str, ids: Sequence[str]) -> list[Entry]: ...

    @abstractmethod
    def _read_path_up(self, key: str, seq: int, keep: int, base: int) -> list[Entry]:
        """Return the path up to ``seq``, from its end to where it leaves the wanted range, in log order.

        Wanted is the entry ``seq`` itself, and every entry above with a depth over ``keep`` or a ``seq`` of at
        least ``base``.
        """

    @abstractmethod
    def _read_all_entries(
        self, key: str, kind: str | None = None, after: int = 0, max_tokens: int | None = None
    ) -> list[Entry]: ...

    @abstractmethod
    def _find_tip_ids(self, key: str) -> list[str]: ...

    @abstractmethod
    def _read_checkpoint(self, key: str, seq: int) -> bytes | None: ...

    @abstractmethod
    def _save_checkpoint(self, key: str, seq: int, state: bytes) -> None: ...

    @abstractmethod
    def _iter_damage(self, key: str) -> Iterator[str]:
        """Yield the reason for each entry that cannot be read."""

    @abstractmethod
    def _prepare_search(
        self,
        key: str,
        search_terms: Sequence[str],
        tick: ProgressCallback,
    ) -> None:
        """Build the structures that ``_iter_search_candidates`` uses, if it uses any."""

    @abstractmethod
    def _iter_search_candidates(self, key: str, search_terms: Sequence[str]) -> Iterator[Entry]:
        """Yield the entries that may contain all of ``search_terms``, the newest first."""

    @abstractmethod
    def hold_lease(self, key: str) -> AbstractContextManager[None]:
        """Hold the session's lease for the block."""

    @abstractmethod
    def close(self) -> None:
        """Release files and connections; the store cannot be used afterwards."""

    # -- sessions ------------------------------------------------------------------------------------------------------

    @property
    def blobs(self) -> BlobStore:
        """The blobs that belong to this store."""
        return self._blobs

    def __enter__(self) -> Self:
        """Return the store, which is closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def list_sessions(self) -> list[SessionInfo]:
        """Return every session, the most recently changed first."""
        with self._read_transaction():
            return sorted(self._list_infos(), key=lambda info: (-(info.updated_at or 0), info.key))

    def get_session(self, prefix: str) -> SessionInfo:
        """Return the session with the key ``prefix``, or the only one with a key that begins with it."""
        with self._read_transaction():
            # A whole key wins over longer keys that begin with it.
            info = self._find_info(prefix)
            if info is not None:
                return info
            keys = self._find_keys(prefix) if prefix else []
            return self._require_info(_pick_unique(keys, prefix, "session"))

    def create_session(self, key: str, info: SessionInfo | None = None) -> SessionInfo:
        """Create an empty session and return it."""
        check_session_key(key)
        with self._write_transaction():
            if self._find_info(key) is not None:
                msg = f"session {key!r} exists already; append to it, or choose another key"
                raise LogConflict(msg)
            return self._create_info(key, info)

    def update_session_info(
        self,
        key: str,
        *,
        title: str | None = None,
        cwd: str | None = None,
        model: str | None = None,
    ) -> None:
        """Change the given fields of the session's list entry; None leaves a field unchanged."""
        changes = {"title": title, "cwd": cwd, "model": model}
        new_values = {}
        for name, value in changes.items():
            if value is not None:
                new_values[name] = value
        with self._write_transaction():
            info = self._require_info(key)
            self._save_info(replace(info, **new_values))

    def remove_session(self, key: str) -> None:
        """Delete the session and its log."""
        with self._write_transaction():
            self._delete_session(self._require_info(key).key)

    # -- writing -------------------------------------------------------------------------------------------------------

    def append_entries(
        self,
        key: str,
        entries: Iterable[Entry],
        *,
        expected_leaf: str | None = None,
        decode: MessageDecoder | None = None,
        onward: bool = False,
    ) -> AppendResult:
        """Append ``entries`` in one transaction and return the new leaf."""
        new_entries = list(entries)
        with self._write_transaction():
            info = self._require_info(key)
            if not new_entries:
                return AppendResult(info.leaf_id, 0, is_leaf_moved=False)
            if expected_leaf is None:
                expected_leaf = new_entries[0].parent
            # Somebody else may have moved the leaf since the caller read it; then both continue, on two branches.
            moves_leaf = info.leaf_id == expected_leaf
            if onward and not moves_leaf:
                return AppendResult(info.leaf_id, 0, is_leaf_moved=False)
            last_seq = self._write_entries(info, new_entries, decode)
            new_info = replace(
                info,
                entry_count=info.entry_count + len(new_entries),
                leaf_id=new_entries[-1].id if moves_leaf else info.leaf_id,
                updated_at=self._clock(),
            )
            self._save_info(new_info)
            return AppendResult(new_entries[-1].id, last_seq, moves_leaf)

    def import_entries(
        self,
        key: str,
        entries: Iterable[Entry],
        *,
        leaf: str | None = None,
        info: SessionInfo | None = None,
    ) -> ImportResult:
        """Import a recording in one transaction, skipping entries that are in the log already."""
        check_session_key(key)
        headers = get_entry_headers(entries)
        with self._write_transaction():
            session = self._find_info(key) or self._create_info(key, info, headers)
            added = self._import_new_entries(session, headers)
            if not added:
                self._save_outline(session)  # one that an older version did not write
                if session.recorded_window is None and info is not None and info.recorded_window is not None:
                    # A session that was imported by a version that did not read it.
                    self._save_info(replace(session, recorded_window=info.recorded_window))
                return ImportResult(0, len(headers), session.leaf_id)
            updated_at = _find_latest_time(info, added) or self._clock()
            entry_count = session.entry_count + len(added)
            session = _merge_info(session, info, entries=entry_count, updated_at=updated_at)
            imported_leaf = leaf or headers[-1].id
            leaf_id = self._choose_leaf(key, session.leaf_id, imported_leaf)
            session = replace(session, leaf_id=leaf_id)
            self._save_info(session)
            self._save_outline(session, added)
            return ImportResult(len(added), len(headers) - len(added), session.leaf_id)

    def _import_new_entries(self, info: SessionInfo, headers: Sequence[Entry | LazyEntry]) -> list[Entry]:
        """Write the entries that are not in the log, in batches; return them, reduced to what the fold uses.

        An import may be larger than memory. Only if an entry has edits are the texts kept: the fold then needs them.
        """
        has_edits = any(map(_has_edits, headers))
        # Ids in the log, as far as they are known without a look-up: of a new session all are.
        known_ids = None if info.entry_count else set[str]()
        added: list[Entry] = []
        for start in range(0, len(headers), ENTRIES_AT_ONCE):
            header_batch = headers[start : start + ENTRIES_AT_ONCE]
            batch = [load_entry(header) for header in header_batch]
            new_entries = self._select_new_entries(info, batch, known_ids)
            if not new_entries:
                continue
            self._write_entries(info, new_entries)
            info = replace(info, entry_count=info.entry_count + len(new_entries))
            added += new_entries if has_edits else map(strip_entry_text, new_entries)
            if known_ids is not None:
                known_ids.update(entry.id for entry in new_entries)
        return added

    def set_leaf(self, key: str, prefix: str) -> str:
        """Make that entry the session's leaf and return its id."""
        with self._write_transaction():
            entry_id = self._resolve_entry_id(key, prefix)
            self._save_info(replace(self._require_info(key), leaf_id=entry_id))
            return entry_id

    def label_entry(self, key: str, prefix: str, name: str) -> Entry:
        """Give an entry a name. The label is a child of the entry but not part of the branch, and moves no leaf."""
        with self._write_transaction():
            info = self._require_info(key)
            target = self._resolve_entry_id(key, prefix)
            # A removed label is an entry too: the log is only appended to.
            entry = Entry(
                make_entry_id(),
                target,
                LabelEntry(target, name),
                time_ms=self._clock(),
            )
            seq = self._write_entries(info, [entry])
            self._save_info(replace(info, entry_count=info.entry_count + 1))
            return replace(entry, seq=seq)

    def copy_branch(
        self,
        key: str,
        replacements: Mapping[str, Message],
        leaf: str | None = None,
    ) -> str | None:
        """Copy the branch at ``leaf`` with other messages for some entries; return the new leaf, or None if none is on
        it.
        """
        with self._write_transaction():
            info = self._require_info(key)
            node = self._find_leaf_node(key, leaf)
            path = [] if node is None else self._read_path_up(key, node.seq, 0, 0)
            copies = copy_branch_entries(path, replacements, self._read_active_labels(key), make_entry_id)
            if not copies:
                return None
            self._write_entries(info, copies)
            # A label is not part of the branch, so it cannot be the leaf.
            new_leaf = next(entry.id for entry in reversed(copies) if not isinstance(entry.body, LabelEntry))
            entry_count = info.entry_count + len(copies)
            self._save_info(
                replace(
                    info,
                    entry_count=entry_count,
                    leaf_id=new_leaf,
                    updated_at=self._clock(),
                )
            )
            return new_leaf

    # -- reading -------------------------------------------------------------------------------------------------------

    def read_path(self, key: str, leaf: str | None = None) -> list[Entry]:
        """Return the entries from the root to ``leaf``."""
        with self._read_transaction():
            node = self._find_leaf_node(key, leaf)
            if node is None:
                return []
            return self._read_path_up(key, node.seq, 0, 0)

    def read_active_entries(self, key: str, leaf: str | None = None) -> ActiveEntries:
        """Return the part of ``read_path`` that a request needs."""
        with self._read_transaction():
            node = self._find_leaf_node(key, leaf)
            if node is None:
                return ActiveEntries()
            return self._read_active_at(key, node)

    def open_state(self, key: str, leaf: str | None = None) -> ConversationState:
        """Return the conversation state at ``leaf``, built from the active entries only."""
        return resume_state(self.read_active_entries(key, leaf))

    def open_size_state(self, key: str) -> ConversationState:
        """Return the session's state without message texts, from the outline at its leaf if there is one."""
        with self._read_transaction():
            node = self._find_leaf_node(key, None)
            if node is None:
                outline_state = None
            else:
                outline_state = decode_outline(self._read_checkpoint(key, node.seq))
        if outline_state is not None:
            return outline_state
        return reduce_to_sizes(self.open_state(key))

    def read_entries(
        self, key: str, kind: str | None = None, *, after: int = 0, max_tokens: int | None = None
    ) -> list[Entry]:
        """Return all entries in order of ``seq``, or those of ``kind``; only entries with a ``seq`` over ``after``.

        Messages of more than ``max_tokens`` are left out.
        """
        with self._read_transaction():
            return self._read_all_entries(self._require_info(key).key, kind, after, max_tokens)

    def read_lazy_entries(self, key: str) -> Sequence[Entry]:
        """Return the same entries as ``read_entries``, each read from the store on demand."""
        with self._read_transaction():
            return self._open_lazy_entries(self._require_info(key).key)

    def _open_lazy_entries(self, key: str) -> Sequence[Entry]:
        return self._read_all_entries(key)

    def read_tips(self, key: str) -> list[Entry]:
        """Return the tips of the tree, oldest first."""
        with self._read_transaction():
            return self._read_entries_by_id(key, self._find_tip_ids(self._require_info(key).key))

    def find_damage(self, key: str) -> list[str]:
        """Return a line for each entry that cannot be read, with the reason."""
        with self._read_transaction():
            return list(self._iter_damage(self._require_info(key).key))

    def repair_damage(self, key: str) -> list[str]:
        """Return the repairs that were made: none in a store without a file."""
        self.get_session(key)
        return []

    def get_entry(self, key: str, prefix: str) -> Entry:
        """Return the entry with the id ``prefix``, or the only one with an id that begins with it."""
        with self._read_transaction():
            return self._read_entries_by_id(key, [self._resolve_entry_id(key, prefix)])[0]

    def read_labels(self, key: str) -> dict[str, str]:
        """Return the names in force by the id of the named entry."""
        with self._read_transaction():
            return self._read_active_labels(self._require_info(key).key)

    def search_session(
        self,
        key: str,
        query: str,
        limit: int = 20,
        *,
        tick: ProgressCallback = ignore_progress,
    ) -> list[SearchHit]:
        """Return the places where the session has the words of ``query``, the newest first."""
        search_terms = parse_search_terms(query)
        with self._read_transaction():
            self._require_info(key)
        # Outside a transaction: building an index writes in transactions of its own.
        self._prepare_search(key, search_terms, tick)
        with self._read_transaction():
            candidates = self._iter_search_candidates(self._require_info(key).key, search_terms)
            return search_entries(candidates, self._blobs, search_terms, limit)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _find_nodes(self, info: SessionInfo, ids: Sequence[str]) -> dict[str, TreeNode]:
        """Return the nodes of those ``ids`` that are in the log; a subclass may return other nodes with them."""
        nodes = {}
        for entry_id in ids:
            node = self._find_node(info.key, entry_id)
            if node is not None:
                nodes[entry_id] = node
        return nodes

    def _require_info(self, key: str) -> SessionInfo:
        info = self._find_info(key)
        if info is None:
            raise build_unknown_id_error("session", key)
        return info

    def _read_active_labels(self, key: str) -> dict[str, str]:
        """Return the labels in force by the id of the labelled entry; an empty label removes an earlier one."""
        labels = {}
        for entry in self._read_all_entries(key, "label"):
            if isinstance(entry.body, LabelEntry):
                labels[entry.body.target] = entry.body.name
        return {target: name for target, name in labels.items() if name}

    def _resolve_entry_id(self, key: str, prefix: str) -> str:
        self._require_info(key)
        # A whole id wins over longer ids that begin with it.
        if self._find_node(key, prefix) is not None:
            return prefix
        entry_ids = self._find_entry_ids(key, prefix) if prefix else []
        return _pick_unique(entry_ids, prefix, "entry")

    def _find_leaf_node(self, key: str, leaf: str | None) -> TreeNode | None:
        info = self._require_info(key)
        if leaf is None:
            leaf_id = info.leaf_id
        else:
            leaf_id = self._resolve_entry_id(key, leaf)
        return None if leaf_id is None else self._find_node(key, leaf_id)

    def _create_info(
        self,
        key: str,
        info: SessionInfo | None,
        entries: Sequence[Entry | LazyEntry] = (),
    ) -> SessionInfo:
        """Save a session without entries; it was created when ``info`` says, else at the time of its first entry."""
        info = info or SessionInfo(key)
        created_at = info.created_at
        if created_at is None:
            times = []
            for time in map(get_storable_time, entries):
                if time is not None:
                    times.append(time)
            created_at = min(times) if times else self._clock()
        info = replace(
            info,
            key=key,
            created_at=created_at,
            updated_at=info.updated_at or created_at,
            entry_count=0,
            leaf_id=None,
        )
        self._save_info(info)
        return info

    def _write_entries(
        self,
        info: SessionInfo,
        new_entries: Sequence[Entry],
        decode: MessageDecoder | None = None,
    ) -> int:
        """Write ``new_entries`` and the checkpoints of their compactions; return the last ``seq``."""
        nodes: dict[str, TreeNode] = {}
        # The new ids are looked up to refuse duplicates, the parents to place the entries. An empty log has neither.
        if info.entry_count:
            referenced_ids = {entry.id for entry in new_entries}
            referenced_ids.update(entry.parent for entry in new_entries if entry.parent is not None)
            nodes = self._find_nodes(info, list(referenced_ids))
        placed_entries = place_entries(new_entries, nodes.get, self._get_last_seq(info.key) + 1)
        self._insert_entries(info.key, placed_entries, decode)
        # After all are inserted: a compaction's checkpoint reads the path before it, which may be among them.
        for placed_entry in placed_entries:
            entry = placed_entry.entry
            if isinstance(entry.body, CompactionEntry) and entry.parent is not None:
                self._create_checkpoint(info.key, placed_entry.seq, entry.parent, entry.body)
        return placed_entries[-1].seq

    def _create_checkpoint(
        self,
        key: str,
        seq: int,
        parent: str,
        body: CompactionEntry,
    ) -> None:
        """Save the checkpoint of a compaction, if one can be made."""
        parent_node = self._find_node(key, parent)
        if parent_node is None:
            return
        active = self._read_active_at(key, parent_node)
        checkpoint = _build_checkpoint_after(active, body)
        if checkpoint is None and active.checkpoint is not None:
            # It keeps more than the compaction before it did, so messages are needed that are not active.
            whole_path = tuple(self._read_path_up(key, parent_node.seq, 0, 0))
            checkpoint = _build_checkpoint_after(ActiveEntries(whole_path), body)
        if checkpoint is not None:
            self._save_checkpoint(key, seq, checkpoint)

    def _save_outline(self, info: SessionInfo, new_entries: Sequence[Entry] = ()) -> None:
        """Save the outline at a session's leaf unless there is one; ``new_entries`` are not read again.

        A leaf that is a compaction gets none: its checkpoint is stored under the same ``seq``, and there is little
        to read.
        """
        key = info.key
        if info.leaf_id is None or info.entry_count < MIN_OUTLINE_ENTRIES:
            return
        node = self._find_node(key, info.leaf_id)
        if node is None or node.seq == node.compaction_seq:
            return
        if decode_outline(self._read_checkpoint(key, node.seq)) is not None:
            return
        new_by_id = {entry.id: entry for entry in new_entries}
        new_path: list[Entry] = []
        ancestor_id: str | None = info.leaf_id
        while ancestor_id is not None and ancestor_id in new_by_id:
            new_path.append(new_by_id[ancestor_id])
            ancestor_id = new_by_id[ancestor_id].parent
        new_path.reverse()
        if ancestor_id is None:
            ancestor = None
        else:
            ancestor = self._find_node(key, ancestor_id)
        # The log accepts entries that the fold cannot apply. Such a session has no outline.
        with suppress(StoreCorrupt, LookupError, ValueError, TypeError):
            if ancestor is None:
                state = ConversationState()
            else:
                state = resume_state(self._read_active_at(key, ancestor))
            self._save_checkpoint(key, node.seq, encode_outline(apply_entries(state, new_path)))

    def _read_active_at(self, key: str, node: TreeNode) -> ActiveEntries:
        data = None
        if node.compaction_seq:
            data = self._read_checkpoint(key, node.compaction_seq)
        checkpoint = decode_checkpoint(data)
        if checkpoint is None:
            whole_path = self._read_path_up(key, node.seq, 0, 0)
            return ActiveEntries(tuple(whole_path))
        later_entries = []
        tail = []
        for entry in self._read_path_up(key, node.seq, checkpoint.first_kept, node.compaction_seq):
            if entry.seq >= node.compaction_seq:
                later_entries.append(entry)
            else:
                tail.append(entry)
        head = self._read_entries_by_id(key, checkpoint.pinned_ids)
        return ActiveEntries(
            tuple(later_entries),
            tuple(head),
            tuple(select_message_entries(tail)),
            data,
        )

    def _select_new_entries(
        self,
        info: SessionInfo,
        entries: Sequence[Entry],
        known_ids: AbstractSet[str] | None,
    ) -> list[Entry]:
        """Return the entries that are not in the log; raises ``LogConflict`` if an id is there with other content.

        ``known_ids`` are all ids in the log, or None if they are not known.
        """
        new: dict[str, Entry] = {}
        for entry in entries:
            stored_identity = None
            if entry.id in new:
                stored_identity = compute_entry_identity(new[entry.id])
            elif known_ids is None or entry.id in known_ids:
                stored_identity = self._find_identity(info.key, entry.id)
            if stored_identity is None:
                new[entry.id] = entry
            elif stored_identity != compute_entry_identity(entry):
                msg = (
                    f"entry {entry.id!r} is in session {info.key!r} with other content; nothing was written: "
                    "import the file under another id (`holdfast import --as ID`)"
                )
                raise LogConflict(msg)
        return list(new.values())

    def _choose_leaf(self, key: str, old_leaf: str | None, new_leaf: str) -> str:
        """Return the leaf after an import: ``new_leaf`` if it continues ``old_leaf``, else ``old_leaf``."""
        new_node = self._find_node(key, new_leaf)
        if new_node is None:
            msg = f"leaf {new_leaf!r} is not among the entries; nothing was written"
            raise LogConflict(msg)
        if old_leaf is None:
            return new_leaf
        old_node = self._find_node(key, old_leaf)
        if old_node is None:
            return old_leaf
            # Only the part of the path after the old leaf is read: that is enough to see whether the leaf is on it.
        path_since = self._read_path_up(key, new_node.seq, old_node.depth, old_node.seq)
        continues_old = any(entry.id == old_leaf for entry in path_since)
        return new_leaf if continues_old else old_leaf


def _has_edits(header: Entry | LazyEntry) -> bool:
    """Return whether an entry changes how messages are shown, for which the fold needs their texts."""
    entry_type = get_entry_type(header)
    if entry_type is not CompactionEntry:
        return entry_type is DecisionEntry
    body = load_entry(header).body
    return isinstance(body, CompactionEntry) and bool(body.edits)


def _build_checkpoint_after(active: ActiveEntries, body: CompactionEntry) -> bytes | None:
    """Return the checkpoint of compaction ``body`` after the entries ``active``, or None if there can be none.

    The log accepts entries that the fold cannot apply; such a branch is read from its root each time.
    """
    try:
        state = resume_state(active)
        message_entries = select_message_entries([*active.head, *active.tail, *active.later_entries])
        pinned_ids = [entry.id for entry in message_entries[: state.view.pinned_count]]
        return encode_checkpoint(state, pinned_ids, body)
    except (LookupError, ValueError, TypeError):
        return None


def _merge_info(
    old_info: SessionInfo,
    info: SessionInfo | None,
    *,
    entries: int,
    updated_at: int,
) -> SessionInfo:
    """Return ``old_info`` updated from a newer reading of the same recording."""
    new = info or old_info
    return replace(
        old_info,
        title=new.title or old_info.title,
        cwd=new.cwd or old_info.cwd,
        model=new.model or old_info.model,
        recorded_window=new.recorded_window or old_info.recorded_window,
        entry_count=entries,
        updated_at=max(updated_at, old_info.updated_at or 0),
    )


def _find_latest_time(info: SessionInfo | None, entries: Iterable[Entry]) -> int | None:
    if info is not None and info.updated_at is not None:
        return info.updated_at
    times = [time for time in map(get_storable_time, entries) if time is not None]
    return max(times, default=None)


def _pick_unique(matches: Sequence[str], prefix: str, kind: str) -> str:
    """Return the only match; raises ``UnknownId`` if there is not exactly one.

    Matches that continue the shortest one with ``+`` do not count: readers make such ids for entries that belong to it.
    """
    if not matches:
        raise build_unknown_id_error(kind, prefix)
    shortest = min(matches, key=len)
    if all(match == shortest or match.startswith(f"{shortest}+") for match in matches):
        return shortest
    more_note = ", and more" if len(matches) > MAX_LISTED_CANDIDATES else ""
    msg = (
        f"{prefix[:80]!r} could be any of these: {', '.join(matches[:MAX_LISTED_CANDIDATES])}{more_note}; give "
        f"more of the {kind}'s id"
    )
    raise UnknownId(msg)


def build_unknown_id_error(kind: str, name: str) -> UnknownId:
    """Return the error for a session or entry that does not exist."""
    if kind == "session":
        where = "`holdfast ls` lists the sessions"
    else:
        where = "`holdfast show` lists the entries"
    return UnknownId(f"no {kind} is {name[:80]!r} or begins with it; {where}")
