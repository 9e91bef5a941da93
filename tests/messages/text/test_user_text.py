"""What people said."""

from __future__ import annotations

import pytest

from holdfast.messages.message import Message
from holdfast.messages.parts import Text
from holdfast.messages.text.user_text import find_first_user_text


def test_the_first_words_are_the_users_own():
    """What a client puts before them in a tag is not what a conversation is about, unless there is nothing else."""
    put, own = Text("<system-reminder>Be brief.</system-reminder>"), Text("Fix the build.")
    assert (
        find_first_user_text([Message.from_text("system", "You help."), Message("user", (put, own))])
        == "Fix the build."
    )
    assert (
        find_first_user_text([Message("user", (put,)), Message.from_text("user", "Fix the build.")]) == "Fix the build."
    )
    assert find_first_user_text([Message("user", (put,))]) == put.text
    assert find_first_user_text([Message.from_text("assistant", "Hello.")]) == ""


@pytest.mark.parametrize(
    "put", ["<context>here</context>", " \n<a>", "/mode", "/compact \n", "# AGENTS.md instructions for x", " \n "]
)
def test_what_says_nothing_of_the_matter_is_passed_over(put):
    """A client's own text, a bare command and blanks give way to words; a command with words is some."""
    said = [Message("user", (Text(" "), Text(put))), Message.from_text("user", " Fix the build.\n")]
    assert find_first_user_text(said) == "Fix the build."
    assert find_first_user_text(said[:1]) == put.strip()
    assert find_first_user_text([Message.from_text("user", "/review the build"), *said]) == "/review the build"
