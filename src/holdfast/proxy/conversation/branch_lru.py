"""Branches in memory: find the one a conversation continues, and evict the least recently used."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.engine.log.conversation_diff import PrefixMatch
from holdfast.engine.session import Session
from holdfast.messages.sized_message import SizedMessage
from holdfast.proxy.conversation.body_cache import BYTES_PER_MESSAGE
from holdfast.store.tree.active import GappedSequence


class OpenBranch:
    """A branch in memory. A request that holds it uses it alone."""

    def __init__(self, session: Session, foreign_writes: int) -> None:
        self.session = session
        self.key = session.key
        self.is_held = False
        self.foreign_writes = foreign_writes
        """``SessionIndexes.count_foreign_writes`` when the branch was read or last compared with the log."""

    @property
    def is_gapped(self) -> bool:
        """Whether hidden messages of the branch are in the log only, not in memory."""
        return isinstance(self.session.journal.state.history.sized_messages, GappedSequence)

    @property
    def memory_bytes(self) -> int:
        """Approximate memory of the branch's messages. Sums are kept, so each message is counted once."""
        sized_messages = self.session.journal.state.history.sized_messages
        start = 0
        if isinstance(sized_messages, GappedSequence):
            start = sized_messages.gap.stop
        return sized_messages.sum_from(_estimate_message_memory, start)

    def count_repeated(self, sized_messages: Sequence[SizedMessage]) -> int:
        """Return how many of ``sized_messages``, a whole conversation, this branch already has."""
        return self._match_conversation(sized_messages).client_count

    def can_continue(self, sized_messages: Sequence[SizedMessage], *, accepts_answers: bool = False) -> bool:
        """Return whether a whole conversation continues this branch, or asks for its last answer again.

        A conversation with answers that this branch does not have was answered elsewhere, and the log may know where;
        unless this branch ``accepts_answers`` because nobody ever records them.
        """
        if self.is_held or self.is_gapped:
            return False
        overlap = self._match_conversation(sized_messages)
        # Messages of the branch that the conversation does not have, and the other way round.
        remaining = self.session.journal.state.history.sized_messages.slice(len(overlap.messages))
        new = sized_messages[overlap.client_count :]
        if not new:
            # The branch has nothing more, or only the answer that the client asks for once more.
            return all(sized_message.message.role == "assistant" for sized_message in remaining)
        has_foreign_answer = any(sized_message.message.role == "assistant" for sized_message in new)
        return not remaining and (accepts_answers or not has_foreign_answer)

    def _match_conversation(self, sized_messages: Sequence[SizedMessage]) -> PrefixMatch:
        return self.session.journal.match_conversation(sized_messages)


def _estimate_message_memory(message: SizedMessage) -> int:
    return BYTES_PER_MESSAGE + len(message.raw or b"")


class BranchLru:
    """The most recently used branches, limited by number and memory. The last one is kept however large it is.

    No library's LRU fits: a branch that a request holds must not be evicted, sizes change with each use, and a branch
    is found by its session or by the conversation that continues it, not by a key of its own.
    """

    def __init__(self, max_branches: int, max_bytes: int) -> None:
        self._max_branches = max_branches
        self._max_bytes = max_bytes
        self._sizes: dict[OpenBranch, int] = {}
        """The size of each branch at its last use; the most recently used is last."""

    def __contains__(self, branch: OpenBranch) -> bool:
        """Return whether ``branch`` is kept."""
        return branch in self._sizes

    def get_sizes(self) -> dict[str, int]:
        """Return the approximate memory by session key, the most recently used last."""
        return {branch.key: size for branch, size in self._sizes.items()}

    def list_branches(self, key: str) -> list[OpenBranch]:
        """Return the branches of session ``key``, the most recently used last."""
        return [branch for branch in self._sizes if branch.key == key]

    def find_continuable(
        self, key: str, sized_messages: Sequence[SizedMessage], *, accepts_answers: bool = False
    ) -> OpenBranch | None:
        """Return the branch that ``sized_messages``, a whole conversation, continues, or None.

        If there are several, the one with most of its messages is returned. ``accepts_answers`` is that of
        ``OpenBranch.can_continue``.
        """
        branches: list[OpenBranch] = []
        for branch in reversed(self.list_branches(key)):
            if branch.can_continue(sized_messages, accepts_answers=accepts_answers):
                branches.append(branch)
        if not branches:
            return None
        # The usual case: one branch needs no second comparison.
        if len(branches) == 1:
            return branches[0]
        return max(branches, key=lambda branch: branch.count_repeated(sized_messages))

    def touch(self, branch: OpenBranch) -> None:
        """Make ``branch`` the most recently used one, then evict others as far as there are too many."""
        self._sizes.pop(branch, None)
        own_bytes = branch.memory_bytes
        self._sizes[branch] = own_bytes
        excess_count = len(self._sizes) - self._max_branches
        excess_bytes = sum(self._sizes.values()) - self._max_bytes
        # One branch that is larger than the limit alone must not evict all the others.
        if own_bytes > self._max_bytes:
            excess_bytes -= own_bytes
        if excess_count <= 0 and excess_bytes <= 0:
            return
        for candidate in [*self._sizes][:-1]:
            if excess_count <= 0 and excess_bytes <= 0:
                return
            if not candidate.is_held:
                excess_count -= 1
                excess_bytes -= self._sizes.pop(candidate)

    def drop_where(self, is_dropped: Callable[[OpenBranch], bool]) -> None:
        """Drop the branches for which ``is_dropped`` returns true."""
        self._sizes = {branch: size for branch, size in self._sizes.items() if not is_dropped(branch)}
