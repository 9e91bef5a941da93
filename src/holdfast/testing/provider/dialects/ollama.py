"""Ollama, at ``/v1``: a prompt over the window is cut silently, and there is no way to forbid it there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.testing.provider.dialects.openai_only import LENIENT_RULES
from holdfast.testing.provider.dialects.server_dialect import (
    AnswerForm,
    PromptCut,
    ReasoningForm,
    ServedModel,
    ServerDialect,
    ServerEndpoint,
    ServerError,
    ServerErrors,
    ServerRule,
)
from holdfast.testing.provider.dialects.server_request import (
    ServerRequest,
    get_image_url,
    is_json_object,
    iter_assistants,
    list_calls,
    list_parts,
)

_SOURCE = "ollama/ollama at fb30760, openai and server folders, 2026-08-21"
_EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max", "none")
_IMAGE_TYPES = ("image/jpeg", "image/jpg", "image/png", "image/webp")
_KEPT_TOKENS = 4
"""``num_keep``: the tokens at the head that survive when the middle is cut."""


def is_ollama_thinking(request: ServerRequest) -> bool:
    """Return whether the model thinks; models that can do it by default."""
    effort = request.body.get("reasoning_effort") or request.get_option("reasoning", "effort")
    if request.is_model("gpt-oss"):
        return True
    if effort is not None:
        return bool(effort != "none")
    return request.is_model("qwen3", "deepseek-r1", "magistral")


def _check_content(request: ServerRequest) -> ServerErrors:
    """Content is a string or a list of parts; null only beside calls."""
    for _, message in request.messages:
        content = message.get("content")
        if content is None and not list_calls(message):
            yield ServerError("invalid message content type: <nil>")


def _check_parts(request: ServerRequest) -> ServerErrors:
    """A part is text, audio, or an image as a data URL with jpeg, png or webp."""
    for _, message in request.messages:
        for _, part in list_parts(message):
            if part.get("type") not in ("text", "image_url", "input_audio"):
                yield ServerError("invalid message format")
            url = get_image_url(part)
            if url.startswith("http"):
                yield ServerError("image URLs are not currently supported, please use base64 encoded data instead")
            elif url and url.removeprefix("data:").partition(";")[0] not in _IMAGE_TYPES:
                yield ServerError("invalid image input")


def _check_arguments(request: ServerRequest) -> ServerErrors:
    """The arguments of a call are a JSON object in a string."""
    for _, message in iter_assistants(request):
        for _, call in list_calls(message):
            function = call.get("function")
            if isinstance(function, dict) and not is_json_object(function.get("arguments")):
                yield ServerError("invalid tool call arguments")


def _check_effort(request: ServerRequest) -> ServerErrors:
    """reasoning_effort is one of its levels."""
    effort = request.body.get("reasoning_effort") or request.get_option("reasoning", "effort")
    if effort is not None and effort not in _EFFORTS:
        levels = ", ".join([f'"{level}"' for level in _EFFORTS[:-1]])
        yield ServerError(f'invalid reasoning value: "{effort}" (must be {levels}, or "none")')


def _cut_prompt(request: ServerRequest, cut: PromptCut) -> int:
    """Drop whole messages from the front, all but the last; then cut the middle down to half of the window."""
    del request
    total = cut.setup + sum(cut.messages)
    dropped = 0
    for tokens in cut.messages[:-1]:
        if total - dropped <= cut.window:
            return dropped
        dropped += tokens
    if total - dropped <= cut.window:
        return dropped
    kept_tokens = cut.window - (cut.window - _KEPT_TOKENS) // 2
    return total - kept_tokens


def _encode_error(error: ServerError) -> dict[str, Any]:
    kind = error.kind or {404: "not_found_error"}.get(error.status, "invalid_request_error")
    if error.status >= 500:
        kind = "api_error"
    return {"error": {"message": error.message, "type": kind, "param": None, "code": None}}


def _list_loaded_models(models: Sequence[ServedModel]) -> dict[str, Any]:
    loaded = [{"name": model.name, "model": model.name, "context_length": model.window} for model in models]
    return {"models": loaded}


def _list_models(models: Sequence[ServedModel]) -> dict[str, Any]:
    # Without the window: only /api/ps and /api/show tell of one.
    return {
        "object": "list",
        "data": [{"id": model.name, "object": "model", "owned_by": "library"} for model in models],
    }


def _show_model(models: Sequence[ServedModel]) -> dict[str, Any]:
    # The length of the training is larger than what is loaded, and only an upper bound.
    model_info = {"general.architecture": "qwen3", "qwen3.context_length": models[0].window * 4}
    parameters = f"num_ctx                        {models[0].window}"
    return {"parameters": parameters, "model_info": model_info, "capabilities": ["completion", "tools", "thinking"]}


def _send_reasoning(request: ServerRequest) -> ReasoningForm:
    del request
    return "reasoning"


def _make_call_id(digest: str, name: str, index: int) -> str:
    del name, index
    return f"call_{digest[:8]}"


OLLAMA = ServerDialect(
    name="ollama",
    title="Ollama",
    default_model="qwen3:32b",
    rules=(
        ServerRule("ollama.content", _check_content, _SOURCE),
        ServerRule("ollama.parts", _check_parts, _SOURCE),
        ServerRule("ollama.arguments", _check_arguments, _SOURCE),
        ServerRule("ollama.effort", _check_effort, _SOURCE),
    ),
    # tool_choice, parallel_tool_calls and max_completion_tokens are ignored.
    missing_rules=LENIENT_RULES | {"openai-chat.tool-choice", "openai-chat.stream-options", "openai-chat.tools"},
    encode_error=_encode_error,
    overflow="ollama-context",
    counts_output=False,
    cut_prompt=_cut_prompt,
    answers=AnswerForm(
        is_ollama_thinking, _send_reasoning, _make_call_id, extra_fields={"system_fingerprint": "fp_ollama"}
    ),
    list_models=_list_models,
    endpoints=(
        ServerEndpoint("/api/ps", _list_loaded_models),
        ServerEndpoint("/api/tags", _list_loaded_models),
        ServerEndpoint("/api/show", _show_model, ("POST",)),
    ),
)
