"""Legal cuts, groups and turns, by example."""

from __future__ import annotations

import pytest

from holdfast.messages.cut_points import find_call_group_ends, find_cut_points
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Text, ToolCall, ToolResult
from holdfast.state.turns import find_turn_starts


def user(text="u"):
    return Message.from_text("user", text)


def words(text="a"):
    return Message.from_text("assistant", text)


def calls(*ids):
    return Message("assistant", tuple(ToolCall(id_, "t") for id_ in ids))


def results(*ids):
    return Message("tool", tuple(ToolResult(id_, "t", (Text("r"),)) for id_ in ids))


@pytest.mark.parametrize(
    ("messages", "legal"),
    [
        ([], [0]),
        ([user()], [0, 1]),
        ([user(), words()], [0, 1, 2]),
        ([user(), calls("a"), results("a")], [0, 1, 3]),
        ([user(), calls("a", "b"), results("a"), results("b"), user()], [0, 1, 4, 5]),
        ([user(), calls("a", "b"), results("b"), user(), results("a")], [0, 1, 5]),
        ([user(), calls("a"), user(), words(), results("a"), user()], [0, 1, 5, 6]),
        ([user(), calls("a")], [0, 1]),
        ([user(), calls("a"), user("stop")], [0, 1]),
        ([user(), calls("a"), user("stop"), words(), user()], [0, 1, 2, 3, 4, 5]),
        ([results("x"), user()], [1, 2]),
        ([user(), calls("a"), results("a"), calls("a"), results("a")], [0, 1, 3, 5]),
        ([user(), calls("a"), user("stop"), calls("a"), results("a"), calls("a"), results("a")], [0, 1, 2, 3, 5, 7]),
        ([Message.from_text("system", "s")], [0, 1]),
    ],
)
def test_legal_cuts(messages, legal):
    """Whole groups stay on one side, open calls are never folded, and nothing begins with a result."""
    assert find_cut_points(messages) == legal


def test_group_ends():
    """A group ends behind its last result; an open one behind the end; anything else behind itself."""
    messages = [user(), calls("a", "b"), results("a"), user(), results("b"), calls("c")]
    assert find_call_group_ends(messages) == [1, 5, 3, 4, 5, 7]


def test_turns():
    """A turn starts where a user says or shows something; results and empty messages start none."""
    shown = Message("user", (Media("image", "image/png"),))
    mixed = Message("user", (*results("a").parts, Text("and")))
    messages = [
        words(),
        user(),
        calls("a"),
        results("a"),
        mixed,
        shown,
        Message("user"),
        Message("user", results("a").parts),
    ]
    assert find_turn_starts(messages) == [1, 4, 5]
