"""``RepetitionDetector``: when a run repeats itself without progress."""

from __future__ import annotations

import pytest

from holdfast.agent.loop import STOP_AFTER, RepetitionDetector
from holdfast.messages.parts import Text, ToolCall, ToolResult


def count_calls_until_stuck(size, results=lambda number: "the same"):
    """Return the number of calls after which a cycle of ``size`` calls is detected, or None."""
    detector = RepetitionDetector()
    for number in range(1_000):
        call = ToolCall("t", "read", f'{{"path": "{number % size}"}}')
        detector.add_call(call, ToolResult("t", "read", (Text(results(number)),)))
        if detector.is_stuck:
            return number + 1
    return None


@pytest.mark.parametrize("size", range(1, 9))
def test_repetition_detector_detects_a_cycle_of_several_calls(size):
    """A cycle is detected when its first call was made for the last time that is allowed."""
    assert count_calls_until_stuck(size) == size * (STOP_AFTER - 1) + 1


def test_repetition_detector_ignores_progress():
    """The same call with changing results is no cycle, and neither are many different calls."""
    assert count_calls_until_stuck(1, str) is None
    assert count_calls_until_stuck(200) is None
