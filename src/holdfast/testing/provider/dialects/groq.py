"""Groq (``https://api.groq.com/openai/v1``): fields that it does not know are refused, also in messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.testing.provider.dialects.openai_only import OPENAI_MODEL_RULES
from holdfast.testing.provider.dialects.server_dialect import (
    AnswerForm,
    ReasoningForm,
    ServedModel,
    ServerDialect,
    ServerError,
    ServerErrors,
    ServerRule,
)
from holdfast.testing.provider.dialects.server_request import ServerRequest, iter_schema_nodes

_UNSUPPORTED_FIELDS = ("store", "logprobs", "top_logprobs", "logit_bias", "reasoning", "thinking", "enable_thinking")
"""Top-level fields: the first four by its page and by reports, the others as fields that it does not know."""
_MAX_TOOLS = 128
_EFFORTS = {"qwen": ("none", "default"), "gpt-oss": ("low", "medium", "high")}
_UNSUPPORTED_KEYWORDS = ("minItems", "maxItems")


def is_groq_thinking(request: ServerRequest) -> bool:
    """Return whether the model thinks and its reasoning is not hidden."""
    is_reasoning_model = request.is_model("gpt-oss", "qwen")
    is_shown = request.body.get("reasoning_format") != "hidden" and request.body.get("include_reasoning") is not False
    return is_reasoning_model and is_shown and request.body.get("reasoning_effort") != "none"


def _check_top_fields(request: ServerRequest) -> ServerErrors:
    """The body has no store, logprobs, logit_bias or fields that Groq does not know, and n is 1."""
    for name in _UNSUPPORTED_FIELDS:
        if request.body.get(name) not in (None, False):
            yield ServerError(f"property '{name}' is unsupported")
    if request.body.get("n") not in (None, 1):
        yield ServerError("'n' : number must be at most 1")


def _check_message_fields(request: ServerRequest) -> ServerErrors:
    """A message has no name, no reasoning_content, and no function_call that is null; a function result has a name."""
    for index, message in request.messages:
        role = message.get("role")
        for name in ("reasoning_content", "name"):
            if name in message and role not in ("tool", "function"):
                yield _refuse_property(index, role, name)
        if role == "assistant" and "function_call" in message and message["function_call"] is None:
            yield _refuse_property(index, role, "function_call")


def _refuse_property(index: int, role: object, name: str) -> ServerError:
    place = f"'messages.{index}'"
    problem = f"{place} : property '{name}' is unsupported"
    return ServerError(f"{place} : for 'role:{role}' the following must be satisfied[({problem})]")


def _check_tool_count(request: ServerRequest) -> ServerErrors:
    """There are at most 128 tools."""
    if len(request.tools) > _MAX_TOOLS:
        yield ServerError(f"'tools' : maximum number of items is {_MAX_TOOLS}")


def _check_reasoning_format(request: ServerRequest) -> ServerErrors:
    """reasoning_format raw goes neither with tools nor with JSON mode."""
    has_json_mode = request.get_option("response_format", "type") in ("json_object", "json_schema")
    if request.body.get("reasoning_format") == "raw" and (request.has_tools or has_json_mode):
        yield ServerError("reasoning_format 'raw' cannot be used with tools or JSON mode")


def _check_effort(request: ServerRequest) -> ServerErrors:
    """reasoning_effort is none or default for Qwen, and low, medium or high for gpt-oss."""
    effort = request.body.get("reasoning_effort")
    for name, efforts in _EFFORTS.items():
        if effort is not None and name in request.model and effort not in efforts:
            known_efforts = ", ".join([f"`{known}`" for known in efforts])
            yield ServerError(f"`reasoning_effort` must be one of {known_efforts}", param="reasoning_effort")


def _check_answer_schema(request: ServerRequest) -> ServerErrors:
    """The schema of response_format has no minItems and no maxItems."""
    schema = request.get_option("response_format", "json_schema", "schema")
    for steps, node in iter_schema_nodes(schema):
        for keyword in _UNSUPPORTED_KEYWORDS:
            if isinstance(node, dict) and keyword in node:
                names = [step for step in steps if step not in ("properties", "items")]
                place = "/".join(["response_format/json_schema", *names])
                yield ServerError(f"invalid schema for response format: {place}: {keyword} is not supported")


def _check_strict_schema(request: ServerRequest) -> ServerErrors:
    """The schema of a strict response_format closes every object and requires all properties."""
    if request.get_option("response_format", "json_schema", "strict") is not True:
        return
    schema = request.get_option("response_format", "json_schema", "schema")
    for steps, node in iter_schema_nodes(schema):
        properties = node.get("properties") if isinstance(node, dict) else None
        if not isinstance(properties, dict):
            continue
        place = "/".join(["response_format/json_schema", *steps])
        if node.get("additionalProperties") is not False:
            problem = "`additionalProperties:false` must be set on every object"
            yield ServerError(f"invalid JSON schema for response_format: {place}: {problem}")
        required = node.get("required")
        if not isinstance(required, list) or any(name not in required for name in properties):
            problem = "`required` must list all properties"
            yield ServerError(f"invalid JSON schema for response_format: {place}: {problem}")


def _encode_error(error: ServerError) -> dict[str, Any]:
    fields: dict[str, Any] = {"message": error.message, "type": error.kind or "invalid_request_error"}
    if error.code:
        fields["code"] = error.code
    if error.param:
        fields["param"] = error.param
    return {"error": fields}


def _send_reasoning(request: ServerRequest) -> ReasoningForm:
    del request
    return "reasoning"


def _list_models(models: Sequence[ServedModel]) -> dict[str, Any]:
    data = []
    for model in models:
        limits = {"context_window": model.window, "max_completion_tokens": model.max_output}
        data.append({"id": model.name, "object": "model", "owned_by": "Groq", "active": True} | limits)
    return {"object": "list", "data": data}


GROQ = ServerDialect(
    name="groq",
    title="Groq",
    default_model="openai/gpt-oss-120b",
    rules=(
        ServerRule(
            "groq.top-fields",
            _check_top_fields,
            "console.groq.com/docs/openai; vellum-ai/vellum-assistant#42635, 2026-09-13 (store). The wording for n is"
            " not known",
        ),
        ServerRule(
            "groq.message-fields",
            _check_message_fields,
            "console.groq.com/docs/openai; groq/groq-python types of chat, 2026; janhq/jan#8136;"
            " freellmapi#1070, 2026-08-30; BerriAI/litellm#5839",
        ),
        ServerRule(
            "groq.tool-count",
            _check_tool_count,
            "groq/groq-python completion_create_params, 2026; gsd-build/gsd-2#4376, 2026-04-17;"
            " codex-router#449, 2026-08-26",
        ),
        ServerRule(
            "groq.reasoning-format",
            _check_reasoning_format,
            "console.groq.com/docs/reasoning; the wording is not known",
        ),
        ServerRule(
            "groq.effort",
            _check_effort,
            "console.groq.com/docs/reasoning; @ai-sdk/groq 3.0.71. The wording is not known",
        ),
        ServerRule(
            "groq.answer-schema",
            _check_answer_schema,
            "i-am-bee/beeai-framework#1215, 2025-10-22; presenton/presenton#165, 2025-09-10",
        ),
        ServerRule(
            "groq.strict-schema",
            _check_strict_schema,
            "console.groq.com/docs/structured-outputs; the wording is not known",
        ),
    ),
    missing_rules=OPENAI_MODEL_RULES | {"openai-chat.tools", "openai-chat.unknown-part"},
    encode_error=_encode_error,
    overflow="groq",
    answers=AnswerForm(is_groq_thinking, _send_reasoning),
    base_paths=("/openai/v1",),
    list_models=_list_models,
)
