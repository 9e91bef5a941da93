"""Anthropic Messages: its ``ApiSpec``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.messages.parts import Thinking
from holdfast.providers.anthropic import messages, models, options
from holdfast.providers.anthropic.cache_control import BREAKPOINTS
from holdfast.providers.anthropic.compaction import COMPACTION
from holdfast.providers.anthropic.container import CONTAINERS
from holdfast.providers.anthropic.errors import ERROR_FORMAT
from holdfast.providers.anthropic.tool_schemas import TOOL_SCHEMAS
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
    BUILT_IN_CALL_KIND,
    CALL_KIND,
    DOCUMENT_KIND,
    MESSAGE_KIND,
    PICTURE_KIND,
    RESULT_KIND,
    TEXT_KIND,
    THINKING_KIND,
    TOOL_KIND,
)

_OPTIONS = OptionFormat(
    options.read_options,
    options.write_options,
    options.SHARED_FORM,
    options.is_own_tool_choice,
    stream_fields={"stream": True},
    requires_max_tokens=True,
    find_model_changes=options.find_model_changes,
)
_ENDPOINTS = Endpoints(
    provider="anthropic",
    generate="/v1/messages",
    count="/v1/messages/count_tokens",
    default_headers={"anthropic-version": "2023-06-01"},
    captured_path=r"/v1/messages",
    relayed_path=r"(?:/v1)?/(?:messages|complete)(?:/|\Z)",
    # Claude on Vertex AI: the body is that of the Messages API without its model (platform.claude.com/docs, Claude on
    # Vertex AI, 2026-07). A token count names no model there. Bedrock signs the body, so it is only relayed.
    cloud_path=r"/publishers/anthropic/models/(?!count-tokens)(?P<model>[^/:%]+(?:%40[^/:%]+)?)(?::|%3[aA])"
    r"(?:rawPredict|streamRawPredict)",
    client_headers=frozenset({"x-api-key", "anthropic-version"}),
    client_programs=("claude", "anthropic"),
)
_SIGNS = BodySigns(
    typical_fields=frozenset(
        {"system", "anthropic_version", "anthropic_beta", "thinking", "stop_sequences", "context_management",
         "compaction", "output_config", "mcp_servers", "container", "betas"}
    ),
    # Of the fields above, gateways pass ``thinking`` and others on to Chat servers.
    borrowed_fields=frozenset({"thinking"}),
    exclusive_fields=frozenset({"system", "anthropic_version"}),
    tool_fields=("input_schema",),
    block_types=frozenset(
        {"tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document", "compaction"}
    ),
    block_type_ends=("_tool_use", "_tool_result"),
    certain_block_types=frozenset({"tool_use"}),
    model_name="claude",
    listed=ListSigns(
        block_types=frozenset({"tool_use", "tool_result", "server_tool_use"}),
        sourced_block_types=frozenset({"image"}),
        likely_block_types=frozenset({"thinking", "redacted_thinking", "document"}),
        has_breakpoints=True,
    ),
)  # fmt: skip
_SHAPE = MessageShape(
    roles=("user", "assistant", "system"),
    foreign_call_types=frozenset({"function_call", "function_call_output", "tool_call"}),
)


def _is_own_tool(tool: Mapping[str, Any]) -> bool:
    """Return whether a function is declared with an ``input_schema``, and not in one of Gemini's groups."""
    for key in ("functionDeclarations", "function_declarations"):
        if isinstance(tool.get(key), list):
            return False
    return tool.get("type") in (None, "custom") and isinstance(tool.get("input_schema"), Mapping)


_BLOCKS = BlockForms(
    parsed_kinds=("text", "thinking", "redacted_thinking", "tool_use", "tool_result", "image", "document"),
    telling_kinds=("thinking", "redacted_thinking", "tool_use", "tool_result", "image", "document"),
    more_refused_kinds=("message.",),  # fields of Chat messages: extra fields on a message are refused here
    kinds_by_type={
        "tool_use": CALL_KIND,
        "tool_result": RESULT_KIND,
        "redacted_thinking": THINKING_KIND,
        "search_result": TEXT_KIND,
        "tool_addition": BUILT_IN_CALL_KIND,
        "tool_removal": BUILT_IN_CALL_KIND,
    },
    kinds_by_type_and_field={
        ("image", "source"): PICTURE_KIND,
        ("document", "source"): DOCUMENT_KIND,
        ("thinking", "signature"): THINKING_KIND,
    },
    built_in_type_ends=("_tool_use", "_tool_result"),
    compaction_field="content",
    writes_block_types=("text",),
    own_forms={
        MESSAGE_KIND: "what it says as content",
        PICTURE_KIND: "an image block",
        DOCUMENT_KIND: "a document block",
        CALL_KIND: "a tool_use block of the assistant's",
        RESULT_KIND: "a tool_result block of the user's",
        TOOL_KIND: "an object with a name and an input_schema",
    },
    is_own_tool=_is_own_tool,
)

ANTHROPIC_SPEC = ApiSpec(
    messages.API_NAME,
    "Anthropic Messages",
    "messages",
    messages.decode_message,
    messages.encode_message,
    setup_fields=("tools", "system"),
    # From the page on prompt caching: another value of these invalidates the messages, but not tools and system.
    cache_option_fields=("tool_choice", "thinking", "output_config"),
    max_tokens_paths=(("max_tokens",),),
    build_dialect=models.build_dialect,
    answers_module="holdfast.providers.anthropic.response",
    options=_OPTIONS,
    rules_module="holdfast.providers.anthropic.rules",
    errors=ERROR_FORMAT,
    endpoints=_ENDPOINTS,
    signs=_SIGNS,
    shape=_SHAPE,
    blocks=_BLOCKS,
    relax_dialect=models.relax_dialect,
    system_fields=("system",),
    compaction=COMPACTION,
    signed_part_types=(Thinking,),
    breakpoints=BREAKPOINTS,
    containers=CONTAINERS,
    tool_schemas=TOOL_SCHEMAS,
)
