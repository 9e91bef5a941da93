"""Read and write JSON in pieces: every piece that is not touched keeps its own bytes.

msgspec parses and encodes. Replacing one field while keeping every other byte, whitespace and escapes included, is
something no JSON library does.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Raw
from msgspec.json import Decoder, Encoder

from holdfast.errors import FormatError

T = TypeVar("T")
JsonBytes = Raw | bytes

_FIELDS_DECODER = Decoder(dict[str, Raw])
_ELEMENTS_DECODER = Decoder(list[Raw])
_ELEMENT_GAP = re.compile(rb"[\s,]*")
"""White space and the comma between two elements of a list."""
_STRING_DECODER = Decoder(str)
_VALUE_DECODER: Decoder[Any] = Decoder(float_hook=float)


def decode_json(decoder: Decoder[T], raw: JsonBytes, name: str) -> T:
    """Decode ``raw``. Raises ``FormatError`` with ``name`` and the place if it is not JSON of the expected shape."""
    try:
        return decoder.decode(raw)
    except RecursionError:
        raise FormatError(f"{name} is nested too deeply to be read; flatten it") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        why = error if bytes(raw).strip() else "it is empty"
        raise FormatError(f"{name} cannot be read: {why}; send valid JSON of the API's shape") from None


def decode_json_value(raw: JsonBytes, name: str = "the value") -> Any:
    """Decode any JSON value, to look at and not to write back: numbers beyond the range of floats become infinite."""
    return decode_json(_VALUE_DECODER, raw, name)


def decode_json_fields(raw: JsonBytes, name: str = "the object") -> dict[str, Raw]:
    """Return the fields of a JSON object in their order, values as raw bytes."""
    return decode_json(_FIELDS_DECODER, raw, name)


def encode_json(value: Any) -> bytes:
    """Encode ``value`` as compact JSON; raw pieces inside keep their bytes, lone surrogates become U+FFFD.

    Objects of the official SDKs are encoded as the JSON they stand for. Raises ``FormatError`` for other objects.
    """
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        return _ENCODER.encode(replace_surrogates_in_value(value))
    except RecursionError:
        raise FormatError("a value is nested too deeply to be written; flatten it") from None


def _dump_sdk_object(value: Any) -> Any:
    """Return an SDK object (a pydantic model) as plain values, without its unset fields."""
    dump = getattr(value, "model_dump", None)
    if not callable(dump) or isinstance(value, type):
        raise FormatError(f"a value of type {type(value).__name__} has no form in JSON; give plain values")
    return dump(mode="json", by_alias=True, exclude_none=True)


_ENCODER = Encoder(enc_hook=_dump_sdk_object)


def replace_surrogates_in_value(value: Any) -> Any:
    """Return ``value`` with every lone surrogate in its strings replaced by U+FFFD, since no provider accepts one."""
    if isinstance(value, str):
        # In UTF-16 two surrogates that belong together are one character, so only lone ones are replaced.
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {replace_surrogates_in_value(key): replace_surrogates_in_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [replace_surrogates_in_value(inner) for inner in value]
    return value


def overlay_fields(base: JsonBytes | None, new: Mapping[str, Any], drop: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields of ``base`` with ``new`` put over them, in the order of ``base`` and without ``drop``."""
    if base is None:
        return dict(new)
    base_fields = {}
    for key, value in decode_json_fields(base).items():
        if key in new or key not in drop:
            base_fields[key] = value
    return base_fields | dict(new)


def wrap_call_arguments(arguments: str) -> Raw:
    """Return the arguments of a call as a JSON object.

    An object stays as it is, one inside a JSON string is taken out of it, anything else becomes ``{"arguments": …}``.
    """
    text = arguments.strip()
    # Models and converters write arguments twice encoded, and providers refuse a string where an object must be.
    try:
        inner = _STRING_DECODER.decode(text) if text.startswith('"') else text
        _FIELDS_DECODER.decode(inner or "{}")
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return Raw(encode_json({"arguments": arguments}))
    return Raw(inner.encode() or b"{}")


