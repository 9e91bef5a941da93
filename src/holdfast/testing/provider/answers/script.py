"""Choose the model's answers: those of a script in order, then answers by a simple rule."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from holdfast.testing.provider.calls import ScriptedAnswer
from holdfast.testing.provider.parse_request import ProviderRequest
from holdfast.testing.provider.request_pieces import PromptBlock

_CALL_LINE = re.compile(r"^call (\S+) (\{.*\})\s*$", re.MULTILINE)
"""A line of the user that asks for a tool call: ``call NAME {json}``, or ``call NAMESPACE.NAME {json}``."""


class AnswerSource(Protocol):
    """Chooses the answers of the model."""

    def choose_next_answer(self, request: ProviderRequest, blocks: Sequence[PromptBlock]) -> ScriptedAnswer:
        """Return the next answer, to a request that passed all checks; ``blocks`` are those that the model reads."""


class AnswerScript:
    """Gives the answers of a script one after the other, then ``ok 1``, ``ok 2`` and calls that the user asks for."""

    def __init__(self, answers: Sequence[ScriptedAnswer] = ()) -> None:
        self._answers = list(answers)
        self._answer_count = 0

    def choose_next_answer(self, request: ProviderRequest, blocks: Sequence[PromptBlock]) -> ScriptedAnswer:
        """Return the next answer of the script, or one by the rule."""
        self._answer_count += 1
        if self._answer_count <= len(self._answers):
            return self._answers[self._answer_count - 1]
        calls = _find_requested_calls(request, blocks)
        # The number makes every answer different, so that none passes for a repetition.
        text = "" if calls else f"ok {self._answer_count}"
        thinking = f"step {self._answer_count}" if _is_thinking_requested(request) else ""
        return ScriptedAnswer(text, calls, thinking)


def _find_requested_calls(
    request: ProviderRequest, blocks: Sequence[PromptBlock]
) -> tuple[tuple[str, Mapping[str, object]], ...]:
    """Return the calls that the newest user message asks for, of tools that the request offers."""
    newest_block = blocks[-1] if blocks else None
    if newest_block is None or newest_block.role != "user" or _is_tool_result_block(newest_block):
        return ()
    tool_names = list_tool_names(request)
    calls = []
    for name, arguments_text in _CALL_LINE.findall(newest_block.rendering.text):
        arguments = _parse_arguments(arguments_text)
        if name in tool_names and arguments is not None:
            calls.append((name, arguments))
    return tuple(calls)


def _is_tool_result_block(block: PromptBlock) -> bool:
    if block.kind == "tool_result":
        return True
    return isinstance(block.value, dict) and ("functionResponse" in block.value or "function_response" in block.value)


def _parse_arguments(text: str) -> dict[str, object] | None:
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except (msgspec.MsgspecError, RecursionError):
        return None


def list_tool_names(request: ProviderRequest) -> frozenset[str]:
    """Return the names of the tools that a request offers, in the forms of all APIs; in a namespace ``SPACE.NAME``."""
    tools = request.body.get("tools")
    return frozenset(_list_names_of_tools(tools if isinstance(tools, list) else []))


def _list_names_of_tools(tools: Sequence[Any]) -> list[str]:
    names: list[str] = []
    for tool in tools:
        names += _list_declared_names(tool)
    return names


def _list_declared_names(tool: Any) -> list[str]:
    if not isinstance(tool, dict):
        return []
    if tool.get("type") == "namespace":
        inner_tools = tool.get("tools")
        inner_names = _list_names_of_tools(inner_tools if isinstance(inner_tools, list) else [])
        return [f"{tool.get('name')}.{name}" for name in inner_names]
    # The name is on the tool itself, in Chat's ``function``, or in each of Gemini's declarations.
    functions: list[Any] = [tool, tool.get("function")]
    declarations = tool.get("functionDeclarations", tool.get("function_declarations"))
    if isinstance(declarations, list):
        functions += declarations
    names = []
    for function in functions:
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            names.append(function["name"])
    return names


def _is_thinking_requested(request: ProviderRequest) -> bool:
    """Return whether the request asks for thinking."""
    if request.api == "anthropic":
        return request.get_option("thinking", "type") in ("enabled", "adaptive")
    if request.api == "openai-responses":
        return request.body.get("reasoning") is not None
    config = request.get_option("generationConfig", "thinkingConfig")
    return request.api == "gemini" and isinstance(config, dict) and config.get("includeThoughts") is True
