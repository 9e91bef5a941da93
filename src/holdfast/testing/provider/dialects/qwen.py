"""Qwen (DashScope, ``https://dashscope.aliyuncs.com/compatible-mode/v1``)."""

from __future__ import annotations

import re
from typing import Any

from holdfast.testing.provider.dialects.openai_only import OPENAI_MODEL_RULES
from holdfast.testing.provider.dialects.server_dialect import (
    AnswerForm,
    ServerDialect,
    ServerError,
    ServerErrors,
    ServerRule,
)
from holdfast.testing.provider.dialects.server_request import ServerRequest

_ROLES = ("system", "assistant", "user", "tool", "function")
_ALGORITHM = "<400> InternalError.Algo.InvalidParameter:"
_BAD_VALUE = "invalid_parameter_error"
# Open Qwen3 models, such as qwen3-32b and qwen3-30b-a3b: they think by default, and then only in a stream.
_OPEN_MODEL = re.compile(r"qwen3-\d+b")


def is_qwen_thinking(request: ServerRequest) -> bool:
    """Return whether the model thinks: as the request says, else only open Qwen3, QwQ and models named thinking."""
    if request.is_model("thinking", "qwq"):
        return True
    switch = request.body.get("enable_thinking")
    if switch is not None:
        return bool(switch)
    effort = request.body.get("reasoning_effort")
    if effort is not None or request.is_model("qwen3.8-max"):
        return bool(effort != "none")
    return _OPEN_MODEL.search(request.model) is not None


def _check_roles(request: ServerRequest) -> ServerErrors:
    """The role is system, assistant, user, tool or function; developer is not known."""
    for index, message in request.messages:
        role = message.get("role")
        if role not in _ROLES:
            yield ServerError(f"{role} is not one of {list(_ROLES)} - 'messages.['{index}].role'", code=_BAD_VALUE)


def _check_forced_tools(request: ServerRequest) -> ServerErrors:
    """While the model thinks, tool_choice is neither required nor a named tool."""
    choice = request.body.get("tool_choice")
    if is_qwen_thinking(request) and (choice == "required" or isinstance(choice, dict)):
        problem = "The tool_choice parameter does not support being set to required or object in thinking mode"
        yield ServerError(f"{_ALGORITHM} {problem}", code=_BAD_VALUE)


def _check_stream(request: ServerRequest) -> ServerErrors:
    """Open Qwen3 models think only in a stream."""
    if _OPEN_MODEL.search(request.model) and is_qwen_thinking(request) and not request.stream:
        text = "parameter.enable_thinking must be set to false for non-streaming calls"
        yield ServerError(text, code=_BAD_VALUE)


def _check_thinking_budget(request: ServerRequest) -> ServerErrors:
    """thinking_budget is a positive whole number."""
    budget = request.body.get("thinking_budget")
    if budget is not None and not (isinstance(budget, int) and budget > 0):
        text = "The thinking_budget parameter must be a positive integer and not greater than 38912"
        yield ServerError(text, code=_BAD_VALUE)


def _word_max_output(asked: int, largest: int, model: str) -> ServerError:
    del asked, model
    return ServerError(f"{_ALGORITHM} Range of max_tokens should be [1, {largest}]", code=_BAD_VALUE)


def _encode_error(error: ServerError) -> dict[str, Any]:
    kind = error.kind or "invalid_request_error"
    fields = {"code": error.code or _BAD_VALUE, "message": error.message, "param": error.param, "type": kind}
    return {"error": fields, "request_id": "5d1c1b6e-0000-9000-8000-000000000000"}


QWEN = ServerDialect(
    name="qwen",
    title="Qwen (DashScope)",
    default_model="qwen3.8-max",
    rules=(
        ServerRule("qwen.roles", _check_roles, "proma-ai/Proma#1496, 2026-08-08 (measured)"),
        ServerRule(
            "qwen.forced-tools",
            _check_forced_tools,
            "cloudwego/eino#994, 2026-04-24; QwenLM/qwen-code#7659, 2026-07-24; agentscope-ai/agentscope#1608,"
            " 2026-09-07",
        ),
        ServerRule(
            "qwen.stream",
            _check_stream,
            "alibabacloud.com/help/en/model-studio/developer-reference/error-code, 2026-06-23",
        ),
        ServerRule(
            "qwen.thinking-budget",
            _check_thinking_budget,
            "alibabacloud.com/help/en/model-studio/developer-reference/error-code, 2026-06-23",
        ),
    ),
    missing_rules=OPENAI_MODEL_RULES | {"openai-chat.unknown-part"},
    encode_error=_encode_error,
    overflow="qwen",
    # Range of max_tokens should be [1, 8192]: open-webui/open-webui#10507, 2025-02-21. The limits of today's models
    # are only told by gateways, so there is one only if the settings have it.
    word_max_output=_word_max_output,
    answers=AnswerForm(is_qwen_thinking),
    base_paths=("/compatible-mode/v1",),
)
