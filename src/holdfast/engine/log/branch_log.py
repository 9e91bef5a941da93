"""One branch of a stored session: follow what others write to it, and append to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import NamedTuple

from holdfast.engine.log.conversation_diff import replace_with_client_bytes
from holdfast.engine.log.queued_messages import is_queued_note
from holdfast.messages.sized_message import SizedMessage
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import AnswerEntry, BranchSummaryEntry, Entry, EntryBody, MessageEntry
from holdfast.state.fold.fold_entries import apply_entries
from holdfast.state.persistent_sequence import PersistentSequence
from holdfast.store.base import MessageDecoder, SessionStore
from holdfast.store.repair.repair_on_read import read_with_repair

_CONTENT_ENTRIES = MessageEntry | BranchSummaryEntry | AnswerEntry
"""Entries that add to the conversation, in contrast to decisions, undos and notes about it."""
NO_LEAF = ""
"""An ``expected_leaf`` that no session has: entries appended with it do not move the session's leaf."""


class _BranchPosition(NamedTuple):
    """A leaf, the state folded up to it, and whether the session's leaf moves on with it."""

    state: ConversationState
    leaf: str | None
    moves_leaf: bool


class BranchLog:
    """The log of one branch up to its leaf, used by one thread at a time.

    Decisions and undos that others append after the same leaf count here too. If others append *messages* there, the
    two have gone different ways: what is appended here from then on is a fork, from just before their first message.
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
        self._clock = clock
        self._ids = ids
        self.moves_leaf = moves_leaf
        """Whether the session's leaf moves on with this branch; false for a fork."""
        self.append_listener: Callable[[str, Sequence[Entry]], object] = lambda _key, _entries: None
        """Called with the session's key and the new entries after each append."""
        self._client_messages: PersistentSequence[SizedMessage] = PersistentSequence()
        """The client's last conversation in its own bytes."""
        self._has_lease = False
        self._is_current = False
        """Whether the log was read since the lease was taken, so that nobody else can have written since."""
        self.repairs: list[str] = []
        """Descriptions of damage that was repaired while reading; whoever reports them empties the list."""
        self._is_batching = False
        """Whether appended entries are collected until the end of a ``batch_writes`` block."""
        self._batched_entries: list[Entry] = []
        self._decode: MessageDecoder | None = None
        """The decoder that made the collected messages from their bytes."""
        self._before_batch = _BranchPosition(state, leaf, moves_leaf)
        """The position to return to if the batch cannot be written."""
        self._unconfirmed_ids: frozenset[str] = frozenset()
        """Ids of the entries of a write that did not come back: an interrupt may have come after they were in the log.
        """

    @contextmanager
    def hold_lease(self) -> Iterator[None]:
        """Hold the session's lease for the block; a block inside another shares its lease.

        Inside the block, only this object appends to the log.
        """
        if self._has_lease:
            yield
            return
        with self.store.hold_lease(self.key):
            self._has_lease = True
            try:
                if self._unconfirmed_ids:
                    self._catch_up()
                    self._unconfirmed_ids = frozenset()
                yield
            finally:
                self._has_lease = False
                self._is_current = False

    @contextmanager
    def batch_writes(self) -> Iterator[None]:
        """Hold the lease, and write everything appended inside the block in one transaction at its end.

        Entries appended before the block raises are written too, unless it is interrupted, which may leave half of
        what belongs together. If nothing is written, the branch is where it was. A block inside another is part of it.
        """
        if self._is_batching:
            yield
            return
        with self.hold_lease():
            self._catch_up()
            self._before_batch = self._get_position()
            self._is_batching = True
            try:
                yield
            except Exception:
                self._flush_batch()
                raise
            except BaseException:
                self._discard_batch()
                raise
            else:
                self._flush_batch()
            finally:
                self._is_batching = False

    def take_session_leaf(self) -> None:
        """Move the session's leaf on with this branch from here on."""
        self.moves_leaf = True

    def join_session(self) -> None:
        """Go to the session's leaf, whatever others appended meanwhile, and move it on from there."""
        with self.hold_lease():
            leaf = self.store.get_session(self.key).leaf_id
            if leaf is not None and leaf != self.leaf:
                self.state = self._fold_path(self._read_path_to(leaf))
                self.leaf = leaf
                self._on_branch_changed()
            self.moves_leaf = True
            self._is_current = True

    def join_if_extended(self) -> bool:
        """Join the session if it went on after this branch's leaf; return whether it did."""
        with self.hold_lease():
            session_leaf = self.store.get_session(self.key).leaf_id
            if session_leaf is None or session_leaf == self.leaf:
                return False
            if self.leaf is not None:
                is_extension = any(entry.id == self.leaf for entry in self._read_path_to(session_leaf))
                if not is_extension:
                    return False
            self.join_session()
        return True

    # -- writing -------------------------------------------------------------------------------------------------------

    def _append_bodies(self, bodies: Sequence[EntryBody], decode: MessageDecoder | None = None) -> list[Entry]:
        """Append an entry for each body after the leaf in one transaction, and fold them into the state.

        The first try assumes that nobody else wrote, which saves reading the session's leaf; only if that fails the
        branch catches up. The bodies are the same then. That is safe: decisions and undos are made after a catch-up
        under the same lease, and messages, failures and usage are true whatever others decided meanwhile.
        """
        entries = self._append_or_batch(bodies, decode, onward=self.moves_leaf and not self._is_current)
        if not entries:
            self._catch_up()
            entries = self._append_or_batch(bodies, decode)
        if entries:
            self._is_current = self._has_lease
            state = apply_entries(self.state, entries)
            # Before the position moves on: after an interrupt here the old position is still a sound one.
            self._on_branch_changed(entries)
            self.state, self.leaf = state, entries[-1].id
            self._unconfirmed_ids = frozenset()
        return entries

    def _append_or_batch(
        self,
        bodies: Sequence[EntryBody],
        decode: MessageDecoder | None,
        *,
        onward: bool = False,
    ) -> list[Entry]:
        """Make an entry for each body and write it, or collect it inside ``batch_writes``; return the entries.

        With ``onward``, return an empty list and write nothing if somebody else moved the session's leaf.
        """
        if not bodies:
            return []
        ids, now = self._ids(len(bodies)), self._clock()
        parents = [self.leaf, *ids[:-1]]
        entries = [Entry(id_, parent, body, 0, now) for id_, parent, body in zip(ids, parents, bodies, strict=True)]
        if self._is_batching:
            self._batched_entries += entries
            self._decode = decode or self._decode
            return entries
        if not self._append_to_store(entries, decode, onward=onward):
            return []
        self.append_listener(self.key, entries)
        return entries

    def _flush_batch(self) -> None:
        """Write the collected entries; if the store refuses them, return to the position before them and raise."""
        entries = self._batched_entries
        if not entries:
            return
        try:
            self._append_to_store(entries, self._decode)
        except BaseException:
            self._discard_batch()
            raise
        self._batched_entries, self._decode = [], None
        self._before_batch = self._get_position()
        self._unconfirmed_ids = frozenset()
        self.append_listener(self.key, entries)

    def _discard_batch(self) -> None:
        """Forget the collected entries and return to the position before them."""
        self._batched_entries, self._decode = [], None
        self._on_branch_changed()
        self.state, self.leaf, self.moves_leaf = self._before_batch

    def _get_position(self) -> _BranchPosition:
        return _BranchPosition(self.state, self.leaf, self.moves_leaf)

    def _append_to_store(
        self,
        entries: Sequence[Entry],
        decode: MessageDecoder | None,
        *,
        onward: bool = False,
    ) -> bool:
        """Append ``entries`` in one transaction; return whether they were written."""
        expected_leaf = None if self.moves_leaf else NO_LEAF
        self._unconfirmed_ids = frozenset([entry.id for entry in entries])
        result = self.store.append_entries(
            self.key,
            entries,
            expected_leaf=expected_leaf,
            decode=decode,
            onward=onward,
        )
        return result.is_leaf_moved or not onward

    def _on_branch_changed(self, new: Sequence[Entry] = ()) -> None:
        """React to a changed branch: by its own ``new`` entries, or by entries of others if ``new`` is empty."""

    # -- reading -------------------------------------------------------------------------------------------------------

    def _catch_up(self) -> bool:
        """Fold in the decisions and undos that others appended after the leaf; return whether there were any.

        Also entries of a write that was broken off here after it had reached the log.
        """
        if self._is_current or not self.moves_leaf:
            return False
        has_new_entries = self._follow_session_leaf()
        self._is_current = self._has_lease
        return has_new_entries

    def _follow_session_leaf(self) -> bool:
        session_leaf = self.store.get_session(self.key).leaf_id
        if session_leaf == self.leaf or session_leaf is None:
            return False
        path = self._read_path_to(session_leaf)
        new_start = self._find_index_after_leaf(path)
        if new_start is None:
            self.moves_leaf = False  # the session went on from an earlier entry: this branch is a fork now
            return False
        own_entries = list(takewhile(lambda entry: entry.id in self._unconfirmed_ids, path[new_start:]))
        new_entries = path[new_start + len(own_entries) :]
        is_continued_by_others = any(isinstance(entry.body, _CONTENT_ENTRIES) for entry in new_entries)
        if is_continued_by_others:
            new_entries = list(takewhile(_has_no_content, new_entries))
        followed_entries = [*own_entries, *new_entries]
        if followed_entries:
            state = self._fold_path([*path[:new_start], *followed_entries])
            self._on_branch_changed()
            self.state, self.leaf = state, followed_entries[-1].id
        if is_continued_by_others:
            self.moves_leaf = False
        return bool(followed_entries)

    def _find_index_after_leaf(self, path: Sequence[Entry]) -> int | None:
        """Return the index in ``path`` of the first entry after the leaf, or None if the leaf is not in it."""
        for index, entry in enumerate(path):
            if entry.id == self.leaf:
                return index + 1
        return 0 if self.leaf is None else None

    def _read_path(self) -> list[Entry]:
        """Return the entries up to the leaf; collected entries are written first."""
        self._flush_batch()
        return self._read_path_to(self.leaf)

    def _read_path_to(self, leaf: str | None) -> list[Entry]:
        """Return the stored entries up to ``leaf``; damage is repaired first if that loses nothing."""
        return read_with_repair(self.store, self.key, lambda: self.store.read_path(self.key, leaf), self.repairs.extend)

    def _rebuild_state(self) -> None:
        """Fold the state anew from the log, which also reads messages that the state had left there."""
        if self.leaf is None:
            self.state = ConversationState()
        else:
            self.state = self._fold_path(self._read_path())

    def _fold_path(self, path: Sequence[Entry]) -> ConversationState:
        return replace_with_client_bytes(ConversationState.from_entries(path), self._client_messages)


def _has_no_content(entry: Entry) -> bool:
    """Return whether ``entry`` adds nothing to the conversation, and queues nothing to be added."""
    return not isinstance(entry.body, _CONTENT_ENTRIES) and not is_queued_note(entry)
