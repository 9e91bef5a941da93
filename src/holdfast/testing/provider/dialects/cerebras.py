"""Cerebras (``https://api.cerebras.ai/v1``): its errors have no key ``error``."""

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
from holdfast.testing.provider.dialects.server_request import ServerRequest, iter_schema_nodes

_UNSUPPORTED_FIELDS = ("reasoning", "enable_thinking")
_EFFORTS = ("low", "medium", "high")


def _refuse_property(path: str) -> ServerError:
    return ServerError(f"{path}: property '{path}' is unsupported", code="wrong_api_format", param="validation_error")


def _check_message_fields(request: ServerRequest) -> ServerErrors:
    """A message has no reasoning_content; the field is called reasoning."""
    for index, message in request.messages:
        if "reasoning_content" in message:
            yield _refuse_property(f"messages.{index}.{message.get('role')}.reasoning_content")


def _check_call_roles(request: ServerRequest) -> ServerErrors:
    """A system or user message has no tool_calls and no tool_call_id, not even null."""
    for index, message in request.messages:
        for name in ("tool_calls", "tool_call_id"):
            if message.get("role") in ("system", "user") and name in message:
                yield _refuse_property(f"messages.{index}.{message.get('role')}.{name}")


def _check_top_fields(request: ServerRequest) -> ServerErrors:
    """The body has no reasoning and no enable_thinking."""
    for name in _UNSUPPORTED_FIELDS:
        if name in request.body:
            yield _refuse_property(f"body.{name}")


def _check_effort(request: ServerRequest) -> ServerErrors:
    """reasoning_effort of gpt-oss is low, medium or high."""
    effort = request.body.get("reasoning_effort")
    if effort is not None and request.is_model("gpt-oss") and effort not in _EFFORTS:
        text = "body.reasoning_effort: Input should be 'low', 'medium' or 'high'"
        yield ServerError(text, code="wrong_api_format", param="validation_error")


def _check_strict_schema(request: ServerRequest) -> ServerErrors:
    """The schema of a strict response_format closes its objects, requires all properties and has no minItems."""
    if request.get_option("response_format", "json_schema", "strict") is not True:
        return
    schema = request.get_option("response_format", "json_schema", "schema")
    for _, node in iter_schema_nodes(schema):
        if not isinstance(node, dict):
            continue
        refused = sorted({"minItems", "maxItems"} & node.keys())
        if refused:
            yield _refuse_schema(f"Unsupported JSON schema fields: {set(refused)}")
        if isinstance(node.get("type"), list):
            yield _refuse_schema("Unsupported JSON schema fields: {'type'}")
        properties = node.get("properties")
        if not isinstance(properties, dict):
            continue
        if node.get("additionalProperties") is not False:
            yield _refuse_schema("'additionalProperties' is required to be supplied and set to false.")
        required = node.get("required")
        if not isinstance(required, list) or any(name not in required for name in properties):
            yield _refuse_schema("'required' must name all properties.")


def _refuse_schema(text: str) -> ServerError:
    return ServerError(text, 422, code="wrong_api_format", param="response_format")


def _encode_error(error: ServerError) -> dict[str, Any]:
    kind = error.kind or "invalid_request_error"
    return {"message": error.message, "type": kind, "param": error.param, "code": error.code}


def _is_thinking(request: ServerRequest) -> bool:
    return request.is_model("gpt-oss", "qwen", "glm") and request.body.get("disable_reasoning") is not True


def _send_reasoning(request: ServerRequest) -> ReasoningForm:
    del request
    return "reasoning"


CEREBRAS = ServerDialect(
    name="cerebras",
    title="Cerebras",
    default_model="gpt-oss-120b",
    rules=(
        ServerRule(
            "cerebras.message-fields",
            _check_message_fields,
            "Kilo-Org/kilocode#10375, 2026-05; QwenLM/qwen-code#11045, 2026-09-04; chatwise#1442",
        ),
        ServerRule("cerebras.call-roles", _check_call_roles, "draftnrun#710, 2026-05"),
        ServerRule(
            "cerebras.top-fields",
            _check_top_fields,
            "router-for-me/CLIProxyAPI discussion 1144; OpenMinis#361, 2026-09",
        ),
        ServerRule("cerebras.effort", _check_effort, "router-for-me/CLIProxyAPI discussion 1144"),
        ServerRule(
            "cerebras.strict-schema",
            _check_strict_schema,
            "inference-docs.cerebras.ai/capabilities/structured-outputs; agno-agi/agno#6013, 2026-01-14;"
            " musistudio/claude-code-router#708, 2025-08-26. The wordings for type and required are not known",
        ),
    ),
    missing_rules=OPENAI_MODEL_RULES | {"openai-chat.unknown-part"},
    encode_error=_encode_error,
    overflow="cerebras",
    answers=AnswerForm(_is_thinking, _send_reasoning),
)
