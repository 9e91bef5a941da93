"""Places in a JSON text read, replaced or taken out; all that stands beside them keeps its bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from msgspec import Raw

from holdfast.providers.common.json.lenient_json import items_of, text_of
from holdfast.providers.common.json.raw_json import fields, spliced, write
from holdfast.providers.recognize import body_fields

Step: TypeAlias = str | int
"""A key of an object, or an index of a list."""
Steps: TypeAlias = tuple[Step, ...]

_INDEX = re.compile(r"\[(\d+)\]")
_END = re.compile(r"[.\[]|\Z")


class Tree:
    """A JSON text in which many places are looked up: each object and list in it is opened once."""

    def __init__(self, raw: Raw) -> None:
        """Open nothing yet."""
        self.raw = raw
        self._open: dict[Steps, dict[Step, Raw]] = {}

    def held(self, steps: Steps) -> dict[Step, Raw]:
        """Return what the object or list at ``steps`` holds, by key or index; nothing where there is none."""
        found = self._open.get(steps)
        if found is None:
            raw = self.at(steps)
            found = self._open[steps] = {} if raw is None else _held(raw)
        return found

    def at(self, steps: Steps) -> Raw | None:
        """Return what stands at ``steps``, or nothing when there is no such place."""
        return self.held(steps[:-1]).get(steps[-1]) if steps else self.raw

    def steps(self, path: str) -> Steps:
        """Return the steps of a JSON path as the validator writes it: ``$.messages[3].content[0].text``.

        A key may have dots and brackets in it: of all keys that the path may mean, it is the longest there is.
        """
        steps: Steps = ()
        place = 1
        while place < len(path):
            index = _INDEX.match(path, place)
            held = self.held(steps)
            if index is not None and (path[place] == "[" and (int(index[1]) in held or not held)):
                steps, place = (*steps, int(index[1])), index.end()
                continue
            ends = [match.start() for match in _END.finditer(path, place + 1)]
            end = next((end for end in reversed(ends) if path[place + 1 : end] in held), ends[0])
            steps, place = (*steps, path[place + 1 : end]), end
        return steps


def opens(raw: Raw | None) -> str:
    """Return the first character of a JSON value, which tells its type; nothing for no value."""
    return "" if raw is None else bytes(memoryview(raw)[:1]).decode(errors="replace")


def _held(raw: Raw) -> dict[Step, Raw]:
    """Return what an object or a list holds, by key or index."""
    held: dict[Step, Raw] = {}
    if opens(raw) == "{":
        held.update(fields(raw))
    elif opens(raw) == "[":
        held.update(enumerate(items_of(raw)))
    return held


def replaced(raw: Raw, changes: Mapping[Steps, bytes | None]) -> bytes:
    """Return ``raw`` with other values at some places, or without them; linear in its size.

    A place that is not there stays so; of two changes, one inside the other, the outer one is made.
    """
    held = _held(raw)
    inner: dict[Step, dict[Steps, bytes | None]] = {}
    for steps, new in changes.items():
        if steps[0] in held:
            inner.setdefault(steps[0], {})[steps[1:]] = new
    for step, below in inner.items():
        if () not in below:
            held[step] = Raw(replaced(held[step], below))
        elif (new := below[()]) is None:
            del held[step]
        else:
            held[step] = Raw(new)
    return write(list(held.values()) if opens(raw) == "[" else held)


def named(body: bytes, model: str) -> bytes:
    """Return the body with the model that is asked for, where it names another one; the very same where not."""
    found = body_fields(body) if model else {}
    if "model" not in found or text_of(found["model"]) == model:
        return body
    return spliced(body, found, {"model": write(model)})
