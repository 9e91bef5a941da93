"""Branches in memory: which of them a conversation goes on in, and which go where there are too many."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.engine.log.conversation_diff import PrefixMatch
from holdfast.engine.session import Session
from holdfast.messages.sized_message import SizedMessage
from holdfast.proxy.conversation.body_cache import BYTES_PER_MESSAGE
from holdfast.store.tree.active import GappedSequence


class OpenBranch:
    """A branch in memory. Who holds it has it alone."""

    def __init__(self, session: Session, foreign_writes: int) -> None:
        self.session, self.key = session, session.key
        self.is_held = False
        self.foreign_writes = foreign_writes
        """How often somebody else had written to its session when it was read, or compared with what they wrote."""

    @property
    def is_gapped(self) -> bool:
        """Whether turns that gave way are in the log only."""
        return isinstance(self.session.journal.state.history.sized_messages, GappedSequence)

    @property
    def memory_bytes(self) -> int:
        """About the bytes that what is in memory takes as it was sent; what was counted before is not counted again."""
        sized_messages = self.session.journal.state.history.sized_messages
        return sized_messages.sum_from(
            _estimate_message_memory, sized_messages.gap.stop if isinstance(sized_messages, GappedSequence) else 0
        )

    def count_repeated(self, sized_messages: Sequence[SizedMessage]) -> int:
        """Return how many of ``sized_messages``, a whole conversation, were said here."""
        return self._match_conversation(sized_messages).client_count

    def can_continue(self, sized_messages: Sequence[SizedMessage]) -> bool:
        """Whether ``sized_messages``, a whole conversation, goes on here with new words alone, or asks for the last
        answer.

        Where it has answers that were not given here somebody else gave them, and the log knows where.
        """
        if self.is_held or self.is_gapped:
            return False
        overlap = self._match_conversation(sized_messages)
        remaining, new = (
            self.session.journal.state.history.sized_messages.slice(len(overlap.messages)),
            sized_messages[overlap.client_count :],
        )
        is_asked_again = not new and all(sized_message.message.role == "assistant" for sized_message in remaining)
        return is_asked_again or (
            not remaining and all(sized_message.message.role != "assistant" for sized_message in new)
        )

    def _match_conversation(self, sized_messages: Sequence[SizedMessage]) -> PrefixMatch:
        return self.session.journal.match_conversation(sized_messages)


def _estimate_message_memory(message: SizedMessage) -> int:
    return BYTES_PER_MESSAGE + len(message.raw or b"")


class BranchLru:
    """As many branches as there may be, and bytes of them; the one used last is not counted where it is larger alone.

    No LRU of a library fits: a branch that somebody holds is passed over, not evicted, sizes change with each use, and
    a branch is found by its session or by the conversation that goes on in it, not by a key of its own.
    How large each was when it was used last stands beside it; the last used is the last.
    """

    def __init__(self, max_branches: int, most_bytes: int) -> None:
        self._most, self._most_bytes = max_branches, most_bytes
        self._sizes: dict[OpenBranch, int] = {}

    def __contains__(self, branch: OpenBranch) -> bool:
        """Return whether ``branch`` is here."""
        return branch in self._sizes

    def get_sizes(self) -> dict[str, int]:
        """Return about the bytes that each session's branch has, the last used last."""
        return {branch.key: size for branch, size in self._sizes.items()}

    def list_branches(self, key: str) -> list[OpenBranch]:
        """Return the branches of session ``key``, the last used last."""
        return [branch for branch in self._sizes if branch.key == key]

    def find_continuable(self, key: str, sized_messages: Sequence[SizedMessage]) -> OpenBranch | None:
        """Return the branch that ``sized_messages``, a whole conversation, goes on in: the one that says most of it."""
        taking = [branch for branch in reversed(self.list_branches(key)) if branch.can_continue(sized_messages)]
        if len(taking) < 2:
            return taking[0] if taking else None
        return max(taking, key=lambda branch: branch.count_repeated(sized_messages))

    def touch(self, branch: OpenBranch) -> None:
        """Have ``branch`` as the last used, and let those go that were used longest ago."""
        self._sizes.pop(branch, None)
        self._sizes[branch] = branch.memory_bytes
        alone = branch.memory_bytes if branch.memory_bytes > self._most_bytes else 0
        spare, excess_bytes = len(self._sizes) - self._most, sum(self._sizes.values()) - alone - self._most_bytes
        for candidate in [*self._sizes][:-1] if max(spare, excess_bytes) > 0 else ():
            if max(spare, excess_bytes) > 0 and not candidate.is_held:
                spare, excess_bytes = spare - 1, excess_bytes - self._sizes.pop(candidate)

    def drop_where(self, is_over: Callable[[OpenBranch], bool]) -> None:
        """Let those go of which ``is_over`` says so."""
        self._sizes = {branch: size for branch, size in self._sizes.items() if not is_over(branch)}
