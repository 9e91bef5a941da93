"""Arguments of a Gemini call that come in pieces (``partialArgs``, on Vertex when the request asks for it).

The first part has the call's name, each following one adds values at JSON paths, and one with neither ``willContinue``
nor a name ends it. A string goes on as long as its own ``willContinue`` says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Raw

from holdfast.providers.common.json.lenient_json import (
    read_json_fields,
    read_json_items,
    read_json_text,
    read_json_value,
)

_PATH_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d{1,4})\]|\[['"](.*?)['"]\]""")
"""A member or an index of a JSON path (RFC 9535, normalised)."""
_MAX_PATH_CHARS, _MAX_PATH_STEPS = 1_000, 50
"""Characters and steps of a path; a longer one is no argument of a tool."""
_CALL_FIELD = "functionCall"


class PartialCall:
    """A call that grows, with the other fields of the part it began in (its signature)."""

    def __init__(self, part: Mapping[str, Raw]) -> None:
        self._part = dict(part)
        self._call = read_json_fields(part.get(_CALL_FIELD))
        self._args: Any = read_json_value(self._call.get("args")) or {}
        self._words: dict[str, list[str]] = {}
        """Strings by path, in pieces."""
        self.is_open = True
        """Whether more of it follows."""
        self._add_call(self._call)

    def add_part(self, part: Mapping[str, Raw]) -> None:
        """Take the next part of the call."""
        self._part |= {key: raw for key, raw in part.items() if key != _CALL_FIELD}
        self._add_call(read_json_fields(part.get(_CALL_FIELD)))

    def _add_call(self, call: Mapping[str, Raw]) -> None:
        self.is_open = read_json_value(call.get("willContinue")) is True
        for raw in read_json_items(call.get("partialArgs")):
            self._add_argument(read_json_fields(raw))

    def _add_argument(self, piece: Mapping[str, Raw]) -> None:
        path = read_json_text(piece.get("jsonPath"))
        if "stringValue" in piece:
            self._words.setdefault(path, []).append(read_json_text(piece["stringValue"]))
            return
        values = [read_json_value(piece[key]) for key in ("numberValue", "boolValue") if key in piece]
        if values or "nullValue" in piece:
            self._set_argument(path, values[0] if values else None)

    def _set_argument(self, path: str, value: Any) -> None:
        if steps := _parse_argument_path(path):
            self._args = _set_at_path(self._args, steps, value)

    def build_part(self) -> dict[str, Any]:
        """Return the part as it is when it does not come in pieces."""
        for path, words in self._words.items():
            self._set_argument(path, "".join(words))
        call_fields = {key: raw for key, raw in self._call.items() if key not in ("partialArgs", "willContinue")}
        return self._part | {_CALL_FIELD: call_fields | {"args": self._args}}


def is_partial_call(part: Mapping[str, Raw]) -> bool:
    """Return whether ``part`` is a call that comes in pieces."""
    return not read_json_fields(part.get(_CALL_FIELD)).keys().isdisjoint(("partialArgs", "willContinue"))


def _set_at_path(old: Any, steps: Sequence[str | int], value: Any) -> Any:
    """Return ``old`` with ``value`` at the end of ``steps``, and the objects and lists on the way."""
    if not steps:
        return value
    step, remaining_steps = steps[0], steps[1:]
    if isinstance(step, str):
        members = dict(old) if isinstance(old, dict) else {}
        return members | {step: _set_at_path(members.get(step), remaining_steps, value)}
    items = list(old) if isinstance(old, list) else []
    items += [None] * (step + 1 - len(items))
    items[step] = _set_at_path(items[step], remaining_steps, value)
    return items


def _parse_argument_path(path: str) -> list[str | int]:
    """Return the steps of a path; none for one that leads nowhere."""
    if len(path) > _MAX_PATH_CHARS:
        return []
    steps = [int(match[2]) if match[2] else match[1] or match[3] or "" for match in _PATH_STEP.finditer(path)]
    return steps if len(steps) <= _MAX_PATH_STEPS and steps and isinstance(steps[0], str) else []
