"""DeepSeek (``https://api.deepseek.com``): serde refuses unknown variants, and thinking must come back with tools."""

from __future__ import annotations

from typing import Any

from holdfast.testing.provider.dialects.openai_only import OPENAI_MODEL_RULES
from holdfast.testing.provider.dialects.server_dialect import (
    AnswerForm,
    ServerDialect,
    ServerError,
    ServerErrors,
    ServerRule,
)
from holdfast.testing.provider.dialects.server_request import ServerRequest, list_parts

_ROLES = ("system", "user", "assistant", "tool", "latest_reminder")
_MAX_OUTPUT = 393_216
_BAD_BODY = "Failed to deserialize the JSON body into the target type:"


def is_deepseek_thinking(request: ServerRequest) -> bool:
    """Return whether the model thinks; it does unless it is told not to, or is asked by its old name for that."""
    # DeepSeek's thinking page: the default is enabled; deepseek-chat was the name for "without".
    if request.is_model("deepseek-chat"):
        return False
    return bool(request.get_option("thinking", "type") != "disabled")


def _check_roles(request: ServerRequest) -> ServerErrors:
    """The role is system, user, assistant, tool or latest_reminder; developer is not known."""
    for index, message in request.messages:
        role = message.get("role")
        if role not in _ROLES:
            known_roles = ", ".join([f"`{name}`" for name in _ROLES])
            problem = f"messages[{index}].role: unknown variant `{role}`, expected one of {known_roles}"
            yield ServerError(f"{_BAD_BODY} {problem} at line 1 column {_find_column(request, str(role))}")


def _check_parts(request: ServerRequest) -> ServerErrors:
    """A part has a type, and only models that see take images."""
    for index, message in request.messages:
        for _, part in list_parts(message):
            kind = part.get("type")
            if kind is None:
                yield ServerError(f"{_BAD_BODY} messages[{index}]: missing field `type` at line 1 column 1")
            elif kind == "image_url" and request.is_model("v4-pro", "reasoner"):
                problem = f"messages[{index}]: unknown variant `image_url`, expected `text`"
                yield ServerError(f"{_BAD_BODY} {problem} at line 1 column {_find_column(request, 'image_url')}")


def _check_reasoning_returned(request: ServerRequest) -> ServerErrors:
    """While the model thinks and has tools, every assistant message after a user message has reasoning_content."""
    if not is_deepseek_thinking(request) or not request.has_tools:
        return
    for _, message in request.messages:
        # An empty string is taken: openclaw/openclaw#73417, 2026-04-28.
        if message.get("role") == "assistant" and not isinstance(message.get("reasoning_content"), str):
            text = "The `reasoning_content` in the thinking mode must be passed back to the API."
            yield ServerError(text)


def _check_forced_tools(request: ServerRequest) -> ServerErrors:
    """While the model thinks, tool_choice forces nothing: auto and none pass, required and a named tool do not."""
    choice = request.body.get("tool_choice")
    if is_deepseek_thinking(request) and choice not in (None, "auto", "none"):
        yield ServerError("Thinking mode does not support this tool_choice")


def _check_tool_choice_values(request: ServerRequest) -> ServerErrors:
    """tool_choice is never any, which is a value of other APIs."""
    if request.body.get("tool_choice") == "any":
        yield ServerError(f"{_BAD_BODY} tool_choice: unknown variant `any`, expected one of `none`, `auto`, `required`")


def _word_max_output(asked: int, largest: int, model: str) -> ServerError:
    del asked, model
    return ServerError(f"Invalid max_tokens value, the valid range of max_tokens is [1, {largest}]")


def _find_column(request: ServerRequest, word: str) -> int:
    """Return a column for the wording; real servers have the place at which their parser stopped."""
    del word
    return request.size


def _encode_error(error: ServerError) -> dict[str, Any]:
    code = error.code or "invalid_request_error"
    kind = error.kind or "invalid_request_error"
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": code}}


def _adapt_usage(usage: dict[str, Any]) -> dict[str, Any]:
    """Add the two fields for the cache, which sum up to the prompt."""
    cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
    return {
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": usage["completion_tokens"],
        "total_tokens": usage["total_tokens"],
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
        "completion_tokens_details": usage["completion_tokens_details"],
        "prompt_cache_hit_tokens": cached_tokens,
        "prompt_cache_miss_tokens": usage["prompt_tokens"] - cached_tokens,
    }


def _make_call_id(digest: str, name: str, index: int) -> str:
    del name
    return f"call_{index:02}_{digest[:20]}"


def _get_max_output(request: ServerRequest) -> int:
    del request
    return _MAX_OUTPUT


DEEPSEEK = ServerDialect(
    name="deepseek",
    title="DeepSeek",
    default_model="deepseek-flash",
    rules=(
        ServerRule(
            "deepseek.roles",
            _check_roles,
            "decolua/9router#773, 2026-05-02; farion1231/cc-switch#3330, 2026-05-30; num-scope/pix#34, 2026-08-17",
        ),
        ServerRule(
            "deepseek.parts",
            _check_parts,
            "rikkahub/rikkahub#1433, 2026-07-03; vscode-unify-chat-provider#312",
        ),
        ServerRule(
            "deepseek.tool-choice",
            _check_tool_choice_values,
            "BerriAI/litellm#37470 (measured); osaurus-ai/osaurus#1940, 2026-07-08",
        ),
        ServerRule(
            "deepseek.forced-tools",
            _check_forced_tools,
            "osaurus-ai/osaurus#1940, 2026-07-08; BerriAI/litellm#37470 (measured)",
        ),
        ServerRule(
            "deepseek.reasoning-returned",
            _check_reasoning_returned,
            "api-docs.deepseek.com/guides/thinking_mode, 2026-08; wavetermdev/waveterm#3266, 2026-05-01;"
            " openclaw/openclaw#73417, 2026-04-28",
        ),
    ),
    missing_rules=OPENAI_MODEL_RULES
    | {
        "openai-chat.roles",  # roles of its own
        "openai-chat.stop",  # up to 16 (page on chat completion)
        "openai-chat.parts",  # images in tool messages, up to 600 (guide to vision)
        "openai-chat.unknown-part",
        "openai-chat.images",
        "openai-chat.media-bytes",  # the type is told from the bytes (guide to vision, via opencode#47965)
        # Tools that are not strict have no limits of their schema: 14790897/MiqroForge-Desktop#1165, 2026-09-21.
        "openai-chat.tool-schema",
    },
    encode_error=_encode_error,
    overflow="deepseek",
    counts_output=True,
    get_max_output=_get_max_output,
    word_max_output=_word_max_output,
    answers=AnswerForm(is_deepseek_thinking, make_call_id=_make_call_id, adapt_usage=_adapt_usage),
)
