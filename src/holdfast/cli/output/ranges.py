"""Numbers on the command line; a wrong one gives an error that suggests the number that was meant."""

from __future__ import annotations

import math
import re
from typing import Any

import click

_UNITS = {"": 1, "k": 1_000, "m": 1_000_000}
_NUMBER_WITH_UNIT = re.compile(r"(\d[\d,_ ]*(?:\.\d+)?(?:e\d)?) ?([km]?)", re.IGNORECASE)


class IntegerParamType(click.IntRange):
    """A whole number within bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number; fail if ``value`` is not one."""
        try:
            int(value)
        except ValueError:
            if value.isdecimal():
                self.fail(f"{value!r} has too many digits; give a smaller number", param, ctx)
            suggestion = _guess_number(value)
            hint = f"write {suggestion}" if suggestion is not None else "use digits only"
            self.fail(f"{value!r} is not a whole number; {hint}", param, ctx)
        number: int = super().convert(value, param, ctx)
        return number


class FloatParamType(click.FloatRange):
    """A number within bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; fail if ``value`` is not one."""
        try:
            is_number = not math.isnan(float(value))
        except ValueError:
            is_number = False
        if not is_number:
            self.fail(f"{value!r} is not a number; use digits, for example 0.5", param, ctx)
        number: float = super().convert(value, param, ctx)
        return number


def _guess_number(text: str) -> int | None:
    """Return the whole number written as ``200k``, ``1.5M``, ``2e5`` or ``200,000``, or None."""
    match = _NUMBER_WITH_UNIT.fullmatch(text.strip())
    if match is None:
        return None
    number = float(re.sub(r"[,_ ]", "", match[1])) * _UNITS[match[2].lower()]
    return int(number) if number.is_integer() else None
