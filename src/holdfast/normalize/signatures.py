"""Signed calls: where a model wants its signature back, a call that has none gets the documented stand-in."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.parts import Part, ProviderSignature, ToolCall
from holdfast.normalize.tracked_messages import TrackedMessage
from holdfast.state.dialect import Dialect

DUMMY_SIGNATURE = "skip_thought_signature_validator"
"""What the Gemini API documents for calls that another model made: its validator skips them."""
SIGNATURE_RULE = "thought-signature"


def add_missing_signatures(items: list[TrackedMessage], dialect: Dialect) -> list[TrackedMessage]:
    """Return the items with a signature, or its stand-in, on the first call of each answer of the current turn."""
    if not dialect.requires_signed_calls:
        return items
    start = find_current_turn_start([item.message for item in items])
    return [*items[:start], *(_add_dummy_signature(item, dialect) for item in items[start:])]


def find_current_turn_start(messages: Sequence[Message]) -> int:
    """Return where the current turn begins: at the newest words of a user without results, or at the first message."""
    return next((at for at in range(len(messages) - 1, -1, -1) if _is_turn_start(messages[at])), 0)


def _is_turn_start(message: Message) -> bool:
    return message.role != "assistant" and not message.results


def has_required_signatures(messages: Sequence[Message], dialect: Dialect) -> bool:
    """Return whether no call wants a signature that it has not."""
    if not dialect.requires_signed_calls:
        return True
    return all(find_unsigned_first_call(message) is None for message in messages[find_current_turn_start(messages) :])


def find_unsigned_first_call(message: Message) -> ToolCall | None:
    """Return the first call of an answer if it has no signature."""
    first = next((part for part in message.parts if type(part) is ToolCall), None)
    return first if message.role == "assistant" and first is not None and first.signature is None else None


def _add_dummy_signature(item: TrackedMessage, dialect: Dialect) -> TrackedMessage:
    bare = find_unsigned_first_call(item.message)
    if bare is None:
        return item
    parts: list[Part] = list(item.message.parts)
    at = next(place for place, part in enumerate(parts) if part is bare)
    parts[at] = replace(bare, signature=ProviderSignature(dialect.api, "", DUMMY_SIGNATURE), raw=None)
    why = "the first call of a step in the current turn has no signature of this model"
    return item.replace_message(Message(item.message.role, tuple(parts)), SIGNATURE_RULE, why)
