"""Whether two messages say the same, though a client wrote one of them anew.

Clients send back what they were given in bytes of their own: arguments with other spaces, fields that are empty added
or left out, words in one piece or several, reasoning left out. None of that is another conversation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, Part, Text, Thinking, ToolCall, ToolResult

BESIDE = "message."
"""How the kind of an opaque part begins that is a field of its message; a client may add or leave out such fields."""
_NUMBERED = re.compile(r"#\d+\Z")
"""How the id of a call ends that came without one: its place among the calls of one content."""
_UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
_ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class _Unread(NamedTuple):
    """A part that is not interpreted."""

    kind: str
    raw: Raw | None


def alike(one: Message, other: Message) -> bool:
    """Return whether both say the same: words, calls, results, media, and whatever both tell of other parts.

    Reasoning, and the seals of all else, are not looked at: who sends another is told so by the provider.
    """
    if one.role != other.role:
        return False
    own, others = _said(one.parts), _said(other.parts)
    fields, others_fields = _beside(one.parts), _beside(other.parts)
    common = fields.keys() & others_fields.keys()
    return _agree(own, others) and all(_agree(fields[kind], others_fields[kind]) for kind in common)


def stream(message: Message) -> bytes:
    """Return what is said as bytes: those of messages that are alike are the same, and those of pieces add up.

    Of parts that are not interpreted only the kind is in it.
    """
    return b"".join(map(_bytes, _said(message.parts)))


def _bytes(one: Any) -> bytes:
    if isinstance(one, str):
        return one.encode("utf-8", "surrogatepass")
    if isinstance(one, _Unread):
        return b"\xfe" + one.kind.encode("utf-8", "surrogatepass")
    if isinstance(one, list | tuple):
        return b"\xfe[" + b"\xfe,".join(map(_bytes, one)) + b"\xfe]"
    return repr(one).encode()


def _said(parts: Sequence[Part]) -> list[Any]:
    """Return what is said, words that stand together as one text."""
    out: list[Any] = []
    for part in parts:
        if isinstance(part, Text) and out and isinstance(out[-1], str):
            out[-1] += part.text
        elif isinstance(part, Text):
            out += [part.text] if part.text else []
        elif not isinstance(part, Thinking) and not is_beside(part):
            out.append(_one(part))
    return out


def _one(part: Part) -> Any:
    if isinstance(part, ToolCall):
        return (_id(part.id), part.name, canonical(part.arguments))
    if isinstance(part, ToolResult):
        return [_id(part.call_id), part.is_error, *_said(part.content)]
    if isinstance(part, Media):
        return (part.kind, part.mime, part.name, part.source)
    assert isinstance(part, Opaque)
    return _Unread(part.kind, part.raw)


def _id(id_: str) -> str:
    return _NUMBERED.sub("", id_)


def is_beside(part: Part) -> bool:
    """Return whether ``part`` is a field of its message, not a piece of what it says."""
    return isinstance(part, Opaque) and part.kind.startswith(BESIDE)


def _beside(parts: Sequence[Part]) -> dict[str, _Unread]:
    return {part.kind: _Unread(part.kind, part.raw) for part in parts if isinstance(part, Opaque) and is_beside(part)}


def _agree(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_agree, one, other))
    if isinstance(one, _Unread) and isinstance(other, _Unread):
        return one.kind == other.kind and _tell_the_same(one.raw, other.raw)
    return type(one) is type(other) and bool(one == other)


def _tell_the_same(one: Raw | None, other: Raw | None) -> bool:
    """Return whether two JSON values are one, or two objects agree in every field that both have and that is set."""
    if one is None or other is None or one == other:
        return one == other
    try:
        values = _plain(_ANY.decode(one)), _plain(_ANY.decode(other))
    except _UNREADABLE:
        return False
    if not all(isinstance(value, dict) for value in values):
        return bool(values[0] == values[1])
    mine, theirs = ({key: inner for key, inner in value.items() if inner is not None} for value in values)
    return all(mine[key] == theirs[key] for key in mine.keys() & theirs.keys())


def canonical(arguments: str) -> str:
    """Return the arguments of a call in one form for one value; text that is no JSON as it stands."""
    try:
        return msgspec.json.encode(_plain(_ANY.decode(arguments or "{}")), order="sorted").decode()
    except _UNREADABLE:
        return arguments


def _plain(value: Any) -> Any:
    """Return a JSON value with whole numbers as such: ``1.0`` and ``1`` are one to most languages."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
