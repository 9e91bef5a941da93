"""Planning over plain messages: the pure door for authors of agent loops."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.model.branch import Branch, extend
from holdfast.model.entries import Compaction, Entry, Said
from holdfast.model.messages import Message
from holdfast.model.plan import Plan
from holdfast.model.target import Target, World
from holdfast.policy.pipeline import Policy, advance
from holdfast.policy.projection import send_slots
from holdfast.view.tokens import measure


def plan(
    messages: Sequence[Message],
    target: Target,
    policy: Policy = Policy(),
    *,
    branch: Branch | None = None,
    world: World = World(),
) -> Plan:
    """Return what to do before the next request over ``messages``; nothing is sent, stored or waited for.

    ``messages`` is the whole conversation, oldest first. Pass ``plan.branch`` of the call before as ``branch``: then
    only what is new is looked at. Raises ``WindowTooSmall`` where the window cannot hold what must be sent.
    """
    return advance(reconcile(branch or Branch(), messages), target, policy, world)


def apply(messages: Sequence[Message], plan: Plan) -> list[Message]:
    """Return the messages to send for ``messages``: the plan's decisions and repairs applied.

    Raises ``ValueError`` where the plan was made for another number of messages.
    """
    if len(messages) != len(plan.branch.slots):
        raise ValueError(
            f"the plan was made for {len(plan.branch.slots)} messages and {len(messages)} were given; "
            "apply it to the list that was planned"
        )
    return [slot.message for slot in send_slots(plan)]


def reconcile(branch: Branch, messages: Sequence[Message]) -> Branch:
    """Return ``branch`` grown to ``messages``; where they part, the past was edited and a fork is made."""
    count = len(branch.slots)
    if count > len(messages) or not branch.messages.same_as(messages, count):
        branch = fork(branch, _common(branch, messages))
        count = len(branch.slots)
    for message in messages[count:]:
        branch = extend(branch, Entry("", None, Said(measure(message))))
    return branch


def _common(branch: Branch, messages: Sequence[Message]) -> int:
    """Return how many messages the branch and ``messages`` have in common from the start, by their digests."""
    for index, (slot, message) in enumerate(zip(branch.slots, messages, strict=False)):
        if slot.message is not message and slot.digest != measure(message).digest:
            return index
    return min(len(branch.slots), len(messages))


def fork(branch: Branch, count: int) -> Branch:
    """Return the branch as if it ended after ``count`` slots, with the decisions about those slots still in force."""
    forked = Branch.build(Entry("", None, Said(slot)) for slot in branch.slots.slice(0, count))
    for id_, what in branch.law:
        stops = [edit.span.stop for edit in what.edits]
        if isinstance(what, Compaction):
            stops.append(what.keep)
        if max(stops, default=0) <= count:
            forked = extend(forked, Entry(id_, None, what))
    return replace(forked, seen=min(branch.seen, count), frame=branch.frame, compactions=0)
