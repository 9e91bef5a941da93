"""When a run passes events on: those of one chunk together, and none later than it came."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import anyio
import pytest

from holdfast.engine.engine import Engine
from holdfast.engine.upstream.upstream import Reply
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import get_loop_time, run_on_fake_clock

BODY = {"model": "claude-sonnet-4-5", "max_tokens": 50, "stream": True}
BODY |= {"messages": [{"role": "user", "content": "hello"}]}


def build_event(kind, **fields):
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def build_delta(text):
    return build_event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})


HEAD = build_event("message_start", message={"id": "msg_1", "type": "message", "role": "assistant", "usage": {}})
BLOCK_START = build_event("content_block_start", index=0, content_block={"type": "text", "text": ""})
PING = build_event("ping")
END = build_event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 1}) + build_event(
    "message_stop"
)


class ChunkedUpstream:
    """An upstream that sends these chunks, one per second."""

    def __init__(self, *chunks):
        self.chunks = chunks

    @asynccontextmanager
    async def send(self, request):
        yield Reply(200, {"content-type": "text/event-stream"}, self.yield_chunks())

    async def yield_chunks(self):
        for chunk in self.chunks:
            await anyio.sleep(1)
            yield chunk


def read_batches(*chunks, iterate=lambda run: run.iter_batches()):
    """Return what a run yields for ``chunks``, with times, and the recorded text."""

    async def run_body():
        async with Engine.open(MemoryStore(), upstream=ChunkedUpstream(*chunks)) as engine:
            session = await engine.session("kelp")
            async with session.run(BODY) as run:
                timed_batches = [(get_loop_time(), batch) async for batch in iterate(run)]
            return timed_batches, session.journal.state.history.sized_messages.slice()[-1].message.text

    return run_on_fake_clock(run_body)


def join_raw(timed_batches):
    return [(time, b"".join(event.raw for event in batch)) for time, batch in timed_batches]


def test_iter_batches_yields_the_events_of_a_chunk_together():
    """The events of one chunk are one batch with its bytes; events before the first text wait for it."""
    chunks = [HEAD, BLOCK_START + build_delta("ke"), build_delta("l") + build_delta("p") + PING, END]
    timed_batches, text = read_batches(*chunks)
    assert join_raw(timed_batches) == [(2, chunks[0] + chunks[1]), (3, chunks[2]), (4, chunks[3])]
    assert text == "kelp"


def test_iter_batches_holds_nothing_back_after_the_first_text():
    """A ping, the end of a block or half a pair of chunks is passed on when it arrives."""
    timed_batches, _ = read_batches(HEAD + build_delta("kelp")[:20], build_delta("kelp")[20:], PING, END[:9], END[9:])
    assert join_raw(timed_batches) == [(2, HEAD + build_delta("kelp")), (3, PING), (5, END)]


def test_session_run_yields_single_events_in_the_same_order():
    """Plain iteration yields the events of the batches, one by one."""
    chunks = [HEAD + BLOCK_START, build_delta("ke") + build_delta("lp"), END]
    timed_batches, text = read_batches(*chunks, iterate=lambda run: run)
    together, _ = read_batches(*chunks)
    assert [event for _, event in timed_batches] == [event for _, batch in together for event in batch]
    assert [time for time, _ in timed_batches] == [2, 2, 2, 2, 3, 3]
    assert text == "kelp"


def test_session_run_yields_nothing_after_its_block():
    """Unread events are gone with the block, and the text received until then is recorded."""

    async def leave_after_one_event():
        async with Engine.open(
            MemoryStore(), upstream=ChunkedUpstream(HEAD + BLOCK_START, build_delta("ke") + build_delta("lp"), END)
        ) as engine:
            session = await engine.session("kelp")
            async with session.run(BODY) as run:
                first = await anext(aiter(run))
            with pytest.raises(StopAsyncIteration):
                await anext(run)
            return first, session.journal.state.history.sized_messages.slice()[-1].message.text

    first, text = run_on_fake_clock(leave_after_one_event)
    assert first.raw == HEAD
    assert text == "kelp"
