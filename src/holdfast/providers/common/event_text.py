"""Texts out of the objects of an event, whatever else stands there."""

from __future__ import annotations

from typing import Any


def as_object(value: Any) -> dict[str, Any]:
    """Return ``value`` where it is an object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def get_first_object(value: Any) -> dict[str, Any]:
    """Return the first element of a list where it is an object; an empty one for anything else."""
    return as_object(value[0]) if isinstance(value, list) and value else {}


def get_text_at(value: dict[str, Any], *path: str) -> str:
    """Return the text at the end of ``path``; empty where none stands there."""
    for name in path[:-1]:
        value = as_object(value.get(name))
    text = value.get(path[-1])
    return text if isinstance(text, str) else ""
