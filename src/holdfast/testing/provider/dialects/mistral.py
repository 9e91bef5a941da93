"""Mistral (``https://api.mistral.ai/v1``): pydantic refuses unknown fields, the template refuses orders and ids."""

from __future__ import annotations

import re
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
from holdfast.testing.provider.dialects.server_request import ServerRequest, list_calls

_ORDER, _ORDER_CODE = "invalid_request_message_order", "3230"
_CALL_ID = re.compile(r"[a-zA-Z0-9]{9}\Z")
_SCHEMA = "mistralai/client-python src/mistralai/client/models, generated from the API's schema, 2026-06-30"
_TOP_FIELDS = frozenset(
    {"model", "messages", "temperature", "top_p", "max_tokens", "stream", "stop", "random_seed", "metadata",
     "response_format", "tools", "tool_choice", "presence_penalty", "frequency_penalty", "n", "prediction",
     "parallel_tool_calls", "reasoning_effort", "prompt_mode", "guardrails", "prompt_cache_key", "safe_prompt"}
)  # fmt: skip
_MESSAGE_FIELDS = {
    "system": frozenset({"role", "content"}),
    "user": frozenset({"role", "content"}),
    "assistant": frozenset({"role", "content", "tool_calls", "prefix"}),
    "tool": frozenset({"role", "content", "tool_call_id", "name"}),
}
"""The fields of a message by its role."""
_EFFORTS = {
    "mistral-small-latest": ("none", "high"),
    "mistral-small-2603": ("none", "high"),
    "mistral-medium-3-5": ("none", "high"),
    "mistral-medium-3.5": ("none", "high"),
    "mistral-medium-2604": ("none", "high"),
    "zai-glm-5-3": ("low", "high", "max"),
}
"""Reasoning efforts by a piece of the model's name; for other models, older Small among them, they are not known."""


# -- schema ------------------------------------------------------------------------------------------------------------


def _refuse_extra_field(steps: list[str | int], value: object) -> ServerError:
    finding = {"type": "extra_forbidden", "loc": ["body", *steps], "msg": "Extra inputs are not permitted"}
    return ServerError("Extra inputs are not permitted", 422, 3001, details={"detail": [finding | {"input": value}]})


def _check_top_fields(request: ServerRequest) -> ServerErrors:
    """The body has only fields of Mistral's schema: no seed, max_completion_tokens, logprobs, store or user."""
    for name, value in request.body.items():
        if name not in _TOP_FIELDS:
            yield _refuse_extra_field([name], value)


def _check_message_fields(request: ServerRequest) -> ServerErrors:
    """A message has only the fields of its role: no reasoning_content, and no name or tool_calls on a user message."""
    for index, message in request.messages:
        role = str(message.get("role"))
        for name, value in message.items():
            if role in _MESSAGE_FIELDS and name not in _MESSAGE_FIELDS[role]:
                yield _refuse_extra_field(["messages", index, role, name], value)


# -- order and ids -----------------------------------------------------------------------------------------------------


def _check_order(request: ServerRequest) -> ServerErrors:
    """A user message does not follow a tool message, and a tool message follows calls or another tool message."""
    previous_role = ""
    for _, message in request.messages:
        role = str(message.get("role"))
        is_user_after_tool = role == "user" and previous_role == "tool"
        is_tool_alone = role == "tool" and previous_role in ("user", "system")
        if is_user_after_tool or is_tool_alone:
            text = f"Unexpected role '{role}' after role '{previous_role}'"
            yield ServerError(text, kind=_ORDER, code=_ORDER_CODE)
        previous_role = role


def _check_last_role(request: ServerRequest) -> ServerErrors:
    """The last message is of the user or a tool, or one of the assistant with prefix: true."""
    if not request.messages:
        return
    message = request.messages[-1][1]
    role = message.get("role")
    if role in ("system", "assistant") and message.get("prefix") is not True:
        text = f"Expected last role User or Tool (or Assistant with prefix True) for serving but got {role}"
        yield ServerError(text, kind=_ORDER, code=_ORDER_CODE)


