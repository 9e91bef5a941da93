"""Any value of the model as bytes, and back to an equal value.

JSON holds the value; raw wire bytes, which JSON could not keep byte for byte, lie beside it under the path of their
field. Lone surrogates and integers of any size survive.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from operator import is_
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.state.codec.reading import convert, decoder

V = TypeVar("V")


def split(value: Struct) -> tuple[bytes, bytes | None]:
    """Return ``value`` as JSON without its raw bytes, and those by path as MessagePack (nothing if there are none)."""
    raws: dict[str, bytes] = {}

    def take(path: str, raw: Raw | None) -> Raw | None:
        if raw is not None:
            raws[path] = bytes(raw)
        return None

    text = _text(_swapped(value, "", take))
    return text, msgspec.msgpack.encode(raws) if raws else None


def join(text: bytes, raws: bytes | None, kind: type[V]) -> V:
    """Return the value of type ``kind`` that ``split`` took apart; a ``ValueError`` if the bytes are damaged."""
    value = _value(text, kind)
    if raws is None:
        return value
    known = msgspec.msgpack.decode(raws, type=dict[str, bytes])

    def give(path: str, raw: Raw | None) -> Raw | None:
        return Raw(known[path]) if path in known else raw

    restored: V = _swapped(value, "", give)
    return restored


def fault(value: object, kind: type) -> str:
    """Return where ``value`` is not of type ``kind`` all through, or nothing: values are made without being checked."""
    try:
        convert(msgspec.to_builtins(value), kind)
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError) as error:
        return str(error)
    return ""


def pack(value: Struct) -> bytes:
    """Return ``value`` in one piece."""
    return msgspec.msgpack.encode(split(value))


def unpack(packed: bytes, kind: type[V]) -> V:
    """Return the value of type ``kind`` that ``pack`` wrote; a ``ValueError`` if it is another or damaged."""
    text, raws = msgspec.msgpack.decode(packed, type=tuple[bytes, bytes | None])
    return join(text, raws, kind)


def _text(value: Struct) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # lone surrogates, which the standard library writes as escapes
        return json.dumps(msgspec.to_builtins(value)).encode()


def _value(text: bytes, kind: type[V]) -> V:
    try:
        return decoder(kind).decode(text)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return convert(json.loads(text), kind)


def _swapped(value: Any, path: str, swap: Callable[[str, Raw | None], Raw | None]) -> Any:
    """Return ``value`` with each field that holds raw bytes, or nothing, put through ``swap``."""
    if isinstance(value, tuple):
        items = tuple([_swapped(item, f"{path}/{index}", swap) for index, item in enumerate(value)])
        return value if all(map(is_, items, value)) else items
    if not isinstance(value, Struct):
        return value
    changed = {}
    # Paths are made of the names that fields have in JSON: a field may be called otherwise in the code.
    for name, stored_name in zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True):
        old = getattr(value, name)
        if old is None or isinstance(old, Raw):
            new = swap(f"{path}/{stored_name}", old)
        elif isinstance(old, Struct | tuple):
            new = _swapped(old, f"{path}/{stored_name}", swap)
        else:
            continue
        if new is not old:
            changed[name] = new
    return replace(value, **changed) if changed else value
