"""GLM (Z.ai, ``https://api.z.ai/api/paas/v4``): errors have a number as a string and often no reason."""

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
from holdfast.testing.provider.dialects.server_request import ServerRequest

_BAD_PARAMETER = "Invalid API parameter, please check the documentation."
_ALWAYS_THINKING = "glm-5.3"
_EFFORTS = ("low", "high", "max")
_RANGES = {"temperature": (0, 1), "top_p": (0.01, 1)}
_MAX_OUTPUT = {"glm-4.5": 98_304, "glm-4.6v": 32_768, "glm-4.5v": 16_384}
"""Output limits of the models that do not have the usual one."""
_USUAL_MAX_OUTPUT = 131_072


def is_glm_thinking(request: ServerRequest) -> bool:
    """Return whether the model thinks: by default from 4.7 on, and always with 5.3."""
    if request.is_model(_ALWAYS_THINKING):
        return True
    thinking = request.get_option("thinking", "type")
    if thinking is not None:
        return bool(thinking == "enabled")
    return request.is_model("glm-5", "glm-4.7")


def _check_user_message(request: ServerRequest) -> ServerErrors:
    """There is a message that is not of system or assistant."""
    if all(message.get("role") in ("system", "assistant") for _, message in request.messages):
        yield ServerError("The messages parameter is illegal. Please check the documentation.", code="1214")


def _check_always_thinking(request: ServerRequest) -> ServerErrors:
    """GLM 5.3 always thinks: thinking is not disabled, and the effort is low, high or max."""
    if not request.is_model(_ALWAYS_THINKING):
        return
    effort = request.body.get("reasoning_effort")
    if request.get_option("thinking", "type") == "disabled" or effort not in (None, *_EFFORTS):
        text = "This model always engages in thinking and cannot be disabled; please use low, high, or max"
        yield ServerError(text, code="1210")


def _check_sampling(request: ServerRequest) -> ServerErrors:
    """Temperature is from 0 to 1, top_p from 0.01 to 1."""
    for name, (lowest, highest) in _RANGES.items():
        value = request.body.get(name)
        if isinstance(value, int | float) and not lowest <= value <= highest:
            yield ServerError(_BAD_PARAMETER, code="1210", param=name)


def _get_max_output(request: ServerRequest) -> int:
    largest = _USUAL_MAX_OUTPUT
    for name, limit in _MAX_OUTPUT.items():
        # The longer names come last, so that they win.
        if name in request.model:
            largest = limit
    return largest


def _word_max_output(asked: int, largest: int, model: str) -> ServerError:
    del asked, model
    return ServerError(f"max_tokens parameter is illegal, range is [1,{largest}]", code="1210")


def _encode_error(error: ServerError) -> dict[str, Any]:
    return {"error": {"code": str(error.code or "1210"), "message": error.message}}


GLM = ServerDialect(
    name="glm",
    title="GLM (Z.ai)",
    default_model="glm-5.3",
    rules=(
        ServerRule(
            "glm.user-message",
            _check_user_message,
            "docs.z.ai/api-reference/llm/chat-completion; anomalyco/opencode#2557, 2025-09",
        ),
        ServerRule(
            "glm.always-thinking",
            _check_always_thinking,
            "NousResearch/hermes-agent#85890, 2026-08-14; NousResearch/hermes-agent#97286, 2026-08-28;"
            " mnfst/modelparams.dev#327, 2026-08-22 (measured)",
        ),
        ServerRule("glm.sampling", _check_sampling, "docs.z.ai/api-reference/llm/chat-completion"),
    ),
    missing_rules=OPENAI_MODEL_RULES | {"openai-chat.unknown-part"},
    encode_error=_encode_error,
    overflow="glm",
    get_max_output=_get_max_output,
    # mnfst/modelparams.dev#327, 2026-08-22, measured the limits; the wording is from
    # dev.to/aihubmix/glm-53-api-guide, 2026-08-14, which tells the range and the code.
    word_max_output=_word_max_output,
    answers=AnswerForm(is_glm_thinking),
    base_paths=("/api/paas/v4", "/api/coding/paas/v4"),
)
