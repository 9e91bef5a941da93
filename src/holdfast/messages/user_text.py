"""What people said: whether there was anything, blanks and tool traffic being none, and what came first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from holdfast.messages.message import Message, media_of
from holdfast.messages.parts import Text

NO_WORDS = re.compile(r"\s*(?:<|# AGENTS\.md instructions|/[\w-]+\s*\Z|\Z)")
"""Texts in a user's name that say nothing of what it is about: a client's own, a command without more, blanks."""
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
    """Return the first text of a user that no client put there and that is no bare command, else the first of all.

    No message behind it is looked at.
    """
    first = ""
    for message in messages:
        for part in message.parts if message.role == "user" else ():
            if isinstance(part, Text):
                if not NO_WORDS.match(part.text):
                    return part.text.strip()
                first = first or part.text.strip()
    return first
