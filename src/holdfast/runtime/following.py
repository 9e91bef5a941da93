"""What a whole conversation, as a client sends it, repeats of the one in the log."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.model.branch import Branch
from holdfast.model.entries import OVERFLOW, Body, Compaction, Decision, Entry, Failure, Request, Said
from holdfast.model.messages import Message
from holdfast.model.plan import Plan
from holdfast.model.sequence import common
from holdfast.model.slots import Slot
from holdfast.model.target import Target, World
from holdfast.policy.capping import cap
from holdfast.policy.pipeline import Policy, advance
from holdfast.policy.settings import Settings
from holdfast.view.alike import alike
from holdfast.view.sealed import sealed_as


class Twins(Struct, frozen=True):
    """Messages of the log, and those of a conversation that repeat them, one by one."""

    known: Sequence[Slot] = ()
    said: Sequence[Slot] = ()

    def stand(self, known: Sequence[Slot], said: Sequence[Slot]) -> int:
        """Return how many messages at the start of both are such twins."""
        return min(common(known, self.known), common(said, self.said))


class Repeated(Struct, frozen=True):
    """What a conversation repeats: ``slots`` of the log, in its own bytes, for which it takes ``count`` messages."""

    slots: tuple[Slot, ...]
    count: int
    single: int
    """How many of them, from the first on, are repeated one by one."""


def repeated(known: Sequence[Slot], said: Sequence[Slot], settings: Settings, twins: Twins = Twins()) -> Repeated:
    """Return what ``said``, a whole conversation, repeats of ``known``, from the first message on.

    An answer may come back in pieces, as its chunks came, and results together or one by one, as their API has them.
    What is known to be alike by ``twins`` is not compared again.
    """
    count = twins.stand(known, said)
    slots, single = list(known[:count]), -1
    while len(slots) < len(known) and count < len(said):
        slot, one = known[len(slots)], said[count]
        if _is_same(slot, one, settings):
            slots.append(_as_said(slot, one))
            count += 1
            continue
        mine, theirs = _run(known, len(slots)), _run(said, count)
        if max(len(mine), len(theirs)) < 2 or not alike(_joined(mine), _joined(theirs)):
            break
        single = len(slots) if single < 0 else single
        slots += mine
        count += len(theirs)
    return Repeated(tuple(slots), count, count if single < 0 else single)


def glimpse(branch: Branch, policy: Policy, said: Sequence[Slot], target: Target) -> Plan:
    """Return what a request that says ``said``, and no more, shows by the decisions there are of what it repeats.

    Nothing is decided anew or written, and what no decision is about has the bytes that it was said in.
    """
    same = repeated(branch.slots.slice(), said, policy.settings)
    count = len(same.slots)
    law = [_within(body, count) for _, body in branch.law]
    bodies: list[Body] = [Said(slot) for slot in (*same.slots, *said[same.count :])]
    bodies += [body for body in law if body is not None]
    names = [None, *map(str, range(len(bodies)))]
    alone = Branch.build([Entry(str(at), names[at], body) for at, body in enumerate(bodies)])
    return advance(alone, target, replace(policy, stages=()), World())


NEARLY = 2
"""[H] Slots that a refused request may have had more, so that its size still tells of what is left: a reminder."""


def carried(branch: Branch, behind: Sequence[Entry], count: int) -> list[Body]:
    """Return what ``behind``, the end of the path of ``branch``, tells of its first ``count`` slots, in its order.

    Where a conversation parts from its log before ``behind``, it goes on with that: what was decided of them, that
    requests showed them (whose basis is another one here), and what an overflow taught.
    """
    law = {id_ for id_, _ in branch.law}
    told: list[Body] = []
    slots = count
    for entry in behind:
        body = entry.body
        if isinstance(body, Request):
            slots = body.slots
            if count and not (told and isinstance(told[-1], Request)):
                told.append(Request("", count, body.model, body.window))
        elif isinstance(body, Failure) and body.kind == OVERFLOW and body.limit:
            told.append(body if slots <= count + NEARLY else replace(body, requested=0, elsewhere=True))
        elif entry.id in law and (within := _within(body, count)) is not None:
            told.append(within)
    return told


def _within(body: Body, count: int) -> Body | None:
    """Return the part of what was decided that is about the first ``count`` slots."""
    if isinstance(body, Decision):
        edits = tuple(edit for edit in body.edits if edit.span.stop <= count)
        return Decision(edits) if edits else None
    if isinstance(body, Compaction) and body.keep <= count and all(edit.span.stop <= count for edit in body.edits):
        return body
    return None


def _run(slots: Sequence[Slot], at: int) -> list[Slot]:
    """Return the slots from ``at`` on that one side said without a break."""
    role = slots[at].message.role
    stop = next((place for place in range(at, len(slots)) if slots[place].message.role != role), len(slots))
    return list(slots[at:stop])


def _joined(run: Sequence[Slot]) -> Message:
    return Message(run[0].message.role, tuple([part for slot in run for part in slot.message.parts]))


def _is_same(slot: Slot, said: Slot, settings: Settings) -> bool:
    if said.digest == slot.digest or (said.raw is not None and said.raw == slot.raw):
        return True
    return alike(slot.message, said.message) or alike(slot.message, cap(said.message, settings)[0])


def _as_said(slot: Slot, said: Slot) -> Slot:
    """Return ``slot`` in the bytes of ``said``, where its parts stand in the same places; decisions are about those."""
    if said.raw is None or (said.api == slot.api and said.raw == slot.raw):
        return slot
    mine, theirs = slot.message.parts, said.message.parts
    if list(map(type, mine)) != list(map(type, theirs)):
        return slot
    if said.digest != slot.digest and not alike(slot.message, said.message):
        return slot  # it was cut when it was appended
    message = sealed_as(said.message, slot.message)
    if message is said.message and (slot.size, slot.digest, None) == (said.size, said.digest, said.base):
        return said
    return replace(slot, message=message, api=said.api, raw=said.raw, base=None)
