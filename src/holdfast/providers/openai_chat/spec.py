"""OpenAI Chat Completions, and the servers that speak it: its ``ApiSpec``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.messages.parts import Media
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
    TOOL_KIND,
)
from holdfast.providers.common.openai.model_changes import describe_unfit_tools, find_chat_model_changes
from holdfast.providers.common.openai.paths import OPENAI_PATH
from holdfast.providers.common.openai.tool_schemas import CHAT_TOOL_SCHEMAS
from holdfast.providers.openai_chat import messages, models, options
from holdfast.providers.openai_chat.errors import ERROR_FORMAT

_OPTIONS = OptionFormat(
    options.read_options,
    options.write_options,
    options.SHARED_FORM,
    options.is_own_tool_choice,
    stream_fields={"stream": True, "stream_options": {"include_usage": True}},
    find_model_changes=find_chat_model_changes,
    describe_unfit_options=describe_unfit_tools,
)
_ENDPOINTS = Endpoints(
    provider="openai",
    generate="/v1/chat/completions",
    sdk_base="/v1",
    captured_path=r"/chat/completions",
    relayed_path=OPENAI_PATH,
)
_SIGNS = BodySigns(
    typical_fields=frozenset(
        {"max_completion_tokens", "stream_options", "frequency_penalty", "presence_penalty", "response_format",
         "functions", "function_call", "logprobs", "top_logprobs", "logit_bias", "n", "seed", "stop",
         "parallel_tool_calls", "reasoning_effort", "store", "user", "modalities", "prediction", "web_search_options"}
    ),
    borrowed_fields=frozenset({"stop", "user", "n", "seed", "reasoning_effort", "store"}),
    # Gateways to the Messages API pass most of the fields above on.
    exclusive_fields=frozenset({"max_completion_tokens", "stream_options", "functions", "function_call"}),
    tool_fields=("function",),
    tool_types=(b'"function"',),
    roles=frozenset({"tool", "developer", "function"}),
    certain_roles=frozenset({"tool"}),  # the other two are also written by mistake
    has_tool_calls=True,
    message_fields=("name", "refusal", "reasoning_content", "function_call", "audio"),
    text_fields=frozenset({"tool_choice"}),
    block_types=frozenset({"image_url", "input_audio", "file", "refusal"}),
    starts_with_system=True,
    listed=ListSigns(
        roles=frozenset({"tool", "function"}),
        has_tool_calls=True,
        block_types=frozenset({"image_url", "input_audio", "file"}),
    ),
)  # fmt: skip


def _can_show_media(part: Media) -> bool:
    return messages.build_media_part(part) is not None


_SHAPE = MessageShape(
    roles=("user", "assistant", "system", "developer", "tool", "function"),
    foreign_call_types=frozenset({"tool_use", "tool_result", "function_call", "function_call_output"}),
    results_hold_media=False,
    can_show_media=_can_show_media,
    has_error_flag=False,
    image_url_is_object=True,
)


def _is_own_tool(tool: Mapping[str, Any]) -> bool:
    """Return whether a function is declared in an object ``function``."""
    return tool.get("type") == "function" and isinstance(tool.get("function"), Mapping)


_BLOCKS = BlockForms(
    parsed_kinds=("text", "image_url", "input_audio", "file", "tool_call", "function"),
    telling_kinds=("image_url", "input_audio", "file", "refusal", "function", "tool_call"),
    kinds_by_type={"image_url": PICTURE_KIND, "input_audio": SOUND_KIND},
    later_kinds_by_type={"refusal": REFUSAL_KIND},
    kinds_by_type_and_field={("file", "file"): DOCUMENT_KIND},
    call_fields={"tool_calls": list, "function_call": Mapping},
    result_roles=("tool", "function"),
    own_message_fields=frozenset(
        {"tool_calls", "tool_call_id", "function_call", "reasoning_content", "refusal", "audio"}
    ),
    own_roles=("tool", "function", "developer"),
    writes_block_types=("text", "refusal", "function", "custom"),
    own_forms={
        MESSAGE_KIND: "what it says as content",
        PICTURE_KIND: "an image_url part of the user's",
        DOCUMENT_KIND: "a file part of the user's",
        CALL_KIND: "an element of tool_calls",
        RESULT_KIND: "a message of the role tool",
        TOOL_KIND: "an object of the type function with its name in an object of that name",
    },
    is_own_tool=_is_own_tool,
)

OPENAI_CHAT_SPEC = ApiSpec(
    messages.API_NAME,
    "OpenAI Chat Completions",
    "messages",
    messages.decode_message,
    messages.encode_message,
    setup_fields=("tools", "functions", "response_format"),
    cache_option_fields=("prompt_cache_key",),
    # OpenAI's reasoning models refuse the older ``max_tokens``, so it is only kept where a body has it.
    max_tokens_paths=(("max_completion_tokens",), ("max_tokens",)),
    build_dialect=models.build_dialect,
    answers_module="holdfast.providers.openai_chat.response",
    options=_OPTIONS,
    rules_module="holdfast.providers.openai_chat.rules",
    errors=ERROR_FORMAT,
    endpoints=_ENDPOINTS,
    signs=_SIGNS,
    shape=_SHAPE,
    blocks=_BLOCKS,
    relax_dialect=models.relax_dialect,
    tool_schemas=CHAT_TOOL_SCHEMAS,
)
