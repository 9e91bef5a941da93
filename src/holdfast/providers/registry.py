"""The four APIs side by side: where in a body its messages stand, and who reads and writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Raw, Struct

from holdfast.errors import UnrecognizedContent
from holdfast.messages.message import Message
from holdfast.providers.anthropic import messages as anthropic
from holdfast.providers.common.json.raw_json import JsonBytes
from holdfast.providers.gemini import messages as gemini
from holdfast.providers.openai_chat import messages as openai_chat
from holdfast.providers.openai_responses import messages as openai_responses
from holdfast.state.dialect import Dialect

FieldPath = tuple[str, ...]
"""Where a field stands, from the top of a body."""


MessageGroup = tuple[int, int, Message]
"""Where a message begins in the list, where it ends, and what it says."""


class ApiSpec(Struct, frozen=True):
    """The form of an API's request bodies."""

    api: str
    display_name: str
    """What its provider calls it."""
    messages_field: str
    """The list of messages."""
    decode_message: Callable[[JsonBytes], Message]
    """One element of the list, or one run of them, as a message."""
    encode_message: Callable[[Message, Raw | None], list[bytes]]
    """A message as elements of the list, over what stood there."""
    get_dialect: Callable[[str], Dialect]
    decode_message_dicts: Callable[[Sequence[Any]], list[Message]]
    """A list of messages as callers and SDKs have it, as values."""
    encode_message_dicts: Callable[[Sequence[Message]], list[Any]]
    """Values as such a list."""
    setup_fields: tuple[str, ...]
    """Fields that stand before the messages in the prompt, in the order the provider renders them."""
    max_tokens_paths: tuple[FieldPath, ...]
    """Where the asked output stands; the first is used when a body has none."""
    system_fields: tuple[str, ...] = ()
    """The field of the system prompt and its other spellings, where it is no message."""
    group_items: Callable[[Sequence[Raw]], list[MessageGroup]] | None = None
    """Reads all elements, where neighbours may make one message."""
    to_list_bytes: Callable[[Raw], JsonBytes] | None = None
    """The bytes of a message as they stand between the brackets of the list."""
    link_results: Callable[[Sequence[Message]], list[Message]] | None = None
    """Ties results to calls by their order, where ids are optional."""
    adapt_outputs: Callable[[list[list[JsonBytes]]], list[list[JsonBytes]]] | None = None
    """Fits new elements to each other, where one depends on another."""
    accepts_plain_text: bool = False
    """The list may be a plain string."""
    has_model_field: bool = True
    """The body names its model."""
    supports_cache_control: bool = False
    """Explicit cache breakpoints (``cache_control``) may be set."""


API_SPECS: Mapping[str, ApiSpec] = {
    spec.api: spec
    for spec in (
        ApiSpec(
            anthropic.API_NAME,
            "Anthropic Messages",
            "messages",
            anthropic.decode_message,
            anthropic.encode_message,
            anthropic.dialect,
            anthropic.decode_message_dicts,
            anthropic.encode_message_dicts,
            setup_fields=("tools", "system"),
            max_tokens_paths=(("max_tokens",),),
            system_fields=("system",),
            supports_cache_control=True,
        ),
        ApiSpec(
            openai_chat.API_NAME,
            "OpenAI Chat Completions",
            "messages",
            openai_chat.decode_message,
            openai_chat.encode_message,
            openai_chat.dialect,
            openai_chat.decode_message_dicts,
            openai_chat.encode_message_dicts,
            setup_fields=("tools", "functions", "response_format"),
            max_tokens_paths=(("max_completion_tokens",), ("max_tokens",)),
        ),
        ApiSpec(
            openai_responses.API_NAME,
            "OpenAI Responses",
            "input",
            openai_responses.decode_message,
            openai_responses.encode_message,
            openai_responses.dialect,
            openai_responses.decode_message_dicts,
            openai_responses.encode_message_dicts,
            setup_fields=("tools", "text", "instructions"),
            max_tokens_paths=(("max_output_tokens",),),
            group_items=openai_responses.group_items_by_message,
            to_list_bytes=openai_responses.strip_list_brackets,
            adapt_outputs=openai_responses.adapt_outputs_to_calls,
            accepts_plain_text=True,
        ),
        ApiSpec(
            gemini.API_NAME,
            "Gemini generateContent",
            "contents",
            gemini.decode_message,
            gemini.encode_message,
            gemini.dialect,
            gemini.decode_message_dicts,
            gemini.encode_message_dicts,
            setup_fields=("tools", "systemInstruction", "system_instruction"),
            max_tokens_paths=(
                ("generationConfig", "maxOutputTokens"),
                ("generationConfig", "max_output_tokens"),
                ("generation_config", "max_output_tokens"),
                ("generation_config", "maxOutputTokens"),
            ),
            system_fields=("systemInstruction", "system_instruction"),
            link_results=gemini.link_results_to_calls,
            has_model_field=False,
        ),
    )
}
API_NAMES = tuple(API_SPECS)


def get_api_spec(api: str) -> ApiSpec:
    """Return the form of ``api``; ``UnrecognizedContent`` names those there are."""
    if not isinstance(api, str) or api not in API_SPECS:
        raise UnrecognizedContent(f"no module speaks {api!r}; the APIs are {', '.join(API_NAMES)}")
    return API_SPECS[api]


def decode_messages(api: str, dicts: Sequence[Any]) -> list[Message]:
    """Return the messages of a request to ``api``, which are dicts or objects of its SDK, as values.

    ``api`` is ``anthropic``, ``openai-chat``, ``openai-responses`` or ``gemini``; others raise ``UnrecognizedContent``.
    Raises ``FormatError`` with the JSON path of what cannot be read or belongs to another API.
    """
    return get_api_spec(api).decode_message_dicts(dicts)


def encode_messages(api: str, messages: Sequence[Message]) -> list[Any]:
    """Return ``messages`` as the list of dicts that a request to ``api`` holds.

    Raises ``UnrecognizedContent`` for an unknown API, ``TypeError`` for what is no message, and ``FormatError`` where a
    message holds a number that Python has no value for (``1e999``).
    """
    return get_api_spec(api).encode_message_dicts(messages)
