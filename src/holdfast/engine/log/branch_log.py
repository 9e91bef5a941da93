"""A strand: one branch of the log as it is followed and written, whatever is said on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile

from holdfast.engine.log.conversation_diff import reworded
from holdfast.engine.log.queue import is_queued
from holdfast.messages.sized_message import Slot
from holdfast.state.branch.branch import Branch, extended
from holdfast.state.entries import Answer, Body, BranchSummary, Entry, Said
from holdfast.state.sequence import Seq
from holdfast.store.base import Decode, SessionStore
from holdfast.store.reading import read_repaired

_WORDS = Said | BranchSummary | Answer
"""What is said, or was an answer to it."""
NOWHERE = ""
"""No entry: who expects the session's leaf there does not move it."""


class Strand:
    """One branch of one stored session, used by one thread at a time: what is in the log up to its leaf.

    What somebody else decided or took back behind the same entry counts here too. Where they *said* something there,
    what is written here is a branch beside theirs, which parts just before their first words.
    """

    def __init__(
        self,
        store: SessionStore,
        key: str,
        branch: Branch,
        leaf: str | None,
        clock: Callable[[], int],
        ids: Callable[[int], list[str]],
        *,
        moves_leaf: bool,
    ) -> None:
        self.store = store
        self.key = key
        self.branch = branch
        self.leaf = leaf
        self._clock, self._ids = clock, ids
        self.moves_leaf = moves_leaf
        """Whether the session's leaf goes on with this branch."""
        self.heard: Callable[[str, Sequence[Entry]], object] = lambda _key, _entries: None
        """Who is told which entries were appended here, and to which session."""
        self._said: Seq[Slot] = Seq()
        """What its client said last, in its own words."""
        self._is_held = self._is_current = False
        """Whether the lease is held, and nobody else can have written since the log was looked at."""
        self.repairs: list[str] = []
        """What was damaged in the session, and repaired without loss before it was read; emptied by who tells it."""
        self._gathers = False
        """Whether what is written waits for the end of a block."""
        self._gathered: list[Entry] = []
        self._decode: Decode | None = None
        """Who made the messages that were gathered of their bytes."""
        self._before = branch, leaf
        """What stood before what was gathered."""

    @contextmanager
    def leased(self) -> Iterator[None]:
        """Hold the session's lease; all that is done inside finds the log as it was at the first look, and its own."""
        if self._is_held:
            yield
            return
        with self.store.writing(self.key):
            self._is_held = True
            try:
                yield
            finally:
                self._is_held = self._is_current = False

    @contextmanager
    def one_write(self) -> Iterator[None]:
        """Hold the lease; what is written inside is in the log behind the block: in one transaction, or none of it.

        Where the block raises, what was written before that is there. A block inside another is part of it.
        """
        if self._gathers:
            yield
            return
        with self.leased():
            self._catch_up()
            self._gathers = True
            try:
                yield
            finally:
                self._gathers = False
                self._settle()

    def lead(self) -> None:
        """Let the session's leaf go on with this branch from here on."""
        self.moves_leaf = True

    def join(self) -> None:
        """Go on where the session does, whatever others said meanwhile, and lead it."""
        with self.leased():
            leaf = self.store.session(self.key).leaf
            if leaf is not None and leaf != self.leaf:
                self.branch, self.leaf = self._read(self._path_to(leaf)), leaf
                self._turned()
            self.moves_leaf = self._is_current = True

    def go_along(self) -> bool:
        """Join the session where it went on behind the leaf, with nothing said beside; return whether it did."""
        with self.leased():
            there = self.store.session(self.key).leaf
            if there is None or there == self.leaf:
                return False
            if self.leaf is not None and all(entry.id != self.leaf for entry in self._path_to(there)):
                return False
            self.join()
        return True

    # -- what is written -----------------------------------------------------------------------------------------------

    def _write(self, bodies: Sequence[Body], decode: Decode | None = None) -> list[Entry]:
        """Append an entry for each body behind the leaf, in one transaction, and fold them in.

        Bodies may be made before the catch-up: what is decided or undone is made behind one, under the same lease; the
        rest is what was said, failed or cost, and as true whatever others decided meanwhile.
        """
        entries = self._written(bodies, decode, onward=self.moves_leaf and not self._is_current)
        if not entries:
            self._catch_up()
            entries = self._written(bodies, decode)
        if entries:
            self._is_current = self._is_held
            self.leaf = entries[-1].id
            self.branch = extended(self.branch, entries)
            self._turned(entries)
        return entries

    def _written(self, bodies: Sequence[Body], decode: Decode | None, *, onward: bool = False) -> list[Entry]:
        """Return an entry for each body, in the log behind the leaf; none ``onward`` of a leaf that somebody moved.

        Inside ``one_write`` they are gathered.
        """
        if not bodies:
            return []
        ids, now = self._ids(len(bodies)), self._clock()
        parents = [self.leaf, *ids[:-1]]
        places = zip(ids, parents, bodies, strict=True)
        entries = [Entry(id_, parent, body, 0, now) for id_, parent, body in places]
        if not self._gathers:
            there = self._append(entries, decode, onward=onward)
            if there:
                self.heard(self.key, entries)
            return entries if there else []
        if not self._gathered:
            self._before = self.branch, self.leaf
        self._gathered += entries
        self._decode = decode or self._decode
        return entries

    def _settle(self) -> None:
        """Let what was gathered be in the log; where that takes it not, all is as it was before."""
        gathered, decode, self._gathered, self._decode = self._gathered, self._decode, [], None
        if not gathered:
            return
        try:
            self._append(gathered, decode)
        except BaseException:
            self.branch, self.leaf = self._before
            self._turned()
            raise
        self.heard(self.key, gathered)

    def _append(self, entries: Sequence[Entry], decode: Decode | None, *, onward: bool = False) -> bool:
        """Append ``entries`` in one transaction; return whether they are there."""
        behind = None if self.moves_leaf else NOWHERE
        told = self.store.append(self.key, entries, expected_leaf=behind, decode=decode, onward=onward)
        return told.moved or not onward

    def _turned(self, new: Sequence[Entry] = ()) -> None:
        """Take note that the branch is another one: by ``new`` entries of its own, or else by what others did."""

    # -- what is read --------------------------------------------------------------------------------------------------

    def _catch_up(self) -> bool:
        """Fold in what others decided or took back behind the leaf; return whether there was anything."""
        there = self.store.session(self.key).leaf if self.moves_leaf and not self._is_current else self.leaf
        self._is_current = self._is_held
        if there == self.leaf or there is None:
            return False
        path = self._path_to(there)
        behind = next((at + 1 for at, one in enumerate(path) if one.id == self.leaf), 0 if self.leaf is None else -1)
        if behind < 0:
            self.moves_leaf = False
            return False
        if any(isinstance(entry.body, _WORDS) for entry in path[behind:]):
            self.moves_leaf = False
            path = [*path[:behind], *takewhile(_is_silent, path[behind:])]
        if len(path) == behind:
            return False
        self.branch, self.leaf = self._read(path), path[-1].id
        self._turned()
        return True

    def _path(self) -> list[Entry]:
        """Return the entries up to the leaf, which are in the log then."""
        self._settle()
        return self._path_to(self.leaf)

    def _path_to(self, leaf: str | None) -> list[Entry]:
        """Return the entries up to ``leaf`` as the log has them; what is damaged is repaired first, if it can be."""
        return read_repaired(self.store, self.key, lambda: self.store.path(self.key, leaf), self.repairs.extend)

    def _reread(self) -> None:
        self.branch = Branch() if self.leaf is None else self._read(self._path())

    def _read(self, path: Sequence[Entry]) -> Branch:
        return reworded(Branch.build(path), self._said)


def _is_silent(entry: Entry) -> bool:
    """Whether ``entry`` says nothing, and holds nothing that is to be said."""
    return not isinstance(entry.body, _WORDS) and not is_queued(entry)
