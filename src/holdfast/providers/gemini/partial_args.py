"""Arguments of a Gemini call that arrive in pieces (``partialArgs``, on Vertex if the request asks for it).

The first part has the call's name, each following part adds values at JSON paths, and a part with neither
``willContinue`` nor a name ends the call. A string continues for as long as its own ``willContinue`` says so.
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
"""A member or an index of a normalized JSON path (RFC 9535)."""
# Limits on input that a broken or hostile server controls; chosen by judgement, far above any tool's arguments.
_MAX_PATH_CHARS = 1_000
_MAX_PATH_STEPS = 50
_CALL_FIELD = "functionCall"


class PartialCall:
    """A call under construction, with the other fields of its part (such as the signature)."""

    def __init__(self, part: Mapping[str, Raw]) -> None:
        self._part = dict(part)
        self._call = read_json_fields(part.get(_CALL_FIELD))
        self._args: Any = read_json_value(self._call.get("args")) or {}
        self._words: dict[str, list[str]] = {}
        """Pieces of string arguments, by path."""
        self.is_open = True
        """Whether more parts of the call follow."""
        self._add_call(self._call)

    def add_part(self, part: Mapping[str, Raw]) -> None:
        """Merge the next part of the call."""
        for key, raw in part.items():
            if key != _CALL_FIELD:
                self._part[key] = raw
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
        for key in ("numberValue", "boolValue", "nullValue"):
            if key in piece:
                self._set_argument(path, None if key == "nullValue" else read_json_value(piece[key]))
                return

    def _set_argument(self, path: str, value: Any) -> None:
        steps = _parse_argument_path(path)
        if steps:
            self._args = _set_at_path(self._args, steps, value)

    def build_part(self) -> dict[str, Any]:
        """Build the part as it is when it does not arrive in pieces."""
        # Strings are set last: until now their pieces were only collected.
        for path, words in self._words.items():
            self._set_argument(path, "".join(words))
        call_fields = {}
        for key, raw in self._call.items():
            if key not in ("partialArgs", "willContinue"):
                call_fields[key] = raw
        return self._part | {_CALL_FIELD: call_fields | {"args": self._args}}


def is_partial_call(part: Mapping[str, Raw]) -> bool:
    """Return whether ``part`` is a call that arrives in pieces."""
    return not read_json_fields(part.get(_CALL_FIELD)).keys().isdisjoint(("partialArgs", "willContinue"))


def _set_at_path(old: Any, steps: Sequence[str | int], value: Any) -> Any:
    """Return ``old`` with ``value`` at the path ``steps``; missing objects and lists on the way are created."""
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
    """Return the steps of a JSON path; empty for one that is too long or does not begin with a member."""
    if len(path) > _MAX_PATH_CHARS:
        return []
    steps: list[str | int] = []
    for match in _PATH_STEP.finditer(path):
        member, index, quoted_member = match.groups()
        if index:
            steps.append(int(index))
        else:
            steps.append(member or quoted_member or "")
    if len(steps) > _MAX_PATH_STEPS or not steps or not isinstance(steps[0], str):
        return []
    return steps
