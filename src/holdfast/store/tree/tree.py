"""The verbs of a session store over a dozen questions that each store answers in its own way.

What is the same for every store stands here: which ids are meant, when the leaf moves, what an import skips, which
entries a request needs.
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
"""Entries of an import that are read and written together: with more it is no quicker. [M]"""
MIN_OUTLINE_ENTRIES = 64
"""[H] Entries of a session that are read as quickly as an outline."""
MAX_LISTED_CANDIDATES = 5
"""How many candidates an ambiguous prefix lists."""


def make_entry_id() -> str:
    """Return an id that no other entry has."""
    return urandom(16).hex()


def make_entry_ids(count: int) -> list[str]:
    """Return so many of them in ascending order, so that an index takes them in at few places."""
    random_hex = urandom(16 * count).hex()
    return sorted([random_hex[at : at + 32] for at in range(0, len(random_hex), 32)])


def get_time_ms() -> int:
    """Return the time as ms since 1970: for display, nothing is decided by it."""
    return time.time_ns() // 1_000_000


class TreeStore(ABC):
    """The verbs of ``SessionStore``; a subclass says how rows are read, written and made atomic."""

    def __init__(self, blobs: BlobStore, clock: Callable[[], int] = get_time_ms) -> None:
        self._blobs = blobs
        self._clock = clock

    # -- what a store answers ------------------------------------------------------------------------------------------

    @abstractmethod
    def _read_transaction(self) -> AbstractContextManager[None]:
        """Everything read inside is of one moment."""

    @abstractmethod
    def _write_transaction(self) -> AbstractContextManager[None]:
        """Everything written inside is in the store at its end, or nothing is."""

    @abstractmethod
    def _list_infos(self) -> list[SessionInfo]: ...

    @abstractmethod
    def _find_info(self, key: str) -> SessionInfo | None: ...

    @abstractmethod
    def _find_keys(self, prefix: str) -> list[str]:
        """Return a few more keys with ``prefix`` than a message shows."""

    @abstractmethod
    def _save_info(self, info: SessionInfo) -> None:
        """Create or change the session of ``info.key``."""

    @abstractmethod
    def _delete_session(self, key: str) -> None: ...

    @abstractmethod
    def _get_last_seq(self) -> int:
        """Return the highest ``seq`` in the store, or 0."""

    @abstractmethod
    def _find_node(self, key: str, id_: str) -> TreeNode | None: ...

    @abstractmethod
    def _find_entry_ids(self, key: str, prefix: str) -> list[str]:
        """Return a few more entry ids with ``prefix`` than a message shows."""

    @abstractmethod
    def _find_identity(self, key: str, id_: str) -> bytes | None: ...

    @abstractmethod
    def _insert_entries(
        self, key: str, placed_entries: Sequence[PlacedEntry], decode: MessageDecoder | None
    ) -> None: ...

    @abstractmethod
    def _read_entries_by_id(self, key: str, ids: Sequence[str]) -> list[Entry]: ...

    @abstractmethod
    def _read_path_up(self, key: str, seq: int, keep: int, base: int) -> list[Entry]:
        """Return the path to ``seq`` in order: what has a depth over ``keep``, or comes after ``base``, or is it."""

    @abstractmethod
    def _read_all_entries(self, key: str, kind: str | None = None, after: int = 0) -> list[Entry]: ...

    @abstractmethod
    def _find_tip_ids(self, key: str) -> list[str]: ...

    @abstractmethod
    def _read_checkpoint(self, key: str, seq: int) -> bytes | None: ...

    @abstractmethod
    def _save_checkpoint(self, key: str, seq: int, state: bytes) -> None: ...

    @abstractmethod
    def _iter_damage(self, key: str) -> Iterator[str]:
        """Yield why each entry that cannot be read cannot."""

    @abstractmethod
    def _prepare_search(self, key: str, search_terms: Sequence[str], tick: ProgressCallback) -> None:
        """Make ready what ``_iter_search_candidates`` needs; it may do without."""

    @abstractmethod
    def _iter_search_candidates(self, key: str, search_terms: Sequence[str]) -> Iterator[Entry]:
        """Yield the entries that may hold all of ``search_terms``, the newest first."""

    @abstractmethod
    def hold_lease(self, key: str) -> AbstractContextManager[None]:
        """Hold the session's lease."""

    @abstractmethod
    def close(self) -> None:
        """Release what is held; the store cannot be used afterwards."""

    # -- sessions ------------------------------------------------------------------------------------------------------

    @property
    def blobs(self) -> BlobStore:
        """The blobs that belong to this store."""
        return self._blobs

    def __enter__(self) -> Self:
        """Return the store; it is closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def list_sessions(self) -> list[SessionInfo]:
        """Return every session, the last changed first."""
        with self._read_transaction():
            return sorted(self._list_infos(), key=lambda info: (-(info.updated_at or 0), info.key))

    def get_session(self, prefix: str) -> SessionInfo:
        """Return the one session whose key is or begins with ``prefix``."""
        with self._read_transaction():
            exact = self._find_info(prefix)
            if exact is not None:
                return exact
            return self._require_info(_pick_unique(self._find_keys(prefix) if prefix else [], prefix, "session"))

    def create_session(self, key: str, info: SessionInfo | None = None) -> SessionInfo:
        """Create an empty session and return it."""
        check_session_key(key)
        with self._write_transaction():
            if self._find_info(key) is not None:
                msg = f"session {key!r} exists already; append to it, or choose another key"
                raise LogConflict(msg)
            return self._create_info(key, info)

    def update_session_info(
        self, key: str, *, title: str | None = None, cwd: str | None = None, model: str | None = None
    ) -> None:
        """Change what the session's list entry says; nothing leaves a field as it is."""
        changes = {"title": title, "cwd": cwd, "model": model}
        with self._write_transaction():
            info = self._require_info(key)
            self._save_info(replace(info, **{name: value for name, value in changes.items() if value is not None}))

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
        new = list(entries)
        with self._write_transaction():
            info = self._require_info(key)
            moves_leaf = bool(new) and info.leaf_id == (new[0].parent if expected_leaf is None else expected_leaf)
            if not new or (onward and not moves_leaf):
                return AppendResult(info.leaf_id, 0, is_leaf_moved=False)
            last = self._write_entries(info, new, decode)
            leaf = new[-1].id if moves_leaf else info.leaf_id
            self._save_info(
                replace(info, entry_count=info.entry_count + len(new), leaf_id=leaf, updated_at=self._clock())
            )
            return AppendResult(new[-1].id, last, moves_leaf)

    def import_entries(
        self, key: str, entries: Iterable[Entry], *, leaf: str | None = None, info: SessionInfo | None = None
    ) -> ImportResult:
        """Import a recording in one transaction; entries that are there already are skipped."""
        check_session_key(key)
        entry_headers = get_entry_headers(entries)
        with self._write_transaction():
            current_info = self._find_info(key) or self._create_info(key, info, entry_headers)
            added = self._import_new_entries(current_info, entry_headers)
            if not added:
                self._save_outline(current_info)
                return ImportResult(0, len(entry_headers), current_info.leaf_id)
            count = current_info.entry_count + len(added)
            current_info = _merge_info(
                current_info, info, entries=count, updated_at=_find_latest_time(info, added) or self._clock()
            )
            current_info = replace(
                current_info, leaf_id=self._choose_leaf(key, current_info.leaf_id, leaf or entry_headers[-1].id)
            )
            self._save_info(current_info)
            self._save_outline(current_info, added)
            return ImportResult(len(added), len(entry_headers) - len(added), current_info.leaf_id)

    def _import_new_entries(self, info: SessionInfo, entry_headers: Sequence[Entry | LazyEntry]) -> list[Entry]:
        """Write those of ``entry_headers`` that are not in the log, a good many at once; return what a fold needs of
        them.
        """
        holds_edits = any(map(_has_edits, entry_headers))
        names = None if info.entry_count else set[str]()
        added: list[Entry] = []
        for start in range(0, len(entry_headers), ENTRIES_AT_ONCE):
            new = self._select_new_entries(
                info, [load_entry(entry) for entry in entry_headers[start : start + ENTRIES_AT_ONCE]], names
            )
            if not new:
                continue
            self._write_entries(info, new)
            info = replace(info, entry_count=info.entry_count + len(new))
            added += new if holds_edits else map(strip_entry_text, new)
            if names is not None:
                names.update(entry.id for entry in new)
        return added

    def set_leaf(self, key: str, prefix: str) -> str:
        """Make that entry the session's leaf and return its id."""
        with self._write_transaction():
            id_ = self._resolve_entry_id(key, prefix)
            self._save_info(replace(self._require_info(key), leaf_id=id_))
            return id_

    def label_entry(self, key: str, prefix: str, name: str) -> Entry:
        """Name an entry; the label hangs on it, beside the branch, and moves no leaf."""
        with self._write_transaction():
            info = self._require_info(key)
            target = self._resolve_entry_id(key, prefix)
            entry = Entry(make_entry_id(), target, LabelEntry(target, name), time_ms=self._clock())
            seq = self._write_entries(info, [entry])
            self._save_info(replace(info, entry_count=info.entry_count + 1))
            return replace(entry, seq=seq)

    def copy_branch(self, key: str, replacements: Mapping[str, Message], leaf: str | None = None) -> str | None:
        """Say the branch at ``leaf`` again with other messages for some entries; return the new leaf."""
        with self._write_transaction():
            info, node = self._require_info(key), self._find_leaf_node(key, leaf)
            path = [] if node is None else self._read_path_up(key, node.seq, 0, 0)
            new = copy_branch_entries(path, replacements, self._read_active_labels(key), make_entry_id)
            if not new:
                return None
            self._write_entries(info, new)
            last = next(entry.id for entry in reversed(new) if not isinstance(entry.body, LabelEntry))
            self._save_info(
                replace(info, entry_count=info.entry_count + len(new), leaf_id=last, updated_at=self._clock())
            )
            return last

    # -- reading -------------------------------------------------------------------------------------------------------

    def read_path(self, key: str, leaf: str | None = None) -> list[Entry]:
        """Return the entries from the root to ``leaf``."""
        with self._read_transaction():
            node = self._find_leaf_node(key, leaf)
            return [] if node is None else self._read_path_up(key, node.seq, 0, 0)

    def read_active_entries(self, key: str, leaf: str | None = None) -> ActiveEntries:
        """Return the part of ``read_path`` that a request needs."""
        with self._read_transaction():
            node = self._find_leaf_node(key, leaf)
            return ActiveEntries() if node is None else self._read_active_at(key, node)

    def open_state(self, key: str, leaf: str | None = None) -> ConversationState:
        """Return the branch at ``leaf``, opened from its active part."""
        return resume_state(self.read_active_entries(key, leaf))

    def open_size_state(self, key: str) -> ConversationState:
        """Return the session's branch as far as its size goes, from the outline at its leaf if there is one."""
        with self._read_transaction():
            node = self._find_leaf_node(key, None)
            outline_state = decode_outline(self._read_checkpoint(key, node.seq)) if node is not None else None
        return reduce_to_sizes(self.open_state(key)) if outline_state is None else outline_state

    def read_entries(self, key: str, kind: str | None = None, *, after: int = 0) -> list[Entry]:
        """Return the whole tree in order of ``seq``, or the entries of ``kind``; of those what is behind ``after``."""
        with self._read_transaction():
            return self._read_all_entries(self._require_info(key).key, kind, after)

    def read_lazy_entries(self, key: str) -> Sequence[Entry]:
        """Return what ``read_entries`` does, but each entry is read from the store when it is asked for, and not
        held.
        """
        with self._read_transaction():
            return self._open_lazy_entries(self._require_info(key).key)

    def _open_lazy_entries(self, key: str) -> Sequence[Entry]:
        return self._read_all_entries(key)

    def read_tips(self, key: str) -> list[Entry]:
        """Return the tips of the tree, oldest first."""
        with self._read_transaction():
            return self._read_entries_by_id(key, self._find_tip_ids(self._require_info(key).key))

    def find_damage(self, key: str) -> list[str]:
        """Return which entries cannot be read and why, a line for each; nothing where all can be."""
        with self._read_transaction():
            return list(self._iter_damage(self._require_info(key).key))

    def repair_damage(self, key: str) -> list[str]:
        """Return what was damaged and put right: nothing, where no file is that could be."""
        self.get_session(key)
        return []

    def get_entry(self, key: str, prefix: str) -> Entry:
        """Return the one entry whose id is or begins with ``prefix``."""
        with self._read_transaction():
            return self._read_entries_by_id(key, [self._resolve_entry_id(key, prefix)])[0]

    def read_labels(self, key: str) -> dict[str, str]:
        """Return the names in force by the id of the entry they name."""
        with self._read_transaction():
            return self._read_active_labels(self._require_info(key).key)

    def search_session(
        self, key: str, query: str, limit: int = 20, *, tick: ProgressCallback = ignore_progress
    ) -> list[SearchHit]:
        """Return where the session says ``query``, the newest first."""
        search_terms = parse_search_terms(query)
        with self._read_transaction():
            self._require_info(key)
        self._prepare_search(key, search_terms, tick)
        with self._read_transaction():
            return search_entries(
                self._iter_search_candidates(self._require_info(key).key, search_terms),
                self._blobs,
                search_terms,
                limit,
            )

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _find_nodes(self, info: SessionInfo, ids: Sequence[str]) -> dict[str, TreeNode]:
        """Return where those of ``ids`` stand that are in the log; others that are may be there too."""
        id_nodes = [(id_, self._find_node(info.key, id_)) for id_ in ids]
        return {id_: node for id_, node in id_nodes if node is not None}

    def _require_info(self, key: str) -> SessionInfo:
        info = self._find_info(key)
        if info is None:
            raise build_unknown_id_error("session", key)
        return info

    def _read_active_labels(self, key: str) -> dict[str, str]:
        """Return the labels in force by what they name."""
        bodies = [entry.body for entry in self._read_all_entries(key, "label")]
        labels = {body.target: body.name for body in bodies if isinstance(body, LabelEntry)}
        return {target: name for target, name in labels.items() if name}

    def _resolve_entry_id(self, key: str, prefix: str) -> str:
        self._require_info(key)
        return (
            prefix
            if self._find_node(key, prefix)
            else _pick_unique(self._find_entry_ids(key, prefix) if prefix else [], prefix, "entry")
        )

    def _find_leaf_node(self, key: str, leaf: str | None) -> TreeNode | None:
        info = self._require_info(key)
        id_ = info.leaf_id if leaf is None else self._resolve_entry_id(key, leaf)
        return None if id_ is None else self._find_node(key, id_)

    def _create_info(
        self, key: str, info: SessionInfo | None, entries: Sequence[Entry | LazyEntry] = ()
    ) -> SessionInfo:
        """Save a session without entries."""
        born = min((at for at in map(get_storable_time, entries) if at is not None), default=self._clock())
        info = info or SessionInfo(key)
        created_at = born if info.created_at is None else info.created_at
        info = replace(
            info, key=key, created_at=created_at, updated_at=info.updated_at or created_at, entry_count=0, leaf_id=None
        )
        self._save_info(info)
        return info

    def _write_entries(self, info: SessionInfo, new: Sequence[Entry], decode: MessageDecoder | None = None) -> int:
        """Write ``new`` and the checkpoints of its compactions; return the last ``seq``."""
        referenced_ids = (
            {id_ for entry in new for id_ in (entry.id, entry.parent) if id_ is not None} if info.entry_count else ()
        )
        there = self._find_nodes(info, list(referenced_ids)) if referenced_ids else {}
        placed_entries = place_entries(new, there.get, self._get_last_seq() + 1)
        self._insert_entries(info.key, placed_entries, decode)
        for placed_entry in placed_entries:
            if isinstance(placed_entry.entry.body, CompactionEntry) and placed_entry.entry.parent is not None:
                self._create_checkpoint(info.key, placed_entry.seq, placed_entry.entry.parent, placed_entry.entry.body)
        return placed_entries[-1].seq

    def _create_checkpoint(self, key: str, seq: int, parent: str, body: CompactionEntry) -> None:
        """Save the checkpoint of a compaction, from the active part before it where that holds all it keeps."""
        before = self._find_node(key, parent)
        if before is None:
            return
        active = self._read_active_at(key, before)
        state = _build_checkpoint_after(active, body)
        if state is None and active.checkpoint is not None:  # it keeps more than the compaction before it did
            state = _build_checkpoint_after(ActiveEntries(tuple(self._read_path_up(key, before.seq, 0, 0))), body)
        if state is not None:
            self._save_checkpoint(key, seq, state)

    def _save_outline(self, info: SessionInfo, new: Sequence[Entry] = ()) -> None:
        """Save the outline at a session's leaf unless it is there; ``new`` entries need not be read again.

        A compaction has its checkpoint in that place, and what it keeps is little to read.
        """
        key, at = info.key, info.leaf_id
        node = None if at is None or info.entry_count < MIN_OUTLINE_ENTRIES else self._find_node(key, at)
        if (
            node is None
            or node.seq == node.compaction_seq
            or decode_outline(self._read_checkpoint(key, node.seq)) is not None
        ):
            return
        fresh, way = {entry.id: entry for entry in new}, list[Entry]()
        while at is not None and at in fresh:
            way.append(fresh[at])
            at = fresh[at].parent
        up = None if at is None else self._find_node(key, at)
        with suppress(StoreCorrupt, LookupError, ValueError, TypeError):  # the log takes what the fold does not
            before = ConversationState() if up is None else resume_state(self._read_active_at(key, up))
            self._save_checkpoint(key, node.seq, encode_outline(apply_entries(before, way[::-1])))

    def _read_active_at(self, key: str, node: TreeNode) -> ActiveEntries:
        state = self._read_checkpoint(key, node.compaction_seq) if node.compaction_seq else None
        point = decode_checkpoint(state)
        if point is None:
            return ActiveEntries(tuple(self._read_path_up(key, node.seq, 0, 0)))
        entries = self._read_path_up(key, node.seq, point.first_kept, node.compaction_seq)
        later_entries = tuple([entry for entry in entries if entry.seq >= node.compaction_seq])
        tail = tuple(select_message_entries(entry for entry in entries if entry.seq < node.compaction_seq))
        return ActiveEntries(later_entries, tuple(self._read_entries_by_id(key, point.pinned_ids)), tail, state)

    def _select_new_entries(
        self, info: SessionInfo, entries: Sequence[Entry], names: AbstractSet[str] | None
    ) -> list[Entry]:
        """Return those of ``entries`` that are not in the log; ``LogConflict`` if an id is there with other content.

        ``names`` are the ids that the log has, where they are known.
        """
        new: dict[str, Entry] = {}
        for entry in entries:
            twin = new.get(entry.id)
            is_looked_up = names is None or entry.id in names
            stored_identity = (
                compute_entry_identity(twin)
                if twin
                else self._find_identity(info.key, entry.id)
                if is_looked_up
                else None
            )
            if stored_identity is None:
                new[entry.id] = entry
            elif stored_identity != compute_entry_identity(entry):
                msg = (
                    f"entry {entry.id!r} is in session {info.key!r} with other content; nothing was written: "
                    "import the file under another id (`holdfast import --as ID`)"
                )
                raise LogConflict(msg)
        return list(new.values())

    def _choose_leaf(self, key: str, old: str | None, new: str) -> str:
        """Return the leaf after an import: ``new`` if it continues ``old``, which is never left for another branch."""
        there = self._find_node(key, new)
        if there is None:
            msg = f"leaf {new!r} is not among the entries; nothing was written"
            raise LogConflict(msg)
        if old is None:
            return new
        here = self._find_node(key, old)
        onward = here is not None and any(
            entry.id == old for entry in self._read_path_up(key, there.seq, here.depth, here.seq)
        )
        return new if onward else old


