"""What a whole conversation, as a client sends it, repeats of the one in the log."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from operator import is_

from msgspec import Struct
from msgspec.structs import replace

from holdfast.engine.log.echo_match import as_said, in_pieces, joined, pieces_of
from holdfast.messages.equality import alike
from holdfast.messages.sized_message import Slot
from holdfast.planning.pipeline import Policy, advance
from holdfast.planning.settings import Settings
from holdfast.planning.stages.append_limit import cap
from holdfast.state.branch.branch import Branch, extended
from holdfast.state.branch.fork import cut_back, restated
from holdfast.state.entries import Entry, Frame, Said
from holdfast.state.plan import Plan
from holdfast.state.sequence import Seq, common
from holdfast.state.target import Target, World


class Twins(Struct, frozen=True):
    """Messages of the log, and those of a conversation that repeat them: the first ``single`` one by one."""

    known: Sequence[Slot] = ()
    said: Sequence[Slot] = ()
    single: int = 0

    def stand(self, known: Sequence[Slot], said: Sequence[Slot]) -> tuple[int, int]:
        """Return how many messages at the start of both are such twins: all, or as many as are so one by one.

        Those that were said in other objects are compared again, and the log takes the new ones up.
        """
        mine, theirs = common(known, self.known), common(said, self.said)
        if theirs and said[theirs - 1] is not self.said[theirs - 1]:
            theirs = [*map(is_, said, self.said), False].index(False)
        if (mine, theirs) == (len(self.known), len(self.said)):
            return mine, theirs
        one = min(mine, theirs, self.single)
        return one, one


class Repeated(Struct, frozen=True):
    """What a conversation repeats: ``slots`` of the log, in its own bytes, for which it takes ``count`` messages."""

    slots: Sequence[Slot]
    count: int
    single: int
    """How many of them, from the first on, are repeated one by one."""
    standing: int = 0
    """How many of them, from the first on, are known to be the log's own."""


def repeated(known: Sequence[Slot], said: Sequence[Slot], settings: Settings, twins: Twins = Twins()) -> Repeated:
    """Return what ``said``, a whole conversation, repeats of ``known``, from the first message on.

    An answer may come back in pieces, as its chunks came, and results together or one by one, as their API has them.
    System messages that both open with are the request's frame and not its past: the same place, whatever they say, as
    long as they are about as large.
    What is known to be alike by ``twins`` is not compared again.
    """
    standing, count = twins.stand(known, said)
    opening = _same_places(known, said)
    slots, single = [*known[:standing]], -1 if standing == count <= twins.single else twins.single
    while len(slots) < len(known) and count < len(said):
        slot, one = known[len(slots)], said[count]
        if count < opening:
            slots.append(_restated(slot, one))
            count += 1
            continue
        if _is_same(slot, one, settings):
            slots.append(as_said(slot, one))
            count += 1
            continue
        mine, theirs = _run(known, len(slots)), _run(said, count)
        pieces = pieces_of(slot, theirs)
        if len(pieces) > 1 and alike(slot.message, joined(pieces)):
            mine, theirs = [in_pieces(slot, pieces)], pieces
        elif max(len(mine), len(theirs)) < 2 or not alike(joined(mine), joined(theirs)):
            break
        single = len(slots) if single < 0 else single
        slots += mine
        count += len(theirs)
    return Repeated(slots, count, count if single < 0 else single, standing)


class Following:
    """How whole conversations follow one branch, one after the other: what was compared is not compared again."""

    def __init__(self) -> None:
        self._twins = Twins()
        self._compared: tuple[tuple[Seq[Slot], tuple[Slot, ...], Settings], Repeated] | None = None
        """The last comparison: of which messages with which others by which settings, and what it found."""

    def repeated(self, known: Seq[Slot], said: tuple[Slot, ...], settings: Settings) -> Repeated:
        """Return what ``said`` repeats of ``known``; of the same again it is known."""
        asked, compared = (known, said, settings), self._compared
        if compared is None or not all(map(is_, asked, compared[0])):
            compared = self._compared = asked, repeated(known.slice(), said, settings, self._twins)
        return compared[1]

    def went_on(self, known: Seq[Slot], said: tuple[Slot, ...], same: Repeated) -> None:
        """Know which messages repeat each other, now that what is new of ``said`` stands behind the ``same`` too."""
        is_single = same.single == same.count == len(same.slots)
        self._twins = Twins(known.slice(), said, len(known) if is_single else same.single)


