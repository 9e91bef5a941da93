"""Messages of LiteLLM in our terms, and back: Chat Completions, as dictionaries or as LiteLLM's own objects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import msgspec
from msgspec import Raw, Struct

from holdfast.engine.recall import RECALL_DESCRIPTION, RECALL_PARAMETERS, RECALL_TOOL_NAME
from holdfast.hosts.given_conversation import ShownMessage
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.providers.openai_chat.messages import decode_message, encode_message
from holdfast.state.entries import Usage

SYSTEM_ROLES = ("system", "developer")
"""Roles of the messages before the conversation, which are sent as they are."""


class ReadConversation(Struct, frozen=True):
    """The messages of one call: what the caller gave, and the same in our terms."""

    system: tuple[Any, ...]
    """The caller's own objects before the conversation: the system prompt."""
    originals: tuple[Any, ...]
    """The caller's own objects."""
    raws: tuple[Raw, ...]
    """The same as JSON."""
    messages: tuple[Message, ...]
    fields: tuple[Mapping[str, Any], ...] = ()
    """Copies of what was read, by which the next call sees what its caller has changed since."""

    @property
    def first_message(self) -> Message:
        """The message that the conversation begins with."""
        return self.messages[0]


def read_conversation(messages: Sequence[Any], older: ReadConversation | None = None) -> ReadConversation:
    """Return the messages of a call in our terms.

    What is as in ``older``, a call before, is taken from there: to write and read a history of 60 MB as JSON takes
    150 ms. Raises ``FormatError`` for what is no message of Chat Completions, and ``TypeError`` for what JSON has no
    form for.
    """
    fields = [_get_fields(message) for message in messages]
    system_count = 0
    while system_count < len(fields) and fields[system_count].get("role") in SYSTEM_ROLES:
        system_count += 1
    fields = fields[system_count:]
    raws: list[Raw] = []
    decoded_messages: list[Message] = []
    copies: list[Mapping[str, Any]] = []
    for index, message_fields in enumerate(fields):
        # Comparing is quick: texts that the caller has kept are the same objects.
        if older is not None and index < len(older.fields) and older.fields[index] == message_fields:
            raws.append(older.raws[index])
            decoded_messages.append(older.messages[index])
            copies.append(older.fields[index])
            continue
        raw = Raw(_encode_fields(message_fields))
        raws.append(raw)
        decoded_messages.append(decode_message(raw))
        copies.append(deepcopy(message_fields))
    return ReadConversation(
        tuple(messages[:system_count]),
        tuple(messages[system_count:]),
        tuple(raws),
        tuple(decoded_messages),
        tuple(copies),
    )


def _encode_fields(fields: Mapping[str, Any]) -> bytes:
    """Return the fields as JSON, with a question mark for each lone surrogate, which UTF-8 has no form for.

    Tools read such from files that are no text. A message that is shown as it is keeps them.
    """
    try:
        return msgspec.json.encode(fields)
    except UnicodeEncodeError:
        return json.dumps(fields, ensure_ascii=False, default=msgspec.to_builtins).encode("utf-8", "replace")


def _get_fields(message: Any) -> Mapping[str, Any]:
    """Return the fields of a message; programs also append the ``Message`` of an answer as it is."""
    if isinstance(message, Mapping):
        return message
    fields: Mapping[str, Any] = message.model_dump(exclude_none=True)
    return fields


def write_shown_messages(conversation: ReadConversation, shown_messages: Sequence[ShownMessage]) -> list[Any]:
    """Return the messages to send: the caller's own objects wherever a message is shown as it is."""
    messages = list(conversation.system)
    for shown in shown_messages:
        if shown.index is not None and shown.message == conversation.messages[shown.index]:
            messages.append(conversation.originals[shown.index])
            continue
        # Written over the old message, so that fields which we do not interpret stay.
        base = None if shown.index is None else conversation.raws[shown.index]
        messages += [msgspec.json.decode(wire) for wire in encode_message(shown.message, base)]
    return messages


def estimate_setup(conversation: ReadConversation, options: Mapping[str, Any]) -> int:
    """Return the tokens of what goes with the conversation: system prompt, tools and the form of the answer."""
    setup = [
        [_get_fields(message) for message in conversation.system],
        options.get("tools"),
        options.get("functions"),
        options.get("response_format"),
    ]
    return estimate_text_tokens(json.dumps(setup, default=str))


def read_usage(response: Any) -> Usage | None:
    """Return the usage of an answer or of the chunk of a stream that has it; None if there is none.

    LiteLLM counts cached tokens as part of the prompt for every provider.
    """
    usage = getattr(response, "usage", None)
    prompt_tokens = getattr(usage, "prompt_tokens", None)
    if not prompt_tokens:
        return None
    prompt_details = getattr(usage, "prompt_tokens_details", None)
    output_details = getattr(usage, "completion_tokens_details", None)
    return Usage(
        prompt_tokens,
        getattr(usage, "completion_tokens", None) or 0,
        getattr(prompt_details, "cached_tokens", None) or 0,
        getattr(prompt_details, "cache_creation_tokens", None) or 0,
        getattr(output_details, "reasoning_tokens", None) or 0,
    )


def make_recall_tool() -> dict[str, Any]:
    """Return the definition of the tool that reads back what a model is not shown any more."""
    schema = {"type": "object", "properties": RECALL_PARAMETERS}
    function = {"name": RECALL_TOOL_NAME, "description": RECALL_DESCRIPTION, "parameters": schema}
    return {"type": "function", "function": function}


def has_recall_tool(tools: Sequence[Any] | None) -> bool:
    """Whether the caller has given the tool ``recall``."""
    for tool in tools or ():
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and function.get("name") == RECALL_TOOL_NAME:
            return True
    return False
