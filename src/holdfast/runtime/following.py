"""What a whole conversation, as a client sends it, repeats of the one in the log."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from hashlib import blake2b
from operator import is_

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.model.branch import Branch, extended
from holdfast.model.entries import (
    Entry,
    Frame,
    Said,
)
from holdfast.model.forking import cut_back, restated
from holdfast.model.messages import Message
from holdfast.model.parts import Opaque, Part, Thinking
from holdfast.model.plan import Plan
from holdfast.model.sequence import Seq, common
from holdfast.model.slots import Slot
from holdfast.model.target import Target, World
from holdfast.policy.capping import cap
from holdfast.policy.pipeline import Policy, advance
from holdfast.policy.settings import Settings
from holdfast.view.alike import alike, is_beside, stream
from holdfast.view.sealed import sealed_as, signatures
from holdfast.wire.apis import FORMS
from holdfast.wire.openai_responses import API as RESPONSES
from holdfast.wire.responses_items import item_of, items_of


class Twins(Struct, frozen=True):
    """Messages of the log, and those of a conversation that repeat them: the first ``single`` one by one."""

    known: Sequence[Slot] = ()
    said: Sequence[Slot] = ()
    single: int = 0

    def stand(self, known: Sequence[Slot], said: Sequence[Slot]) -> tuple[int, int]:
        """Return how many messages at the start of both are such twins: all, or as many as are so one by one."""
        mine, theirs = common(known, self.known), common(said, self.said)
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
            slots.append(_as_said(slot, one))
            count += 1
            continue
        mine, theirs = _run(known, len(slots)), _run(said, count)
        pieces = theirs[: _pieces(slot, theirs)]
        if len(pieces) > 1 and alike(slot.message, _joined(pieces)):
            mine, theirs = [_in_pieces(slot, pieces)], pieces
        elif max(len(mine), len(theirs)) < 2 or not alike(_joined(mine), _joined(theirs)):
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


def glimpse(branch: Branch, policy: Policy, said: Sequence[Slot], target: Target, *, anew: bool = False) -> Plan:
    """Return what a request that says ``said``, and no more, shows by the decisions there are of what it repeats.

    Nothing is written, and what no decision is about has the bytes that it was said in. Nothing is decided either,
    unless ``anew``: then what is due of all that is said, as a turn would.
    """
    known = branch.slots.slice()
    same = repeated(known, said, policy.settings)
    count, target = len(same.slots), replace(target, frame=reframed(target.frame, known, said))
    alone = restated(cut_back(branch, count), same.slots)
    alone = extended(alone, [Entry("", None, Said(slot)) for slot in said[same.count :]])
    if anew:  # nobody answers here, so the turns between its compactions are not told apart
        alone = replace(alone, compactions=0, truncations=0)
    return advance(alone, target, policy if anew else replace(policy, stages=()), World(spill=False))


def reworded(branch: Branch, opening: Sequence[Slot]) -> Branch:
    """Return ``branch``, as the log has it, with the words that its client opens with, where they are of its places."""
    known = branch.slots.slice(0, len(opening))
    same = [(slot.size, slot.digest) for slot in known] == [(slot.size, slot.digest) for slot in opening]
    return restated(branch, opening) if same else branch


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


def _pieces(slot: Slot, run: Sequence[Slot]) -> int:
    """Return how many of ``run``, from the first on, may be what ``slot`` came back as: they say as much together."""
    left = len(stream(slot.message))
    for at, one in enumerate(run):
        said = len(stream(one.message))
        if said > left:
            return at if not left else 0
        left -= said
    return 0 if left else len(run)


def _in_pieces(slot: Slot, pieces: Sequence[Slot]) -> Slot:
    """Return ``slot`` in the bytes of ``pieces``, which it came back as.

    They stay apart where their API takes them so: Gemini takes no call behind another answer.
    """
    form, raws = FORMS.get(pieces[0].api), [slot.raw for slot in pieces if slot.raw is not None]
    if form is None or len(raws) < len(pieces):
        return slot
    said, raw = _joined(pieces), Raw(b",".join(raws))
    if form.dialect("").calls_after_user and any(slot.message.calls for slot in pieces[1:]):
        raw = Raw(b",".join(form.encode(said, None)))
        said = form.decode(raw)
    return _in_bytes_of(slot, said, form.api, raw)


def _stands_alone(slot: Slot, said: Message) -> bool:
    """Whether the bytes of ``slot``, which are those of ``said``, need nothing that it has in the log and not there.

    A signature on what is no reasoning does, and an item of Responses does by its id. Else what a client leaves out it
    does not want to be sent.
    """
    if signatures(slot.message) != signatures(said):
        return False
    return slot.api != RESPONSES or slot.raw is None or all(item_of(raw).id is None for raw in items_of(slot.raw))


def _joined(run: Sequence[Slot]) -> Message:
    return Message(run[0].message.role, tuple([part for slot in run for part in slot.message.parts]))


def _is_same(slot: Slot, said: Slot, settings: Settings) -> bool:
    if said.digest == slot.digest or (said.raw is not None and said.raw == slot.raw):
        return True
    return alike(slot.message, said.message) or alike(slot.message, cap(said.message, settings)[0])


def _as_said(slot: Slot, said: Slot) -> Slot:
    """Return ``slot`` in the bytes of ``said``, unless it was cut when it was appended, or they lack what they need."""
    if said.raw is None or (said.api == slot.api and said.raw == slot.raw):
        return slot
    if said.digest != slot.digest and not alike(slot.message, said.message):
        return slot
    shown = _in_bytes_of(slot, said.message, said.api, said.raw)
    whole = (slot.size, slot.digest, None) == (said.size, said.digest, said.base)
    return said if whole and shown.message is said.message else shown


def _in_bytes_of(slot: Slot, said: Message, api: str, raw: Raw) -> Slot:
    """Return ``slot`` in the bytes ``raw`` of ``said``, which is alike; ``slot`` where they lack what they need.

    Its parts stay as many and in the places that they have in the log, which decisions are about.
    """
    bare, mine, theirs = replace(slot, api=api, raw=raw, base=None), slot.message.parts, said.parts
    if list(map(type, mine)) == list(map(type, theirs)):
        return replace(bare, message=sealed_as(said, slot.message))
    if not _stands_alone(bare, said):
        return slot
    parts = _in_place(mine, theirs)
    return bare if parts is None else replace(bare, message=sealed_as(Message(said.role, parts), slot.message))


def _in_place(mine: Sequence[Part], theirs: Sequence[Part]) -> tuple[Part, ...] | None:
    """Return each of ``theirs`` in the place of its own among ``mine``, where some of these were left out.

    Nothing where they are cut otherwise.
    """
    rest, out = deque(theirs), list[Part]()
    for part in mine:
        if rest and _is_of(part, rest[0]):
            out.append(rest.popleft())
        elif isinstance(part, Thinking) or is_beside(part):
            out.append(part)
        else:
            return None
    return None if rest else tuple(out)


def _is_of(part: Part, said: Part) -> bool:
    """Whether ``said`` is what became of ``part``, in messages that are alike."""
    if isinstance(part, Thinking) and isinstance(said, Thinking):
        return part.text == said.text
    if isinstance(part, Opaque) and isinstance(said, Opaque):
        return part.kind == said.kind
    return type(part) is type(said)
