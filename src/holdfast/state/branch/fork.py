"""Forks: a branch cut back to what a conversation shares with it, and said in that conversation's own bytes."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_

from msgspec.structs import replace

from holdfast.messages.sized_message import Slot
from holdfast.state.branch.branch import Branch, extend
from holdfast.state.entries import Compaction, Decision, Entry, Said
from holdfast.state.sequence import Seq, common


def restated(branch: Branch, slots: Sequence[Slot], start: int = 0) -> Branch:
    """Return the branch with its first slots said in other bytes; repairs stand where they are of other slots alone.

    Those before ``start`` are known to be its own.
    """
    told, known, settled = slots[start:], branch.slots.slice(start), branch.settled
    same = common(told, known)
    if same == len(told):
        return branch
    first, rest = start + same, [*told[same:], *known[len(told) :]]
    return replace(
        branch,
        slots=branch.slots.changed(first, rest),
        messages=branch.messages.changed(first, [slot.message for slot in rest]),
        settled=settled if settled is None or not settled.repairs or settled.slot <= first else None,
    )


def held_as(branch: Branch, slots: Sequence[Slot], start: int = 0) -> Branch:
    """Return the branch with ``slots`` in place of its own first ones, which they equal.

    What is the very same object is not looked into whenever it is compared. Those before ``start`` are known to be so.
    """
    told = slots[start:]
    if all(map(is_, told, branch.slots.slice(start))):
        return branch
    rest = [*told, *branch.slots.slice(start + len(told))]
    messages = [slot.message for slot in rest]
    return replace(branch, slots=branch.slots.changed(start, rest), messages=branch.messages.changed(start, messages))


def cut_back(branch: Branch, count: int) -> Branch:
    """Return the branch as if it ended after ``count`` slots: decisions about those stay in force, word for word."""
    if count >= len(branch.slots):
        return branch
    shorter = Branch.build(Entry("", None, Said(slot)) for slot in branch.slots.slice(0, count))
    shorter = replace(
        shorter,
        born=Seq(branch.born.slice(0, count)),
        frame=branch.frame,
        framed=min(branch.framed, count),
        seen=min(branch.seen, count),
        model=branch.model,
        api=branch.api,
        window=branch.window,
        measured=branch.measured,
        gauge=branch.gauge,
        learned=branch.learned,
        aside=branch.aside,
        broken=tuple(index for index in branch.broken if index < count),
    )
    for id_, what in branch.law:
        kept = within(what, count)
        shorter = shorter if kept is None else extend(shorter, Entry(id_, None, kept))
    return replace(
        shorter,
        compactions=0,
        truncations=0,
        failures=branch.failures,
        unwritten=branch.unwritten,
        failed_at=branch.failed_at,
        standing=min(branch.standing, count),
        found=(min(branch.found[0], count), min(branch.found[1], count)),
        spared={slot: parts for slot, parts in branch.spared.items() if slot < count},
        counted=min(branch.counted, count),
        policy=branch.policy,
    )


def within(what: Decision | Compaction, count: int) -> Decision | Compaction | None:
    """Return the part of what was decided that is about the first ``count`` slots; nothing where none of it is.

    A summary of them stands, whatever was decided with it about those behind.
    """
    kept = replace(what, edits=tuple(edit for edit in what.edits if edit.span.stop <= count))
    stands = kept.keep <= count if isinstance(kept, Compaction) else kept.edits
    return kept if stands else None
