"""The view of a request that rules of all APIs share: its body, size and options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class RequestView(Struct):
    """A decoded request body, with facts about the request that are not in it."""

    body: Mapping[str, Any]
    body_bytes: int
    """Length of the encoded body."""
    betas: frozenset[str] | None
    """Beta features from headers and body, or None if the headers are unknown and the body names none."""
    model: str
    """The model from the body, or else from outside of it; an empty string if it is unknown."""
    version: str
    """The version of the API from the headers (``anthropic-version``); an empty string if it is unknown."""

    def get_option(self, *names: str) -> Any:
        """Return a field of the body, nested under ``names``, or None if it or an object around it is missing."""
        value: Any = self.body
        for name in names:
            if not isinstance(value, dict):
                return None
            value = value.get(name)
        return value

    def list_tools(self) -> list[Mapping[str, Any]]:
        """Return the tools of the body; elements that are not objects are left out."""
        return [tool for tool in self.get_list("tools") if isinstance(tool, dict)]

    def get_list(self, name: str) -> list[Any]:
        """Return the list in the field ``name`` of the body, or an empty list if it has none."""
        value = self.body.get(name)
        return value if isinstance(value, list) else []
