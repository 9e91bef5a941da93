"""Checks that the rules of several APIs share: foreign fields, ranges of numbers, names of tools."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeGuard

from holdfast.providers.rules.envelope import RequestView
from holdfast.providers.rules.rule import Violations, format_json_value

NumberRange = tuple[float, float]
"""Smallest and largest allowed value, both included."""
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]+\Z")
_GEMINI_TOOL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}\Z")
# The limit of Anthropic and of Responses. Anthropic's specification of 2024 had 64, as Chat still has, whose rules pass
# their own number.
_MAX_TOOL_NAME_CHARS = 128


def check_foreign_fields(request: RequestView, names: Iterable[str]) -> Violations:
    """Yield the fields of the body that are among ``names``, which are fields of other APIs."""
    for key in names:
        if key in request.body:
            yield f"$.{key}", f"{key!r} is a field of another API; remove it"


def check_number_fields(request: RequestView, ranges: Mapping[str, NumberRange]) -> Violations:
    """Yield the fields of the body that are not a number within their range."""
    for key, allowed_range in ranges.items():
        yield from check_number_range(
            f"$.{key}",
            key,
            request.body.get(key),
            allowed_range,
        )


def check_number_range(
    path: str,
    name: str,
    value: object,
    allowed_range: NumberRange,
) -> Violations:
    """Yield ``path`` if ``value`` is present and not a number within its range."""
    lower, upper = allowed_range
    if value is None or (is_number(value) and lower <= value <= upper):
        return
    yield path, f"{name} is {format_json_value(value)}; send a number from {lower} to {upper}"


def is_whole_number(value: object) -> TypeGuard[int]:
    """Return whether ``value`` is a whole number; True and False are not, though Python counts them as such."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether ``value`` is a number, and not True or False."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_tool_name(value: object, max_length: int = _MAX_TOOL_NAME_CHARS) -> TypeGuard[str]:
    """Return whether ``value`` is a valid tool name: 1 to ``max_length`` letters, digits, dashes and underscores."""
    return isinstance(value, str) and len(value) <= max_length and _TOOL_NAME.match(value) is not None


def is_gemini_function_name(value: object) -> TypeGuard[str]:
    """Return whether ``value`` is a valid name of a function for Gemini, which also allows dots and colons."""
    return isinstance(value, str) and _GEMINI_TOOL_NAME.match(value) is not None


def check_model_named(request: RequestView) -> Violations:
    """A whole request names its model."""
    if not request.model:
        yield "$.model", "the request names no model; add one, or pass it (--model) if the URL of the API names it"
