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
from holdfast.messages.equality import stream
from holdfast.messages.message import Message
from holdfast.messages.sized_message import Slot
from holdfast.planning.settings import Settings
from holdfast.planning.stages.append_limit import cap
from holdfast.state.entries import BranchSummary, Entry, Label, Said
from holdfast.store.base import SessionInfo, SessionStore
from holdfast.store.reading import read_repaired

MOST = 50_000
"""[M] Entries of trees that are held, about 10 MB; the tree looked at last is held however large it is."""
_SUM = (1 << 32) - 1
"""The bits of a sum. A mark is three sums of a stream: its CRC, its Adler-32 and, above them, its length. Each goes on
from where it stands; two streams share all by chance as good as never, and bytes exchanged 500 MB apart change it."""
_ROLE = b"\xff"
"""What stands before the name of a role: no text has that byte."""


class _Place(NamedTuple):
    """A message on a path: the mark that its stream ends with, and the message before it."""

    mark: int = 1 << 32
    role: str = ""
    opens: bool = True
    """Whether all up to here are system messages: those have a place, whatever they say."""
    before: _Place | None = None

    def then(self, message: Message) -> _Place:
        """Return the place of ``message`` behind this one."""
        role = message.role
        opens = self.opens and role == "system"
        if opens:
            return _Place(_grown(self.mark, _ROLE + role.encode()), role, opens, self)
        mark = self.mark if role == self.role else _grown(self.mark, _ROLE + role.encode())
        return _Place(_grown(mark, stream(message)), role, opens, self)


_START = _Place()


def _after(before: _Place, entry: Entry) -> _Place:
    return before.then(entry.body.slot.message) if isinstance(entry.body, Said | BranchSummary) else before


def _grown(mark: int, data: bytes) -> int:
    """Return the mark of a stream that goes on with ``data``; in how many pieces is all the same."""
    length, adler, crc = (mark >> 64) + len(data), adler32(data, mark >> 32 & _SUM), crc32(data, mark & _SUM)
    return length << 64 | adler << 32 | crc


class _Tip:
    """The newest entry of a path that was gone on with last."""

    def __init__(self, entry: str) -> None:
        self.entry = entry


class Found(Struct, frozen=True):
    """The branch that says most of a conversation."""

    leaf: str | None = None
    count: int = 0
    """How many messages of the conversation it says."""
    is_all: bool = False
    """Whether it says no more than that."""


class _Extent(NamedTuple):
    """How much of a session there is: when it began, and how many entries it has."""

    born: int | None
    entries: int


def _extent_of(info: SessionInfo) -> _Extent:
    return _Extent(info.created, info.entries)


class Tree:
    """The tree of one session, by marks."""

    def __init__(self, born: int | None = None) -> None:
        self.born = born
        """When its session began: another one may have its key now."""
        self._seq = 0
        """Of the newest entry that was read: all up to it is known, and of what came later what was told."""
        self._places: dict[str | None, _Place] = {None: _START}
        self._tips: dict[int, _Tip] = {}
        """The newest path through each mark."""
        self._asked: tuple[Settings | None, list[tuple[bytes, _Place]]] = (None, [])
        """The settings of the last look-up, and the digest and the place of each message that was looked up."""
        self._tip = _Tip("")
        """The path that was gone on with last: it is the newest through all its marks."""

    @property
    def entries(self) -> int:
        """How many entries of the log are known."""
        return len(self._places) - 1

    @property
    def extent(self) -> _Extent:
        """How much is known of which session."""
        return _Extent(self.born, self.entries)

    def add(self, entries: Iterable[Entry]) -> None:
        """Follow ``entries``, which were appended in this order; what hangs on one that is not known is left out."""
        for entry in entries:
            before = self._places.get(entry.parent)
            if isinstance(entry.body, Label) and before is not None:
                self._places[entry.id] = before
            elif before is not None:
                self._add(entry, before)

    def read(self, store: SessionStore, key: str) -> None:
        """Follow what was appended to session ``key`` of ``store`` since it was read: in its order, told of or not."""
        new = store.entries(key, after=self._seq)
        self.add(new)
        self._seq = new[-1].seq if new else self._seq

    def leaf(self, slots: Sequence[Slot], settings: Settings) -> str | None:
        """Return the leaf of the branch that repeats most of ``slots``, the newest among equals, if one begins so."""
        return self.found(slots, settings).leaf

    def found(self, slots: Sequence[Slot], settings: Settings) -> Found:
        """Return the same leaf, and how many of ``slots`` its branch says."""
        marked = self._marked(slots, settings)
        for count in range(len(marked), 0, -1):
            mark = marked[count - 1][1].mark
            if (tip := self._tips.get(mark)) is not None:
                there = self._places[tip.entry]
                return Found(tip.entry, count, is_all=there is not None and there.mark == mark)
        return Found()

    def _marked(self, slots: Sequence[Slot], settings: Settings) -> list[tuple[bytes, _Place]]:
        """Return the digest and the place of each of ``slots``; those that were looked up last are not marked again."""
        by, known = self._asked if self._asked[0] is settings else (settings, [])
        same = takewhile(lambda pair: pair[0][0] == pair[1].digest != b"", zip(known, slots, strict=False))
        path = [one for one, _ in same]
        place = path[-1][1] if path else _START
        for slot in slots[len(path) :]:
            place = place.then(cap(slot.message, settings)[0])  # as the log has it
            path.append((slot.digest, place))
        self._asked = by, path
        return path

    def _add(self, entry: Entry, before: _Place) -> None:
        place = self._places.get(entry.id) or _after(before, entry)
        self._places[entry.id] = place
        if entry.parent == self._tip.entry:
            self._tip.entry, self._tips[place.mark] = entry.id, self._tip
            return
        self._tip, at = _Tip(entry.id), place
        while at.before is not None:
            self._tips[at.mark], at = self._tip, at.before


