"""Read JSON of unknown shape: a field of another type than expected counts as absent."""

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
"""The largest count that is believed. Larger ones would be changed by readers that parse JSON numbers as doubles."""
ListIndex: TypeAlias = Annotated[int, Meta(ge=0, le=_MAX_COUNT)]
"""An index of a list."""


def try_decode_json(decoder: Decoder[T], data: bytes) -> T | None:
    """Return ``data`` decoded by ``decoder``, or None if it has another shape."""
    try:
        return decoder.decode(data)
    except _DECODE_ERRORS:
        return None


def make_json_readable(data: bytes | Raw) -> bytes | None:
    """Return ``data`` as JSON that every decoder accepts, or None if it is not JSON.

    Bytes that are not UTF-8 and lone surrogates become U+FFFD, numbers out of range become null.
    """
    data = bytes(data)
    try:
        data.decode()  # msgspec does not check the bytes of strings that it only skips
        _ANY_DECODER.decode(data)
    except _DECODE_ERRORS:
        return _decode_with_replacement(data)
    return data


def has_replaced_characters(data: bytes, readable: bytes) -> bool:
    """Return whether ``readable``, made from ``data`` by ``make_json_readable``, has U+FFFD in place of broken text."""
    return readable != data and _REPLACEMENT_CHARACTER in readable


_REPLACEMENT_CHARACTER = "\ufffd".encode()


def is_utf8(data: bytes) -> bool:
    """Return whether ``data`` is valid UTF-8."""
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
    """Return the fields of a JSON object; empty for anything else."""
    try:
        return {} if raw is None else _FIELDS_DECODER.decode(raw)
    except _DECODE_ERRORS:
        return {}


def read_json_items(raw: bytes | Raw | None) -> list[Raw]:
    """Return the elements of a JSON array; empty for anything else."""
    try:
        return [] if raw is None else _ITEMS_DECODER.decode(raw)
    except _DECODE_ERRORS:
        return []


def read_json_value(raw: bytes | Raw | None) -> Any:
    """Return a decoded JSON value, or None for anything that does not decode."""
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
    """Return a JSON number as a count, of tokens or a place in a list; 0 for anything else."""
    value = read_json_value(raw)
    if isinstance(value, int | float) and value > 0:
        return min(int(value), _MAX_COUNT)
    return 0


def drop_null_fields(fields: Mapping[str, Raw]) -> dict[str, Raw]:
    """Return the fields without those that are null."""
    return {key: raw for key, raw in fields.items() if bytes(raw) != b"null"}
