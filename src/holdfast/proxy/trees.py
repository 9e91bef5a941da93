"""Which branch of a stored session says most of a conversation: told from one look at what is new of either.

The words of a path are one stream, however they were cut up, and each message ends at a mark of the stream before it.
A tree of the log is read once, and followed from there: a conversation is looked up by its own marks, the last first,
whatever else begins like it. A mark is a hint where to look; what is repeated there is told message by message
(``runtime/following.py``), so that a wrong one costs a branch and never a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from holdfast.errors import UnknownId
from holdfast.model.entries import BranchSummary, Entry, Label, Said
from holdfast.model.messages import Message
from holdfast.model.slots import Slot
from holdfast.policy.capping import cap
from holdfast.policy.settings import Settings
from holdfast.store.base import SessionStore
from holdfast.view.alike import stream

MOST = 50_000
"""[M] Entries of trees that are held, about 10 MB; the tree looked at last is held however large it is."""
PRIME = (1 << 128) - 159
"""Marks are less than this: two streams share one by chance as good as never. Powers of 256 have no short period by it,
as they do by 2^127 - 1, so that no bytes far apart can be exchanged unseen."""
_ROLE = b"\xff"
"""What stands before the name of a role: no text has that byte."""


class _Place(NamedTuple):
    """A message on a path: the mark that its stream ends with, and the message before it."""

    mark: int = 1
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


def _grown(mark: int, data: bytes) -> int:
    """Return the mark of a stream that goes on with ``data``; in how many pieces is all the same."""
    return (mark * pow(256, len(data), PRIME) + int.from_bytes(data, "big")) % PRIME


class _Tip:
    """The newest entry of a path that was gone on with last."""

    def __init__(self, entry: str) -> None:
        self.entry = entry


class Tree:
    """The tree of one session, by marks."""

    def __init__(self, born: int | None = None) -> None:
        self.born = born
        """When its session began: another one may have its key now."""
        self.entries = 0
        self._places: dict[str | None, _Place] = {None: _START}
        self._tips: dict[int, _Tip] = {}
        """The newest path through each mark."""
        self._tip = _Tip("")
        """The path that was gone on with last: it is the newest through all its marks."""

    def add(self, entries: Iterable[Entry]) -> None:
        """Follow ``entries``, which were appended in this order."""
        for entry in entries:
            self.entries += 1
            before = self._places.get(entry.parent)
            if before is not None and not isinstance(entry.body, Label):
                self._add(entry, before)

    def leaf(self, slots: Sequence[Slot], settings: Settings) -> str | None:
        """Return the leaf of the branch that repeats most of ``slots``, the newest among equals, if one begins so."""
        said = (cap(slot.message, settings)[0] for slot in slots)  # as the log has it
        path = list(accumulate(said, _Place.then, initial=_START))
        found = (self._tips.get(place.mark) for place in reversed(path[1:]))
        return next((tip.entry for tip in found if tip is not None), None)

    def _add(self, entry: Entry, before: _Place) -> None:
        place = before.then(entry.body.slot.message) if isinstance(entry.body, Said | BranchSummary) else before
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

    def found(self, key: str, slots: Sequence[Slot], settings: Settings) -> str | None:
        """Return the leaf of the branch of session ``key`` that repeats most of ``slots``, the newest among equals.

        Nothing where there is no such session, or no branch of it begins like this.
        """
        tree = self._tree(key)
        return None if tree is None else tree.leaf(slots, settings)

    def grew(self, key: str, entries: Sequence[Entry]) -> None:
        """Follow what was appended to session ``key``."""
        if key in self._trees:
            self._trees[key].add(entries)

    def _tree(self, key: str) -> Tree | None:
        """Return the tree of session ``key`` as the log has it: read anew where somebody else appended to it."""
        known = self._trees.pop(key, None)
        try:
            info = self._store.session(key)
        except UnknownId:
            return None
        if info.key != key:
            return None
        if known is None or (known.born, known.entries) != (info.created, info.entries):
            known = Tree(info.created)
            known.add(self._store.entries(key))
        self._trees[key] = known
        self._forget()
        return known

    def _forget(self) -> None:
        """Let trees go that were looked at longest ago."""
        held = sum(tree.entries for tree in self._trees.values())
        while held > self._most and len(self._trees) > 1:
            held -= self._trees.pop(next(iter(self._trees))).entries