def reframed(frame: Frame, known: Sequence[Slot], said: Sequence[Slot]) -> Frame:
    """Return ``frame`` with what ``said`` opens with in other words than the log, whose ``known`` slots say which.

    Those slots keep size and digest of the log, so that it tells the same after a restart: the rest is the frame's.
    """
    opening = _same_places(known, said)
    pairs = [(slot, one) for slot, one in zip(known[:opening], said, strict=False) if slot.digest != one.digest]
    if not pairs:
        return frame
    told = b"\x00".join([frame.digest.encode(), *(one.digest for one in said[:opening])])
    more = max(0, sum(one.size - slot.size for slot, one in pairs))
    return replace(frame, digest=blake2b(told, digest_size=16).hexdigest(), tokens=frame.tokens + more)


def glimpse(branch: Branch, policy: Policy, said: Sequence[Slot], target: Target) -> Plan:
    """Return what a request that says ``said``, and no more, shows by the decisions there are of what it repeats.

    Nothing is written, and what no decision is about has the bytes that it was said in. Nothing is decided either.
    """
    known = branch.slots.slice()
    same = repeated(known, said, policy.settings)
    count, target = len(same.slots), replace(target, frame=reframed(target.frame, known, said))
    alone = restated(cut_back(branch, count), same.slots)
    alone = extended(alone, [Entry("", None, Said(slot)) for slot in said[same.count :]])
    return advance(alone, target, replace(policy, stages=()), World(spill=False))


def reworded(branch: Branch, said: Seq[Slot]) -> Branch:
    """Return ``branch``, as the log has it, in the words of its client, as far as ``said`` says the same messages."""
    told = said.slice()
    pairs = zip(told, branch.slots.slice(0, len(told)), strict=False)
    parts = next((at for at, (one, slot) in enumerate(pairs) if not _is_in_place_of(one, slot)), len(branch.slots))
    return restated(branch, told[:parts])


def _is_in_place_of(said: Slot, slot: Slot) -> bool:
    """Whether ``said`` is what a conversation said in the place of ``slot``, as ``repeated`` told."""
    return (said.size, said.digest) == (slot.size, slot.digest)


def _same_places(known: Sequence[Slot], said: Sequence[Slot]) -> int:
    """Return how many system messages both open with, the first of each being about as large as the other."""
    opening = min(_opening(known), _opening(said))
    return next((at for at in range(opening) if abs(known[at].size - said[at].size) > ABOUT), opening)


ABOUT = 1_024
"""[H] Tokens by which a system message may be larger or smaller and keep its place: a clock, a list of files."""


def _opening(slots: Sequence[Slot]) -> int:
    """Return how many system messages ``slots`` open with."""
    for at, slot in enumerate(slots):
        if slot.message.role != "system":
            return at
    return len(slots)


def _restated(slot: Slot, said: Slot) -> Slot:
    """Return ``said`` with the size and the digest that the log has in its place."""
    if said.raw is not None and (said.api, said.raw) == (slot.api, slot.raw):
        return slot
    known = (slot.size, slot.digest)
    return said if known == (said.size, said.digest) else replace(said, size=slot.size, digest=slot.digest)


def _run(slots: Sequence[Slot], at: int) -> list[Slot]:
    """Return the slots from ``at`` on that one side said without a break."""
    role = slots[at].message.role
    stop = next((place for place in range(at, len(slots)) if slots[place].message.role != role), len(slots))
    return list(slots[at:stop])


def _is_same(slot: Slot, said: Slot, settings: Settings) -> bool:
    if said.digest == slot.digest or (said.raw is not None and said.raw == slot.raw):
        return True
    return alike(slot.message, said.message) or alike(slot.message, cap(said.message, settings)[0])
