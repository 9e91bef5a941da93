"""Notices of a run are given once, byte refusals teach no window, and a hook can stop the turn after a cut answer."""

from __future__ import annotations

import msgspec
import pytest
from sample_entries import SAMPLE_KEY

from holdfast import events
from holdfast.config import get_target
from holdfast.engine.engine import Engine
from holdfast.engine.environment.environment import Environment, FunctionTool
from holdfast.engine.hooks import Hooks
from holdfast.messages.message import Message
from holdfast.messages.parts import Media
from holdfast.planning.pipeline import Policy
from holdfast.state.entries import FailureEntry
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.upstream import ScriptedReply, ScriptedUpstream

MODEL = "claude-opus-5-5"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
PICTURE = Media("image", "image/png", 68, source=f"data:image/png;base64,{PNG}")
TOO_LONG = {"type": "request_too_large", "message": "Request exceeds the maximum size"}
TOO_LARGE_REPLY = ScriptedReply((msgspec.json.encode({"type": "error", "error": TOO_LONG}),), 413)
CUT_STREAM_EVENTS = [
    {"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "content": []}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "The tide is"}},
    {"type": "message_delta", "delta": {"stop_reason": "model_context_window_exceeded"}},
    {"type": "message_stop"},
]
CUT_STREAM = b"".join(
    b"event: %s\ndata: %s\n\n" % (event["type"].encode(), msgspec.json.encode(event)) for event in CUT_STREAM_EVENTS
)


def ask_each(replies, *inputs, **options):
    """Ask each of ``inputs`` in turn; return the session, the bodies of the log's entries and the events."""
    store, seen_events = MemoryStore(), []

    async def run_scenario():
        target = get_target("anthropic", MODEL, window=200_000)
        upstream = ScriptedUpstream(replies)
        opening = Engine.open(
            store, upstream=upstream, target=target, fields={"max_tokens": 500}, listen=seen_events.append, **options
        )
        async with opening as engine:
            session = await engine.session(SAMPLE_KEY)
            for message in inputs:
                async with session.run(message) as run:
                    async for _ in run:
                        pass
            return session

    return run_on_fake_clock(run_scenario), [entry.body for entry in store.read_path(SAMPLE_KEY)], seen_events


def test_engine_gives_a_notice_once_per_session():
    """A notice that applies to every request is given at the first one only."""
    policy = Policy.preset("openclaw").with_settings(preset={"window_warn": 300_000})
    _, _, seen_events = ask_each(["yes", "yes", "yes"], "one", "two", "three", policy=policy)
    assert [event.rule for event in seen_events if isinstance(event, events.NoticeGiven)] == ["small-window"]


def test_engine_reports_a_raised_reserve_once():
    """However many requests a session makes, the notice about a too small reserve comes once."""
    _, _, seen_events = ask_each(
        ["yes", "yes", "yes"], "one", "two", "three", policy=Policy().with_settings(reserve={"max": 2_000})
    )
    assert [event.rule for event in seen_events if isinstance(event, events.NoticeGiven)] == ["reserve-floor"]


def test_byte_limit_of_a_request_with_media_teaches_no_window():
    """A window is learned from tokens only: media are dropped, and the window stays."""
    with_picture = Message("user", (PICTURE, *Message.from_text("user", "What is this?").parts))
    session, entries, seen_events = ask_each([TOO_LARGE_REPLY, "a pixel"], with_picture)
    assert [event.overflow_step for event in seen_events if isinstance(event, events.ShrinkStarted)] == ["media"]
    assert [body.kind for body in entries if isinstance(body, FailureEntry)] == ["unanswered"]
    assert session.report().window == 200_000


@pytest.mark.parametrize(("answer", "roles"), [(None, ["user", "assistant", "user"]), (False, ["user", "assistant"])])
def test_session_continues_an_answer_cut_by_the_window_unless_a_hook_objects(answer, roles):
    """A hook that returns None does not object."""
    cut = ScriptedReply((CUT_STREAM,), headers={"content-type": "text/event-stream"})
    session, _, _ = ask_each([cut], "How high is it?", hooks=Hooks(auto_continue=lambda: answer))
    assert [message.role for message in session.journal.state.history.messages] == roles


def build_response(index, *reasons):
    """Build a reply of Responses whose request had reasoning that the model did not see, for these reasons."""
    dropped = []
    for number, reason in enumerate(reasons):
        dropped.append({"type": "reasoning", "action": "removed", "id": f"rs_{number}", "reason": reason})
    text = {"type": "output_text", "text": "yes", "annotations": []}
    message = {"id": f"msg_{index}", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
    usage = {"input_tokens": 9, "output_tokens": 1, "total_tokens": 10}
    body = {"id": f"resp_{index}", "object": "response", "status": "completed", "model": "gpt-6.2-sol"}
    return ScriptedReply(
        (msgspec.json.encode(body | {"output": [message], "usage": usage, "input_transformations": dropped}),)
    )


def test_engine_reports_thinking_that_the_provider_dropped():
    """Each answer has the number of thoughts that the model did not see; the notice comes once, with its reason."""
    replies = [
        build_response(1, "turn_boundary"),
        build_response(2, "prefix_mismatch", "prefix_mismatch", "turn_boundary"),
        build_response(3, "prefix_mismatch"),
    ]
    seen_events = []

    async def run_scenario():
        target = get_target("openai-responses", "gpt-6.2-sol")
        upstream = ScriptedUpstream(replies)
        async with Engine.open(MemoryStore(), upstream=upstream, target=target, listen=seen_events.append) as engine:
            session = await engine.session(SAMPLE_KEY)
            for words in ("one", "two", "three"):
                async with session.run(words) as run:
                    async for _ in run:
                        pass

    run_on_fake_clock(run_scenario)
    assert [event.dropped_thinking for event in seen_events if isinstance(event, events.AnswerRecorded)] == [0, 2, 1]
    [notice] = [event for event in seen_events if isinstance(event, events.NoticeGiven)]
    assert notice.rule == "dropped-thinking"
    assert "kept 2 earlier thoughts from the model (prefix_mismatch)" in notice.why


def test_engine_tells_of_options_changed_for_the_model():
    """Tools need the effort ``none`` on gpt-5.6 in Chat: the requests have it, and the caller is told once."""
    seen_events = []

    async def run_scenario():
        target = get_target("openai-chat", "gpt-5.6-sol")
        upstream = ScriptedUpstream(["yes", "yes"])
        environment = Environment(tools=(FunctionTool("ls"),))
        opening = Engine.open(
            MemoryStore(), upstream=upstream, target=target, environment=environment, listen=seen_events.append
        )
        async with opening as engine:
            session = await engine.session(SAMPLE_KEY)
            for words in ("one", "two"):
                async with session.run(words) as run:
                    async for _ in run:
                        pass
        return [msgspec.json.decode(request.body)["reasoning_effort"] for request in upstream.sent]

    assert run_on_fake_clock(run_scenario) == ["none", "none"]
    [notice] = [event for event in seen_events if isinstance(event, events.NoticeGiven)]
    assert notice.rule == "model-options"
    assert notice.why.startswith("reasoning_effort: set to none")
