"""Reading JSON of which nothing is sure: a field of another type than expected counts as absent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Raw
from msgspec.json import Decoder

from holdfast.providers.common.json.raw_json import write

T = TypeVar("T")
_FIELDS = Decoder(dict[str, Raw])
_ITEMS = Decoder(list[Raw])
_ANY = Decoder()
_TEXT = Decoder(str)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_MOST = 2**53
"""No count of tokens is larger; more would not survive a reader of JSON that knows only doubles."""
Place: TypeAlias = Annotated[int, Meta(ge=0, le=_MOST)]
"""A place in a list."""


def usual(decoder: Decoder[T], data: bytes) -> T | None:
    """Return ``data`` as ``decoder`` wants it, which is what nearly all events are; nothing for any other."""
    try:
        return decoder.decode(data)
    except _UNREADABLE:
        return None


def readable(data: bytes | Raw) -> bytes | None:
    """Return ``data`` as JSON that every decoder takes, or nothing when it is no JSON.

    Bytes that are no UTF-8, halves of surrogate pairs and numbers out of range become U+FFFD and null.
    """
    data = bytes(data)
    try:
        data.decode()
        _ANY.decode(data)
    except _UNREADABLE:
        return _mended(data)
    return data


def is_mended(data: bytes, clean: bytes) -> bool:
    """Return whether in ``clean``, the readable form of ``data``, U+FFFD stands for what was no text."""
    return clean != data and _LOST in clean


_LOST = "\ufffd".encode()


def is_text(data: bytes) -> bool:
    """Return whether ``data`` is UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _mended(data: bytes) -> bytes | None:
    try:
        return write(json.loads(data.decode(errors="replace")))
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return None


def fields_of(raw: bytes | Raw | None) -> dict[str, Raw]:
    """Return the fields of a JSON object; none for anything else."""
    try:
        return {} if raw is None else _FIELDS.decode(raw)
    except _UNREADABLE:
        return {}


def items_of(raw: bytes | Raw | None) -> list[Raw]:
    """Return the elements of a JSON array; none for anything else."""
    try:
        return [] if raw is None else _ITEMS.decode(raw)
    except _UNREADABLE:
        return []


def value_of(raw: bytes | Raw | None) -> Any:
    """Return a JSON value; ``None`` when there is none."""
    try:
        return None if raw is None else _ANY.decode(raw)
    except _UNREADABLE:
        return None


def text_of(raw: bytes | Raw | None) -> str:
    """Return a JSON string; empty for anything else."""
    try:
        return "" if raw is None else _TEXT.decode(raw)
    except _UNREADABLE:
        return ""


def count_of(raw: bytes | Raw | None) -> int:
    """Return a count, of tokens or a place in a list; 0 for anything that is none."""
    found = value_of(raw)
    return min(int(found), _MOST) if isinstance(found, int | float) and found > 0 else 0


def given(found: Mapping[str, Raw]) -> dict[str, Raw]:
    """Return the fields that are not null."""
    return {key: raw for key, raw in found.items() if bytes(raw) != b"null"}
