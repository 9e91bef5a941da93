"""The server of llama.cpp: the model's template decides, and the last message of the assistant is a prefill."""

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
from holdfast.testing.provider.dialects.server_request import ServerRequest, iter_assistants, list_calls, list_parts

_SOURCE = "ggml-org/llama.cpp tools/server, README at 00dc805 and server-context.cpp at 001d906, autumn 2026"
_PART_TYPES = ("text", "image_url", "input_audio", "video_url")


def is_llamacpp_thinking(request: ServerRequest) -> bool:
    """Return whether the model thinks, as the switches of the request say."""
    switch = request.get_option("chat_template_kwargs", "enable_thinking")
    if isinstance(switch, bool):
        return switch
    return request.body.get("reasoning_effort") not in (None, "none")


def _check_content(request: ServerRequest) -> ServerErrors:
    """A message has content; one of the assistant has content or calls."""
    for _, message in request.messages:
        if message.get("role") == "assistant":
            if message.get("content") is None and not list_calls(message):
                yield ServerError("Assistant message must contain either 'content' or 'tool_calls'!")
        elif message.get("content") is None:
            yield ServerError("All non-assistant messages must contain 'content'")


def _check_parts(request: ServerRequest) -> ServerErrors:
    """A part is text, an image, audio or a video."""
    for _, message in request.messages:
        for _, part in list_parts(message):
            if part.get("type") not in _PART_TYPES:
                yield ServerError("unsupported content[].type")


def _check_prefill(request: ServerRequest) -> ServerErrors:
    """At most one message of the assistant is at the end, and none while the model thinks."""
    roles = [message.get("role") for _, message in request.messages]
    if roles[-2:] == ["assistant", "assistant"]:
        yield ServerError("Cannot have 2 or more assistant messages at the end of the list.")
    elif roles[-1:] == ["assistant"] and is_llamacpp_thinking(request):
        last_message = list(iter_assistants(request))[-1][1]
        if not list_calls(last_message):
            yield ServerError("Assistant response prefill is incompatible with enable_thinking.")


def _check_grammar(request: ServerRequest) -> ServerErrors:
    """A grammar goes without tools, and log probabilities do not go with tools in a stream."""
    if request.body.get("grammar") and request.has_tools:
        yield ServerError("Cannot use custom grammar constraints with tools.")
    if request.body.get("logprobs") and request.has_tools and request.stream:
        yield ServerError("logprobs is not supported with tools + stream")


def _check_template_switch(request: ServerRequest) -> ServerErrors:
    """enable_thinking of chat_template_kwargs is a boolean and not a string."""
    if isinstance(request.get_option("chat_template_kwargs", "enable_thinking"), str):
        yield ServerError('invalid type for "enable_thinking" (expected boolean, got string)')


def _encode_error(error: ServerError) -> dict[str, Any]:
    kind = error.kind or "invalid_request_error"
    return {"error": {"code": error.status, "message": error.message, "type": kind}}


def _list_models(models: Sequence[ServedModel]) -> dict[str, Any]:
    data = []
    for model in models:
        # The number here is that of the training, which is never the window of a slot.
        meta = {"n_ctx_train": model.window * 4, "n_vocab": 151_936}
        data.append({"id": model.name, "object": "model", "owned_by": "llamacpp", "meta": meta})
    return {"object": "list", "data": data}


def _describe_server(models: Sequence[ServedModel]) -> dict[str, Any]:
    return {
        "default_generation_settings": {"n_ctx": models[0].window},
        "total_slots": 1,
        "model_path": models[0].name,
        "modalities": {"vision": True, "audio": False},
        "is_sleeping": False,
    }


def _list_slots(models: Sequence[ServedModel]) -> list[dict[str, Any]]:
    return [{"id": 0, "n_ctx": models[0].window, "is_processing": False}]


def _report_health(models: Sequence[ServedModel]) -> dict[str, Any]:
    del models
    return {"status": "ok"}


LLAMACPP = ServerDialect(
    name="llamacpp",
    title="llama.cpp",
    default_model="qwen3-32b-q4_k_m.gguf",
    rules=(
        ServerRule("llamacpp.content", _check_content, _SOURCE),
        ServerRule("llamacpp.parts", _check_parts, _SOURCE),
        ServerRule("llamacpp.prefill", _check_prefill, _SOURCE),
        ServerRule("llamacpp.grammar", _check_grammar, _SOURCE),
        ServerRule("llamacpp.template-switch", _check_template_switch, f"{_SOURCE}; the wording is not known"),
    ),
    missing_rules=LENIENT_RULES | {"openai-chat.stream-options", "openai-chat.tool-choice"},
    encode_error=_encode_error,
    overflow="llama.cpp",
    counts_output=False,
    answers=AnswerForm(is_llamacpp_thinking),
    needs_model=False,
    list_models=_list_models,
    endpoints=(
        ServerEndpoint("/props", _describe_server),
        ServerEndpoint("/slots", _list_slots),
        ServerEndpoint("/health", _report_health),
    ),
)
