"""Encode any struct as bytes, and decode it to an equal value.

The value is JSON. Raw wire bytes, which JSON could not keep byte for byte, are kept beside it under the path of their
field. Lone surrogates and integers of any size survive, although msgspec's JSON takes neither.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from operator import is_
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.state.codec.reading import convert_value, get_decoder

V = TypeVar("V")


def split_raw_bytes(value: Struct) -> tuple[bytes, bytes | None]:
    """Return ``value`` as JSON without its raw bytes, and those by path as MessagePack, or None without raw bytes."""
    raws: dict[str, bytes] = {}

    def take(path: str, raw: Raw | None) -> Raw | None:
        if raw is not None:
            raws[path] = bytes(raw)
        return None

    text = _encode_json(_map_raw_fields(value, "", take))
    return text, msgspec.msgpack.encode(raws) if raws else None


def join_raw_bytes(text: bytes, raws: bytes | None, kind: type[V]) -> V:
    """Return the value of type ``kind`` that ``split_raw_bytes`` took apart; raise ``ValueError`` for damaged bytes."""
    value = _decode_json(text, kind)
    if raws is None:
        return value
    raw_by_path = msgspec.msgpack.decode(raws, type=dict[str, bytes])

    def give(path: str, raw: Raw | None) -> Raw | None:
        return Raw(raw_by_path[path]) if path in raw_by_path else raw

    result: V = _map_raw_fields(value, "", give)
    return result


def describe_type_mismatch(value: object, kind: type) -> str:
    """Return where ``value`` is not of type ``kind`` all through, or ``""``. Constructing a struct checks no types."""
    try:
        convert_value(msgspec.to_builtins(value), kind)
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError) as error:
        return str(error).replace(".seal`", ".signature`")  # the stored name of that field
    return ""


def pack_value(value: Struct) -> bytes:
    """Encode ``value``, raw bytes included, in one piece."""
    return msgspec.msgpack.encode(split_raw_bytes(value))


def unpack_value(data: bytes, kind: type[V]) -> V:
    """Decode a value of type ``kind`` that ``pack_value`` wrote; raise ``ValueError`` for any other bytes."""
    text, raws = msgspec.msgpack.decode(data, type=tuple[bytes, bytes | None])
    return join_raw_bytes(text, raws, kind)


def _encode_json(value: Struct) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # lone surrogates, which the standard library writes as escapes
        return json.dumps(msgspec.to_builtins(value)).encode()


def _decode_json(text: bytes, kind: type[V]) -> V:
    try:
        return get_decoder(kind).decode(text)
    # Valid JSON of a wrong shape: the standard library would read the same.
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:  # lone surrogates or huge integers, which the standard library reads
        return convert_value(json.loads(text), kind)


def _map_raw_fields(value: Any, path: str, swap: Callable[[str, Raw | None], Raw | None]) -> Any:
    """Return ``value`` with ``swap`` applied to each field that is raw bytes or None; itself if nothing changes."""
    if isinstance(value, tuple):
        items = tuple([_map_raw_fields(item, f"{path}/{index}", swap) for index, item in enumerate(value)])
        if all(map(is_, items, value)):
            return value
        return items
    if not isinstance(value, Struct):
        return value
    changes = {}
    # Paths are made of the names that fields have in JSON: a field may be called otherwise in the code.
    for name, stored_name in zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True):
        old = getattr(value, name)
        if old is None or isinstance(old, Raw):
            new = swap(f"{path}/{stored_name}", old)
        elif isinstance(old, Struct | tuple):
            new = _map_raw_fields(old, f"{path}/{stored_name}", swap)
        else:
            continue
        if new is not old:
            changes[name] = new
    return replace(value, **changes) if changes else value
