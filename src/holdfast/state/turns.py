"""Turns: a user message and all that answers it; who spoke last."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.messages.message import Message
from holdfast.state.conversation_state import ConversationState


def find_turn_starts(messages: Sequence[Message]) -> list[int]:
    """Return the positions at which a user speaks; what lies before the first belongs to no turn."""
    return [index for index, message in enumerate(messages) if message.is_turn_start]


def find_newest_user_index(state: ConversationState, start: int) -> int:
    """Return the slot of the user's newest message from slot ``start`` on, or -1."""
    slots = range(len(state.history.sized_messages) - 1, start - 1, -1)
    return next((index for index in slots if state.history.messages[index].is_turn_start), -1)


def find_newest_answer_index(state: ConversationState, start: int) -> int:
    """Return the slot of the newest answer from slot ``start`` on, or -1."""
    slots = range(len(state.history.sized_messages) - 1, start - 1, -1)
    return next((index for index in slots if state.history.messages[index].role == "assistant"), -1)
