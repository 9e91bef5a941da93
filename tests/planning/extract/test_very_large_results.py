"""An extract of a conversation in which single results are larger than all that is searched for lines."""

from __future__ import annotations

from holdfast import Message, Text, ToolCall, ToolResult, get_target
from holdfast.integrations.common.agent_history import AgentHistory, GivenMessage
from holdfast.planning.extract.constants import MAX_SCANNED_TOKENS
from holdfast.planning.extract.previous_summary import is_extract
from holdfast.store.memory import MemoryStore

NOTE = "The cause is ticket OPS-48213 in services/billing/ledger_export.py."


def make_step(step, note, text):
    """Return the messages of a step: what the agent notes, its call and the result."""
    call = ToolCall(f"c{step}", "read", f'{{"path": "/log/{step}"}}')
    return [
        Message("assistant", (Text(note), call)),
        Message("tool", (ToolResult(call.id, "read", (Text(text),)),)),
    ]


def test_what_the_agent_noted_before_very_large_results_is_quoted():
    """Results that were shown as previews do not push older words of the agent out of what an extract is made of."""
    large_text = "\n".join(
        f"request {line} took {line * 7919 % 1009} ms" for line in range(2 * MAX_SCANNED_TOKENS // 10)
    )
    messages = [Message.from_text("user", "Find out why the export is slow.")]
    messages += make_step(0, NOTE, "nothing")
    for step in range(1, 4):
        messages += make_step(step, "I look.", large_text)
    for step in range(4, 30):
        messages += make_step(step, "I look on.", f"request {step}: fine\n" * 400)
    history = AgentHistory(MemoryStore(), "one")
    target = get_target("openai-chat", "gpt-4.1", window=30_000)
    for stop in range(1, len(messages) + 1, 2):
        shown_messages = history.plan([GivenMessage(message) for message in messages[:stop]], target)
    extract = shown_messages[0].message.text
    assert is_extract(extract)
    assert "OPS-48213" in extract