class Trees:
    """The trees of one store that were looked at last. What is appended behind them is to be told to ``grew``."""

    def __init__(self, store: SessionStore, most: int = MOST) -> None:
        self._store, self._most = store, most
        self._trees: dict[str, Tree] = {}
        """The last used is the last."""
        self._extents: dict[str, _Extent] = {}
        """How large sessions are whose trees are not held: another extent tells that somebody else wrote."""
        self._others: dict[str, int] = {}
        """How often somebody else was seen to have written to a session."""
        self._repairs: dict[str, list[str]] = {}
        """What was repaired in sessions that were damaged, until it is told."""

    def take_repairs(self, key: str) -> list[str]:
        """Return what was repaired in session ``key`` before it was read and was not asked for yet, a line for each."""
        return self._repairs.pop(key, [])

    def found(self, key: str, slots: Sequence[Slot], settings: Settings) -> str | None:
        """Return the leaf of the branch of session ``key`` that repeats most of ``slots``, the newest among equals.

        Nothing where there is no such session, or no branch of it begins like this.
        """
        tree = self._tree(key)
        return None if tree is None else tree.leaf(slots, settings)

    def is_ahead(self, key: str, slots: Sequence[Slot], settings: Settings, count: int, leaf: str | None) -> bool:
        """Return whether somebody else went on with ``slots``, of which a branch up to ``leaf`` says ``count``.

        They said more of it, or decided something there.
        """
        tree = self._tree(key)
        there = Found() if tree is None else tree.found(slots, settings)
        return there.count > count or (there.count == count and there.is_all and there.leaf != leaf)

    def others(self, key: str) -> int:
        """Return how often somebody else was seen to have written to session ``key``; where nobody did it costs a row.

        A branch that was read, or compared, at the same number has nothing to learn of them.
        """
        try:
            is_new = self._extent(key) != _extent_of(self._store.session(key))
        except UnknownId:
            is_new = True
        if is_new:
            self._tree(key)
        return self._others.get(key, 0)

    def look(self, key: str) -> None:
        """Follow session ``key`` from here on: it was opened a moment ago. Its tree is read once it is asked for."""
        if key not in self._trees:
            with suppress(UnknownId):
                self._extents[key] = _extent_of(self._store.session(key))

    def grew(self, key: str, entries: Sequence[Entry]) -> None:
        """Follow what was appended to session ``key``."""
        if key in self._trees:
            self._trees[key].add(entries)
        elif key in self._extents:
            born, known = self._extents[key]
            self._extents[key] = _Extent(born, known + len(entries))

    def _tree(self, key: str) -> Tree | None:
        """Return the tree of session ``key`` as the log has it: what somebody else appended is read."""
        extent, known = self._extent(key), self._trees.pop(key, None)
        try:
            info = self._store.session(key)
        except UnknownId:
            return None
        if info.key != key:
            return None
        if extent not in (None, _extent_of(info)):
            self._others[key] = self._others.get(key, 0) + 1
        self._trees[key] = tree = self._followed(known or Tree(info.created), info)
        self._extents.pop(key, None)
        self._forget()
        return tree

    def _extent(self, key: str) -> _Extent | None:
        """Return how large session ``key`` is by all that was read or told, if it is followed."""
        tree = self._trees.get(key)
        return tree.extent if tree is not None else self._extents.get(key)

    def _followed(self, tree: Tree, info: SessionInfo) -> Tree:
        """Return ``tree`` with what it does not know, or another where it is of a session that is gone."""
        if tree.born == info.created and tree.entries < info.entries:
            self._read(tree, info.key)
        if tree.born != info.created or tree.entries != info.entries:
            tree = Tree(info.created)
            self._read(tree, info.key)
        return tree

    def _read(self, tree: Tree, key: str) -> None:
        """Let ``tree`` follow session ``key``; what is damaged there is repaired first, if that loses nothing."""
        repairs = self._repairs.setdefault(key, [])
        read_repaired(self._store, key, lambda: tree.read(self._store, key), repairs.extend)
        if not repairs:
            del self._repairs[key]

    def _forget(self) -> None:
        """Let trees go that were looked at longest ago."""
        held = sum(tree.entries for tree in self._trees.values())
        while held > self._most and len(self._trees) > 1:
            key = next(iter(self._trees))
            self._extents[key] = gone = self._trees.pop(key).extent
            held -= gone.entries
        while len(self._extents) > self._most:
            self._extents.pop(next(iter(self._extents)))
