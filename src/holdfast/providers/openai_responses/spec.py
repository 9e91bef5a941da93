"""OpenAI Responses: its ``ApiSpec``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.messages.parts import Thinking
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
    REFUSAL_KIND,
    RESULT_KIND,
    SOUND_KIND,
    TEXT_KIND,
    THINKING_KIND,
    TOOL_KIND,
)
from holdfast.providers.common.openai.model_changes import find_responses_model_changes
from holdfast.providers.common.openai.paths import OPENAI_PATH
from holdfast.providers.common.openai.tool_schemas import RESPONSES_TOOL_SCHEMAS
from holdfast.providers.openai_responses import messages, models, options
from holdfast.providers.openai_responses.compaction import COMPACTION
from holdfast.providers.openai_responses.errors import ERROR_FORMAT

_OPTIONS = OptionFormat(
    options.read_options,
    options.write_options,
    options.SHARED_FORM,
    options.is_own_tool_choice,
    stream_fields={"stream": True},
    instructions_field="instructions",
    stored_history_fields=("previous_response_id", "conversation"),
    stored_prompt_fields=("prompt",),
    reference_item_types=("item_reference",),
    find_model_changes=find_responses_model_changes,
)
_ENDPOINTS = Endpoints(
    provider="openai",
    generate="/v1/responses",
    count="/v1/responses/input_tokens",
    compact="/v1/responses/compact",
    sdk_base="/v1",
    offers_websocket=True,
    captured_path=r"/responses",
    # All of OpenAI's paths are listed under Chat; these two belong to this API.
    relayed_path=rf"(?={OPENAI_PATH}).*/(?:responses|conversations)(?:/|\Z)",
)
_SIGNS = BodySigns(
    lone_fields=frozenset({"previous_response_id", "instructions", "conversation", "max_output_tokens"}),
    other_call_fields=frozenset({"voice", "dimensions", "encoding_format", "assistant_id", "thread"}),
    listed=ListSigns(
        block_types=frozenset({"input_text", "output_text", "input_image", "input_file"}),
        item_types=frozenset({"reasoning", "compaction", "item_reference", "mcp_list_tools", "mcp_approval_request"}),
        item_type_ends=("_call", "_call_output", "_approval_response"),
        likely_message_types=frozenset({"message"}),
    ),
)
"""``other_call_fields`` exclude requests for speech, embeddings and assistants, which have an ``input`` or
``instructions`` too."""
_SHAPE = MessageShape(
    roles=("user", "assistant", "system", "developer"),
    text_types=("input_text", "output_text"),
    foreign_call_types=frozenset({"tool_use", "tool_result", "function_call", "function_call_output"}),
    has_error_flag=False,
)


def _is_own_tool(tool: Mapping[str, Any]) -> bool:
    """Return whether a function is declared with its name beside its type."""
    if tool.get("type") != "function" or isinstance(tool.get("function"), Mapping):
        return False
    return isinstance(tool.get("name"), str)


_BLOCKS = BlockForms(
    parsed_kinds=(
        "message", "function_call", "custom_tool_call", "function_call_output", "custom_tool_call_output", "reasoning",
        "input_text", "output_text", "input_image", "input_file",
    ),
    telling_kinds=(
        "function_call", "function_call_output", "reasoning", "input_text", "output_text", "input_image", "input_file",
    ),
    more_refused_kinds=("message.", "text", "tool", "content."),
    kinds_by_type={
        "input_audio": SOUND_KIND,
        "refusal": REFUSAL_KIND,
        "input_image": PICTURE_KIND,
        "input_file": DOCUMENT_KIND,
        "function_call": CALL_KIND,
        "custom_tool_call": CALL_KIND,
        "function_call_output": RESULT_KIND,
        "custom_tool_call_output": RESULT_KIND,
        "reasoning": THINKING_KIND,
        "input_text": TEXT_KIND,
        "output_text": TEXT_KIND,
        "message": TEXT_KIND,
    },
    built_in_type_ends=(
        "_call_output", "_search_call", "_interpreter_call", "_generation_call", "mcp_call", "shell_call", "patch_call",
        "computer_call",
    ),
    compaction_field="encrypted_content",
    own_roles=("developer",),
    own_forms={
        MESSAGE_KIND: "what it says as content",
        PICTURE_KIND: "an input_image part",
        DOCUMENT_KIND: "an input_file part",
        CALL_KIND: "an item of the type function_call",
        RESULT_KIND: "an item of the type function_call_output",
        TOOL_KIND: "an object of the type function with its name beside that",
    },
    is_own_tool=_is_own_tool,
)  # fmt: skip

OPENAI_RESPONSES_SPEC = ApiSpec(
    messages.API_NAME,
    "OpenAI Responses",
    "input",
    messages.decode_message,
    messages.encode_message,
    setup_fields=("tools", "text", "instructions"),  # ``text`` holds the schema of the answer
    cache_option_fields=("prompt_cache_key",),
    max_tokens_paths=(("max_output_tokens",),),
    build_dialect=models.build_dialect,
    answers_module="holdfast.providers.openai_responses.response",
    options=_OPTIONS,
    rules_module="holdfast.providers.openai_responses.rules",
    errors=ERROR_FORMAT,
    endpoints=_ENDPOINTS,
    signs=_SIGNS,
    shape=_SHAPE,
    blocks=_BLOCKS,
    group_items=messages.group_items_by_message,
    to_list_bytes=messages.strip_list_brackets,
    adapt_outputs=messages.adapt_outputs_to_calls,
    compaction=COMPACTION,
    signed_part_types=(Thinking,),
    sealed_history_kinds=frozenset({"compaction", "compaction_summary"}),
    accepts_plain_text=True,
    tool_schemas=RESPONSES_TOOL_SCHEMAS,
)
