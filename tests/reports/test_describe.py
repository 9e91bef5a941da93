"""Short ids of entries and one-line summaries of messages."""

from __future__ import annotations

from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall
from holdfast.messages.size.tokens import build_sized_message
from holdfast.reports.describe import get_message_text_lines, shorten_entry_ids, summarize_message


def test_shorten_entry_ids_returns_unique_prefixes():
    """A prefix fits no other entry, except ids that extend it with a ``+``."""
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


def test_summarize_message_joins_adjacent_texts_of_an_answer():
    """Adjacent texts of an answer are one text; two texts of a user stay two."""
    answer = Message("assistant", (Text("ok d"), Text("one"), ToolCall("c", "ls", "{}")))
    assert summarize_message(answer) == "ok done → ls {}"
    assert get_message_text_lines([build_sized_message(answer)]) == ["ok done", "→ ls {}"]
    assert summarize_message(Message("user", (Text("ok d"), Text("one")))) == "ok d one"
