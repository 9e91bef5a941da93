"""When a run gives out what came: the events of one chunk at once, nothing that waits for more."""

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


def event(kind, **said):
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **said})}\n\n".encode()


def word(text):
    return event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})


HEAD = event("message_start", message={"id": "msg_1", "type": "message", "role": "assistant", "usage": {}})
BEGUN = event("content_block_start", index=0, content_block={"type": "text", "text": ""})
PING = event("ping")
END = event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 1}) + event("message_stop")


class Chunked:
    """An upstream that says these chunks, each a second behind the one before."""

    def __init__(self, *chunks):
        self.chunks = chunks

    @asynccontextmanager
    async def send(self, sent):
        yield Reply(200, {"content-type": "text/event-stream"}, self.said())

    async def said(self):
        for chunk in self.chunks:
            await anyio.sleep(1)
            yield chunk


def read(*chunks, by=lambda going: going.iter_batches()):
    """What a run gives out of ``chunks``, and when; and what is in the log then."""

    async def asked():
        async with Engine.open(MemoryStore(), upstream=Chunked(*chunks)) as engine:
            session = await engine.session("kelp")
            async with session.run(BODY) as going:
                given = [(get_loop_time(), came) async for came in by(going)]
            return given, session.journal.state.history.sized_messages.slice()[-1].message.text

    return run_on_fake_clock(asked)


def raw(given):
    return [(at, b"".join(event.raw for event in came)) for at, came in given]


def test_what_comes_at_once_is_given_at_once():
    """Events of one chunk are one piece with its bytes; before the first word they wait for it."""
    chunks = [HEAD, BEGUN + word("ke"), word("l") + word("p") + PING, END]
    given, said = read(*chunks)
    assert raw(given) == [(2, chunks[0] + chunks[1]), (3, chunks[2]), (4, chunks[3])]
    assert said == "kelp"


def test_behind_the_first_word_nothing_waits_for_another():
    """A ping, the end of a block, half a pair of chunks: what the provider says is passed on when it says it."""
    given, _ = read(HEAD + word("kelp")[:20], word("kelp")[20:], PING, END[:9], END[9:])
    assert raw(given) == [(2, HEAD + word("kelp")), (3, PING), (5, END)]


def test_events_are_read_one_by_one_too():
    """Iterated by itself a run gives each event on its own, the same ones in the same order."""
    chunks = [HEAD + BEGUN, word("ke") + word("lp"), END]
    given, said = read(*chunks, by=lambda going: going)
    together, _ = read(*chunks)
    assert [one for _, one in given] == [one for _, came in together for one in came]
    assert [at for at, _ in given] == [2, 2, 2, 2, 3, 3]
    assert said == "kelp"


def test_nothing_is_given_behind_the_block():
    """What was not read inside of the block is gone with it; what was said until then is in the log."""

    async def left():
        async with Engine.open(MemoryStore(), upstream=Chunked(HEAD + BEGUN, word("ke") + word("lp"), END)) as engine:
            session = await engine.session("kelp")
            async with session.run(BODY) as going:
                first = await anext(aiter(going))
            with pytest.raises(StopAsyncIteration):
                await anext(going)
            return first, session.journal.state.history.sized_messages.slice()[-1].message.text

    first, said = run_on_fake_clock(left)
    assert first.raw == HEAD
    assert said == "kelp"
