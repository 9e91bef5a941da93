"""``normalize_history`` takes time proportional to the length of a history, whatever is wrong with its calls."""

from __future__ import annotations

from functools import partial

import pytest

from holdfast.config import get_target
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.normalize.normalize_history import normalize_history

MODELS = {
    "anthropic": "claude-sonnet-4-5",
    "openai-chat": "gpt-5",
    "openai-responses": "gpt-5.5",
    "gemini": "gemini-3.1-pro-preview",
}


def calls(*ids):
    return Message("assistant", tuple(ToolCall(id_, "bash") for id_ in ids))


def results(*ids):
    return Message("tool", tuple(ToolResult(id_, "bash", (Text("ok"),)) for id_ in ids))


def build_unanswered_calls(count):
    """Return ``count`` answers in a row whose calls have no results."""
    return [calls(f"c{number}") for number in range(count)]


def build_answers_with_one_id(count):
    """Return ``count`` answers in a row whose calls share one id."""
    return [calls("c")] * count


def build_answer_with_one_id(count):
    """Return one answer with ``count`` calls of one id."""
    return [calls(*["c"] * count)]


def build_results_with_orphans(count):
    """Return ``count`` answers in a row, then their results, each after an orphan result."""
    result_messages = [results(id_) for number in range(count) for id_ in (f"s{number}", f"c{number}")]
    return [*build_unanswered_calls(count), *result_messages]


def build_answer_with_a_missing_result(count):
    """Return an answer with ``count`` calls, and one message with all their results but one."""
    return [calls(*[f"c{number}" for number in range(count)]), results(*[f"c{number}" for number in range(1, count)])]


@pytest.mark.parametrize(
    ("api", "history"),
    [
        ("anthropic", build_unanswered_calls),
        ("anthropic", build_results_with_orphans),
        ("anthropic", build_answer_with_a_missing_result),
        ("openai-chat", build_answer_with_one_id),
        ("openai-chat", build_answer_with_a_missing_result),
        ("openai-responses", build_answers_with_one_id),
        ("openai-responses", build_answer_with_a_missing_result),
        ("gemini", build_answer_with_a_missing_result),
    ],
)
def test_normalize_history_takes_linear_time_if_every_call_needs_an_edit(api, history, assert_subquadratic):
    """A history in which every call needs an edit is normalized in time proportional to its length."""
    dialect = get_target(api, MODELS[api]).dialect

    def prepare_normalization(count):
        messages = [Message.from_text("user", "go"), *history(count), Message.from_text("user", "and?")]
        assert normalize_history(messages, dialect)
        return partial(normalize_history, messages, dialect)

    assert_subquadratic(prepare_normalization, 500)
