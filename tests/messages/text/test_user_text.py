"""The first text that a user wrote."""

from __future__ import annotations

import pytest

from holdfast.messages.message import Message
from holdfast.messages.parts import Text
from holdfast.messages.text.user_text import find_first_user_text


def test_find_first_user_text_prefers_the_users_own_words():
    """Text that a client adds in a tag is skipped, unless there is nothing else."""
    client_text, user_text = Text("<system-reminder>Be brief.</system-reminder>"), Text("Fix the build.")
    assert (
        find_first_user_text([Message.from_text("system", "You help."), Message("user", (client_text, user_text))])
        == "Fix the build."
    )
    assert (
        find_first_user_text([Message("user", (client_text,)), Message.from_text("user", "Fix the build.")])
        == "Fix the build."
    )
    assert find_first_user_text([Message("user", (client_text,))]) == client_text.text
    assert find_first_user_text([Message.from_text("assistant", "Hello.")]) == ""


@pytest.mark.parametrize(
    "client_text",
    ["<context>here</context>", " \n<a>", "/mode", "/compact \n", "# AGENTS.md instructions for x", " \n "],
)
def test_find_first_user_text_skips_client_text_and_bare_commands(client_text):
    """Client text, a bare command and blanks are skipped; a command with words counts."""
    messages = [Message("user", (Text(" "), Text(client_text))), Message.from_text("user", " Fix the build.\n")]
    assert find_first_user_text(messages) == "Fix the build."
    assert find_first_user_text(messages[:1]) == client_text.strip()
    assert find_first_user_text([Message.from_text("user", "/review the build"), *messages]) == "/review the build"
