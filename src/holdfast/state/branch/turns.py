"""Turns: a user message and all that answers it; who spoke last."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.messages.message import Message
from holdfast.state.branch.branch import Branch


def turn_starts(messages: Sequence[Message]) -> list[int]:
    """Return the positions at which a user speaks; what lies before the first belongs to no turn."""
    return [index for index, message in enumerate(messages) if message.starts_turn]


def newest_words(branch: Branch, start: int) -> int:
    """Return the slot of the user's newest message from slot ``start`` on, or -1."""
    slots = range(len(branch.slots) - 1, start - 1, -1)
    return next((index for index in slots if branch.messages[index].starts_turn), -1)


def newest_answer(branch: Branch, start: int) -> int:
    """Return the slot of the newest answer from slot ``start`` on, or -1."""
    slots = range(len(branch.slots) - 1, start - 1, -1)
    return next((index for index in slots if branch.messages[index].role == "assistant"), -1)
