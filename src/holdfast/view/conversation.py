"""What people said: whether there was anything, blanks and tool traffic being none, and what came first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.model.messages import Message, media_of
from holdfast.model.parts import Text

MARKUP = "<"
"""What the texts begin with that clients put before the words of their user."""
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


def first_words(messages: Iterable[Message]) -> str:
    """Return the first text of a user that no client put there, else the first of all."""
    said = [part.text for one in messages if one.role == "user" for part in one.parts if isinstance(part, Text)]
    return next((text for text in said if not text.lstrip().startswith(MARKUP)), "".join(said[:1]))
