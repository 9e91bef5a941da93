"""A strand: one branch of the log as it is followed and written, whatever is said on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile

from holdfast.engine.log.conversation_diff import replace_with_client_bytes
from holdfast.engine.log.queued_messages import is_queued_note
from holdfast.messages.sized_message import SizedMessage
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import AnswerEntry, BranchSummaryEntry, Entry, EntryBody, MessageEntry
from holdfast.state.fold.fold_entries import apply_entries
from holdfast.state.persistent_sequence import PersistentSequence
from holdfast.store.base import MessageDecoder, SessionStore
from holdfast.store.repair.repair_on_read import read_with_repair

_SPOKEN_ENTRIES = MessageEntry | BranchSummaryEntry | AnswerEntry
"""What is said, or was an answer to it."""
NO_LEAF = ""
"""No entry: who expects the session's leaf there does not move it."""


class BranchLog:
    """One branch of one stored session, used by one thread at a time: what is in the log up to its leaf.

    What somebody else decided or took back behind the same entry counts here too. Where they *said* something there,
    what is written here is a branch beside theirs, which parts just before their first words.
    """

    def __init__(
        self,
        store: SessionStore,
        key: str,
        state: ConversationState,
        leaf: str | None,
        clock: Callable[[], int],
        ids: Callable[[int], list[str]],
        *,
        moves_leaf: bool,
    ) -> None:
        self.store = store
        self.key = key
        self.state = state
        self.leaf = leaf
        self._clock, self._ids = clock, ids
        self.moves_leaf = moves_leaf
        """Whether the session's leaf goes on with this branch."""
        self.append_listener: Callable[[str, Sequence[Entry]], object] = lambda _key, _entries: None
        """Who is told which entries were appended here, and to which session."""
        self._client_messages: PersistentSequence[SizedMessage] = PersistentSequence()
        """What its client said last, in its own words."""
        self._has_lease = self._is_current = False
        """Whether the lease is held, and nobody else can have written since the log was looked at."""
        self.repairs: list[str] = []
        """What was damaged in the session, and repaired without loss before it was read; emptied by who tells it."""
        self._is_batching = False
        """Whether what is written waits for the end of a block."""
        self._batched_entries: list[Entry] = []
        self._decode: MessageDecoder | None = None
        """Who made the messages that were gathered of their bytes."""
        self._before_batch = state, leaf
        """What stood before what was gathered."""

    @contextmanager
    def hold_lease(self) -> Iterator[None]:
        """Hold the session's lease; all that is done inside finds the log as it was at the first look, and its own."""
        if self._has_lease:
            yield
            return
        with self.store.hold_lease(self.key):
            self._has_lease = True
            try:
                yield
            finally:
                self._has_lease = self._is_current = False

    @contextmanager
    def batch_writes(self) -> Iterator[None]:
        """Hold the lease; what is written inside is in the log behind the block: in one transaction, or none of it.

        Where the block raises, what was written before that is there. A block inside another is part of it.
        """
        if self._is_batching:
            yield
            return
        with self.hold_lease():
            self._catch_up()
            self._is_batching = True
            try:
                yield
            finally:
                self._is_batching = False
                self._flush_batch()

    def take_session_leaf(self) -> None:
        """Let the session's leaf go on with this branch from here on."""
        self.moves_leaf = True

    def join_session(self) -> None:
        """Go on where the session does, whatever others said meanwhile, and lead it."""
        with self.hold_lease():
            leaf = self.store.get_session(self.key).leaf_id
            if leaf is not None and leaf != self.leaf:
                self.state, self.leaf = self._fold_path(self._read_path_to(leaf)), leaf
                self._on_branch_changed()
            self.moves_leaf = self._is_current = True

    def join_if_extended(self) -> bool:
        """Join the session where it went on behind the leaf, with nothing said beside; return whether it did."""
        with self.hold_lease():
            there = self.store.get_session(self.key).leaf_id
            if there is None or there == self.leaf:
                return False
            if self.leaf is not None and all(entry.id != self.leaf for entry in self._read_path_to(there)):
                return False
            self.join_session()
        return True

    # -- what is written -----------------------------------------------------------------------------------------------

    def _append_bodies(self, bodies: Sequence[EntryBody], decode: MessageDecoder | None = None) -> list[Entry]:
        """Append an entry for each body behind the leaf, in one transaction, and fold them in.

        Bodies may be made before the catch-up: what is decided or undone is made behind one, under the same lease; the
        rest is what was said, failed or cost, and as true whatever others decided meanwhile.
        """
        entries = self._append_or_batch(bodies, decode, onward=self.moves_leaf and not self._is_current)
        if not entries:
            self._catch_up()
            entries = self._append_or_batch(bodies, decode)
        if entries:
            self._is_current = self._has_lease
            self.leaf = entries[-1].id
            self.state = apply_entries(self.state, entries)
            self._on_branch_changed(entries)
        return entries

    def _append_or_batch(
        self, bodies: Sequence[EntryBody], decode: MessageDecoder | None, *, onward: bool = False
    ) -> list[Entry]:
        """Return an entry for each body, in the log behind the leaf; none ``onward`` of a leaf that somebody moved.

        Inside ``batch_writes`` they are gathered.
        """
        if not bodies:
            return []
        ids, now = self._ids(len(bodies)), self._clock()
        parents = [self.leaf, *ids[:-1]]
        places = zip(ids, parents, bodies, strict=True)
        entries = [Entry(id_, parent, body, 0, now) for id_, parent, body in places]
        if not self._is_batching:
            there = self._append_to_store(entries, decode, onward=onward)
            if there:
                self.append_listener(self.key, entries)
            return entries if there else []
        if not self._batched_entries:
            self._before_batch = self.state, self.leaf
        self._batched_entries += entries
        self._decode = decode or self._decode
        return entries

    def _flush_batch(self) -> None:
        """Let what was gathered be in the log; where that takes it not, all is as it was before."""
        entries, decode, self._batched_entries, self._decode = self._batched_entries, self._decode, [], None
        if not entries:
            return
        try:
            self._append_to_store(entries, decode)
        except BaseException:
            self.state, self.leaf = self._before_batch
            self._on_branch_changed()
            raise
        self.append_listener(self.key, entries)

    def _append_to_store(
        self, entries: Sequence[Entry], decode: MessageDecoder | None, *, onward: bool = False
    ) -> bool:
        """Append ``entries`` in one transaction; return whether they are there."""
        behind = None if self.moves_leaf else NO_LEAF
        result = self.store.append_entries(self.key, entries, expected_leaf=behind, decode=decode, onward=onward)
        return result.is_leaf_moved or not onward

    def _on_branch_changed(self, new: Sequence[Entry] = ()) -> None:
        """Take note that the branch is another one: by ``new`` entries of its own, or else by what others did."""

    # -- what is read --------------------------------------------------------------------------------------------------

    def _catch_up(self) -> bool:
        """Fold in what others decided or took back behind the leaf; return whether there was anything."""
        there = self.store.get_session(self.key).leaf_id if self.moves_leaf and not self._is_current else self.leaf
        self._is_current = self._has_lease
        if there == self.leaf or there is None:
            return False
        path = self._read_path_to(there)
        behind = next(
            (at + 1 for at, path_entry in enumerate(path) if path_entry.id == self.leaf), 0 if self.leaf is None else -1
        )
        if behind < 0:
            self.moves_leaf = False
            return False
        if any(isinstance(entry.body, _SPOKEN_ENTRIES) for entry in path[behind:]):
            self.moves_leaf = False
            path = [*path[:behind], *takewhile(_is_wordless, path[behind:])]
        if len(path) == behind:
            return False
        self.state, self.leaf = self._fold_path(path), path[-1].id
        self._on_branch_changed()
        return True

    def _read_path(self) -> list[Entry]:
        """Return the entries up to the leaf, which are in the log then."""
        self._flush_batch()
        return self._read_path_to(self.leaf)

    def _read_path_to(self, leaf: str | None) -> list[Entry]:
        """Return the entries up to ``leaf`` as the log has them; what is damaged is repaired first, if it can be."""
        return read_with_repair(self.store, self.key, lambda: self.store.read_path(self.key, leaf), self.repairs.extend)

    def _rebuild_state(self) -> None:
        self.state = ConversationState() if self.leaf is None else self._fold_path(self._read_path())

    def _fold_path(self, path: Sequence[Entry]) -> ConversationState:
        return replace_with_client_bytes(ConversationState.from_entries(path), self._client_messages)


def _is_wordless(entry: Entry) -> bool:
    """Whether ``entry`` says nothing, and holds nothing that is to be said."""
    return not isinstance(entry.body, _SPOKEN_ENTRIES) and not is_queued_note(entry)