def _has_edits(header: Entry | LazyEntry) -> bool:
    """Return whether an entry changes how others are shown, for which the fold asks for their words."""
    if get_entry_type(header) is not CompactionEntry:
        return get_entry_type(header) is DecisionEntry
    body = load_entry(header).body
    return isinstance(body, CompactionEntry) and bool(body.edits)


def _build_checkpoint_after(active: ActiveEntries, body: CompactionEntry) -> bytes | None:
    """Return the checkpoint of compaction ``body`` behind ``active``.

    Nothing where there can be none: the log takes what the fold does not, and such a branch is walked from its root.
    """
    try:
        state = resume_state(active)
        head = select_message_entries([*active.head, *active.tail, *active.later_entries])[: state.view.pinned_count]
        return encode_checkpoint(state, [entry.id for entry in head], body)
    except (LookupError, ValueError, TypeError):
        return None


def _merge_info(old_info: SessionInfo, info: SessionInfo | None, *, entries: int, updated_at: int) -> SessionInfo:
    """Return ``old_info`` with what a newer reading of the same recording says."""
    new = info or old_info
    return replace(
        old_info,
        title=new.title or old_info.title,
        cwd=new.cwd or old_info.cwd,
        model=new.model or old_info.model,
        entry_count=entries,
        updated_at=max(updated_at, old_info.updated_at or 0),
    )


