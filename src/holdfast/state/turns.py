"""Turns: a user message and everything that answers it."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.messages.message import Message
from holdfast.state.conversation_state import ConversationState


def find_turn_starts(messages: Sequence[Message]) -> list[int]:
    """Return the positions of user messages that start a turn. Messages before the first belong to no turn."""
    return [index for index, message in enumerate(messages) if message.is_turn_start]


def find_newest_user_index(state: ConversationState, start: int) -> int:
    """Return the index of the newest message from ``start`` on that starts a turn, or -1."""
    for index in range(len(state.history.sized_messages) - 1, start - 1, -1):
        if state.history.messages[index].is_turn_start:
            return index
    return -1


def find_newest_answer_index(state: ConversationState, start: int) -> int:
    """Return the index of the newest assistant message from ``start`` on, or -1."""
    for index in range(len(state.history.sized_messages) - 1, start - 1, -1):
        if state.history.messages[index].role == "assistant":
            return index
    return -1
