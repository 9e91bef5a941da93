"""Which model sealed what: noted on an answer when it is recorded, since its bytes do not say it."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.messages.message import Message, with_parts
from holdfast.messages.parts import Media, Part, Seal, Thinking, ToolResult
from holdfast.messages.sized_message import Slot

_SIGNED = "gemini"
"""The API whose signatures stand on parts of every kind; elsewhere only thinking is sealed by a model."""


def sealed_by(message: Message, model: str) -> Message:
    """Return ``message`` with its seals known to be those of ``model``; the bytes of its parts stay.

    Ids that tie parts together (a call to the block it came from) are seals of no model. Without a model the same
    object comes back.
    """
    return with_parts(message, [_sealed(part, model) for part in message.parts])


def slot_by(slot: Slot, model: str) -> Slot:
    """Return ``slot`` with the seals in its message known to be those of ``model``; itself where it has none."""
    message = sealed_by(slot.message, model)
    return slot if message is slot.message else replace(slot, message=message)


def sealed_as(message: Message, known: Message) -> Message:
    """Return ``message`` with the models of the same seals in ``known``, which says the same in other bytes."""
    seals = [seal for part in known.parts if (seal := _seal(part)) is not None and seal.model]
    models = {bare(seal.data): seal.model for seal in seals}
    if not models:
        return message
    return with_parts(message, [_sealed(part, models.get(bare(_data(part)), "")) for part in message.parts])


def is_known(message: Message) -> bool:
    """Whether ``message`` has a seal of which it is known whose it is."""
    return any((seal := _seal(part)) is not None and bool(seal.model) for part in message.parts)


def signatures(message: Message) -> list[str]:
    """Return the seals in ``message`` of what is no reasoning."""
    return [bare(_data(part)) for part in message.parts if _seal(part) is not None and not isinstance(part, Thinking)]


def bare(data: str) -> str:
    """Return what is sealed in the plain alphabet of base64: SDKs send the same bytes in the other one."""
    return data.replace("-", "+").replace("_", "/").rstrip("=")


def _seal(part: Part) -> Seal | None:
    return None if isinstance(part, Media | ToolResult) else part.seal


def _data(part: Part) -> str:
    seal = _seal(part)
    return "" if seal is None else seal.data


def _sealed(part: Part, model: str) -> Part:
    seal = _seal(part)
    if seal is None or isinstance(part, Media | ToolResult) or seal.model or not model:
        return part
    is_bound = isinstance(part, Thinking) or seal.api == _SIGNED
    return replace(part, seal=replace(seal, model=model)) if is_bound else part
