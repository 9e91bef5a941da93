"""Messages in one line of words."""

from __future__ import annotations

from holdfast.cli.reports.describe import get_message_text_lines, shorten_entry_ids, summarize_message
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall
from holdfast.messages.size.tokens import build_sized_message


def test_beginnings_mean_one_entry():
    """A beginning is no other entry's; what goes on from an id with a ``+`` belongs to it."""
    ids = ["line-104", "line-1040", "line-1040+usage", "0123456789", "x", "x+lines", "abcdefgh+1", "abcdefgh+2"]
    assert shorten_entry_ids(ids) == {
        "line-104": "line-104",
        "line-1040": "line-1040",
        "line-1040+usage": "line-1040+",
        "0123456789": "01234567",
        "x": "x",
        "x+lines": "x+lines",
        "abcdefgh+1": "abcdefgh+1",
        "abcdefgh+2": "abcdefgh+2",
    }


def test_a_text_in_pieces_is_shown_as_one():
    """What a model says in parts one behind the other is one text; what a user says in two texts is two."""
    answer = Message("assistant", (Text("ok d"), Text("one"), ToolCall("c", "ls", "{}")))
    assert summarize_message(answer) == "ok done → ls {}"
    assert get_message_text_lines([build_sized_message(answer)]) == ["ok done", "→ ls {}"]
    assert summarize_message(Message("user", (Text("ok d"), Text("one")))) == "ok d one"
