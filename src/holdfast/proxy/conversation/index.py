"""Find the branch of a stored session that has most of a conversation, by hashing only messages that are new.

The messages on a path of the log form one stream of bytes, independent of how a client split its texts, and each
message ends at a *mark* of the stream: a running checksum of everything up to it. A session's log is read once and then
followed, also where other processes append to it. A conversation is looked up by its own marks, the last one first.

A mark only says where to look. What the branch really repeats is decided message by message
(``engine/log/conversation_diff.py``), so a wrong mark may pick a worse branch but can never put a word into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple
from zlib import adler32, crc32

from msgspec import Struct

from holdfast.errors import UnknownId
from holdfast.messages.equality import encode_comparable_bytes
from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.planning.settings import Settings
from holdfast.planning.stages.append_limit import cap_message_texts
from holdfast.state.entries import BranchSummaryEntry, Entry, LabelEntry, MessageEntry
from holdfast.store.base import SessionInfo, SessionStore
from holdfast.store.repair.repair_on_read import read_with_repair

MAX_INDEXED_ENTRIES = 50_000
"""Entries of all sessions that are indexed, measured to take about 10 MB. The session used last is always indexed."""
_SUM_MASK = (1 << 32) - 1
"""The 32 bits of one checksum. A mark is three numbers in one: the CRC of the stream, its Adler-32 and its length.