def _check_call_ids(request: ServerRequest) -> ServerErrors:
    """The id of a call has exactly nine letters and digits."""
    ids: list[object] = []
    for _, message in request.messages:
        ids += [call.get("id") for _, call in list_calls(message)]
        if message.get("role") == "tool":
            ids.append(message.get("tool_call_id"))
    for id_ in ids:
        if not (isinstance(id_, str) and _CALL_ID.match(id_)):
            text = f"Tool call id was {id_} but must be a-z, A-Z, 0-9, with a length of 9."
            yield ServerError(text, kind="invalid_function_call", code="3280")


def _check_call_count(request: ServerRequest) -> ServerErrors:
    """After a message with calls there are as many tool messages as calls."""
    waiting_results = 0
    for _, message in request.messages:
        if message.get("role") == "tool":
            waiting_results -= 1
            continue
        if waiting_results:
            break
        waiting_results = len(list_calls(message))
    if waiting_results:
        text = "Not the same number of function calls and responses"
        yield ServerError(text, kind=_ORDER, code=_ORDER_CODE)


# -- options -----------------------------------------------------------------------------------------------------------


def _check_effort(request: ServerRequest) -> ServerErrors:
    """reasoning_effort is a level of the model: none and high for Small and Medium 3.5."""
    effort = request.body.get("reasoning_effort")
    if effort is None:
        return
    for name, efforts in _EFFORTS.items():
        if name in request.model and effort not in efforts:
            text = f"reasoning_effort '{effort}' is not supported by this model, supported values: {list(efforts)}"
            yield ServerError(text, kind="invalid_request_invalid_args", code="3051")


def _encode_error(error: ServerError) -> dict[str, Any]:
    """Encode an error flat, with the status in it; findings of the schema are a list under ``detail``."""
    if "detail" in error.details:
        detail = error.details["detail"]
        return {
            "object": "Error",
            "message": {"detail": detail},
            "detail": detail,
            "type": "invalid_request_error",
            "param": None,
            "code": error.code,
            "raw_status_code": error.status,
        }
    return {
        "object": "error",
        "message": error.message,
        "type": error.kind or "invalid_request_error",
        "param": error.param,
        "code": error.code,
        "raw_status_code": error.status,
    }


def _is_thinking(request: ServerRequest) -> bool:
    if request.is_model("magistral"):
        return True
    return request.body.get("reasoning_effort") not in (None, "none")


def _send_chunks(request: ServerRequest) -> ReasoningForm:
    del request
    return "thinking-chunks"


def _make_call_id(digest: str, name: str, index: int) -> str:
    del name, index
    return digest[:9]


MISTRAL = ServerDialect(
    name="mistral",
    title="Mistral",
    default_model="mistral-medium-3-5",
    rules=(
        ServerRule(
            "mistral.top-fields",
            _check_top_fields,
            f"{_SCHEMA}; stream_options refused: dnakov/anon-kode#53, 2025-03",
        ),
        ServerRule(
            "mistral.message-fields",
            _check_message_fields,
            "BerriAI/litellm#30835, 2026-06-19; BerriAI/litellm#30882, 2026-06-20; partITech/php-mistral#76,"
            " 2025-11-13",
        ),
        ServerRule(
            "mistral.order",
            _check_order,
            "avante-corp/avante.nvim#2695, 2025-09-07; NousResearch/hermes-agent#84944, 2026-08-13;"
            " charmbracelet/crush#279. Not reproduced on one model: aaif-goose/goose#5998, 2026-05-02",
        ),
        ServerRule("mistral.call-count", _check_call_count, "NousResearch/hermes-agent#11722"),
        ServerRule("mistral.last-role", _check_last_role, "NEKOparapa/AiNiee#641, 2025-06-03"),
        ServerRule(
            "mistral.call-ids",
            _check_call_ids,
            "nearai/ironclaw#1241, 2026-03-16; editor-code-assistant/eca#233, 2025-12-13",
        ),
        ServerRule(
            "mistral.effort",
            _check_effort,
            "docs.mistral.ai/capabilities/reasoning/adjustable; anomalyco/models.dev#7334, 2026-09-17 (measured)",
        ),
    ),
    missing_rules=OPENAI_MODEL_RULES
    | {"openai-chat.parts", "openai-chat.unknown-part", "openai-chat.part-fields", "openai-chat.stop"},
    encode_error=_encode_error,
    overflow="mistral",
    # docs.mistral.ai/resources/known-limitations: input and output count together.
    counts_output=True,
    answers=AnswerForm(_is_thinking, _send_chunks, _make_call_id),
)
