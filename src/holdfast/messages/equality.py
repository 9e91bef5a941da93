"""Decide whether two messages say the same although a client encoded one of them anew.

Clients send back what they received in bytes of their own: arguments with other spaces, empty fields added or left out,
text in one piece or several, reasoning left out. None of that makes it another conversation.
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
"""Prefix of the kind of an opaque part that is a field of its message; clients add and leave out such fields freely."""
DEVELOPER_ROLE_KIND = f"{MESSAGE_FIELD_PREFIX}role"
"""Kind of the part that says that a system message is a developer's; where it is left out, the role is ``system``."""
_NUMBERED_ID_SUFFIX = re.compile(r"#\d+\Z")
"""Suffix of an id that we gave to a call that came without one: its number among the calls of one content."""
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeError, RecursionError)
_JSON_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class _UninterpretedPart(NamedTuple):
    """A part that is compared by its kind and its JSON only."""

    kind: str
    raw: Raw | None


def is_equivalent_message(left: Message, right: Message) -> bool:
    """Return whether both messages have the same text, calls, results and media, and do not contradict each other.

    Opaque parts are compared only in the fields that both have. Reasoning and signatures are ignored: a provider that
    gets the wrong ones says so itself.
    """
    if left.role != right.role:
        return False
    if not _is_equivalent_value(_normalize_parts(left.parts), _normalize_parts(right.parts)):
        return False
    left_fields, right_fields = _collect_message_fields(left.parts), _collect_message_fields(right.parts)
    common_kinds = left_fields.keys() & right_fields.keys()
    return all(_is_equivalent_value(left_fields[kind], right_fields[kind]) for kind in common_kinds)


def encode_comparable_bytes(message: Message) -> bytes:
    """Encode what a message says so that equivalent messages have equal bytes.

    The bytes of pieces of a message add up to those of the whole. Of opaque parts only the kind is encoded, since their
    JSON may differ between equivalent messages.
    """
    return b"".join(map(_encode_comparable, _normalize_parts(message.parts)))


def _encode_comparable(value: Any) -> bytes:
    # 0xFE is no byte of UTF-8, so no text can look like a separator.
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, _UninterpretedPart):
        return b"\xfe" + value.kind.encode("utf-8", "surrogatepass")
    if isinstance(value, list | tuple):
        return b"\xfe[" + b"\xfe,".join(map(_encode_comparable, value)) + b"\xfe]"
    return repr(value).encode()


def _normalize_parts(parts: Sequence[Part]) -> list[Any]:
    """Return ``parts`` as comparable values, adjacent texts as one string, without reasoning and message fields."""
    values: list[Any] = []
    for part in parts:
        if isinstance(part, Text):
            if values and isinstance(values[-1], str):
                values[-1] += part.text
            elif part.text:
                values.append(part.text)
        elif not isinstance(part, Thinking) and not is_message_field(part):
            values.append(_normalize_part(part))
    return values


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
    """Return whether ``part`` is a field of its message and not a piece of its content."""
    return isinstance(part, Opaque) and part.kind.startswith(MESSAGE_FIELD_PREFIX)


def _collect_message_fields(parts: Sequence[Part]) -> dict[str, _UninterpretedPart]:
    fields: dict[str, _UninterpretedPart] = {}
    for part in parts:
        if isinstance(part, Opaque) and is_message_field(part):
            fields[part.kind] = _UninterpretedPart(part.kind, part.raw)
    return fields


def _is_equivalent_value(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, list):
        if len(left) != len(right):
            return False
        return all(map(_is_equivalent_value, left, right))
    if isinstance(left, _UninterpretedPart):
        if left.kind != right.kind:
            return False
        return _is_equivalent_json(left.raw, right.raw)
    return bool(left == right)


def _is_equivalent_json(left: Raw | None, right: Raw | None) -> bool:
    """Return whether two JSON values are equal, or two objects agree in all fields that both have and are not null."""
    if left is None or right is None or left == right:
        return left == right
    try:
        left_value = _normalize_numbers(_JSON_DECODER.decode(left))
        right_value = _normalize_numbers(_JSON_DECODER.decode(right))
    except _DECODE_ERRORS:
        return False
    if not (isinstance(left_value, dict) and isinstance(right_value, dict)):
        return bool(left_value == right_value)
    left_fields = _drop_null_fields(left_value)
    right_fields = _drop_null_fields(right_value)
    common_keys = left_fields.keys() & right_fields.keys()
    return all(left_fields[key] == right_fields[key] for key in common_keys)


def _drop_null_fields(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def canonicalize_arguments(arguments: str) -> str:
    """Return the JSON ``arguments`` of a call in one canonical form; unchanged if they are no JSON."""
    try:
        value = _normalize_numbers(_JSON_DECODER.decode(arguments or "{}"))
        return msgspec.json.encode(value, order="sorted").decode()
    except _DECODE_ERRORS:
        return arguments


def _normalize_numbers(value: Any) -> Any:
    """Return a JSON value with integral floats as ints: most languages write ``1.0`` and ``1`` alike."""
    if isinstance(value, dict):
        return {key: _normalize_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_normalize_numbers(inner) for inner in value]
    is_integral_float = isinstance(value, float) and value.is_integer()
    return int(value) if is_integral_float else value