def _find_latest_time(info: SessionInfo | None, entries: Iterable[Entry]) -> int | None:
    if info is not None and info.updated_at is not None:
        return info.updated_at
    return max((at for at in map(get_storable_time, entries) if at is not None), default=None)


def _pick_unique(matches: Sequence[str], prefix: str, kind: str) -> str:
    """Return the only one ``matches``, or the one whose name the others go on from with a ``+``; else raise with
    them.
    """
    shortest = min(matches, key=len, default="")
    if matches and all(candidate == shortest or candidate.startswith(f"{shortest}+") for candidate in matches):
        return shortest
    if not matches:
        raise build_unknown_id_error(kind, prefix)
    more_note = ", and more" if len(matches) > MAX_LISTED_CANDIDATES else ""
    msg = (
        f"{prefix[:80]!r} could be any of these: {', '.join(matches[:MAX_LISTED_CANDIDATES])}{more_note}; give "
        f"more of the {kind}'s id"
    )
    raise UnknownId(msg)


def build_unknown_id_error(kind: str, name: str) -> UnknownId:
    """Return the error that nothing has this name."""
    where = "`holdfast ls` lists the sessions" if kind == "session" else "`holdfast show` lists the entries"
    return UnknownId(f"no {kind} is {name[:80]!r} or begins with it; {where}")
