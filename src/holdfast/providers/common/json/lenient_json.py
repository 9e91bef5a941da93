"""Reading JSON of which nothing is sure: a field of another type than expected counts as absent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Raw
from msgspec.json import Decoder

from holdfast.providers.common.json.raw_json import encode_json

T = TypeVar("T")
_FIELDS_DECODER = Decoder(dict[str, Raw])
_ITEMS_DECODER = Decoder(list[Raw])
_ANY_DECODER = Decoder()
_TEXT_DECODER = Decoder(str)
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_MAX_COUNT = 2**53
"""No count of tokens is larger; more would not survive a reader of JSON that knows only doubles."""
ListIndex: TypeAlias = Annotated[int, Meta(ge=0, le=_MAX_COUNT)]
"""A place in a list."""


def try_decode_json(decoder: Decoder[T], data: bytes) -> T | None:
    """Return ``data`` as ``decoder`` wants it, which is what nearly all events are; nothing for any other."""
    try:
        return decoder.decode(data)
    except _DECODE_ERRORS:
        return None


def make_json_readable(data: bytes | Raw) -> bytes | None:
    """Return ``data`` as JSON that every decoder takes, or nothing when it is no JSON.

    Bytes that are no UTF-8, halves of surrogate pairs and numbers out of range become U+FFFD and null.
    """
    data = bytes(data)
    try:
        data.decode()
        _ANY_DECODER.decode(data)
    except _DECODE_ERRORS:
        return _decode_with_replacement(data)
    return data


def has_replaced_characters(data: bytes, readable: bytes) -> bool:
    """Return whether in ``readable``, the readable form of ``data``, U+FFFD stands for what was no text."""
    return readable != data and _REPLACEMENT_CHARACTER in readable


_REPLACEMENT_CHARACTER = "\ufffd".encode()


def is_utf8(data: bytes) -> bool:
    """Return whether ``data`` is UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _decode_with_replacement(data: bytes) -> bytes | None:
    try:
        return encode_json(json.loads(data.decode(errors="replace")))
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return None


def read_json_fields(raw: bytes | Raw | None) -> dict[str, Raw]:
    """Return the fields of a JSON object; none for anything else."""
    try:
        return {} if raw is None else _FIELDS_DECODER.decode(raw)
    except _DECODE_ERRORS:
        return {}


def read_json_items(raw: bytes | Raw | None) -> list[Raw]:
    """Return the elements of a JSON array; none for anything else."""
    try:
        return [] if raw is None else _ITEMS_DECODER.decode(raw)
    except _DECODE_ERRORS:
        return []


def read_json_value(raw: bytes | Raw | None) -> Any:
    """Return a JSON value; ``None`` when there is none."""
    try:
        return None if raw is None else _ANY_DECODER.decode(raw)
    except _DECODE_ERRORS:
        return None


def read_json_text(raw: bytes | Raw | None) -> str:
    """Return a JSON string; empty for anything else."""
    try:
        return "" if raw is None else _TEXT_DECODER.decode(raw)
    except _DECODE_ERRORS:
        return ""


def read_json_count(raw: bytes | Raw | None) -> int:
    """Return a count, of tokens or a place in a list; 0 for anything that is none."""
    value = read_json_value(raw)
    return min(int(value), _MAX_COUNT) if isinstance(value, int | float) and value > 0 else 0


def drop_null_fields(fields: Mapping[str, Raw]) -> dict[str, Raw]:
    """Return the fields that are not null."""
    return {key: raw for key, raw in fields.items() if bytes(raw) != b"null"}
