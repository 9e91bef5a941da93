"""Turns: a user message and all that answers it."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.model.messages import Message


def turn_starts(messages: Sequence[Message]) -> list[int]:
    """Return the positions at which a user speaks; what lies before the first belongs to no turn."""
    return [index for index, message in enumerate(messages) if message.starts_turn]
