"""Convert between messages as callers hold them, dicts or objects of an SDK, and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Raw
from msgspec.json import Decoder

from holdfast.messages.message import Message
from holdfast.providers.common.json.raw_json import JsonBytes, decode_json
from holdfast.providers.foreign.foreign_messages import (
    check_messages_to_encode,
    decode_message_list,
    encode_own_messages,
)
from holdfast.providers.registry import get_api_spec

_ELEMENT_DECODER = Decoder(dict[str, Any])


def decode_messages(api: str, dicts: str | Sequence[Any]) -> list[Message]:
    """Decode the messages of a request to ``api``, given as dicts or as objects of its SDK.

    ``api`` is ``anthropic``, ``openai-chat``, ``openai-responses`` or ``gemini``; others raise ``UnrecognizedContent``.
    Raises ``FormatError`` with the JSON path of anything that cannot be read or belongs to another API.
    """
    spec = get_api_spec(api)
    if spec.accepts_plain_text and isinstance(dicts, str):
        return [Message.from_text("user", dicts)]
    if spec.group_items is not None:
        groups = spec.group_items([Raw(element) for element in encode_own_messages(dicts, spec)])
        return [message for _, _, message in groups]
    messages = decode_message_list(dicts, spec)
    if spec.link_results is None:
        return messages
    return spec.link_results(messages)


def encode_messages(api: str, messages: Sequence[Message]) -> list[Any]:
    """Encode ``messages`` as the list of dicts that a request to ``api`` holds.

    Raises ``UnrecognizedContent`` for an unknown API, ``TypeError`` for values that are not messages, and
    ``FormatError`` if a message holds a number that Python cannot represent (``1e999``).
    """
    spec = get_api_spec(api)
    own_messages = check_messages_to_encode(messages, api)
    if spec.link_results is not None:
        own_messages = spec.link_results(own_messages)
    groups: list[list[JsonBytes]] = [[*spec.encode_message(message, None)] for message in own_messages]
    # Only with all messages encoded is it known which kind of call each output answers (Responses).
    if spec.adapt_outputs is not None:
        groups = spec.adapt_outputs(groups)
    return [decode_json(_ELEMENT_DECODER, element, spec.element_name) for group in groups for element in group]
