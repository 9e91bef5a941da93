"""Reasoning goes back in the field that the server takes, and with each answer that must carry it."""

from __future__ import annotations

import pytest

from holdfast.config import get_target
from holdfast.messages.message import Message
from holdfast.messages.parts import ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.sized_message import SizedMessage
from holdfast.normalize.normalize_history import normalize_history
from holdfast.state.view import apply_normalization

USER = Message.from_text("user", "go")
RESULT = Message("tool", (ToolResult("123456789", "ls", (Text("a.py"),)),))


def make_answer(field=None, text="look"):
    """Return an answer with a call, and with reasoning in ``field`` if one is given."""
    call = ToolCall("123456789", "ls", "{}")
    if field is None:
        return Message("assistant", (call,))
    return Message("assistant", (Thinking(text, ProviderSignature("openai-chat", "", field)), call))


def normalize_for(provider, model, answer):
    """Return the reasoning of ``answer`` as it is sent to ``provider``, as pairs of field and text."""
    dialect = get_target("openai-chat", model, provider=provider).dialect
    messages = [USER, answer, RESULT]
    sent = apply_normalization([SizedMessage(message) for message in messages], normalize_history(messages, dialect))
    answers = [sized.message for sized in sent if sized.message.role == "assistant"]
    return [(part.signature.data, part.text) for part in answers[0].parts if isinstance(part, Thinking)]


@pytest.mark.parametrize(
    ("provider", "model", "field", "expected"),
    [
        ("kimi", "kimi-k2.5", "reasoning_content", [("reasoning_content", "look")]),
        ("kimi", "kimi-k2.5", "reasoning", [("reasoning_content", "look")]),
        ("kimi", "kimi-k2.5", None, [("reasoning_content", " ")]),
        ("kimi", "moonshot-v1-32k", None, []),
        ("deepseek", "deepseek-flash", None, [("reasoning_content", " ")]),
        ("deepseek", "deepseek-chat", None, []),
        ("cerebras", "qwen-3.8-27b", "reasoning_content", [("reasoning", "look")]),
        ("groq", "openai/gpt-oss-120b", "reasoning", [("reasoning", "look")]),
        ("mistral", "mistral-large-2512", "reasoning_content", []),
        ("openrouter", "x/y", "reasoning", [("reasoning", "look")]),
    ],
)
def test_normalize_history_puts_reasoning_where_the_provider_takes_it(provider, model, field, expected):
    """It is moved, filled by a space, left out or left alone, as the provider's rules say."""
    assert normalize_for(provider, model, make_answer(field)) == expected


def test_normalize_history_replaces_empty_reasoning_only_where_it_is_refused():
    """Kimi refuses an empty text, DeepSeek takes it."""
    empty = make_answer("reasoning_content", "")
    assert normalize_for("kimi", "kimi-k2.5", empty) == [("reasoning_content", " ")]
    assert normalize_for("deepseek", "deepseek-flash", empty) == [("reasoning_content", "")]
