"""One place in a JSON text read, replaced or taken out; all that stands beside it keeps its bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

import msgspec
from msgspec import Raw
from msgspec.json import Decoder

from holdfast.wire.splice import fields, write

Step: TypeAlias = str | int
"""A key of an object, or an index of a list."""

_LIST = Decoder(list[Raw])
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")


def steps_of(path: str) -> tuple[Step, ...]:
    """Return the steps of a JSON path as the validator writes it: ``$.messages[3].content[0].text``."""
    return tuple(key or int(index) for key, index in _STEP.findall(path))


def listed(raw: Raw) -> list[Raw]:
    """Return the elements of a list; none when it is no list."""
    try:
        return _LIST.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []


def at(raw: Raw, steps: Sequence[Step]) -> Raw | None:
    """Return what stands at ``steps``, or nothing when there is no such place."""
    for step in steps:
        found = _held(raw).get(step)
        if found is None:
            return None
        raw = found
    return raw


def _held(raw: Raw) -> dict[Step, Raw]:
    """Return what an object or a list holds, by key or index."""
    first = bytes(memoryview(raw)[:1])
    held: dict[Step, Raw] = {}
    if first == b"{":
        held.update(fields(raw))
    elif first == b"[":
        held.update(enumerate(listed(raw)))
    return held


def placed(raw: Raw, steps: Sequence[Step], new: bytes | None) -> bytes:
    """Return ``raw`` with ``new`` at ``steps``, where something must stand already, or without it."""
    held, step = _held(raw), steps[0]
    if len(steps) > 1:
        held[step] = Raw(placed(held[step], steps[1:], new))
    elif new is None:
        del held[step]
    else:
        held[step] = Raw(new)
    return write(list(held.values()) if bytes(memoryview(raw)[:1]) == b"[" else held)
