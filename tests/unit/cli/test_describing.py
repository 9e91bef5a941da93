"""Messages in one line of words."""

from __future__ import annotations

from holdfast.cli.describing import in_short, words
from holdfast.model.messages import Message
from holdfast.model.parts import Text, ToolCall
from holdfast.view.tokens import measure


def test_a_text_in_pieces_is_shown_as_one():
    """What a model says in parts one behind the other is one text; what a user says in two texts is two."""
    answer = Message("assistant", (Text("ok d"), Text("one"), ToolCall("c", "ls", "{}")))
    assert in_short(answer) == "ok done → ls {}"
    assert words([measure(answer)]) == ["ok done", "→ ls {}"]
    assert in_short(Message("user", (Text("ok d"), Text("one")))) == "ok d one"
