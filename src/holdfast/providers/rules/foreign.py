"""What breaks a rule because it is another API's, told as that: whose form it is, of what, and what stands here for it.

The rules find it by what their own API does not know; only the words of a finding change here, never what is found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.providers.common.foreign.foreign_blocks import WHOLE, Kind, advice, offered_by, strange
from holdfast.providers.rules.rule import Finding


def plainly(
    found: Sequence[Finding], listed: Sequence[Any], field: str, tools: Sequence[Any], api: str
) -> tuple[Finding, ...]:
    """Return the findings, with those on what is written as another API has it saying so; ``listed`` is ``field``."""
    signs: dict[int, dict[str, Kind]] = {}
    out = []
    for finding in found:
        at, rest = _place(finding.path, field)
        kind = None
        if 0 <= at < len(listed) and finding.level == "error":
            if at not in signs:
                signs[at] = dict(strange(listed[at], api))
            kind = _kind(rest, signs[at]) or _elsewhere(rest, listed[at])
        elif finding.level == "error":
            kind = _offered(finding, tools, api)
        out.append(finding if kind is None else replace(finding, message=advice(kind, api)))
    return tuple(out)


def _offered(finding: Finding, tools: Sequence[Any], api: str) -> Kind | None:
    """Return what a finding is on where that is a tool that is offered in another API's form."""
    at, _ = _place(finding.path, "tools")
    kind = offered_by(tools[at]) if 0 <= at < len(tools) else None
    return None if kind is None or api in kind.apis else kind


def _place(path: str, field: str) -> tuple[int, str]:
    """Return which message a path leads into and what follows it; -1 where it leads into none."""
    start = f"$.{field}["
    number, _, rest = path[len(start) :].partition("]") if path.startswith(start) else ("", "", "")
    return (int(number), rest) if number.isdigit() else (-1, "")


def _kind(rest: str, signs: Mapping[str, Kind]) -> Kind | None:
    """Return what stands at or around a place in a message, the innermost; a content that misses stands elsewhere."""
    place = rest
    while place and place not in signs:
        place = place[: max(place.rfind("."), place.rfind("["))]
    if place in signs:
        return signs[place]
    return next(iter(signs.values()), None) if rest in _HOLDING else signs.get(_TWIN.get(rest, rest))


_HOLDING = (".content", ".parts")
_TWIN = {".tool_call_id": ".role"}
"""A field that misses where another one tells what the message is."""


def _elsewhere(rest: str, message: object) -> Kind | None:
    """Return what a message is that holds its words where only other APIs do."""
    keys = [key for key in ("content", "parts") if isinstance(message, dict) and message.get(key)]
    return WHOLE[keys[0]] if rest in _HOLDING and len(keys) == 1 else None
