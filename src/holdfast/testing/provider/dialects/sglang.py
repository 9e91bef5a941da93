"""SGLang (0.5.23): its errors have no key ``error``, and max_tokens counts against the window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.testing.provider.dialects.openai_only import LENIENT_RULES
from holdfast.testing.provider.dialects.server_dialect import (
    AnswerForm,
    ServedModel,
    ServerDialect,
    ServerEndpoint,
    ServerError,
    ServerErrors,
    ServerRule,
)
from holdfast.testing.provider.dialects.server_request import ServerRequest, iter_schema_nodes, list_parts

_SOURCE = "sglang 0.5.23, entrypoints of the OpenAI server, read 2026-11-28"
_ROLES = ("system", "developer", "root", "latest_reminder", "user", "assistant", "tool", "function")
_SCHEMA_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})


def is_sglang_thinking(request: ServerRequest) -> bool:
    """Return whether the model thinks, as the switches of the request say."""
    switches = request.get_option("chat_template_kwargs")
    if isinstance(switches, dict):
        for name in ("enable_thinking", "thinking"):
            if isinstance(switches.get(name), bool):
                return bool(switches[name])
    if request.get_option("reasoning", "enabled") is True:
        return True
    effort = request.body.get("reasoning_effort") or request.get_option("reasoning", "effort")
    return effort not in (None, "none", 0)


def _check_roles(request: ServerRequest) -> ServerErrors:
    """The role is one of the eight that it knows, in any case."""
    for _, message in request.messages:
        if str(message.get("role")).lower() not in _ROLES:
            known_roles = ", ".join([f"'{role}'" for role in _ROLES])
            yield ServerError(f"'role' must be one of {known_roles} (case-insensitive).")


def _check_parts(request: ServerRequest) -> ServerErrors:
    """Parts of the types thinking and reasoning are only in messages of the assistant."""
    for index, message in request.messages:
        for _, part in list_parts(message):
            if part.get("type") in ("thinking", "reasoning") and str(message.get("role")).lower() != "assistant":
                yield ServerError(f"messages.{index}: '{part['type']}' parts are only allowed in assistant messages")


def _check_tool_names(request: ServerRequest) -> ServerErrors:
    """The names of tools are unique, and a named tool_choice is one of them."""
    names = [function.get("name") for _, function in request.functions]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield ServerError(f"Duplicate tool name '{name}'.")
    chosen = request.get_option("tool_choice", "function", "name")
    if chosen is not None and chosen not in names:
        yield ServerError(f"Tool '{chosen}' not found in tools list.")


def _check_required_tools(request: ServerRequest) -> ServerErrors:
    """tool_choice required needs tools."""
    if request.body.get("tool_choice") == "required" and not request.has_tools:
        yield ServerError("Tools cannot be empty if tool choice is set to required.")


def _check_schemas(request: ServerRequest) -> ServerErrors:
    """The parameters of a tool are a valid JSON Schema."""
    for index, function in request.functions:
        for _, node in iter_schema_nodes(function.get("parameters")):
            kind = node.get("type") if isinstance(node, dict) else None
            kinds = kind if isinstance(kind, list) else [kind]
            for name in kinds:
                if name is not None and name not in _SCHEMA_TYPES:
                    problem = f"'{name}' is not valid under any of the given schemas"
                    yield ServerError(f"Tool {index} function has invalid 'parameters' schema: {problem}")


def _word_max_output(asked: int, largest: int, model: str) -> ServerError:
    del model
    text = f"max_completion_tokens is too large: {asked}.This model supports at most {largest} completion tokens."
    return ServerError(text)


def _encode_error(error: ServerError) -> dict[str, Any]:
    kind = error.kind or "BadRequestError"
    return {"object": "error", "message": error.message, "type": kind, "param": error.param, "code": error.status}


def _list_models(models: Sequence[ServedModel]) -> dict[str, Any]:
    data = []
    for model in models:
        fields = {"id": model.name, "object": "model", "owned_by": "sglang", "root": model.name}
        data.append(fields | {"max_model_len": model.window})
    return {"object": "list", "data": data}


def _describe_model(models: Sequence[ServedModel]) -> dict[str, Any]:
    return {"model_path": models[0].name, "is_generation": True}


SGLANG = ServerDialect(
    name="sglang",
    title="SGLang",
    default_model="deepseek-ai/DeepSeek-V3.2",
    rules=(
        ServerRule("sglang.roles", _check_roles, _SOURCE),
        ServerRule("sglang.parts", _check_parts, f"{_SOURCE}; the wording is not known"),
        ServerRule("sglang.tool-names", _check_tool_names, _SOURCE),
        ServerRule("sglang.required-tools", _check_required_tools, _SOURCE),
        ServerRule("sglang.schemas", _check_schemas, _SOURCE),
    ),
    missing_rules=LENIENT_RULES
    | {"openai-chat.roles", "openai-chat.parts", "openai-chat.tools", "openai-chat.tool-choice"},
    encode_error=_encode_error,
    overflow="sglang-total",
    counts_output=True,
    word_max_output=_word_max_output,
    answers=AnswerForm(is_sglang_thinking),
    needs_model=False,
    list_models=_list_models,
    endpoints=(ServerEndpoint("/model_info", _describe_model),),
)