All three can be extended with more bytes. Two streams share all of them practically never; either checksum alone would
miss bytes that are exchanged far apart (500 MB for CRC).
"""
_EMPTY_STREAM_MARK = 1 << 32
"""The mark of an empty stream: length 0, Adler-32 at its start value 1, CRC at its start value 0."""
_ROLE_PREFIX = b"\xff"
"""Precedes the name of a role in the stream; no UTF-8 text contains that byte."""


class _PathNode(NamedTuple):
    """A message on a path of the log: the mark at its end, and the message before it."""

    mark: int = _EMPTY_STREAM_MARK
    role: str = ""
    is_leading_system: bool = True
    """Whether all messages up to here are system messages."""
    parent: _PathNode | None = None

    def make_next(self, message: Message) -> _PathNode:
        """Return a new node for ``message``, with this one as its parent."""
        role_bytes = _ROLE_PREFIX + message.role.encode()
        is_leading_system = self.is_leading_system and message.role == "system"
        if is_leading_system:
            # Leading system messages count by their place only: they change within a conversation (date, git status).
            return _PathNode(_extend_mark(self.mark, role_bytes), message.role, is_leading_system, self)
        # Adjacent messages of one role make one stretch of the stream, since clients split and join them.
        mark = self.mark
        if message.role != self.role:
            mark = _extend_mark(mark, role_bytes)
        mark = _extend_mark(mark, encode_comparable_bytes(message))
        return _PathNode(mark, message.role, is_leading_system, self)


_ROOT_NODE = _PathNode()


def _make_entry_node(before: _PathNode, entry: Entry) -> _PathNode:
    """Return the node of the path at ``entry``, which follows ``before``: the same node unless it has a message."""
    if not isinstance(entry.body, MessageEntry | BranchSummaryEntry):
        return before
    return before.make_next(entry.body.sized_message.message)


def _extend_mark(mark: int, data: bytes) -> int:
    """Return the mark of a stream after ``data`` was added; it does not depend on how the data is split."""
    length = (mark >> 64) + len(data)
    adler = adler32(data, mark >> 32 & _SUM_MASK)
    crc = crc32(data, mark & _SUM_MASK)
    return length << 64 | adler << 32 | crc


class _PathTip:
    """The newest entry of a path. It is shared by all marks of the path, so that appending moves them all at once."""

    def __init__(self, entry: str) -> None:
        self.entry = entry


class BranchMatch(Struct, frozen=True):
    """The branch that has most of a conversation."""

    leaf: str | None = None
    """Its newest entry, or None if no branch begins like the conversation."""
    message_count: int = 0
    """How many messages of the conversation it has."""
    is_whole_branch: bool = False
    """Whether it has no further messages."""


class _SessionExtent(NamedTuple):
    """How much of a session there is: when it was created, and how many entries it has."""

    created_at: int | None
    entry_count: int


def _get_stored_extent(info: SessionInfo) -> _SessionExtent:
    return _SessionExtent(info.created_at, info.entry_count)


class SessionIndex:
    """The log of one session, searchable by marks."""

    def __init__(self, created_at: int | None = None) -> None:
        self.created_at = created_at
        """When the session was created. A later time means that it was removed and another one has its key."""
        self._last_seq = 0
        """Number of the newest entry that was read; entries after it are known only as far as they were reported."""
        self._nodes: dict[str | None, _PathNode] = {None: _ROOT_NODE}
        """The position on its path of every known entry, by entry id."""
        self._tips: dict[int, _PathTip] = {}
        """The newest path through each mark."""
        self._last_lookup: tuple[Settings | None, list[tuple[bytes, _PathNode]]] = (None, [])
        """Settings of the last lookup, and the digest and position of each message in it."""
        self._tip = _PathTip("")
        """The path that was appended to last: it is the newest one through all its marks."""

    @property
    def entry_count(self) -> int:
        """Number of known entries."""
        return len(self._nodes) - 1

    @property
    def extent(self) -> _SessionExtent:
        """How much of which session is known."""
        return _SessionExtent(self.created_at, self.entry_count)

    def add_entries(self, entries: Iterable[Entry]) -> None:
        """Follow appended ``entries``, in order. Entries with an unknown parent are left out."""
        for entry in entries:
            before = self._nodes.get(entry.parent)
            if before is None:
                continue
            if isinstance(entry.body, LabelEntry):
                # A label is not on any path, but an entry after it belongs to the path before it.
                self._nodes[entry.id] = before
            else:
                self._add_entry(entry, before)

    def read_new_entries(self, store: SessionStore, key: str) -> None:
        """Follow all entries of session ``key`` since it was read last, including entries reported meanwhile."""
        new_entries = store.read_entries(key, after=self._last_seq)
        self.add_entries(new_entries)
        if new_entries:
            self._last_seq = new_entries[-1].seq

    def find_leaf(self, sized_messages: Sequence[SizedMessage], settings: Settings) -> str | None:
        """Return the leaf of the branch that has most of ``sized_messages``, or None if no branch begins like them.

        Among equals it is the newest.
        """
        return self.find_branch(sized_messages, settings).leaf

    def find_branch(self, sized_messages: Sequence[SizedMessage], settings: Settings) -> BranchMatch:
        """Return the branch of ``find_leaf``, and how much of ``sized_messages`` it has."""
        path = self._compute_path(sized_messages, settings)
        # The longest common beginning first: a conversation usually continues its branch, so the first lookup hits.
        for count in range(len(path), 0, -1):
            _, node = path[count - 1]
            mark = node.mark
            tip = self._tips.get(mark)
            if tip is None:
                continue
            leaf_node = self._nodes[tip.entry]
            is_whole_branch = leaf_node is not None and leaf_node.mark == mark
            return BranchMatch(tip.entry, count, is_whole_branch=is_whole_branch)
        return BranchMatch()

    def _compute_path(
        self,
        sized_messages: Sequence[SizedMessage],
        settings: Settings,
    ) -> list[tuple[bytes, _PathNode]]:
        """Return the digest and the position of each of ``sized_messages``.

        Messages that the last lookup had too are not hashed again: a client sends its whole history each time.
        """
        last_settings, last_path = self._last_lookup
        path: list[tuple[bytes, _PathNode]] = []
        node = _ROOT_NODE
        if last_settings is settings:
            for step, sized_message in zip(last_path, sized_messages, strict=False):
                digest, step_node = step
                if not sized_message.digest or digest != sized_message.digest:
                    break
                path.append(step)
                node = step_node
        for sized_message in sized_messages[len(path) :]:
            # Compared with the log, which has texts cut to the append limit.
            capped_message = cap_message_texts(sized_message.message, settings)[0]
            node = node.make_next(capped_message)
            path.append((sized_message.digest, node))
        self._last_lookup = settings, path
        return path

    def _add_entry(self, entry: Entry, before: _PathNode) -> None:
        node = self._nodes.get(entry.id) or _make_entry_node(before, entry)
        self._nodes[entry.id] = node
        if entry.parent == self._tip.entry:
            # The usual case: the newest path goes on. Its marks all share the tip, so this costs nothing more.
            self._tip.entry = entry.id
            self._tips[node.mark] = self._tip
            return
        # Another path becomes the newest one: walk up and point all its marks to it.
        self._tip = _PathTip(entry.id)
        ancestor = node
        while ancestor.parent is not None:
            self._tips[ancestor.mark] = self._tip
            ancestor = ancestor.parent


class SessionIndexes:
    """The indexes of the sessions of one store that were used last.

    Entries that this process appends must be reported to ``add_appended``.
    """

    def __init__(self, store: SessionStore, max_entries: int = MAX_INDEXED_ENTRIES) -> None:
        self._store = store
        self._max_entries = max_entries
        self._indexes: dict[str, SessionIndex] = {}
        """The most recently used is last."""
        self._extents: dict[str, _SessionExtent] = {}
        """How large sessions without an index are. If the store says otherwise, another process wrote to them."""
        self._foreign_writes: dict[str, int] = {}
        """How often another process was seen to have written to a session."""
        self._repairs: dict[str, list[str]] = {}
        """Descriptions of repairs to damaged sessions, until they are taken."""

    def take_repairs(self, key: str) -> list[str]:
        """Return, once, descriptions of the repairs that were made to session ``key`` before it was read."""
        return self._repairs.pop(key, [])

    def find_leaf(self, key: str, sized_messages: Sequence[SizedMessage], settings: Settings) -> str | None:
        """Return the leaf of the branch of session ``key`` that has most of ``sized_messages``, of equals the newest.

        Return None if there is no such session, or no branch of it begins like them.
        """
        index = self._get_updated_index(key)
        return None if index is None else index.find_leaf(sized_messages, settings)

    def is_ahead(
        self,
        key: str,
        sized_messages: Sequence[SizedMessage],
        settings: Settings,
        count: int,
        leaf: str | None,
    ) -> bool:
        """Return whether another process continued the conversation further than our branch with that ``leaf``.

        Our branch has the first ``count`` of ``sized_messages``. Another branch is ahead if it has more of them, or if
        it ends with the same message but has another leaf (an entry without a message, such as a decision).
        """
        index = self._get_updated_index(key)
        match = BranchMatch() if index is None else index.find_branch(sized_messages, settings)
        if match.message_count != count:
            return match.message_count > count
        return match.is_whole_branch and match.leaf != leaf

    def count_foreign_writes(self, key: str) -> int:
        """Return how often another process was seen to have written to session ``key``.

        As long as the number is the same, a branch that was read need not be read again. If nobody wrote, the call
        reads one row.
        """
        try:
            is_changed = self._get_known_extent(key) != _get_stored_extent(self._store.get_session(key))
        except UnknownId:
            is_changed = True
        if is_changed:
            self._get_updated_index(key)
        return self._foreign_writes.get(key, 0)

    def follow_session(self, key: str) -> None:
        """Follow session ``key``, which was just opened. Its log is read only once it is searched."""
        if key not in self._indexes:
            with suppress(UnknownId):
                self._extents[key] = _get_stored_extent(self._store.get_session(key))

    def add_appended(self, key: str, entries: Sequence[Entry]) -> None:
        """Follow ``entries`` that this process appended to session ``key``."""
        if key in self._indexes:
            self._indexes[key].add_entries(entries)
        elif key in self._extents:
            created_at, entry_count = self._extents[key]
            self._extents[key] = _SessionExtent(created_at, entry_count + len(entries))

    def _get_updated_index(self, key: str) -> SessionIndex | None:
        """Return the index of session ``key``, read up to its newest entry, or None if there is no such session."""
        known_extent = self._get_known_extent(key)
        index = self._indexes.pop(key, None)
        try:
            info = self._store.get_session(key)
        except UnknownId:
            return None
        # The store accepts a unique prefix of a key, and then returns another session.
        if info.key != key:
            return None
        if known_extent is not None and known_extent != _get_stored_extent(info):
            self._foreign_writes[key] = self._foreign_writes.get(key, 0) + 1
        index = self._update_index(index or SessionIndex(info.created_at), info)
        self._indexes[key] = index
        self._extents.pop(key, None)
        self._evict_indexes()
        return index

    def _get_known_extent(self, key: str) -> _SessionExtent | None:
        """Return how large session ``key`` is by all that was read or reported, or None if it is not followed."""
        index = self._indexes.get(key)
        if index is None:
            return self._extents.get(key)
        return index.extent

    def _update_index(self, index: SessionIndex, info: SessionInfo) -> SessionIndex:
        """Return ``index`` updated from the store, or a new one if it is of a session that was removed."""
        if index.created_at == info.created_at and index.entry_count < info.entry_count:
            self._read_into_index(index, info.key)
        # Another session has the key now, or entries were removed: the index must begin anew.
        if index.created_at != info.created_at or index.entry_count != info.entry_count:
            index = SessionIndex(info.created_at)
            self._read_into_index(index, info.key)
        return index

    def _read_into_index(self, index: SessionIndex, key: str) -> None:
        """Read session ``key`` into ``index``; a damaged session is repaired first if that loses nothing."""
        repairs = self._repairs.setdefault(key, [])
        read_with_repair(self._store, key, lambda: index.read_new_entries(self._store, key), repairs.extend)
        if not repairs:
            del self._repairs[key]

    def _evict_indexes(self) -> None:
        """Drop the least recently used indexes; only their extents are kept."""
        entry_count = sum(index.entry_count for index in self._indexes.values())
        while entry_count > self._max_entries and len(self._indexes) > 1:
            key = next(iter(self._indexes))
            extent = self._indexes.pop(key).extent
            self._extents[key] = extent
            entry_count -= extent.entry_count
        while len(self._extents) > self._max_entries:
            self._extents.pop(next(iter(self._extents)))
