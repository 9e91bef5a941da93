"""Gemini generateContent: its ``ApiSpec``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.messages.parts import Opaque, Text, Thinking, ToolCall
from holdfast.providers.api_spec import (
    ApiSpec,
    BlockForms,
    BodySigns,
    Endpoints,
    ListSigns,
    MessageShape,
    OptionFormat,
)
from holdfast.providers.common.content_kinds import (
    CALL_KIND,
    DOCUMENT_KIND,
    MESSAGE_KIND,
    PICTURE_KIND,
    RESULT_KIND,
    SOUND_KIND,
    TOOL_KIND,
)
from holdfast.providers.gemini import messages, models, options
from holdfast.providers.gemini.errors import ERROR_FORMAT
from holdfast.providers.gemini.model_changes import find_model_changes
from holdfast.providers.gemini.tool_schemas import TOOL_SCHEMAS

_OPTIONS = OptionFormat(
    options.read_options,
    options.write_options,
    options.SHARED_FORM,
    options.is_own_tool_choice,
    tool_choice_fields=("toolConfig", "tool_config"),
    stored_history_fields=("cachedContent", "cached_content"),
    find_model_changes=find_model_changes,
)
_ENDPOINTS = Endpoints(
    provider="gemini",
    generate="/v1beta/models/{model}:generateContent",
    operation="generate_content",
    stream="/v1beta/models/{model}:streamGenerateContent?alt=sse",
    count="/v1beta/models/{model}:countTokens",
    sdk_base="/v1beta/models/",
    count_wrapper_field="generateContentRequest",
    captured_path=r"models/([^/:]+):\w+",
    # ``projects/`` is Vertex, another host. The Interactions API also has the version that others call their own.
    relayed_path=r"(?:/upload)?/v1(?:alpha|beta)/(?!projects/)|/v1/interactions(?:/|\Z)",
    client_headers=frozenset({"x-goog-api-key"}),
)
_SIGNS = BodySigns(
    lone_fields=frozenset({"systemInstruction", "system_instruction", "generationConfig", "safetySettings"}),
    listed=ListSigns(has_parts=True),
)
_SHAPE = MessageShape(
    roles=("user", "model", ""),
    assistant_role="model",
    content_field="parts",
    text_types=("", ""),
    foreign_call_types=frozenset({"tool_use", "tool_result"}),
)


def _is_own_tool(tool: Mapping[str, Any]) -> bool:
    """Return whether functions are declared in a list of declarations."""
    return any(isinstance(tool.get(key), list) for key in ("functionDeclarations", "function_declarations"))


_BLOCKS = BlockForms(
    parsed_kinds=("inlineData", "fileData", "functionCall", "functionResponse"),
    telling_kinds=("inlineData", "fileData", "functionCall", "functionResponse"),
    more_refused_kinds=("message.",),
    kinds_by_field={
        "functionCall": CALL_KIND,
        "function_call": CALL_KIND,
        "functionResponse": RESULT_KIND,
        "function_response": RESULT_KIND,
        "inlineData": DOCUMENT_KIND,
        "inline_data": DOCUMENT_KIND,
        "fileData": DOCUMENT_KIND,
        "file_data": DOCUMENT_KIND,
    },
    takes_any_role=True,
    own_forms={
        MESSAGE_KIND: "what it says as parts",
        PICTURE_KIND: "a part with inlineData",
        DOCUMENT_KIND: "a part with inlineData",
        SOUND_KIND: "a part with inlineData",
        CALL_KIND: "a part with functionCall",
        RESULT_KIND: "a part with functionResponse",
        TOOL_KIND: "an element of functionDeclarations",
    },
    is_own_tool=_is_own_tool,
)

GEMINI_SPEC = ApiSpec(
    messages.API_NAME,
    "Gemini generateContent",
    "contents",
    messages.decode_message,
    messages.encode_message,
    setup_fields=("tools", "systemInstruction", "system_instruction"),
    # Every combination of spellings occurs.
    max_tokens_paths=(
        ("generationConfig", "maxOutputTokens"),
        ("generationConfig", "max_output_tokens"),
        ("generation_config", "max_output_tokens"),
        ("generation_config", "maxOutputTokens"),
    ),
    build_dialect=models.build_dialect,
    answers_module="holdfast.providers.gemini.response",
    options=_OPTIONS,
    rules_module="holdfast.providers.gemini.rules",
    errors=ERROR_FORMAT,
    endpoints=_ENDPOINTS,
    signs=_SIGNS,
    shape=_SHAPE,
    blocks=_BLOCKS,
    relax_dialect=models.relax_dialect,
    system_fields=("systemInstruction", "system_instruction"),
    link_results=messages.link_results_to_calls,
    signed_part_types=(Thinking, Text, ToolCall, Opaque),  # any part may carry a thought signature
    element_name="the content",
    has_model_field=False,
    tool_schemas=TOOL_SCHEMAS,
)
