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

MESSAGE_FIELD_PREFIX = "message."
"""How the kind of an opaque part begins that is a field of its message; a client may add or leave out such fields."""
_NUMBERED_ID_SUFFIX = re.compile(r"#\d+\Z")
"""How the id of a call ends that came without one: its place among the calls of one content."""
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeError, RecursionError)
_JSON_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class _UninterpretedPart(NamedTuple):
    """A part that is not interpreted."""

    kind: str
    raw: Raw | None


def is_equivalent_message(left: Message, right: Message) -> bool:
    """Return whether both say the same: words, calls, results, media, and whatever both tell of other parts.

    Reasoning, and the seals of all else, are not looked at: who sends another is told so by the provider.
    """
    if left.role != right.role:
        return False
    own, other_parts = _normalize_parts(left.parts), _normalize_parts(right.parts)
    fields, others_fields = _collect_message_fields(left.parts), _collect_message_fields(right.parts)
    common = fields.keys() & others_fields.keys()
    return _is_equivalent_value(own, other_parts) and all(
        _is_equivalent_value(fields[kind], others_fields[kind]) for kind in common
    )


def encode_comparable_bytes(message: Message) -> bytes:
    """Return what is said as bytes: those of messages that are alike are the same, and those of pieces add up.

    Of parts that are not interpreted only the kind is in it.
    """
    return b"".join(map(_encode_comparable, _normalize_parts(message.parts)))


def _encode_comparable(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, _UninterpretedPart):
        return b"\xfe" + value.kind.encode("utf-8", "surrogatepass")
    if isinstance(value, list | tuple):
        return b"\xfe[" + b"\xfe,".join(map(_encode_comparable, value)) + b"\xfe]"
    return repr(value).encode()


def _normalize_parts(parts: Sequence[Part]) -> list[Any]:
    """Return what is said, words that stand together as one text."""
    out: list[Any] = []
    for part in parts:
        if isinstance(part, Text) and out and isinstance(out[-1], str):
            out[-1] += part.text
        elif isinstance(part, Text):
            out += [part.text] if part.text else []
        elif not isinstance(part, Thinking) and not is_message_field(part):
            out.append(_normalize_part(part))
    return out


def _normalize_part(part: Part) -> Any:
    if isinstance(part, ToolCall):
        return (_strip_id_number(part.id), part.name, canonicalize_arguments(part.arguments))
    if isinstance(part, ToolResult):
        return [_strip_id_number(part.call_id), part.is_error, *_normalize_parts(part.content)]
    if isinstance(part, Media):
        return (part.kind, part.mime, part.name, part.source)
    assert isinstance(part, Opaque)
    return _UninterpretedPart(part.kind, part.raw)


def _strip_id_number(id_: str) -> str:
    return _NUMBERED_ID_SUFFIX.sub("", id_)


def is_message_field(part: Part) -> bool:
    """Return whether ``part`` is a field of its message, not a piece of what it says."""
    return isinstance(part, Opaque) and part.kind.startswith(MESSAGE_FIELD_PREFIX)


def _collect_message_fields(parts: Sequence[Part]) -> dict[str, _UninterpretedPart]:
    return {
        part.kind: _UninterpretedPart(part.kind, part.raw)
        for part in parts
        if isinstance(part, Opaque) and is_message_field(part)
    }


def _is_equivalent_value(left: Any, right: Any) -> bool:
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_is_equivalent_value, left, right))
    if isinstance(left, _UninterpretedPart) and isinstance(right, _UninterpretedPart):
        return left.kind == right.kind and _is_equivalent_json(left.raw, right.raw)
    return type(left) is type(right) and bool(left == right)


def _is_equivalent_json(left: Raw | None, right: Raw | None) -> bool:
    """Return whether two JSON values are one, or two objects agree in every field that both have and that is set."""
    if left is None or right is None or left == right:
        return left == right
    try:
        values = _normalize_numbers(_JSON_DECODER.decode(left)), _normalize_numbers(_JSON_DECODER.decode(right))
    except _DECODE_ERRORS:
        return False
    if not all(isinstance(value, dict) for value in values):
        return bool(values[0] == values[1])
    left_fields, right_fields = ({key: inner for key, inner in value.items() if inner is not None} for value in values)
    return all(left_fields[key] == right_fields[key] for key in left_fields.keys() & right_fields.keys())


def canonicalize_arguments(arguments: str) -> str:
    """Return the arguments of a call in one form for one value; text that is no JSON as it stands."""
    try:
        return msgspec.json.encode(_normalize_numbers(_JSON_DECODER.decode(arguments or "{}")), order="sorted").decode()
    except _DECODE_ERRORS:
        return arguments


def _normalize_numbers(value: Any) -> Any:
    """Return a JSON value with whole numbers as such: ``1.0`` and ``1`` are one to most languages."""
    if isinstance(value, dict):
        return {key: _normalize_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_normalize_numbers(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