def count_base64_bytes(base64: str) -> int:
    """Return the number of bytes that ``base64`` encodes, from its length alone."""
    padding = 0
    if base64.endswith("=="):
        padding = 2
    elif base64.endswith("="):
        padding = 1
    return max(0, len(base64) * 3 // 4 - padding)


def split_data_url(url: str) -> tuple[str, str]:
    """Return MIME type and base64 data of a data URL; for any other URL, an empty type and the URL itself."""
    if not url.startswith("data:"):
        return "", url
    head, _, data = url[5:].partition(",")
    mime = head.partition(";")[0]
    if head.endswith("base64"):
        return mime, data
    return mime, b64encode(unquote_to_bytes(data)).decode()


_FIELD_KEY = re.compile(rb'[\s{,]*("(?:[^"\\]|\\.)*")\s*:\s*', re.DOTALL)


def find_field_spans(body: bytes, fields: Mapping[str, Raw]) -> dict[str, tuple[int, int]]:
    """Return start and end of the value of each top-level field in ``body``.

    Raises ``FormatError`` if a field occurs twice: decoders keep the last value, so that editing the body would leave
    the first one in place.
    """
    out: dict[str, tuple[int, int]] = {}
    position = 0
    for key, raw in fields.items():
        match = _FIELD_KEY.match(body, position)
        if match is None or msgspec.json.decode(match[1]) != key:
            raise FormatError(f"the body has a field twice, at byte {position}; send each field once")
        position = match.end() + memoryview(raw).nbytes
        out[key] = (match.end(), position)
    if body[position:].strip() not in (b"}", b"{}"):
        raise FormatError(f"the body has a field twice, at byte {position}; send each field once")
    return out


def replace_json_fields(
    body: bytes, fields: Mapping[str, Raw], changes: Mapping[str, bytes | Sequence[JsonBytes | memoryview]]
) -> bytes:
    """Return an object with some fields replaced in place and new ones appended; ``fields`` are its current fields.

    A new value may be given in pieces, which are copied only once.
    """
    # The unchanged stretches are slices of a view: a body of megabytes is copied once, by the join at the end.
    places = find_field_spans(body, fields)
    pieces: dict[str, Sequence[JsonBytes | memoryview]] = {}
    for key, value in changes.items():
        pieces[key] = [value] if isinstance(value, bytes) else value
    view = memoryview(body)
    out: list[JsonBytes | memoryview] = []
    position = 0
    for key, (start, end) in places.items():
        if key in pieces:
            out += [view[position:start], *pieces[key]]
            position = end
    new_keys = [key for key in pieces if key not in places]
    close = body.rindex(b"}") if new_keys else len(body)
    out.append(view[position:close])
    has_fields = bool(places)
    for key in new_keys:
        if has_fields:
            out.append(b",")
        out += [encode_json(key), b":", *pieces[key]]
        has_fields = True
    out.append(view[close:])
    return b"".join(out)


def remove_json_fields(body: bytes, fields: Mapping[str, Raw], names: Collection[str]) -> bytes:
    """Return an object without the fields ``names``; ``fields`` are its current fields. All other bytes stay."""
    if not any(name in fields for name in names):
        return body
    spans = find_field_spans(body, fields)
    view = memoryview(body)
    out: list[JsonBytes | memoryview] = []
    previous_end = body.index(b"{") + 1
    for key, (_, end) in spans.items():
        if key not in names:
            start = previous_end
            if not out:
                # The first field that stays loses the comma of the ones before it, and keeps its white space.
                start += len(body[previous_end:end]) - len(body[previous_end:end].lstrip(b" \t\r\n,"))
                lead = body[body.index(b"{") : _skip_space(body, body.index(b"{") + 1)]
                out.append(lead)
            out.append(view[start:end])
        previous_end = end
    if not out:
        out.append(b"{")
    out.append(view[previous_end:])
    return b"".join(out)


def _skip_space(body: bytes, position: int) -> int:
    while body[position : position + 1] in {b" ", b"\t", b"\r", b"\n"}:
        position += 1
    return position


def map_json_elements(raw: JsonBytes, change: Callable[[Raw], JsonBytes]) -> JsonBytes:
    """Return a list with ``change`` applied to each element; the bytes around the elements stay.

    The same object comes back if no element changed.
    """
    elements = decode_json(_ELEMENTS_DECODER, raw, "the list")
    view = memoryview(raw)
    out: list[JsonBytes | memoryview] = []
    position = bytes(raw).find(b"[") + 1
    copied = 0
    for element in elements:
        match = _ELEMENT_GAP.match(view, position)
        start = position if match is None else match.end()
        position = start + memoryview(element).nbytes
        new_element = change(element)
        if new_element is not element:
            out += [view[copied:start], new_element]
            copied = position
    if not out:
        return raw
    out.append(view[copied:])
    return b"".join(out)
