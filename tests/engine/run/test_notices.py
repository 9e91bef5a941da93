"""What is told and taught by a run: notices once, refusals for what they are, and who goes on behind a cut answer."""

from __future__ import annotations

import msgspec
import pytest
from sample_entries import SAMPLE_KEY

from holdfast import events
from holdfast.config import get_target
from holdfast.engine.engine import Engine
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
REFUSED = ScriptedReply((msgspec.json.encode({"type": "error", "error": TOO_LONG}),), 413)
CUT = [
    {"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "content": []}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "The tide is"}},
    {"type": "message_delta", "delta": {"stop_reason": "model_context_window_exceeded"}},
    {"type": "message_stop"},
]
STREAM = b"".join(b"event: %s\ndata: %s\n\n" % (one["type"].encode(), msgspec.json.encode(one)) for one in CUT)


def asked(replies, *said, **more):
    """Return the session after each of ``said`` was asked, the log's entries, and what happened."""
    store, heard = MemoryStore(), []

    async def go():
        goal = get_target("anthropic", MODEL, window=200_000)
        upstream = ScriptedUpstream(replies)
        opened = Engine.open(
            store, upstream=upstream, target=goal, fields={"max_tokens": 500}, listen=heard.append, **more
        )
        async with opened as engine:
            session = await engine.session(SAMPLE_KEY)
            for one in said:
                async with session.run(one) as going:
                    async for _ in going:
                        pass
            return session

    return run_on_fake_clock(go), [entry.body for entry in store.read_path(SAMPLE_KEY)], heard


def test_a_notice_is_told_once():
    """What is so at every request is no news at the second."""
    policy = Policy.preset("openclaw").with_settings(preset={"window_warn": 300_000})
    _, _, heard = asked(["yes", "yes", "yes"], "one", "two", "three", policy=policy)
    assert [event.rule for event in heard if isinstance(event, events.NoticeGiven)] == ["small-window"]


def test_a_raised_reserve_is_told_once():
    """However many requests a session makes, whoever set too small a reserve hears of it once."""
    _, _, heard = asked(
        ["yes", "yes", "yes"], "one", "two", "three", policy=Policy().with_settings(reserve={"max": 2_000})
    )
    assert [event.rule for event in heard if isinstance(event, events.NoticeGiven)] == ["reserve-floor"]


def test_too_many_bytes_teach_nothing_of_tokens():
    """A window is learned from tokens; a body that was too long says nothing of them."""
    with_picture = Message("user", (PICTURE, *Message.from_text("user", "What is this?").parts))
    session, entries, heard = asked([REFUSED, "a pixel"], with_picture)
    assert [event.overflow_step for event in heard if isinstance(event, events.ShrinkStarted)] == ["media"]
    assert [body.kind for body in entries if isinstance(body, FailureEntry)] == ["unanswered"]
    assert session.report().window == 200_000


@pytest.mark.parametrize(("answer", "said"), [(None, ["user", "assistant", "user"]), (False, ["user", "assistant"])])
def test_an_answer_that_the_window_cut_is_gone_on_with_unless_a_hook_says_no(answer, said):
    """Nothing returned is no objection."""
    cut = ScriptedReply((STREAM,), headers={"content-type": "text/event-stream"})
    session, _, _ = asked([cut], "How high is it?", hooks=Hooks(auto_continue=lambda: answer))
    assert [message.role for message in session.journal.state.history.messages] == said
