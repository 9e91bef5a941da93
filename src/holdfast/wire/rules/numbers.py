"""What kind of number a JSON value is; true and false are none."""

from __future__ import annotations

from typing import TypeGuard


def is_count(value: object) -> TypeGuard[int]:
    """Return whether ``value`` is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether ``value`` is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)
