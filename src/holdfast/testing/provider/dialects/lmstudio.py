"""LM Studio: ``error`` of its errors is a string, and a named tool_choice is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.testing.provider.dialects.openai_only import LENIENT_RULES
from holdfast.testing.provider.dialects.server_dialect import (
    AnswerForm,
    ReasoningForm,
    ServedModel,
    ServerDialect,
    ServerEndpoint,
    ServerError,
    ServerErrors,
    ServerRule,
)
from holdfast.testing.provider.dialects.server_request import ServerRequest


def _check_tool_choice(request: ServerRequest) -> ServerErrors:
    """tool_choice is none, auto or required, and never names a tool."""
    if isinstance(request.body.get("tool_choice"), dict):
        yield ServerError("Invalid tool_choice type: 'object'. Supported string values: none, auto, required")


def _encode_error(error: ServerError) -> dict[str, Any]:
    return {"error": error.message}


def _list_models(models: Sequence[ServedModel]) -> dict[str, Any]:
    # Without the window: that is in LM Studio's own list.
    return {
        "object": "list",
        "data": [{"id": model.name, "object": "model", "owned_by": "organization_owner"} for model in models],
    }


def _list_own_models(models: Sequence[ServedModel]) -> dict[str, Any]:
    entries = []
    for model in models:
        instance = {"id": model.name, "config": {"context_length": model.window}}
        capabilities = {"vision": False, "trained_for_tool_use": True}
        entry = {"type": "llm", "key": model.name, "loaded_instances": [instance], "capabilities": capabilities}
        entries.append(entry | {"max_context_length": model.window * 4})
    return {"models": entries}


def _list_older_models(models: Sequence[ServedModel]) -> dict[str, Any]:
    data = []
    for model in models:
        lengths = {"loaded_context_length": model.window, "max_context_length": model.window * 4}
        data.append({"id": model.name, "object": "model", "type": "llm", "state": "loaded"} | lengths)
    return {"object": "list", "data": data}


def _is_thinking(request: ServerRequest) -> bool:
    return request.is_model("gpt-oss") and request.body.get("reasoning_effort") != "none"


def _send_reasoning(request: ServerRequest) -> ReasoningForm:
    del request
    return "reasoning"


def _make_call_id(digest: str, name: str, index: int) -> str:
    # A bare number.
    del name, index
    return str(int(digest[:8], 16) % 900_000_000 + 100_000_000)


LMSTUDIO = ServerDialect(
    name="lmstudio",
    title="LM Studio",
    default_model="openai/gpt-oss-20b",
    rules=(
        ServerRule(
            "lmstudio.tool-choice",
            _check_tool_choice,
            "lmstudio-ai/lmstudio-bug-tracker#670, 2025-05-21; can1357/oh-my-pi#6925, 2026-07-28;"
            " alibaba/page-agent#613, 2026-07-12",
        ),
    ),
    missing_rules=LENIENT_RULES | {"openai-chat.stream-options", "openai-chat.tool-choice"},
    encode_error=_encode_error,
    overflow="lmstudio",
    counts_output=False,
    answers=AnswerForm(_is_thinking, _send_reasoning, _make_call_id),
    needs_model=False,
    list_models=_list_models,
    endpoints=(
        ServerEndpoint("/api/v1/models", _list_own_models),
        ServerEndpoint("/api/v0/models", _list_older_models),
    ),
)
