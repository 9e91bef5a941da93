"""A message of the log in the bytes in which its client sent it back: whole or in pieces, with all of it or less."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec import Raw
from msgspec.structs import replace

from holdfast.messages.equality import alike, is_beside, stream
from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, Part, Thinking
from holdfast.messages.signatures import sealed_as, signatures
from holdfast.messages.sized_message import Slot
from holdfast.providers.openai_responses.items import item_of, items_of
from holdfast.providers.openai_responses.messages import API as RESPONSES
from holdfast.providers.registry import FORMS


def as_said(slot: Slot, said: Slot) -> Slot:
    """Return ``slot`` in the bytes of ``said``, unless it was cut when it was appended, or they lack what they need.

    Where both are equal it is ``said`` itself, which its client's next request holds, too.
    """
    if said.raw is None or (said.api == slot.api and said.raw == slot.raw):
        return said if said == slot else slot
    if said.digest != slot.digest and not alike(slot.message, said.message):
        return slot
    shown = _in_bytes_of(slot, said.message, said.api, said.raw)
    whole = (slot.size, slot.digest, None) == (said.size, said.digest, said.base)
    return said if whole and shown.message is said.message else shown


def pieces_of(slot: Slot, run: Sequence[Slot]) -> list[Slot]:
    """Return those of ``run``, from the first on, that may be what ``slot`` came back as: they say as much together."""
    left = len(stream(slot.message))
    for at, one in enumerate(run):
        said = len(stream(one.message))
        if said > left:
            return [*run[:at]] if not left else []
        left -= said
    return [] if left else [*run]


def in_pieces(slot: Slot, pieces: Sequence[Slot]) -> Slot:
    """Return ``slot`` in the bytes of ``pieces``, which it came back as.

    They stay apart where their API takes them so: Gemini takes no call behind another answer.
    """
    form, raws = FORMS.get(pieces[0].api), [slot.raw for slot in pieces if slot.raw is not None]
    if form is None or len(raws) < len(pieces):
        return slot
    said, raw = joined(pieces), Raw(b",".join(raws))
    if form.dialect("").calls_after_user and any(slot.message.calls for slot in pieces[1:]):
        raw = Raw(b",".join(form.encode(said, None)))
        said = form.decode(raw)
    return _in_bytes_of(slot, said, form.api, raw)


def joined(run: Sequence[Slot]) -> Message:
    """Return the messages of ``run`` as one."""
    return Message(run[0].message.role, tuple([part for slot in run for part in slot.message.parts]))


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


def _stands_alone(slot: Slot, said: Message) -> bool:
    """Whether the bytes of ``slot``, which are those of ``said``, need nothing that it has in the log and not there.

    A signature on what is no reasoning does, and an item of Responses does by its id where anything is left out. Else
    what a client leaves out it does not want to be sent.
    """
    if signatures(slot.message) != signatures(said):
        return False
    if _beside(slot.message) == _beside(said):
        return True
    return slot.api != RESPONSES or slot.raw is None or all(item_of(raw).id is None for raw in items_of(slot.raw))


def _beside(message: Message) -> int:
    """Return how many parts of ``message`` stand beside what it says: reasoning, above all."""
    return sum(isinstance(part, Thinking) or is_beside(part) for part in message.parts)


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
