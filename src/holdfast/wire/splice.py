"""Reading and writing JSON in pieces: what is not touched keeps its own bytes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Raw
from msgspec.json import Decoder

from holdfast.errors import FormatError

T = TypeVar("T")
Bytes = Raw | bytes

_FIELDS = Decoder(dict[str, Raw])
_STRING = Decoder(str)


def read(decoder: Decoder[T], raw: Bytes, what: str) -> T:
    """Return ``raw`` decoded; ``FormatError`` names ``what`` and the place when it is not the JSON it should be."""
    try:
        return decoder.decode(raw)
    except RecursionError:
        raise FormatError(f"{what} is nested too deeply to be read; flatten it") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{what} cannot be read: {error}; send valid JSON of the API's shape") from None


def fields(raw: Bytes, what: str = "the object") -> dict[str, Raw]:
    """Return the fields of a JSON object in their order, values as they stand."""
    return read(_FIELDS, raw, what)


def write(value: Any) -> bytes:
    """Return ``value`` as compact JSON; raw pieces inside keep their bytes, lone surrogates become U+FFFD."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(mended(value))


def mended(value: Any) -> Any:
    """Return ``value`` with every lone surrogate in its strings replaced, since no provider takes one."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {mended(key): mended(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [mended(inner) for inner in value]
    return value


def overlay(base: Bytes | None, new: Mapping[str, Any], drop: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields of ``base`` with those of ``new`` put over them, in the order of ``base``; ``drop`` goes."""
    if base is None:
        return dict(new)
    kept = {key: value for key, value in fields(base).items() if key in new or key not in drop}
    return kept | dict(new)


def as_object(arguments: str) -> Raw:
    """Return the arguments of a call as a JSON object: as they are, out of a string, or wrapped when they are none."""
    text = arguments.strip()
    try:
        inner = _STRING.decode(text) if text.startswith('"') else text
        _FIELDS.decode(inner or "{}")
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return Raw(write({"arguments": arguments}))
    return Raw(inner.encode() or b"{}")


def decoded_size(base64: str) -> int:
    """Return how many bytes ``base64`` stands for, from its length alone."""
    padding = 2 if base64.endswith("==") else 1 if base64.endswith("=") else 0
    return max(0, len(base64) * 3 // 4 - padding)
