"""Reading and writing JSON in pieces: what is not touched keeps its own bytes."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Raw
from msgspec.json import Decoder, Encoder

from holdfast.errors import FormatError

T = TypeVar("T")
Bytes = Raw | bytes

_FIELDS = Decoder(dict[str, Raw])
_STRING = Decoder(str)
_VALUE: Decoder[Any] = Decoder(float_hook=float)


def read(decoder: Decoder[T], raw: Bytes, what: str) -> T:
    """Return ``raw`` decoded; ``FormatError`` names ``what`` and the place when it is not the JSON it should be."""
    try:
        return decoder.decode(raw)
    except RecursionError:
        raise FormatError(f"{what} is nested too deeply to be read; flatten it") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        why = error if bytes(raw).strip() else "it is empty"
        raise FormatError(f"{what} cannot be read: {why}; send valid JSON of the API's shape") from None


def value(raw: Bytes, what: str = "the value") -> Any:
    """Return JSON as Python has it, to be looked at and not to be written: numbers beyond all floats are infinite."""
    return read(_VALUE, raw, what)


def fields(raw: Bytes, what: str = "the object") -> dict[str, Raw]:
    """Return the fields of a JSON object in their order, values as they stand."""
    return read(_FIELDS, raw, what)


def write(value: Any) -> bytes:
    """Return ``value`` as compact JSON; raw pieces inside keep their bytes, lone surrogates become U+FFFD.

    Objects of the official SDKs stand for the JSON that they were made of; ``FormatError`` for what has none.
    """
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        return _ENCODER.encode(mended(value))
    except RecursionError:
        raise FormatError("a value is nested too deeply to be written; flatten it") from None


def _of_sdk(value: Any) -> Any:
    """Return an object of an SDK as JSON has it: without what is not there."""
    dump = getattr(value, "model_dump", None)
    if not callable(dump) or isinstance(value, type):
        raise FormatError(f"a value of type {type(value).__name__} has no form in JSON; give plain values")
    return dump(mode="json", by_alias=True, exclude_none=True)


_ENCODER = Encoder(enc_hook=_of_sdk)


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


def unpacked_url(url: str) -> tuple[str, str]:
    """Return MIME type and base64 data of a data URL, whose data may be plain; for another URL nothing and the URL."""
    if not url.startswith("data:"):
        return "", url
    head, _, data = url[5:].partition(",")
    packed = data if head.endswith("base64") else b64encode(unquote_to_bytes(data)).decode()
    return head.partition(";")[0], packed


_KEY = re.compile(rb'[\s{,]*("(?:[^"\\]|\\.)*")\s*:\s*', re.DOTALL)


def spans(body: bytes, found: Mapping[str, Raw]) -> dict[str, tuple[int, int]]:
    """Return where the value of each top-level field begins and ends in ``body``."""
    out: dict[str, tuple[int, int]] = {}
    position = 0
    for key, raw in found.items():
        match = _KEY.match(body, position)
        if match is None or msgspec.json.decode(match[1]) != key:
            raise FormatError(f"the body has a field twice, at byte {position}; send each field once")
        position = match.end() + memoryview(raw).nbytes
        out[key] = (match.end(), position)
    if body[position:].strip() not in (b"}", b"{}"):
        raise FormatError(f"the body has a field twice, at byte {position}; send each field once")
    return out


def spliced(
    body: bytes, found: Mapping[str, Raw], changed: Mapping[str, bytes | Sequence[Bytes | memoryview]]
) -> bytes:
    """Return an object with some fields replaced in place and new ones put at its end; ``found`` are its fields.

    A new value may come in pieces; it is copied once.
    """
    places = spans(body, found)
    pieces = {key: [value] if isinstance(value, bytes) else value for key, value in changed.items()}
    view = memoryview(body)
    out: list[Bytes | memoryview] = []
    position = 0
    for key, (start, end) in places.items():
        if key in pieces:
            out += [view[position:start], *pieces[key]]
            position = end
    new = [key for key in pieces if key not in places]
    close = body.rindex(b"}") if new else len(body)
    out.append(view[position:close])
    for number, key in enumerate(new):
        out += [b"," if places or number else b"", write(key), b":", *pieces[key]]
    return b"".join([*out, view[close:]])
