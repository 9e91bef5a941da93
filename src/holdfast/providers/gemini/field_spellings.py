"""The two spellings of a field in generateContent: camelCase and with underscores; the API accepts both."""

from __future__ import annotations

import re
from typing import Any


def to_snake_case(name: str) -> str:
    """Return a camelCase name with underscores."""
    return re.sub("([A-Z])", r"_\1", name).lower()


def get_spelled_field(value: object, name: str) -> tuple[str, Any]:
    """Return the spelling and value of field ``name``, which may be written in camelCase or with underscores."""
    if not isinstance(value, dict):
        return name, None
    # With both spellings present, camelCase counts.
    snake_name = to_snake_case(name)
    if snake_name in value and name not in value:
        return snake_name, value[snake_name]
    return name, value.get(name)
