"""Branches in memory: which of them a conversation goes on in, and which go where there are too many."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.engine.log.conversation_diff import Repeated
from holdfast.engine.session import Session
from holdfast.messages.sized_message import Slot
from holdfast.proxy.conversation.body_cache import OF_A_SLOT
from holdfast.store.tree.active import Gapped


class OpenBranch:
    """A branch in memory. Who holds it has it alone."""

    def __init__(self, session: Session, others: int) -> None:
        self.session, self.key = session, session.key
        self.is_held = False
        self.others = others
        """How often somebody else had written to its session when it was read, or compared with what they wrote."""

    @property
    def is_gapped(self) -> bool:
        """Whether turns that gave way are in the log only."""
        return isinstance(self.session.journal.branch.slots, Gapped)

    @property
    def size(self) -> int:
        """About the bytes that what is in memory takes as it was sent; what was counted before is not counted again."""
        slots = self.session.journal.branch.slots
        return slots.total(_bytes, slots.gap.stop if isinstance(slots, Gapped) else 0)

    def repeats(self, slots: Sequence[Slot]) -> int:
        """Return how many of ``slots``, a whole conversation, were said here."""
        return self._repeated(slots).count

    def takes(self, slots: Sequence[Slot]) -> bool:
        """Whether ``slots``, a whole conversation, goes on here with new words alone, or asks for the last answer.

        Where it has answers that were not given here somebody else gave them, and the log knows where.
        """
        if self.is_held or self.is_gapped:
            return False
        same = self._repeated(slots)
        left, new = self.session.journal.branch.slots.slice(len(same.slots)), slots[same.count :]
        is_asked_again = not new and all(slot.message.role == "assistant" for slot in left)
        return is_asked_again or (not left and all(slot.message.role != "assistant" for slot in new))

    def _repeated(self, slots: Sequence[Slot]) -> Repeated:
        return self.session.journal.repeats(slots)


def _bytes(slot: Slot) -> int:
    return OF_A_SLOT + len(slot.raw or b"")


class HeldBranches:
    """As many branches as there may be, and bytes of them; the one used last is not counted where it is larger alone.

    How large each was when it was used last stands beside it; the last used is the last.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._sizes: dict[OpenBranch, int] = {}

    def __contains__(self, branch: OpenBranch) -> bool:
        """Return whether ``branch`` is here."""
        return branch in self._sizes

    def sizes(self) -> dict[str, int]:
        """Return about the bytes that each session's branch has, the last used last."""
        return {branch.key: size for branch, size in self._sizes.items()}

    def of(self, key: str) -> list[OpenBranch]:
        """Return the branches of session ``key``, the last used last."""
        return [branch for branch in self._sizes if branch.key == key]

    def taking(self, key: str, slots: Sequence[Slot]) -> OpenBranch | None:
        """Return the branch that ``slots``, a whole conversation, goes on in: the one that says most of it."""
        taking = [branch for branch in reversed(self.of(key)) if branch.takes(slots)]
        if len(taking) < 2:
            return taking[0] if taking else None
        return max(taking, key=lambda branch: branch.repeats(slots))

    def touch(self, branch: OpenBranch) -> None:
        """Have ``branch`` as the last used, and let those go that were used longest ago."""
        self._sizes.pop(branch, None)
        self._sizes[branch] = branch.size
        alone = branch.size if branch.size > self._most_bytes else 0
        spare, left = len(self._sizes) - self._most, sum(self._sizes.values()) - alone - self._most_bytes
        for one in [*self._sizes][:-1] if max(spare, left) > 0 else ():
            if max(spare, left) > 0 and not one.is_held:
                spare, left = spare - 1, left - self._sizes.pop(one)

    def drop(self, is_over: Callable[[OpenBranch], bool]) -> None:
        """Let those go of which ``is_over`` says so."""
        self._sizes = {branch: size for branch, size in self._sizes.items() if not is_over(branch)}
