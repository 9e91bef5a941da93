"""What a whole conversation, as a client sends it, repeats of the one in the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

from msgspec import Struct
from msgspec.structs import replace

from holdfast.model.branch import Branch, restated
from holdfast.model.messages import Message
from holdfast.model.slots import Slot
from holdfast.policy.capping import cap
from holdfast.policy.settings import Settings
from holdfast.view.alike import alike
from holdfast.view.sealed import sealed_as


class Repeated(Struct, frozen=True):
    """What a conversation repeats: ``slots`` of the log, in its own bytes, for which it takes ``count`` messages."""

    slots: tuple[Slot, ...]
    count: int


def repeated(known: Iterable[Slot], said: Sequence[Slot], settings: Settings) -> Repeated:
    """Return what ``said``, a whole conversation, repeats of ``known``, from the first message on."""
    slots: list[Slot] = []
    count = 0
    for slot in known:
        stop = _after(slot, said, count, settings)
        if stop == count:
            break
        slots.append(_as_said(slot, said[count]) if stop == count + 1 else slot)
        count = stop
    return Repeated(tuple(slots), count)


def again(branch: Branch, slots: Sequence[Slot]) -> Branch:
    """Return ``branch`` with its first slots in the bytes of ``slots``: a cache breakpoint that moved on is none."""
    if all(new is old for new, old in zip(slots, branch.slots, strict=False)):
        return branch
    known = branch.settled
    return replace(restated(branch, slots), settled=known if known is None or not known.repairs else None)


def _after(slot: Slot, said: Sequence[Slot], at: int, settings: Settings) -> int:
    """Return where what repeats ``slot`` ends in ``said``; ``at``, where it begins, when nothing does.

    An answer may come back in pieces, as its chunks came.
    """
    if at < len(said) and _is_same(slot, said[at], settings):
        return at + 1
    run = list(takewhile(lambda one: one.message.role == "assistant", said[at:])) if _is_answer(slot) else []
    whole = Message("assistant", tuple([part for one in run for part in one.message.parts]))
    return at + len(run) if len(run) > 1 and alike(slot.message, whole) else at


def _is_answer(slot: Slot) -> bool:
    return slot.message.role == "assistant"


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
    return replace(slot, message=sealed_as(said.message, slot.message), api=said.api, raw=said.raw, base=None)
