"""xAI (``https://api.x.ai/v1``): the field ``error`` of its errors is a string."""

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

_MAX_TOOLS = 200
_PENALTIES = {"presence_penalty": "presencePenalty", "frequency_penalty": "frequencyPenalty"}
_WITHOUT_EFFORT = ("4.20-reasoning", "4.20-non-reasoning", "build-0.1")
_EFFORTS = {
    "grok-4.7": ("low", "medium", "high", "xhigh"),
    "grok-4.6": ("low", "medium", "high", "xhigh"),
    "grok-4.5": ("low", "medium", "high"),
    "grok-4.3": ("none", "low", "medium", "high"),
}


def _refuse_parameter(request: ServerRequest, name: str) -> ServerError:
    # Names are in camel case in these texts.
    return ServerError(f"Model {request.model} does not support parameter {name}.")


def is_xai_thinking(request: ServerRequest) -> bool:
    """Return whether the model thinks and shows it; grok-4.3 may be told not to."""
    return not request.is_model("non-reasoning") and request.body.get("reasoning_effort") != "none"


def _check_penalties(request: ServerRequest) -> ServerErrors:
    """Grok 4 takes no presence_penalty and no frequency_penalty, not even 0; those that reason take no stop either."""
    if not request.is_model("grok-4"):
        return
    for field, name in _PENALTIES.items():
        if request.body.get(field) is not None:
            yield _refuse_parameter(request, name)
    if request.body.get("stop") and not request.is_model("non-reasoning"):
        yield _refuse_parameter(request, "stop")


def _check_tool_count(request: ServerRequest) -> ServerErrors:
    """There are at most 200 tools."""
    count = len(request.tools)
    if count > _MAX_TOOLS:
        yield ServerError(f"Too many tools: {count}, the maximum is {_MAX_TOOLS}")


def _check_effort(request: ServerRequest) -> ServerErrors:
    """reasoning_effort is one of the model's; Grok 4.20 and build-0.1 take none."""
    effort = request.body.get("reasoning_effort")
    if effort is None:
        return
    if request.is_model(*_WITHOUT_EFFORT):
        yield _refuse_parameter(request, "reasoningEffort")
    for name, efforts in _EFFORTS.items():
        if name in request.model and effort not in efforts:
            yield ServerError(f"Invalid reasoning effort: {effort}. Supported values: {', '.join(efforts)}")


def _encode_error(error: ServerError) -> dict[str, Any]:
    return {"code": str(error.code or "invalid-argument"), "error": error.message}


def _make_call_id(digest: str, name: str, index: int) -> str:
    del name
    return f"call-{digest[:8]}-{index}"


XAI = ServerDialect(
    name="xai",
    title="xAI",
    default_model="grok-4.7",
    rules=(
        ServerRule(
            "xai.penalties",
            _check_penalties,
            "docs.x.ai/docs/guides/reasoning; NativeTavern#83, 2026-09-15 (also for 0)",
        ),
        ServerRule(
            "xai.tool-count",
            _check_tool_count,
            "router-for-me/CLIProxyAPI#5214, 2026-08; the wording is not known, and another route takes more"
            " (github/copilot-cli#4836, 2026-09)",
        ),
        ServerRule(
            "xai.effort",
            _check_effort,
            "@ai-sdk/xai 3.0.138 docs/01-xai.mdx; charmbracelet/crush#386; opencode-oci-provider 0.2.3. The wording for"
            " a level is not known",
        ),
    ),
    # Up to 200 tools; the row above counts them.
    missing_rules=OPENAI_MODEL_RULES | {"openai-chat.tools", "openai-chat.unknown-part"},
    encode_error=_encode_error,
    # Wei-Shaw/sub2api#4535, 2026-07-18: content of another account, or changed.
    reworded_codes={
        "invalid_encrypted_content": (
            "Could not decrypt the provided encrypted_content. Ensure the value is the unmodified encrypted_content"
            " from a previous response."
        )
    },
    overflow="xai-budget",
    answers=AnswerForm(is_xai_thinking, make_call_id=_make_call_id),
)
