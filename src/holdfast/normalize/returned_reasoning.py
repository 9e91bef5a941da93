"""Reasoning that servers of Chat Completions want back with the answers it led to.

Which field it stands in differs from server to server, and some refuse a request in which an answer lacks it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.parts import ProviderSignature, Thinking
from holdfast.normalize.tracked_messages import TrackedMessage
from holdfast.state.dialect import Dialect

REASONING_RULE = "reasoning"
LOST_REASONING_TEXT = " "
"""What is sent for reasoning that is not known any more: Kimi refuses an empty text and takes a space."""


def move_reasoning_field(part: Thinking, dialect: Dialect) -> Thinking | None:
    """Return ``part`` in a field that the server takes: the same object if it is in one, None if there is none."""
    signature = part.signature
    if dialect.reasoning_fields is None or signature is None or signature.data in dialect.reasoning_fields:
        return part
    if not dialect.reasoning_fields:
        return None
    new_signature = ProviderSignature(signature.api, signature.model, dialect.reasoning_fields[0])
    return replace(part, signature=new_signature, raw=None)


def add_missing_reasoning(items: list[TrackedMessage], dialect: Dialect) -> list[TrackedMessage]:
    """Give each answer that must carry reasoning, and has none, a space in its place."""
    if not dialect.reasoning_scope or not dialect.reasoning_fields:
        return items
    complete_items: list[TrackedMessage] = []
    for item in items:
        if has_required_reasoning(item.message, dialect):
            complete_items.append(item)
        else:
            complete_items.append(_add_lost_reasoning(item, dialect))
    return complete_items


def has_required_reasoning(message: Message, dialect: Dialect) -> bool:
    """Return whether ``message`` carries the reasoning that the server wants back with it, if it wants any."""
    if not dialect.reasoning_scope or not dialect.reasoning_fields or message.role != "assistant":
        return True
    if dialect.reasoning_scope == "calls" and not message.calls:
        return True
    reasoning = [part for part in message.parts if type(part) is Thinking]
    if dialect.allows_empty_reasoning:
        return bool(reasoning)
    return any(part.text for part in reasoning)


def have_required_reasoning(messages: Sequence[Message], dialect: Dialect) -> bool:
    """Return whether each answer carries the reasoning that the server wants back with it."""
    if not dialect.reasoning_scope:
        return True
    return all(has_required_reasoning(message, dialect) for message in messages)


def _add_lost_reasoning(item: TrackedMessage, dialect: Dialect) -> TrackedMessage:
    assert dialect.reasoning_fields
    signature = ProviderSignature(dialect.api, "", dialect.reasoning_fields[0])
    other_parts = tuple(part for part in item.message.parts if type(part) is not Thinking)
    message = Message(item.message.role, (Thinking(LOST_REASONING_TEXT, signature), *other_parts))
    why = f"this answer must come back with its {signature.data}, which is lost; a space stands for it"
    return item.replace_message(message, REASONING_RULE, why)
