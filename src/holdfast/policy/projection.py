"""The projection made valid: repairs of what a branch shows, found again only for what is new."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.model.branch import Branch, Settled, base_mark, patched, project, shown
from holdfast.model.dialect import Dialect
from holdfast.model.edits import Edit
from holdfast.model.messages import Message
from holdfast.model.parts import Thinking
from holdfast.model.plan import Plan
from holdfast.model.slots import Slot
from holdfast.policy.hygiene import repairs
from holdfast.view.boundaries import legal_cuts


def send_slots(plan: Plan) -> list[Slot]:
    """Return the slots to send: the projection of the plan's branch with its repairs applied."""
    return patched(project(plan.branch), plan.repair)


def repair_projection(branch: Branch, dialect: Dialect) -> tuple[tuple[Edit, ...], Settled | None]:
    """Return the repairs of the projection, and how much of it is settled for the next time."""
    settled = branch.settled
    if settled is None or settled.dialect != dialect or branch.reused:
        settled = None
    if settled is not None:
        slots = [one for index in range(settled.slot, len(branch.slots)) for one in shown(branch, index)]
        if not _has_strangers(slots):
            return _settle(branch, settled, slots, 0)
    lead = branch.pinned + (branch.compaction is not None and branch.compaction.summary is not None)
    return _settle(branch, Settled(dialect, branch.keep, 0), project(branch), lead)


def _has_strangers(slots: Sequence[Slot]) -> bool:
    """Whether a result stands here whose call does not: it may belong to what is settled already."""
    calls: set[str] = set()
    for slot in slots:
        calls.update(call.id for call in slot.message.calls)
        if any(result.call_id not in calls for result in slot.message.results):
            return True
    return False


def _settle(
    branch: Branch, settled: Settled, slots: Sequence[Slot], lead: int
) -> tuple[tuple[Edit, ...], Settled | None]:
    """Return all repairs, and the settled prefix grown up to the last place where it may end.

    ``lead`` counts the slots at the front that are no slots of the kept tail.
    """
    messages = [slot.message for slot in slots]
    loose = _loose_thinking(branch, settled, lead)
    fresh = repairs(messages, settled.dialect, settled.position, loose)
    regular = len(slots) - lead == len(branch.slots) - settled.slot
    cut = _last_break(messages, settled.position, fresh) if regular else 0
    if cut <= lead:
        return settled.repairs + fresh, settled if settled.position else None
    edge = settled.position + cut
    done = tuple(edit for edit in fresh if edit.span.start < edge)
    return settled.repairs + fresh, Settled(settled.dialect, settled.slot + cut - lead, edge, settled.repairs + done)


def _last_break(messages: Sequence[Message], position: int, edits: Sequence[Edit]) -> int:
    """Return the last place where nothing on one side depends on the other, and that no edit touches.

    That is where the agent answers a finished group; 0 is nowhere.
    """
    for cut in reversed(legal_cuts(messages)):
        if 0 < cut < len(messages) and messages[cut].role == "assistant" != messages[cut - 1].role:
            edge = position + cut
            if not any(edit.span.start <= edge <= edit.span.stop for edit in edits):
                return cut
    return 0


def _loose_thinking(branch: Branch, settled: Settled, lead: int) -> frozenset[int]:
    """Return the positions whose thinking was signed over another prefix than the one it has now.

    Nothing on models that do not bind it. What stood before an answer when it came is in ``born``, what stands there
    now in ``marks``; an older frame unbinds as well.
    """
    if not settled.dialect.binds_thinking:
        return frozenset()
    loose = []
    for index in range(settled.slot, len(branch.slots)):
        if any(isinstance(part, Thinking) for part in branch.messages[index].parts):
            before = branch.marks[index - 1] if index > branch.keep else base_mark(branch)
            if index < branch.framed or branch.born[index] != before:
                loose.append(settled.position + lead + index - settled.slot)
    return frozenset(loose)
