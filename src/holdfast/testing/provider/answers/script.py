"""What the model says: the answers of a script in their order, then by a simple rule of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from holdfast.testing.provider.blocks import Block
from holdfast.testing.provider.calls import Said
from holdfast.testing.provider.reading import Request

_CALL = re.compile(r"^call (\S+) (\{.*\})\s*$", re.MULTILINE)
"""A line of the user's that asks for a tool call: ``call NAME {json}``."""


class Speaker(Protocol):
    """Who decides what the model says."""

    def next(self, request: Request, blocks: Sequence[Block]) -> Said:
        """Return the next answer, to a request that passed every check; ``blocks`` are what it shows the model."""


class Script:
    """Answers one after the other; without a script, ``ok 1``, ``ok 2`` and the calls that the user asks for."""

    def __init__(self, answers: Sequence[Said] = ()) -> None:
        """Begin with the first of these answers."""
        self._answers, self._said = list(answers), 0

    def next(self, request: Request, blocks: Sequence[Block]) -> Said:
        """Return the next answer."""
        self._said += 1
        if self._said <= len(self._answers):
            return self._answers[self._said - 1]
        calls = _asked_calls(request, blocks)
        thinking = f"step {self._said}" if _thinks(request) else ""
        return Said("" if calls else f"ok {self._said}", calls, thinking)


def _asked_calls(request: Request, blocks: Sequence[Block]) -> tuple[tuple[str, Mapping[str, object]], ...]:
    """Return the calls that the newest words ask for, where they are the user's and the tools are there."""
    last = blocks[-1] if blocks else None
    if last is None or last.role != "user" or _is_result(last):
        return ()
    names = tool_names(request)
    found = [(name, _arguments(text)) for name, text in _CALL.findall(last.rendering.text) if name in names]
    return tuple([(name, arguments) for name, arguments in found if arguments is not None])


def _is_result(block: Block) -> bool:
    gemini = isinstance(block.value, dict) and ("functionResponse" in block.value or "function_response" in block.value)
    return block.kind == "tool_result" or gemini


def _arguments(text: str) -> dict[str, object] | None:
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except (msgspec.MsgspecError, RecursionError):
        return None


def tool_names(request: Request) -> frozenset[str]:
    """Return the names of the tools that a request offers."""
    tools = request.body.get("tools")
    return frozenset(name for tool in (tools if isinstance(tools, list) else ()) for name in _names(tool))


def _names(tool: Any) -> list[str]:
    if not isinstance(tool, dict):
        return []
    inner = tool.get("function")
    declared = tool.get("functionDeclarations", tool.get("function_declarations"))
    listed = [tool, inner, *(declared if isinstance(declared, list) else ())]
    names = [one.get("name") for one in listed if isinstance(one, dict)]
    return [name for name in names if isinstance(name, str)]


def _thinks(request: Request) -> bool:
    """Return whether the request asks for thinking."""
    if request.api == "anthropic":
        return request.option("thinking", "type") in ("enabled", "adaptive")
    if request.api == "openai-responses":
        return request.body.get("reasoning") is not None
    config = request.option("generationConfig", "thinkingConfig")
    return request.api == "gemini" and isinstance(config, dict) and config.get("includeThoughts") is True
