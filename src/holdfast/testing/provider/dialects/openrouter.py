"""OpenRouter (``https://openrouter.ai/api/v1``): a router, so that some refusals are those of the model's own host."""

from __future__ import annotations

from typing import Any

from holdfast.testing.provider.dialects.openai_only import OPENAI_MODEL_RULES
from holdfast.testing.provider.dialects.server_dialect import (
    AnswerForm,
    PromptCut,
    ReasoningForm,
    ServedModel,
    ServerDialect,
    ServerError,
    ServerErrors,
    ServerRule,
)
from holdfast.testing.provider.dialects.server_request import ServerRequest, iter_assistants

_SIGNED_FORMATS = ("anthropic-claude-v1", "google-gemini-v1")
"""Formats of reasoning whose texts are only taken back with their signature."""


def is_openrouter_thinking(request: ServerRequest) -> bool:
    """Return whether the request asks for reasoning and does not exclude it."""
    reasoning = request.body.get("reasoning")
    effort = request.body.get("reasoning_effort")
    if not isinstance(reasoning, dict):
        return effort not in (None, "none")
    if reasoning.get("exclude") is True or reasoning.get("enabled") is False:
        return False
    return reasoning.get("effort") != "none"


def _check_reasoning_options(request: ServerRequest) -> ServerErrors:
    """There is one of reasoning.effort and reasoning.max_tokens, and one of reasoning and reasoning_effort."""
    reasoning = request.body.get("reasoning")
    if not isinstance(reasoning, dict):
        return
    if reasoning.get("effort") is not None and reasoning.get("max_tokens") is not None:
        yield ServerError('Only one of "reasoning.effort" and "reasoning.max_tokens" can be specified')
    if request.body.get("reasoning_effort") is not None:
        yield ServerError('Only one of "reasoning" and "reasoning_effort" may be provided')


def _check_signed_details(request: ServerRequest) -> ServerErrors:
    """A reasoning text of Claude or Gemini comes back with its signature."""
    for index, message in iter_assistants(request):
        details = message.get("reasoning_details")
        for detail in details if isinstance(details, list) else []:
            is_text = isinstance(detail, dict) and detail.get("type") == "reasoning.text"
            if is_text and detail.get("format") in _SIGNED_FORMATS and not detail.get("signature"):
                raw = f"messages.{index}.content.0.thinking.signature: Field required"
                metadata = {"provider_name": "Anthropic", "raw": raw}
                yield ServerError("Provider returned error", details={"metadata": metadata})


def _cut_prompt(request: ServerRequest, cut: PromptCut) -> int:
    """Cut the middle of a prompt that is too long, if the request switches the compression on."""
    plugins = request.body.get("plugins")
    is_compressing = "middle-out" in (request.body.get("transforms") or [])
    for plugin in plugins if isinstance(plugins, list) else []:
        if isinstance(plugin, dict) and plugin.get("id") == "context-compression":
            is_compressing = plugin.get("enabled") is not False
    excess = cut.setup + sum(cut.messages) - cut.window
    return max(0, excess) if is_compressing else 0


def _encode_error(error: ServerError) -> dict[str, Any]:
    # The code is the status, as a number.
    fields: dict[str, Any] = {"message": error.message, "code": error.status}
    if "metadata" in error.details:
        fields["metadata"] = error.details["metadata"]
    return {"error": fields, "user_id": "user_strict"}


def _list_models(models: Any) -> dict[str, Any]:
    return {"data": [_encode_model(model) for model in models]}


def _encode_model(model: ServedModel) -> dict[str, Any]:
    limits = {"context_length": model.window, "max_completion_tokens": model.max_output, "is_moderated": False}
    return {"id": model.name, "name": model.name, "context_length": model.window, "top_provider": limits}


def _send_details(request: ServerRequest) -> ReasoningForm:
    del request
    return "details"


OPENROUTER = ServerDialect(
    name="openrouter",
    title="OpenRouter",
    default_model="anthropic/claude-sonnet-5.5",
    rules=(
        ServerRule(
            "openrouter.reasoning-options",
            _check_reasoning_options,
            "openrouter.ai/docs/use-cases/reasoning-tokens; omeryasirkucuk/amx#66, 2026-05-02;"
            " danny-avila/LibreChat#6076, 2025-02-26",
        ),
        ServerRule(
            "openrouter.signed-details",
            _check_signed_details,
            "OpenRouterTeam/ai-sdk-provider#423; OpenRouterTeam/ai-sdk-provider#418",
        ),
    ),
    # Parameters that a model does not take are left out on the way to it (page on parameters).
    missing_rules=OPENAI_MODEL_RULES
    | {"openai-chat.parts", "openai-chat.unknown-part", "openai-chat.tools", "openai-chat.stop"},
    encode_error=_encode_error,
    overflow="openrouter-context",
    cut_prompt=_cut_prompt,
    answers=AnswerForm(is_openrouter_thinking, _send_details),
    base_paths=("/api/v1",),
    list_models=_list_models,
)
