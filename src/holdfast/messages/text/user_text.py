"""What people said in a conversation: whether there is anything at all, and what came first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from holdfast.messages.message import Message, collect_media_in_messages
from holdfast.messages.parts import Text

NO_USER_TEXT = re.compile(r"\s*(?:<|# AGENTS\.md instructions|/[\w-]+\s*\Z|\Z)")
"""User messages that do not say what a conversation is about: a client's own markup, a bare slash command, blanks."""
REQUEST_REACH = 20
"""How many messages before a tool result are searched for the user's words that led to it (OpenClaw's number)."""


def has_user_content(messages: Sequence[Message]) -> bool:
    """Return whether ``messages`` contain words of a user or the model, or a result that a user's words led to.

    A session with only greetings of a client and tool traffic has nothing worth a summary.
    """
    for index, message in enumerate(messages):
        if _is_speaking(message):
            return True
        if message.results:
            earlier_messages = messages[max(0, index - REQUEST_REACH) : index]
            if any(map(_is_user_speaking, earlier_messages)):
                return True
    return False


def _is_user_speaking(message: Message) -> bool:
    """Return whether ``message`` has words or media of a user."""
    return message.role == "user" and _is_speaking(message)


def _is_speaking(message: Message) -> bool:
    """Return whether ``message`` has words of a user or the model, or a user's media; tool traffic does not count."""
    if message.role == "user" and not message.results and collect_media_in_messages(message):
        return True
    return message.role in {"user", "assistant"} and bool(message.text.strip())


def find_first_user_text(messages: Iterable[Message]) -> str:
    """Return the first user text that no client inserted and that is no bare command, else the first user text.

    Messages after it are not read, so an iterator may be given.
    """
    first_text = ""
    for message in messages:
        if message.role != "user":
            continue
        for part in message.parts:
            if not isinstance(part, Text):
                continue
            # Clients put reminders and project rules into user messages; the person's own words are the first text
            # without such a mark.
            if not NO_USER_TEXT.match(part.text):
                return part.text.strip()
            first_text = first_text or part.text.strip()
    return first_text
