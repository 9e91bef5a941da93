"""Numbers on the command line: a wrong one is told in words, with the number that was meant where that can be seen."""

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
        """Return the number; it ends the command where ``value`` is none."""
        try:
            int(value)
        except ValueError:
            if value.isdecimal():
                self.fail(f"{value!r} has too many digits; give a smaller number", param, ctx)
            suggestion = _guess_number(value)
            hint = f"write {suggestion}" if suggestion is not None else "give digits alone"
            self.fail(f"{value!r} is no whole number; {hint}", param, ctx)
        number: int = super().convert(value, param, ctx)
        return number


class FloatParamType(click.FloatRange):
    """A number within bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; it ends the command where ``value`` is none."""
        try:
            is_number = not math.isnan(float(value))
        except ValueError:
            is_number = False
        if not is_number:
            self.fail(f"{value!r} is no number; give digits, for example 0.5", param, ctx)
        number: float = super().convert(value, param, ctx)
        return number


def _guess_number(text: str) -> int | None:
    """Return the whole number that people write as ``200k``, ``1.5M``, ``2e5`` or ``200,000``."""
    match = _NUMBER_WITH_UNIT.fullmatch(text.strip())
    if match is None:
        return None
    number = float(re.sub(r"[,_ ]", "", match[1])) * _UNITS[match[2].lower()]
    return int(number) if number.is_integer() else None
