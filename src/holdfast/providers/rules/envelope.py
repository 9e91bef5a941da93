"""What the requests of every API have in common for the rules: the body, its size, its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class RequestView(Struct):
    """A request body and what was told beside it."""

    body: Mapping[str, Any]
    body_bytes: int
    """Bytes of the body."""
    betas: frozenset[str] | None
    """The beta features asked for, or nothing when they are not known."""
    model: str
    """The model's name, from the body or told beside it; empty when nobody says."""

    def get_option(self, *names: str) -> Any:
        """Return a field of the body, or of the objects inside it; nothing when one is missing."""
        value: Any = self.body
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    def list_tools(self) -> list[Mapping[str, Any]]:
        """Return the tools that are objects."""
        tools = self.body.get("tools")
        return [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []

    def get_list(self, name: str) -> list[Any]:
        """Return the list that the body has under ``name``, an empty one when it has none."""
        value = self.body.get(name)
        return value if isinstance(value, list) else []
