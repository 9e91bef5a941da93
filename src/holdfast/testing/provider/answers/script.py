"""What the model says: the answers of a script in their order, then by a simple rule of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from holdfast.testing.provider.calls import ScriptedAnswer
from holdfast.testing.provider.parse_request import ProviderRequest
from holdfast.testing.provider.request_pieces import PromptBlock

_CALL_LINE = re.compile(r"^call (\S+) (\{.*\})\s*$", re.MULTILINE)
"""A line of the user's that asks for a tool call: ``call NAME {json}``."""


class AnswerSource(Protocol):
    """Who decides what the model says."""

    def choose_next_answer(self, request: ProviderRequest, blocks: Sequence[PromptBlock]) -> ScriptedAnswer:
        """Return the next answer, to a request that passed every check; ``blocks`` are what it shows the model."""


class AnswerScript:
    """Answers one after the other; without a script, ``ok 1``, ``ok 2`` and the calls that the user asks for."""

    def __init__(self, answers: Sequence[ScriptedAnswer] = ()) -> None:
        """Begin with the first of these answers."""
        self._answers, self._said = list(answers), 0

    def choose_next_answer(self, request: ProviderRequest, blocks: Sequence[PromptBlock]) -> ScriptedAnswer:
        """Return the next answer."""
        self._said += 1
        if self._said <= len(self._answers):
            return self._answers[self._said - 1]
        calls = _find_requested_calls(request, blocks)
        thinking = f"step {self._said}" if _is_thinking_requested(request) else ""
        return ScriptedAnswer("" if calls else f"ok {self._said}", calls, thinking)


def _find_requested_calls(
    request: ProviderRequest, blocks: Sequence[PromptBlock]
) -> tuple[tuple[str, Mapping[str, object]], ...]:
    """Return the calls that the newest words ask for, where they are the user's and the tools are there."""
    last = blocks[-1] if blocks else None
    if last is None or last.role != "user" or _is_tool_result_block(last):
        return ()
    names = list_tool_names(request)
    candidates = [
        (name, _parse_arguments(text)) for name, text in _CALL_LINE.findall(last.rendering.text) if name in names
    ]
    return tuple([(name, arguments) for name, arguments in candidates if arguments is not None])


def _is_tool_result_block(block: PromptBlock) -> bool:
    gemini = isinstance(block.value, dict) and ("functionResponse" in block.value or "function_response" in block.value)
    return block.kind == "tool_result" or gemini


def _parse_arguments(text: str) -> dict[str, object] | None:
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except (msgspec.MsgspecError, RecursionError):
        return None


def list_tool_names(request: ProviderRequest) -> frozenset[str]:
    """Return the names of the tools that a request offers."""
    tools = request.body.get("tools")
    return frozenset(name for tool in (tools if isinstance(tools, list) else ()) for name in _list_declared_names(tool))


def _list_declared_names(tool: Any) -> list[str]:
    if not isinstance(tool, dict):
        return []
    inner = tool.get("function")
    declarations = tool.get("functionDeclarations", tool.get("function_declarations"))
    functions = [tool, inner, *(declarations if isinstance(declarations, list) else ())]
    names = [function.get("name") for function in functions if isinstance(function, dict)]
    return [name for name in names if isinstance(name, str)]


def _is_thinking_requested(request: ProviderRequest) -> bool:
    """Return whether the request asks for thinking."""
    if request.api == "anthropic":
        return request.get_option("thinking", "type") in ("enabled", "adaptive")
    if request.api == "openai-responses":
        return request.body.get("reasoning") is not None
    config = request.get_option("generationConfig", "thinkingConfig")
    return request.api == "gemini" and isinstance(config, dict) and config.get("includeThoughts") is True
