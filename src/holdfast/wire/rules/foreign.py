"""What breaks a rule because it is another API's, told as that: whose form it is, of what, and what stands here for it.

The rules find it by what their own API does not know; only the words of a finding change here, never what is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.wire.rules.rule import Finding
from holdfast.wire.whose import WHOLE, Kind, Strange, advice, strange


def plainly(found: Sequence[Finding], listed: Sequence[Any], field: str, api: str) -> tuple[Finding, ...]:
    """Return the findings, with those on what is written as another API has it saying so; ``listed`` is ``field``."""
    signs: dict[int, list[Strange]] = {}
    out = []
    for finding in found:
        at, rest = _place(finding.path, field)
        kind = None
        if 0 <= at < len(listed) and finding.level == "error":
            if at not in signs:
                signs[at] = list(strange(listed[at], api))
            kind = _kind(rest, signs[at]) or _elsewhere(rest, listed[at])
        out.append(finding if kind is None else replace(finding, message=advice(kind, api)))
    return tuple(out)


def _place(path: str, field: str) -> tuple[int, str]:
    """Return which message a path leads into and what follows it; -1 where it leads into none."""
    start = f"$.{field}["
    number, _, rest = path[len(start) :].partition("]") if path.startswith(start) else ("", "", "")
    return (int(number), rest) if number.isdigit() else (-1, "")


def _kind(rest: str, signs: Sequence[Strange]) -> Kind | None:
    """Return what stands at or around a place in a message, the innermost; a content that misses stands elsewhere."""
    fits = [kind for path, kind in signs if rest == path or rest.startswith((f"{path}.", f"{path}["))]
    near = [kind for path, kind in signs if rest in _HOLDING or (path, rest) == (".role", ".tool_call_id")]
    return next(iter(fits[-1:] or near), None)


_HOLDING = (".content", ".parts")


def _elsewhere(rest: str, message: object) -> Kind | None:
    """Return what a message is that holds its words where only other APIs do."""
    keys = [key for key in ("content", "parts") if isinstance(message, dict) and message.get(key)]
    return WHOLE[keys[0]] if rest in _HOLDING and len(keys) == 1 else None
