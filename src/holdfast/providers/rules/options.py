"""What the rules of several APIs ask alike: fields of others, numbers and their ranges, names of tools."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeGuard

from holdfast.providers.rules.envelope import RequestView
from holdfast.providers.rules.rule import Violations, format_json_value

NumberRange = tuple[float, float]
"""The least and the most that a number may be."""
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]+\Z")
_GEMINI_TOOL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}\Z")
_MAX_TOOL_NAME_CHARS = 128


def check_foreign_fields(request: RequestView, names: Iterable[str]) -> Violations:
    """Yield the fields of the body that are among ``names``, those of other APIs."""
    for key in names:
        if key in request.body:
            yield f"$.{key}", f"field {key!r} is one of another API; take it out"


def check_number_fields(request: RequestView, ranges: Mapping[str, NumberRange]) -> Violations:
    """Yield the fields of the body that are no number in their range."""
    for key, within in ranges.items():
        yield from check_number_range(f"$.{key}", key, request.body.get(key), within)


def check_number_range(path: str, name: str, value: object, within: NumberRange) -> Violations:
    """Yield ``path`` where ``value`` is there and no number ``within`` its range."""
    lower, upper = within
    if value is not None and not (is_number(value) and lower <= value <= upper):
        yield path, f"{name} is {format_json_value(value)}; send a number from {lower} to {upper}"


def is_whole_number(value: object) -> TypeGuard[int]:
    """Return whether ``value`` is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether ``value`` is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_tool_name(value: object, max_length: int = _MAX_TOOL_NAME_CHARS) -> TypeGuard[str]:
    """Return whether a tool may be called so: up to ``max_length`` letters, digits, dashes and underscores."""
    return isinstance(value, str) and len(value) <= max_length and _TOOL_NAME.match(value) is not None


def is_gemini_function_name(value: object) -> TypeGuard[str]:
    """Return whether a function of Gemini's may be called so."""
    return isinstance(value, str) and _GEMINI_TOOL_NAME.match(value) is not None


def check_model_named(request: RequestView) -> Violations:
    """A whole request names its model."""
    if not request.model:
        yield "$.model", "there is no model; name it, or tell it beside the request where the address has it"
