"""What people said: whether there was anything, blanks and tool traffic being none, and what came first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from holdfast.messages.message import Message, collect_media_in_messages
from holdfast.messages.parts import Text

NO_USER_TEXT = re.compile(r"\s*(?:<|# AGENTS\.md instructions|/[\w-]+\s*\Z|\Z)")
"""Texts in a user's name that say nothing of what it is about: a client's own, a command without more, blanks."""
REQUEST_REACH = 20
"""[O] Messages before a result among which somebody must have asked for it."""


def has_user_content(messages: Sequence[Message]) -> bool:
    """Return whether ``messages`` hold words of a user or an agent, or results of what a user asked for."""
    return any(
        _is_speaking(message)
        or (message.results and any(map(_is_user_speaking, messages[max(0, at - REQUEST_REACH) : at])))
        for at, message in enumerate(messages)
    )


def _is_user_speaking(message: Message) -> bool:
    """Return whether a user says something here."""
    return message.role == "user" and _is_speaking(message)


def _is_speaking(message: Message) -> bool:
    """Return whether somebody says something here; calls and results are no words."""
    if message.role == "user" and not message.results and collect_media_in_messages(message):
        return True
    return message.role in {"user", "assistant"} and bool(message.text.strip())


def find_first_user_text(messages: Iterable[Message]) -> str:
    """Return the first text of a user that no client put there and that is no bare command, else the first of all.

    No message behind it is looked at.
    """
    first = ""
    for message in messages:
        for part in message.parts if message.role == "user" else ():
            if isinstance(part, Text):
                if not NO_USER_TEXT.match(part.text):
                    return part.text.strip()
                first = first or part.text.strip()
    return first
