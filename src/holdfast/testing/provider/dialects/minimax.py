"""MiniMax (``https://api.minimax.io/v1``): every bad parameter is a 2013, told apart by the words."""

from __future__ import annotations

from typing import Any

from holdfast.testing.provider.dialects.openai_only import OPENAI_MODEL_RULES
from holdfast.testing.provider.dialects.server_dialect import (
    AnswerForm,
    ReasoningForm,
    ServerDialect,
    ServerError,
    ServerErrors,
    ServerRule,
)
from holdfast.testing.provider.dialects.server_request import ServerRequest, is_json_object, list_calls

_M2_RANGES = ("temperature", "top_p")


def _refuse(words: str) -> ServerError:
    return ServerError(f"invalid params, {words} (2013)")


def is_minimax_thinking(request: ServerRequest) -> bool:
    """Return whether the model thinks: M2 always, M3 unless it is disabled."""
    if request.is_model("m2"):
        return True
    return bool(request.get_option("thinking", "type") != "disabled")


def _check_single_system(request: ServerRequest) -> ServerErrors:
    """There is at most one system message."""
    if [message.get("role") for _, message in request.messages].count("system") > 1:
        yield _refuse("invalid chat setting")


def _check_result_ids(request: ServerRequest) -> ServerErrors:
    """A tool message answers a call of an earlier message."""
    known_ids = set()
    for _, message in request.messages:
        known_ids |= {str(call.get("id")) for _, call in list_calls(message)}
        id_ = message.get("tool_call_id")
        if message.get("role") == "tool" and str(id_) not in known_ids:
            yield _refuse(f"tool result's tool id({id_}) not found")


def _check_arguments(request: ServerRequest) -> ServerErrors:
    """The arguments of a call are a JSON object in a string."""
    for _, message in request.messages:
        for _, call in list_calls(message):
            function = call.get("function")
            if isinstance(function, dict) and not is_json_object(function.get("arguments")):
                yield _refuse(f"invalid function arguments json string, tool_call_id: {call.get('id')}")


def _check_tools(request: ServerRequest) -> ServerErrors:
    """A tool is a function with parameters."""
    for _, tool in request.tools:
        function = tool.get("function")
        if tool.get("type") != "function":
            yield _refuse("invalid tool type:")
        elif isinstance(function, dict) and not function.get("parameters"):
            yield _refuse("function parameters is empty")


def _check_thinking(request: ServerRequest) -> ServerErrors:
    """M3 takes the thinking types adaptive and disabled."""
    thinking = request.get_option("thinking", "type")
    if request.is_model("m3") and thinking not in (None, "adaptive", "disabled"):
        yield _refuse(f'invalid thinking.type: "{thinking}" (allowed: adaptive, disabled)')


def _check_sampling(request: ServerRequest) -> ServerErrors:
    """On M2 temperature and top_p are above 0 and at most 1."""
    for name in _M2_RANGES:
        value = request.body.get(name)
        if request.is_model("m2") and isinstance(value, int | float) and not 0 < value <= 1:
            yield _refuse(f"{name} must be in (0, 1]")


def _get_reasoning_form(request: ServerRequest) -> ReasoningForm:
    if request.is_model("m3.1-flash"):
        return "reasoning_content"
    return "details" if request.body.get("reasoning_split") is True else "think-tags"


def _make_call_id(digest: str, name: str, index: int) -> str:
    del name
    return f"call_function_{digest[:12]}_{index + 1}"


def _encode_error(error: ServerError) -> dict[str, Any]:
    kind = error.kind or "bad_request_error"
    fields = {"type": kind, "message": error.message, "http_code": str(error.status)}
    return {"type": "error", "error": fields, "request_id": "06670d0734818ae29051df1875760000"}


MINIMAX = ServerDialect(
    name="minimax",
    title="MiniMax",
    default_model="MiniMax-M3",
    rules=(
        ServerRule("minimax.single-system", _check_single_system, "can1357/oh-my-pi#954, 2026-05-07 (measured)"),
        ServerRule("minimax.result-ids", _check_result_ids, "MiniMax-AI/MiniMax-M2#76, 2026-02-11"),
        ServerRule(
            "minimax.arguments",
            _check_arguments,
            "NousResearch/hermes-agent#12167, 2026-04-18; earendil-works/pi#5468, 2026-06-19",
        ),
        ServerRule(
            "minimax.tools",
            _check_tools,
            "QwenLM/qwen-code#11834, 2026-09-14 (measured); decolua/9router#2509, 2026-07-10",
        ),
        ServerRule("minimax.thinking", _check_thinking, "CherryHQ/cherry-studio#16431"),
        ServerRule(
            "minimax.sampling",
            _check_sampling,
            "platform.minimax.io/docs/api-reference/text-chat; the wording is not known",
        ),
    ),
    missing_rules=OPENAI_MODEL_RULES | {"openai-chat.unknown-part"},
    encode_error=_encode_error,
    overflow="minimax",
    answers=AnswerForm(is_minimax_thinking, _get_reasoning_form, _make_call_id),
)
