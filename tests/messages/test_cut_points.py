"""Cut points, call groups and turns, by example."""

from __future__ import annotations

import pytest

from holdfast.messages.cut_points import find_call_group_ends, find_cut_points
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Text, ToolCall, ToolResult
from holdfast.state.turns import find_turn_starts


def user(text="u"):
    return Message.from_text("user", text)


def answer(text="a"):
    return Message.from_text("assistant", text)


def calls(*ids):
    return Message("assistant", tuple(ToolCall(id_, "t") for id_ in ids))


def results(*ids):
    return Message("tool", tuple(ToolResult(id_, "t", (Text("r"),)) for id_ in ids))


@pytest.mark.parametrize(
    ("messages", "cut_points"),
    [
        ([], [0]),
        ([user()], [0, 1]),
        ([user(), answer()], [0, 1, 2]),
        ([user(), calls("a"), results("a")], [0, 1, 3]),
        ([user(), calls("a", "b"), results("a"), results("b"), user()], [0, 1, 4, 5]),
        ([user(), calls("a", "b"), results("b"), user(), results("a")], [0, 1, 5]),
        ([user(), calls("a"), user(), answer(), results("a"), user()], [0, 1, 5, 6]),
        ([user(), calls("a")], [0, 1]),
        ([user(), calls("a"), user("stop")], [0, 1]),
        ([user(), calls("a"), user("stop"), answer(), user()], [0, 1, 2, 3, 4, 5]),
        ([results("x"), user()], [1, 2]),
        ([user(), calls("a"), results("a"), calls("a"), results("a")], [0, 1, 3, 5]),
        ([user(), calls("a"), user("stop"), calls("a"), results("a"), calls("a"), results("a")], [0, 1, 2, 3, 5, 7]),
        ([Message.from_text("system", "s")], [0, 1]),
    ],
)
def test_find_cut_points_keeps_groups_whole(messages, cut_points):
    """A call group is on one side of a cut, open calls are never cut off, and no tail begins with a result."""
    assert find_cut_points(messages) == cut_points


def test_find_call_group_ends_after_the_last_result():
    """A group ends after its last result, an open group after the end, and any other message after itself."""
    messages = [
        user(),
        calls("a", "b"),
        results("a"),
        user(),
        results("b"),
        calls("c"),
    ]
    assert find_call_group_ends(messages) == [1, 5, 3, 4, 5, 7]


def test_find_turn_starts_at_user_content():
    """A turn starts where a user message has text or media; results and empty messages start none."""
    with_image = Message("user", (Media("image", "image/png"),))
    with_result = Message("user", (*results("a").parts, Text("and")))
    messages = [
        answer(),
        user(),
        calls("a"),
        results("a"),
        with_result,
        with_image,
        Message("user"),
        Message("user", results("a").parts),
    ]
    assert find_turn_starts(messages) == [1, 4, 5]
