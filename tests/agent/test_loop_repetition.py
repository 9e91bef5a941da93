"""When a run goes round in circles."""

from __future__ import annotations

import pytest

from holdfast.agent.loop import STOP_AFTER, RepetitionDetector
from holdfast.messages.parts import Text, ToolCall, ToolResult


def rounds(size, results=lambda number: "the same"):
    """Return after how many calls a circle of ``size`` calls is one, or nothing."""
    circles = RepetitionDetector()
    for number in range(1_000):
        call = ToolCall("t", "read", f'{{"path": "{number % size}"}}')
        circles.add_call(call, ToolResult("t", "read", (Text(results(number)),)))
        if circles.is_stuck:
            return number + 1
    return None


@pytest.mark.parametrize("size", range(1, 9))
def test_a_circle_of_several_calls_is_one(size):
    """It ends when the first of them was made for the last time that is allowed."""
    assert rounds(size) == size * (STOP_AFTER - 1) + 1


def test_work_is_no_circle():
    """The same call with other results goes on, and so do many different ones."""
    assert rounds(1, str) is None
    assert rounds(200) is None
