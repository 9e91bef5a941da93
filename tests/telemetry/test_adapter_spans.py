"""Spans of the adapters: each planning of a request is below the span that the framework has made current."""

from __future__ import annotations

import threading
from contextvars import copy_context

import pytest

pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry's SDK is not installed (pip install 'holdfast[otel]')")

from opentelemetry.trace import StatusCode

from holdfast import Message, Text, ToolCall, ToolResult, get_target
from holdfast.errors import WindowTooSmall
from holdfast.integrations.common.agent_history import AgentHistory, GivenMessage
from holdfast.providers.errors.report import ErrorReport
from holdfast.store.memory import MemoryStore

TARGET = get_target("openai-chat", "gpt-4.1", window=30_000)
OVERFLOW = ErrorReport("openai-chat", 400, code="context_length_exceeded", message="maximum context length")


def make_messages(steps, lines=120):
    """Return a conversation with a call and its result in each step."""
    messages = [Message.from_text("user", "Find out why it is slow.")]
    for step in range(steps):
        text = "\n".join(f"step {step:03}, line {line}: {line * 7919 % 1009} ms" for line in range(lines))
        call = ToolCall(f"c{step}", "read", f'{{"path": "/log/{step}"}}')
        messages.append(Message("assistant", (Text("I look."), call)))
        messages.append(Message("tool", (ToolResult(call.id, "read", (Text(text),)),)))
    return [GivenMessage(message) for message in messages]


def open_history(recording, events=None):
    """Return a conversation that records into ``recording``."""
    listener = None if events is None else events.append
    return AgentHistory(MemoryStore(), "one", listener=listener, telemetry=recording.telemetry)


def test_planning_is_below_the_span_of_the_framework(recording):
    """What is planned in a model call of a framework is a child of the span of that call; also in another thread, if
    the framework takes its context there.
    """
    history = open_history(recording)
    with recording.telemetry.tracer.start_as_current_span("model call") as theirs:
        history.plan(make_messages(2), TARGET)
        thread = threading.Thread(target=copy_context().run, args=(history.plan, make_messages(3), TARGET))
        thread.start()
        thread.join()
    plannings = recording.find_spans("holdfast.plan")
    assert [span.parent.span_id for span in plannings] == [theirs.get_span_context().span_id] * 2
    assert plannings[0].attributes["gen_ai.request.model"] == "gpt-4.1"
    assert plannings[0].attributes["gen_ai.conversation.id"] == "one"
    assert 0 < plannings[0].attributes["holdfast.request.estimated_tokens"] < 30_000


def test_decisions_are_on_the_planning_that_made_them(recording):
    """A compaction is a span below the planning, edits are told apart by rule, and the listener's events stay as they
    are. The next planning, which shows the same, has no decision but is of a compacted conversation.
    """
    seen_events = []
    history = open_history(recording, seen_events)
    history.plan(make_messages(40), TARGET)
    history.plan(make_messages(40), TARGET)
    first, second = recording.find_spans("holdfast.plan")
    compaction = recording.find_span("holdfast.compact")
    assert compaction.parent.span_id == first.context.span_id
    assert first.attributes["holdfast.compactions"] == 1
    assert first.attributes["holdfast.prefix.broken"]
    assert {"holdfast.compactions", "holdfast.prefix.broken"}.isdisjoint(second.attributes)
    assert second.attributes["gen_ai.conversation.compacted"]
    told = {type(event).__name__ for event in seen_events}
    assert "CompactionEnded" in told
    assert recording.sum_counter("holdfast.compactions") == 1
    assert recording.sum_counter("holdfast.edits", {"holdfast.edit.rule": "agent"}) == 0


def test_refused_request_is_an_event_of_the_planning_of_a_smaller_one(recording):
    """An overflow counts as refused; another error of the framework makes no span."""
    history = open_history(recording)
    messages = make_messages(20, lines=60)
    history.plan(messages, TARGET)
    assert history.plan_smaller(ErrorReport("openai-chat", 401, message="no key"), messages) is None
    assert history.plan_smaller(OVERFLOW, messages) is not None
    _, smaller = recording.find_spans("holdfast.plan")
    assert smaller.attributes["holdfast.overflow.refused"]
    assert recording.sum_counter("holdfast.overflows.refused") == 1


def test_planning_that_fails_says_its_class_alone(recording):
    """A window that holds nothing is an error of the planning, without its text."""
    with pytest.raises(WindowTooSmall):
        open_history(recording).plan(make_messages(1), get_target("openai-chat", "gpt-4.1", window=900), 5_000)
    planning = recording.find_span("holdfast.plan")
    assert (planning.status.status_code, planning.status.description) == (StatusCode.ERROR, None)
    assert planning.attributes["error.type"] == "WindowTooSmall"
    assert [event.name for event in planning.events] == []
