"""Gemini's signed calls: a call of the current turn without a signature gets the documented dummy.

Gemini 3 refuses a request if the first call of a step in the current turn lacks its thought signature. Calls that
another model made have none.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.parts import Part, ProviderSignature, ToolCall
from holdfast.normalize.tracked_messages import TrackedMessage
from holdfast.state.dialect import Dialect

DUMMY_SIGNATURE = "skip_thought_signature_validator"
"""Signature that the Gemini API documents for calls of another model: its validator skips them."""
SIGNATURE_RULE = "thought-signature"


def add_missing_signatures(items: list[TrackedMessage], dialect: Dialect) -> list[TrackedMessage]:
    """Give the first call of each answer in the current turn the dummy signature if it has none.

    Parallel calls after the first carry none, and earlier turns are not checked.
    """
    if not dialect.requires_signed_calls:
        return items
    turn_start = find_current_turn_start([item.message for item in items])
    current_turn = [_add_dummy_signature(item, dialect) for item in items[turn_start:]]
    return [*items[:turn_start], *current_turn]


def find_current_turn_start(messages: Sequence[Message]) -> int:
    """Return the index of the newest message that starts a turn, a user's without results, or 0 if no message does."""
    for index in reversed(range(len(messages))):
        if _is_turn_start(messages[index]):
            return index
    return 0


def _is_turn_start(message: Message) -> bool:
    return message.role != "assistant" and not message.results


def has_required_signatures(messages: Sequence[Message], dialect: Dialect) -> bool:
    """Return whether no call lacks a signature that the API wants."""
    if not dialect.requires_signed_calls:
        return True
    return all(find_unsigned_first_call(message) is None for message in messages[find_current_turn_start(messages) :])


def find_unsigned_first_call(message: Message) -> ToolCall | None:
    """Return the first call of an answer if it has no signature, else None."""
    if message.role != "assistant":
        return None
    first_call = next((part for part in message.parts if type(part) is ToolCall), None)
    if first_call is None or first_call.signature is not None:
        return None
    return first_call


def _add_dummy_signature(item: TrackedMessage, dialect: Dialect) -> TrackedMessage:
    unsigned_call = find_unsigned_first_call(item.message)
    if unsigned_call is None:
        return item
    signed_call = replace(unsigned_call, signature=ProviderSignature(dialect.api, "", DUMMY_SIGNATURE), raw=None)
    parts: list[Part] = []
    for part in item.message.parts:
        parts.append(signed_call if part is unsigned_call else part)
    why = "the first call of a step in the current turn has no signature of this model"
    return item.replace_message(Message(item.message.role, tuple(parts)), SIGNATURE_RULE, why)
