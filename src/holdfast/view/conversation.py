"""Whether anybody really said anything: blanks and tool traffic alone are no conversation."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.model.messages import Message, media_of

REACH = 20
"""[O] Messages before a result among which somebody must have asked for it."""


def is_real(messages: Sequence[Message]) -> bool:
    """Return whether ``messages`` hold words of a user or an agent, or results of what a user asked for."""
    return any(
        _speaks(message) or (message.results and any(map(_asks, messages[max(0, at - REACH) : at])))
        for at, message in enumerate(messages)
    )


def _asks(message: Message) -> bool:
    """Return whether a user says something here."""
    return message.role == "user" and _speaks(message)


def _speaks(message: Message) -> bool:
    """Return whether somebody says something here; calls and results are no words."""
    if message.role == "user" and not message.results and media_of(message):
        return True
    return message.role in {"user", "assistant"} and bool(message.text.strip())
