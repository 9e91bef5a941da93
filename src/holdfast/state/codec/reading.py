"""Thread-safe decoding of values as a type.

msgspec inspects a struct type when it first decodes one. If a second thread decodes the same type meanwhile, it sees a
half-built description and the process ends in a segmentation fault (msgspec 0.22). So types are inspected under a lock.
Modules that build decoders of their own structs on import need none of this, since only one thread imports a module.
"""

from __future__ import annotations

import os
from functools import cache
from threading import RLock
from typing import Any, TypeVar

import msgspec
from msgspec.json import Decoder

V = TypeVar("V")

_inspection_lock = RLock()
"""Held while a type is inspected, and while the process forks, so that no child inherits a half-built type."""
if hasattr(os, "register_at_fork"):  # where processes fork
    os.register_at_fork(
        before=_inspection_lock.acquire,
        after_in_parent=_inspection_lock.release,
        after_in_child=_inspection_lock.release,
    )


def get_decoder(kind: type[V]) -> Decoder[V]:
    """Return the JSON decoder for values of type ``kind``; it is the same object at each call."""
    value_type: Any = kind
    return _make_decoder(value_type)


def convert_value(value: object, kind: type[V], *, strict: bool = True) -> V:
    """Convert ``value``, built of plain Python values, to type ``kind``; raise msgspec's errors if it does not fit."""
    get_decoder(kind)  # inspects the type under the lock
    return msgspec.convert(value, kind, strict=strict)


@cache
def _make_decoder(kind: Any) -> Decoder[Any]:
    with _inspection_lock:
        return Decoder(kind)
