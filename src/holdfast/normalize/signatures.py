"""Signed calls: where a model wants its signature back, a call that has none gets the documented stand-in."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.parts import Part, Seal, ToolCall
from holdfast.normalize.items import Item
from holdfast.state.dialect import Dialect

STAND_IN = "skip_thought_signature_validator"
"""What the Gemini API documents for calls that another model made: its validator skips them."""
RULE = "thought-signature"


def sign(items: list[Item], dialect: Dialect) -> list[Item]:
    """Return the items with a signature, or its stand-in, on the first call of each answer of the current turn."""
    if not dialect.signed_calls:
        return items
    start = turn_start([item.message for item in items])
    return [*items[:start], *(_signed(item, dialect) for item in items[start:])]


def turn_start(messages: Sequence[Message]) -> int:
    """Return where the current turn begins: at the newest words of a user without results, or at the first message."""
    return next((at for at in range(len(messages) - 1, -1, -1) if _begins(messages[at])), 0)


def _begins(message: Message) -> bool:
    return message.role != "assistant" and not message.results


def all_signed(messages: Sequence[Message], dialect: Dialect) -> bool:
    """Return whether no call wants a signature that it has not."""
    if not dialect.signed_calls:
        return True
    return all(unsigned(message) is None for message in messages[turn_start(messages) :])


def unsigned(message: Message) -> ToolCall | None:
    """Return the first call of an answer if it has no signature."""
    first = next((part for part in message.parts if type(part) is ToolCall), None)
    return first if message.role == "assistant" and first is not None and first.seal is None else None


def _signed(item: Item, dialect: Dialect) -> Item:
    bare = unsigned(item.message)
    if bare is None:
        return item
    parts: list[Part] = list(item.message.parts)
    at = next(place for place, part in enumerate(parts) if part is bare)
    parts[at] = replace(bare, seal=Seal(dialect.api, "", STAND_IN), raw=None)
    why = "the first call of a step in the current turn has no signature of this model"
    return item.changed(Message(item.message.role, tuple(parts)), RULE, why)
