"""The tool ``recall`` as smolagents wants its tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from smolagents import Tool

from holdfast.engine.recall import RECALL_DESCRIPTION, RECALL_PARAMETERS, RECALL_TOOL_NAME
from holdfast.errors import HoldfastError


class RecallTool(Tool):
    """Reads back what the model is not shown any more.

    ``answer`` gets the arguments of a call and returns its result. The class is for agents in this process: a remote
    executor of code would need the store.
    """

    name = RECALL_TOOL_NAME
    description = RECALL_DESCRIPTION
    inputs: ClassVar[dict[str, dict[str, Any]]] = {
        name: {**parameter, "nullable": True} for name, parameter in RECALL_PARAMETERS.items()
    }
    output_type = "string"

    def __init__(self, answer: Callable[[Mapping[str, Any]], str]) -> None:
        super().__init__()
        self._answer = answer

    def forward(
        self,
        id: str | None = None,  # noqa: A002 -- what previews and extracts call it
        lines: str | None = None,
        chars: str | None = None,
        search: str | None = None,
        page: int | None = None,
    ) -> str:
        """Return the text that was asked for, or what is wrong with the arguments."""
        arguments = {"id": id, "lines": lines, "chars": chars, "search": search, "page": page}
        try:
            return self._answer(arguments)
        except HoldfastError as error:
            return str(error)
