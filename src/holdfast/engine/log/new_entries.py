"""What the log takes: of a message, of a plan, and at the beginning of a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from holdfast.errors import LogConflict, StoreError, UnknownId, check_types
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import measure
from holdfast.messages.sized_message import Slot
from holdfast.planning.pipeline import Policy
from holdfast.state.branch.branch import Branch
from holdfast.state.codec.packing import fault
from holdfast.state.entries import POLICY, Answer, Body, Decision, Entry, Note, Request, Usage
from holdfast.state.plan import Notice, Plan
from holdfast.state.target import Target, World
from holdfast.store.base import SessionStore


def named(policy: str) -> Note:
    """Return the note that names the policy that decides from here on."""
    return Note(POLICY, data={"name": policy})


def is_pressed(world: World) -> bool:
    """Whether the request is to be planned anew, whatever was planned before."""
    return world.force or bool(world.rung) or world.written is not None


def measured(said: Message | Slot) -> Slot:
    """Return ``said`` as a slot with size and digest; ``LogConflict`` where it is no message."""
    try:
        if isinstance(said, Message):
            return measure(said)
        return said if said.digest else replace(measure(said.message), api=said.api, raw=said.raw, base=said.base)
    except (TypeError, AttributeError, KeyError) as error:
        why = fault(said, Slot if isinstance(said, Slot) else Message) or str(error)
        raise _no_message(why) from error


def sound(message: Message) -> Message:
    """Return ``message``; ``LogConflict`` where it is none, of the right types all through."""
    why = fault(message, Message)
    if why:
        raise _no_message(why)
    return message


def _no_message(why: str) -> LogConflict:
    return LogConflict(f"this is no message: {why}; nothing was written: give a value of that type")


def decided(branch: Branch, plan: Plan, target: Target, policy: str) -> list[Body]:
    """Return what the log takes for ``plan``: a frame that changed, a decision, a compaction, and the request.

    Where another policy decides than the log names, its name comes before what it decided.
    """
    bodies: list[Body] = [] if target.frame == branch.frame else [target.frame]
    if policy != branch.policy and (plan.record or plan.compaction is not None):
        bodies.append(named(policy))
    if plan.record:
        bodies.append(Decision(plan.record))
    if plan.compaction is not None:
        bodies.append(plan.compaction)
    slots, window = len(plan.branch.slots), target.limits.window
    return [*bodies, Request(plan.branch.basis, slots, target.model, window, target.api)]


def cost(branch: Branch, usage: Usage, stop: str, *, as_planned: bool) -> Answer:
    """Return what the newest request of ``branch`` cost; of one that went out otherwise it says nothing of its size.

    ``LogConflict`` for what is no usage: every later request would be planned by it.
    """
    check_types(LogConflict, usage=(usage, Usage), stop=(stop, str))
    if why := fault(usage, Usage):
        raise LogConflict(f"this is no usage: {why}; nothing was written: give Usage(input=…, output=…) in tokens")
    return Answer(branch.basis if as_planned else "", usage, stop)


def meant(ids: Sequence[str], prefix: str | None) -> str:
    """Return the newest of ``ids``, those of what is in force, or the one that begins with ``prefix``."""
    if prefix is None:
        if not ids:
            raise UnknownId("nothing is in force that could be undone: no decision and no compaction")
        return ids[-1]
    found = [id_ for id_ in ids if id_ == prefix] or [id_ for id_ in ids if prefix and id_.startswith(prefix)]
    if len(found) != 1:
        told = (
            f"{len(found)} decisions in force begin with {prefix!r}" if found else f"no decision in force is {prefix!r}"
        )
        cure = f"give the id of one; newest: {', '.join(ids[-5:])}" if ids else "there is none that could be undone"
        raise UnknownId(f"{told}; {cure}")
    return found[0]


def told(plan: Plan, refused: StoreError) -> Plan:
    """Return ``plan`` with a notice that texts stay whole."""
    why = f"texts could not be stored away, so every one stays whole: {refused}"
    return replace(plan, notices=(*plan.notices, Notice("unstored", why)))


def begun(
    store: SessionStore, key: str, policy: Policy, clock: Callable[[], int], ids: Callable[[int], list[str]]
) -> str | None:
    """Return the leaf of session ``key``; a new one begins with a note of its policy."""
    with suppress(UnknownId):
        if (known := store.session(key)).key == key:
            return known.leaf
    return store.put(key, [Entry(ids(1)[0], None, named(policy.name), at=clock())]).leaf
