"""vLLM (0.33.0): unknown fields are ignored, and only the prompt counts against the window."""

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
    ServerError,
    ServerErrors,
    ServerRule,
)
from holdfast.testing.provider.dialects.server_request import ServerRequest

_SOURCE = "vllm 0.33.0, entrypoints of the OpenAI server, 2026-11-01"
_TOOL_CHOICES = ("none", "auto", "required")


def _refuse(message: str, param: str) -> ServerError:
    return ServerError(message, param=param)


def is_vllm_thinking(request: ServerRequest) -> bool:
    """Return whether the model thinks, as the switches of the request say."""
    switches = request.get_option("chat_template_kwargs")
    if isinstance(switches, dict):
        for name in ("enable_thinking", "thinking"):
            if isinstance(switches.get(name), bool):
                return bool(switches[name])
    return request.body.get("reasoning_effort") not in (None, "none")


def _check_tools(request: ServerRequest) -> ServerErrors:
    """The list of tools is not empty, and a tool is a function."""
    if request.body.get("tools") == []:
        text = "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely."
        yield _refuse(text, "tools")
    for index, tool in request.tools:
        if tool.get("type") != "function":
            yield _refuse(f"tools.{index}.type: Input should be 'function'", "tools")


def _check_tool_choice(request: ServerRequest) -> ServerErrors:
    """tool_choice needs tools, and is none, auto, required or a named tool."""
    choice = request.body.get("tool_choice")
    if choice in (None, "none"):
        return
    if not request.has_tools:
        yield _refuse("When using `tool_choice`, `tools` must be set.", "tool_choice")
    elif isinstance(choice, str) and choice not in _TOOL_CHOICES:
        text = f'Invalid value for `tool_choice`: {choice}! Only named tools, "none", "auto" or "required"'
        yield _refuse(f"{text} are supported.", "tool_choice")


def _check_stream_options(request: ServerRequest) -> ServerErrors:
    """stream_options needs a stream."""
    if request.body.get("stream_options") is not None and not request.stream:
        yield _refuse("Stream options can only be defined when `stream=True`.", "stream_options")


def _check_logprobs(request: ServerRequest) -> ServerErrors:
    """top_logprobs needs logprobs."""
    if request.body.get("top_logprobs") and not request.body.get("logprobs"):
        yield _refuse("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")


def _check_cache_salt(request: ServerRequest) -> ServerErrors:
    """cache_salt has 1 to 128 characters, without @ and slashes."""
    salt = request.body.get("cache_salt")
    if salt is None:
        return
    if not isinstance(salt, str) or not 1 <= len(salt) <= 128 or set(salt) & set("@/\\\0"):
        yield _refuse("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")


def _cut_prompt(request: ServerRequest, cut: PromptCut) -> int:
    """Cut the prompt only if the request asks for it."""
    limit = request.body.get("truncate_prompt_tokens")
    if not isinstance(limit, int):
        return 0
    kept_tokens = cut.window - 1 if limit == -1 else limit
    return max(0, cut.setup + sum(cut.messages) - kept_tokens)


def _word_max_output(asked: int, largest: int, model: str) -> ServerError:
    del model
    text = f"max_tokens={asked} cannot be greater than max_model_len={largest}. Please request fewer output tokens."
    return _refuse(f"{text} (parameter=max_tokens, value={asked})", "max_tokens")


def _encode_error(error: ServerError) -> dict[str, Any]:
    kind = error.kind or "BadRequestError"
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.status}}


def list_vllm_models(models: Sequence[ServedModel]) -> dict[str, Any]:
    """Encode the list of models, with the window of each."""
    data = []
    for model in models:
        fields = {"id": model.name, "object": "model", "owned_by": "vllm", "root": model.name, "parent": None}
        data.append(fields | {"max_model_len": model.window})
    return {"object": "list", "data": data}


def _send_reasoning(request: ServerRequest) -> ReasoningForm:
    del request
    return "reasoning"


def _make_call_id(digest: str, name: str, index: int) -> str:
    del name, index
    return f"chatcmpl-tool-{digest}"


VLLM = ServerDialect(
    name="vllm",
    title="vLLM",
    default_model="Qwen/Qwen3-32B",
    rules=(
        ServerRule("vllm.tools", _check_tools, _SOURCE),
        ServerRule("vllm.tool-choice", _check_tool_choice, _SOURCE),
        ServerRule("vllm.stream-options", _check_stream_options, _SOURCE),
        ServerRule("vllm.logprobs", _check_logprobs, _SOURCE),
        ServerRule("vllm.cache-salt", _check_cache_salt, _SOURCE),
    ),
    # Any role is taken; the order is the matter of the model's template.
    missing_rules=LENIENT_RULES
    | {"openai-chat.roles", "openai-chat.tools", "openai-chat.tool-choice", "openai-chat.stream-options"},
    encode_error=_encode_error,
    overflow="vllm-prompt",
    # prompt + max_tokens over the window is cut to what is left, silently.
    counts_output=False,
    word_max_output=_word_max_output,
    cut_prompt=_cut_prompt,
    answers=AnswerForm(is_vllm_thinking, _send_reasoning, _make_call_id),
    needs_model=False,
    list_models=list_vllm_models,
)
