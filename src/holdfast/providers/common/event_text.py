"""Read texts out of decoded stream events, whatever shape they have."""

from __future__ import annotations

from typing import Any


def as_object(value: Any) -> dict[str, Any]:
    """Return ``value`` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def get_first_object(value: Any) -> dict[str, Any]:
    """Return the first element of a list if it is an object, else an empty one."""
    return as_object(value[0]) if isinstance(value, list) and value else {}


def get_text_at(value: dict[str, Any], *path: str) -> str:
    """Return the text at ``path``, or an empty one if there is no text at that path."""
    # Events of compatible servers have other types in places, and a stream must not end because of one.
    for name in path[:-1]:
        value = as_object(value.get(name))
    text = value.get(path[-1])
    return text if isinstance(text, str) else ""
