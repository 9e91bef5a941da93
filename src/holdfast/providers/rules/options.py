"""What the rules of several APIs ask alike: fields of others, numbers and their ranges, names of tools."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeGuard

from holdfast.providers.rules.envelope import Envelope
from holdfast.providers.rules.rule import Broken, quoted

Range = tuple[float, float]
"""The least and the most that a number may be."""
_NAME = re.compile(r"[a-zA-Z0-9_-]+\Z")
_GEMINI_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}\Z")
_LONGEST = 128


def foreign(request: Envelope, names: Iterable[str]) -> Broken:
    """Yield the fields of the body that are among ``names``, those of other APIs."""
    for key in names:
        if key in request.body:
            yield f"$.{key}", f"field {key!r} is one of another API; take it out"


def out_of_range(request: Envelope, ranges: Mapping[str, Range]) -> Broken:
    """Yield the fields of the body that are no number in their range."""
    for key, within in ranges.items():
        yield from outside(f"$.{key}", key, request.body.get(key), within)


def outside(path: str, name: str, value: object, within: Range) -> Broken:
    """Yield ``path`` where ``value`` is there and no number ``within`` its range."""
    least, most = within
    if value is not None and not (is_number(value) and least <= value <= most):
        yield path, f"{name} is {quoted(value)}; send a number from {least} to {most}"


def is_count(value: object) -> TypeGuard[int]:
    """Return whether ``value`` is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether ``value`` is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_name(value: object, most: int = _LONGEST) -> TypeGuard[str]:
    """Return whether a tool may be called so: up to ``most`` letters, digits, dashes and underscores."""
    return isinstance(value, str) and len(value) <= most and _NAME.match(value) is not None


def is_gemini_name(value: object) -> TypeGuard[str]:
    """Return whether a function of Gemini's may be called so."""
    return isinstance(value, str) and _GEMINI_NAME.match(value) is not None
