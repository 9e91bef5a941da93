"""Which branch of a stored session says most of a conversation: told from one look at what is new of either.

The words of a path are one stream, however they were cut up, and each message ends at a mark of the stream before it.
A tree of the log is read once, and followed from there, what others append too: a conversation is looked up by its own
marks, the last first, whatever else begins like it. A mark is a hint where to look; what is repeated there is told
message by message (``engine/log/conversation_diff.py``), so that a wrong one costs a branch and never a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import takewhile
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
"""[M] Entries of trees that are held, about 10 MB; the tree looked at last is held however large it is."""
_SUM_MASK = (1 << 32) - 1
"""The bits of a sum. A mark is three sums of a stream: its CRC, its Adler-32 and, above them, its length. Each goes on
from where it stands; two streams share all by chance as good as never, and bytes exchanged 500 MB apart change it."""
_ROLE_PREFIX = b"\xff"
"""What stands before the name of a role: no text has that byte."""


class _PathNode(NamedTuple):
    """A message on a path: the mark that its stream ends with, and the message before it."""

    mark: int = 1 << 32
    role: str = ""
    is_leading_system: bool = True
    """Whether all up to here are system messages: those have a place, whatever they say."""
    parent: _PathNode | None = None

    def append_message(self, message: Message) -> _PathNode:
        """Return the place of ``message`` behind this one."""
        role = message.role
        opens = self.is_leading_system and role == "system"
        if opens:
            return _PathNode(_extend_mark(self.mark, _ROLE_PREFIX + role.encode()), role, opens, self)
        mark = self.mark if role == self.role else _extend_mark(self.mark, _ROLE_PREFIX + role.encode())
        return _PathNode(_extend_mark(mark, encode_comparable_bytes(message)), role, opens, self)


_ROOT_NODE = _PathNode()


def _append_entry(before: _PathNode, entry: Entry) -> _PathNode:
    return (
        before.append_message(entry.body.sized_message.message)
        if isinstance(entry.body, MessageEntry | BranchSummaryEntry)
        else before
    )


def _extend_mark(mark: int, data: bytes) -> int:
    """Return the mark of a stream that goes on with ``data``; in how many pieces is all the same."""
    length, adler, crc = (mark >> 64) + len(data), adler32(data, mark >> 32 & _SUM_MASK), crc32(data, mark & _SUM_MASK)
    return length << 64 | adler << 32 | crc


class _PathTip:
    """The newest entry of a path that was gone on with last."""

    def __init__(self, entry: str) -> None:
        self.entry = entry


class BranchMatch(Struct, frozen=True):
    """The branch that says most of a conversation."""

    leaf: str | None = None
    message_count: int = 0
    """How many messages of the conversation it says."""
    is_whole_branch: bool = False
    """Whether it says no more than that."""


class _SessionExtent(NamedTuple):
    """How much of a session there is: when it began, and how many entries it has."""

    created_at: int | None
    entry_count: int


def _get_stored_extent(info: SessionInfo) -> _SessionExtent:
    return _SessionExtent(info.created_at, info.entry_count)


class SessionIndex:
    """The tree of one session, by marks."""

    def __init__(self, born: int | None = None) -> None:
        self.created_at = born
        """When its session began: another one may have its key now."""
        self._last_seq = 0
        """Of the newest entry that was read: all up to it is known, and of what came later what was told."""
        self._nodes: dict[str | None, _PathNode] = {None: _ROOT_NODE}
        self._tips: dict[int, _PathTip] = {}
        """The newest path through each mark."""
        self._last_lookup: tuple[Settings | None, list[tuple[bytes, _PathNode]]] = (None, [])
        """The settings of the last look-up, and the digest and the place of each message that was looked up."""
        self._tip = _PathTip("")
        """The path that was gone on with last: it is the newest through all its marks."""

    @property
    def entry_count(self) -> int:
        """How many entries of the log are known."""
        return len(self._nodes) - 1

    @property
    def extent(self) -> _SessionExtent:
        """How much is known of which session."""
        return _SessionExtent(self.created_at, self.entry_count)

    def add_entries(self, entries: Iterable[Entry]) -> None:
        """Follow ``entries``, which were appended in this order; what hangs on one that is not known is left out."""
        for entry in entries:
            before = self._nodes.get(entry.parent)
            if isinstance(entry.body, LabelEntry) and before is not None:
                self._nodes[entry.id] = before
            elif before is not None:
                self._add_entry(entry, before)

    def read_new_entries(self, store: SessionStore, key: str) -> None:
        """Follow what was appended to session ``key`` of ``store`` since it was read: in its order, told of or not."""
        new = store.read_entries(key, after=self._last_seq)
        self.add_entries(new)
        self._last_seq = new[-1].seq if new else self._last_seq

    def find_leaf(self, sized_messages: Sequence[SizedMessage], settings: Settings) -> str | None:
        """Return the leaf of the branch that repeats most of ``sized_messages``, the newest among equals, if one
        begins so.
        """
        return self.find_branch(sized_messages, settings).leaf

    def find_branch(self, sized_messages: Sequence[SizedMessage], settings: Settings) -> BranchMatch:
        """Return the same leaf, and how many of ``sized_messages`` its branch says."""
        path = self._compute_path(sized_messages, settings)
        for count in range(len(path), 0, -1):
            mark = path[count - 1][1].mark
            if (tip := self._tips.get(mark)) is not None:
                there = self._nodes[tip.entry]
                return BranchMatch(tip.entry, count, is_whole_branch=there is not None and there.mark == mark)
        return BranchMatch()

    def _compute_path(
        self, sized_messages: Sequence[SizedMessage], settings: Settings
    ) -> list[tuple[bytes, _PathNode]]:
        """Return the digest and the place of each of ``sized_messages``; those that were looked up last are not
        marked again.
        """
        by, previous_path = self._last_lookup if self._last_lookup[0] is settings else (settings, [])
        pairs = takewhile(
            lambda pair: pair[0][0] == pair[1].digest != b"", zip(previous_path, sized_messages, strict=False)
        )
        path = [step for step, _ in pairs]
        place = path[-1][1] if path else _ROOT_NODE
        for sized_message in sized_messages[len(path) :]:
            place = place.append_message(cap_message_texts(sized_message.message, settings)[0])  # as the log has it
            path.append((sized_message.digest, place))
        self._last_lookup = by, path
        return path

    def _add_entry(self, entry: Entry, before: _PathNode) -> None:
        place = self._nodes.get(entry.id) or _append_entry(before, entry)
        self._nodes[entry.id] = place
        if entry.parent == self._tip.entry:
            self._tip.entry, self._tips[place.mark] = entry.id, self._tip
            return
        self._tip, at = _PathTip(entry.id), place
        while at.parent is not None:
            self._tips[at.mark], at = self._tip, at.parent


class SessionIndexes:
    """The trees of one store that were looked at last. What is appended behind them is to be told to
    ``add_appended``.
    """

    def __init__(self, store: SessionStore, max_entries: int = MAX_INDEXED_ENTRIES) -> None:
        self._store, self._most = store, max_entries
        self._indexes: dict[str, SessionIndex] = {}
        """The last used is the last."""
        self._extents: dict[str, _SessionExtent] = {}
        """How large sessions are whose trees are not held: another extent tells that somebody else wrote."""
        self._foreign_writes: dict[str, int] = {}
        """How often somebody else was seen to have written to a session."""
        self._repairs: dict[str, list[str]] = {}
        """What was repaired in sessions that were damaged, until it is told."""

    def take_repairs(self, key: str) -> list[str]:
        """Return what was repaired in session ``key`` before it was read and was not asked for yet, a line for each."""
        return self._repairs.pop(key, [])

    def find_leaf(self, key: str, sized_messages: Sequence[SizedMessage], settings: Settings) -> str | None:
        """Return the leaf of the branch of session ``key`` that repeats most of ``sized_messages``, the newest among
        equals.

        Nothing where there is no such session, or no branch of it begins like this.
        """
        tree = self._get_updated_index(key)
        return None if tree is None else tree.find_leaf(sized_messages, settings)

    def is_ahead(
        self, key: str, sized_messages: Sequence[SizedMessage], settings: Settings, count: int, leaf: str | None
    ) -> bool:
        """Return whether somebody else went on with ``sized_messages``, of which a branch up to ``leaf`` says
        ``count``.

        They said more of it, or decided something there.
        """
        tree = self._get_updated_index(key)
        there = BranchMatch() if tree is None else tree.find_branch(sized_messages, settings)
        return there.message_count > count or (
            there.message_count == count and there.is_whole_branch and there.leaf != leaf
        )

    def count_foreign_writes(self, key: str) -> int:
        """Return how often somebody else was seen to have written to session ``key``; where nobody did it costs a row.

        A branch that was read, or compared, at the same number has nothing to learn of them.
        """
        try:
            is_new = self._get_known_extent(key) != _get_stored_extent(self._store.get_session(key))
        except UnknownId:
            is_new = True
        if is_new:
            self._get_updated_index(key)
        return self._foreign_writes.get(key, 0)

    def follow_session(self, key: str) -> None:
        """Follow session ``key`` from here on: it was opened a moment ago. Its tree is read once it is asked for."""
        if key not in self._indexes:
            with suppress(UnknownId):
                self._extents[key] = _get_stored_extent(self._store.get_session(key))

    def add_appended(self, key: str, entries: Sequence[Entry]) -> None:
        """Follow what was appended to session ``key``."""
        if key in self._indexes:
            self._indexes[key].add_entries(entries)
        elif key in self._extents:
            born, entry_count = self._extents[key]
            self._extents[key] = _SessionExtent(born, entry_count + len(entries))

    def _get_updated_index(self, key: str) -> SessionIndex | None:
        """Return the tree of session ``key`` as the log has it: what somebody else appended is read."""
        extent, cached_tree = self._get_known_extent(key), self._indexes.pop(key, None)
        try:
            info = self._store.get_session(key)
        except UnknownId:
            return None
        if info.key != key:
            return None
        if extent not in (None, _get_stored_extent(info)):
            self._foreign_writes[key] = self._foreign_writes.get(key, 0) + 1
        self._indexes[key] = tree = self._update_index(cached_tree or SessionIndex(info.created_at), info)
        self._extents.pop(key, None)
        self._evict_indexes()
        return tree

    def _get_known_extent(self, key: str) -> _SessionExtent | None:
        """Return how large session ``key`` is by all that was read or told, if it is followed."""
        tree = self._indexes.get(key)
        return tree.extent if tree is not None else self._extents.get(key)

    def _update_index(self, tree: SessionIndex, info: SessionInfo) -> SessionIndex:
        """Return ``tree`` with what it does not know, or another where it is of a session that is gone."""
        if tree.created_at == info.created_at and tree.entry_count < info.entry_count:
            self._read_into_index(tree, info.key)
        if tree.created_at != info.created_at or tree.entry_count != info.entry_count:
            tree = SessionIndex(info.created_at)
            self._read_into_index(tree, info.key)
        return tree

    def _read_into_index(self, tree: SessionIndex, key: str) -> None:
        """Let ``tree`` follow session ``key``; what is damaged there is repaired first, if that loses nothing."""
        repairs = self._repairs.setdefault(key, [])
        read_with_repair(self._store, key, lambda: tree.read_new_entries(self._store, key), repairs.extend)
        if not repairs:
            del self._repairs[key]

    def _evict_indexes(self) -> None:
        """Let trees go that were looked at longest ago."""
        entry_count = sum(tree.entry_count for tree in self._indexes.values())
        while entry_count > self._most and len(self._indexes) > 1:
            key = next(iter(self._indexes))
            self._extents[key] = extent = self._indexes.pop(key).extent
            entry_count -= extent.entry_count
        while len(self._extents) > self._most:
            self._extents.pop(next(iter(self._extents)))
