"""A JSON path of a finding: what stands there, and how each API writes the path in its errors."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

_STEP = re.compile(r"\[(\d+)\]|\.([^.\[\]]+)")


class Place(Struct, frozen=True):
    """Where a finding points into a body."""

    body: Any
    steps: tuple[str | int, ...]

    def value(self, drop: int = 0) -> Any:
        """Return what stands there, or ``drop`` steps above it; nothing when that is not there."""
        found = self.body
        for step in self.steps[: len(self.steps) - drop]:
            try:
                found = found[step]
            except (KeyError, IndexError, TypeError):
                return None
        return found

    def field(self, name: str, drop: int = 0) -> Any:
        """Return a field of what stands there, or ``drop`` steps above it."""
        value = self.value(drop)
        return value.get(name) if isinstance(value, dict) else None

    @property
    def message(self) -> int:
        """Index of the message, item or content it lies in; -1 outside of all."""
        return next((step for step in self.steps if isinstance(step, int)), -1)

    def named(self, api: str) -> str:
        """Return the path as ``api`` writes it."""
        if api == "anthropic":
            return ".".join(self._with_types())
        steps = [_snake(step) if api == "gemini" and isinstance(step, str) else step for step in self.steps]
        return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")

    def _with_types(self) -> list[str]:
        """Return the steps with the type of a block behind its number: ``messages.1.content.0.tool_use.id``."""
        out: list[str] = []
        for at, step in enumerate(self.steps):
            out.append(str(step))
            above = Place(self.body, self.steps[: at + 1])
            if isinstance(step, int) and "content" in out[-2:] and at + 1 < len(self.steps) and above.field("type"):
                out.append(str(above.field("type")))
        return out


def place(path: str, body: Any) -> Place:
    """Return the place of a JSON path such as ``$.messages[1].content[0].id``."""
    return Place(body, tuple([int(number) if number else name for number, name in _STEP.findall(path)]))


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])([A-Z])", lambda found: "_" + found[1].lower(), name)
