"""Planning over plain messages: the pure door for authors of agent loops."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import check_types
from holdfast.messages.message import ROLES, Message
from holdfast.messages.signatures import is_known, sealed_as, slot_by
from holdfast.messages.size.tokens import measure, measures_of
from holdfast.messages.sized_message import Slot
from holdfast.normalize.projection import send_slots
from holdfast.planning.pipeline import Policy, advance
from holdfast.state.branch.branch import Branch, extended
from holdfast.state.branch.fork import cut_back, restated
from holdfast.state.codec.packing import fault
from holdfast.state.entries import Entry, Said
from holdfast.state.plan import Plan
from holdfast.state.target import Target, World


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
    only what is new is looked at. Raises ``WindowTooSmall`` where the window cannot hold what must be sent, and
    ``TypeError`` for what is none of these, ``ValueError`` for a number in them that cannot be.
    """
    check_types(TypeError, messages=(messages, Sequence), branch=(branch, Branch | None))
    check_types(TypeError, target=(target, Target), policy=(policy, Policy), world=(world, World))
    if fault := target.fault or world.fault:
        raise fault.error(fault.why)
    return advance(_asking(reconcile(branch or Branch(), messages), target.model), target, policy, world)


def apply(messages: Sequence[Message], plan: Plan) -> list[Message]:
    """Return the messages to send for ``messages``: the plan's decisions and repairs applied.

    Raises ``ValueError`` where the plan was made for another number of messages.
    """
    check_types(TypeError, messages=(messages, Sequence), plan=(plan, Plan))
    if len(messages) != len(plan.branch.slots):
        raise ValueError(
            f"the plan was made for {len(plan.branch.slots)} messages and {len(messages)} were given; "
            "apply it to the list that was planned"
        )
    return [slot.message for slot in send_slots(plan)]


def reconcile(branch: Branch, messages: Sequence[Message]) -> Branch:
    """Return ``branch`` grown to ``messages``.

    Where they part, the past was edited: the branch goes on from there, with the decisions about what stands. The same
    words in other bytes (a cache marker that moved on) are no edit.
    """
    messages, count = _as_sealed(branch, messages), len(branch.slots)
    if count > len(messages) or not branch.messages.same_as(messages, count):
        same = _same_words(branch, messages)
        branch = restated(cut_back(branch, len(same)), same)
        count = len(same)
    return extended(branch, [Entry("", None, Said(slot)) for slot in _measured(messages[count:], count)])


def _asking(branch: Branch, model: str) -> Branch:
    """Return ``branch`` as it goes to ``model``: where another was asked until now, what is sealed is known as its."""
    if model == branch.model or not branch.model:
        return branch
    return restated(branch, [slot_by(slot, branch.model) for slot in branch.slots])


def _as_sealed(branch: Branch, messages: Sequence[Message]) -> Sequence[Message]:
    """Return ``messages`` with what ``branch`` knows of whose seals are in them: their bytes do not say it."""
    if not branch.messages.total(is_known):
        return messages
    known = branch.messages.slice(0, len(messages))
    try:
        told = [sealed_as(*pair) if is_known(pair[1]) else pair[0] for pair in zip(messages, known, strict=False)]
    except (TypeError, AttributeError):
        return messages  # one is no message; it is named where it is measured
    return [*told, *messages[len(told) :]]


def _measured(messages: Sequence[Message], first: int) -> list[Slot]:
    """Return ``messages``, numbered from ``first``, weighed together; ``TypeError`` names the first that is none."""
    try:
        if all(map(_is_message, messages)):
            pairs = zip(messages, measures_of(messages), strict=True)
            return [Slot(message, *measures) for message, measures in pairs]
    except (KeyError, TypeError, AttributeError):
        pass  # it is named below
    return [_one_measured(message, index) for index, message in enumerate(messages, first)]


def _is_message(message: Message) -> bool:
    """Return whether this may be a message: its parts are not looked into, but for the arguments of calls."""
    return (
        isinstance(message, Message)
        and message.role in ROLES
        and all(type(call.arguments) is str for call in message.calls)
    )


def _one_measured(message: Message, index: int) -> Slot:
    if not isinstance(message, Message):
        raise TypeError(
            f"messages[{index}] is a {type(message).__name__}; plan takes Message values, "
            "which holdfast.providers.<api>.messages.messages makes of dicts"
        )
    if message.role not in ROLES:
        raise TypeError(f"messages[{index}] is no message: its role is {message.role!r}, not one of {ROLES}")
    try:
        if _is_message(message):
            return measure(message)
        why = fault(message, Message)
    except (KeyError, TypeError, AttributeError) as error:
        why = fault(message, Message) or str(error)
    raise TypeError(f"messages[{index}] is no message: {why}; Message.of(role, text) makes one of words")


def _same_words(branch: Branch, messages: Sequence[Message]) -> list[Slot]:
    """Return the slots of what the branch and ``messages`` have in common from the start, in the newer bytes."""
    same: list[Slot] = []
    for index, (slot, message) in enumerate(zip(branch.slots, messages, strict=False)):
        new = slot if slot.message is message else _one_measured(message, index)
        if new.digest != slot.digest:
            break
        same.append(new)
    return same
