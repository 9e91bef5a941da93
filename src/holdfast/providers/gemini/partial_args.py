"""Arguments of a Gemini call that come in pieces (``partialArgs``, on Vertex when the request asks for it).

The first part has the call's name, each following one adds values at JSON paths, and one with neither ``willContinue``
nor a name ends it. A string goes on as long as its own ``willContinue`` says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Raw

from holdfast.providers.common.json.lenient_json import fields_of, items_of, text_of, value_of

_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d{1,4})\]|\[['"](.*?)['"]\]""")
"""A member or an index of a JSON path (RFC 9535, normalised)."""
_LONGEST, _DEEPEST = 1_000, 50
"""Characters and steps of a path; a longer one is no argument of a tool."""
_CALL = "functionCall"


class PartialCall:
    """A call that grows, with the other fields of the part it began in (its signature)."""

    def __init__(self, part: Mapping[str, Raw]) -> None:
        self._part = dict(part)
        self._call = fields_of(part.get(_CALL))
        self._args: Any = value_of(self._call.get("args")) or {}
        self._words: dict[str, list[str]] = {}
        """Strings by path, in pieces."""
        self.open = True
        """Whether more of it follows."""
        self._take(self._call)

    def add(self, part: Mapping[str, Raw]) -> None:
        """Take the next part of the call."""
        self._part |= {key: raw for key, raw in part.items() if key != _CALL}
        self._take(fields_of(part.get(_CALL)))

    def _take(self, call: Mapping[str, Raw]) -> None:
        self.open = value_of(call.get("willContinue")) is True
        for raw in items_of(call.get("partialArgs")):
            self._put(fields_of(raw))

    def _put(self, piece: Mapping[str, Raw]) -> None:
        path = text_of(piece.get("jsonPath"))
        if "stringValue" in piece:
            self._words.setdefault(path, []).append(text_of(piece["stringValue"]))
            return
        values = [value_of(piece[key]) for key in ("numberValue", "boolValue") if key in piece]
        if values or "nullValue" in piece:
            self._set(path, values[0] if values else None)

    def _set(self, path: str, value: Any) -> None:
        if steps := _steps(path):
            self._args = _placed(self._args, steps, value)

    def whole(self) -> dict[str, Any]:
        """Return the part as it is when it does not come in pieces."""
        for path, words in self._words.items():
            self._set(path, "".join(words))
        kept = {key: raw for key, raw in self._call.items() if key not in ("partialArgs", "willContinue")}
        return self._part | {_CALL: kept | {"args": self._args}}


def is_partial(part: Mapping[str, Raw]) -> bool:
    """Return whether ``part`` is a call that comes in pieces."""
    return not fields_of(part.get(_CALL)).keys().isdisjoint(("partialArgs", "willContinue"))


def _placed(old: Any, steps: Sequence[str | int], value: Any) -> Any:
    """Return ``old`` with ``value`` at the end of ``steps``, and the objects and lists on the way."""
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    if isinstance(step, str):
        members = dict(old) if isinstance(old, dict) else {}
        return members | {step: _placed(members.get(step), rest, value)}
    items = list(old) if isinstance(old, list) else []
    items += [None] * (step + 1 - len(items))
    items[step] = _placed(items[step], rest, value)
    return items


def _steps(path: str) -> list[str | int]:
    """Return the steps of a path; none for one that leads nowhere."""
    if len(path) > _LONGEST:
        return []
    steps = [int(match[2]) if match[2] else match[1] or match[3] or "" for match in _STEP.finditer(path)]
    return steps if len(steps) <= _DEEPEST and steps and isinstance(steps[0], str) else []
