"""Repairs of long histories: work that grows with their length, whatever is wrong with all of their calls."""

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


def asks(*ids):
    return Message("assistant", tuple(ToolCall(id_, "bash") for id_ in ids))


def gives(*ids):
    return Message("tool", tuple(ToolResult(id_, "bash", (Text("ok"),)) for id_ in ids))


def unanswered(count):
    """Return so many answers in a row whose calls nobody answered."""
    return [asks(f"c{number}") for number in range(count)]


def of_one_id(count):
    """Return the same whose calls have one id."""
    return [asks("c")] * count


def of_one_id_at_once(count):
    """Return one answer with so many calls of one id."""
    return [asks(*["c"] * count)]


def with_strays_between(count):
    """Return so many answers in a row, their results behind them, each behind one that answers no call."""
    told = [gives(id_) for number in range(count) for id_ in (f"s{number}", f"c{number}")]
    return [*unanswered(count), *told]


def one_is_missing(count):
    """Return an answer with so many calls and all their results but one, in one message."""
    return [asks(*[f"c{number}" for number in range(count)]), gives(*[f"c{number}" for number in range(1, count)])]


@pytest.mark.parametrize(
    ("api", "history"),
    [
        ("anthropic", unanswered),
        ("anthropic", with_strays_between),
        ("anthropic", one_is_missing),
        ("openai-chat", of_one_id_at_once),
        ("openai-chat", one_is_missing),
        ("openai-responses", of_one_id),
        ("openai-responses", one_is_missing),
        ("gemini", one_is_missing),
    ],
)
def test_repairs_take_linear_time(api, history, grows_slowly):
    """Calls that all want a repair are repaired in time that grows with their number."""
    dialect = get_target(api, MODELS[api]).dialect

    def repairing(count):
        messages = [Message.from_text("user", "go"), *history(count), Message.from_text("user", "and?")]
        assert normalize_history(messages, dialect)
        return partial(normalize_history, messages, dialect)

    grows_slowly(repairing, 500)
