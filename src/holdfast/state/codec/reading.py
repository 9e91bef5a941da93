"""Values read as a type, by any thread at any time.

msgspec looks at a struct when it first reads one, and a second thread that reads the same one meanwhile meets what is
half made: the process ends in a segmentation fault (msgspec 0.22). So a type is looked at by one thread alone. A module
that makes its decoders of structs of its own when it is imported is safe without this: the import is one thread's.
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
"""Held while a type is looked at, and while the process forks: a child can look at one, and meets none half made."""
if hasattr(os, "register_at_fork"):  # where processes fork
    os.register_at_fork(
        before=_inspection_lock.acquire,
        after_in_parent=_inspection_lock.release,
        after_in_child=_inspection_lock.release,
    )


def get_decoder(kind: type[V]) -> Decoder[V]:
    """Return the decoder of JSON as values of type ``kind``, the same one for each call."""
    value_type: Any = kind
    return _make_decoder(value_type)


def convert_value(value: object, kind: type[V], *, strict: bool = True) -> V:
    """Return ``value``, made of plain Python values, as one of type ``kind``; raises what msgspec raises."""
    get_decoder(kind)
    return msgspec.convert(value, kind, strict=strict)


@cache
def _make_decoder(kind: Any) -> Decoder[Any]:
    with _inspection_lock:
        return Decoder(kind)
