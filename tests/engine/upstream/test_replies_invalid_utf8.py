"""Answers with invalid UTF-8: no signed or opaque part of them is sent back to the provider."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress

import example_counts
import pytest
from sample_entries import SAMPLE_KEY

from holdfast.config import get_target
from holdfast.engine.engine import Engine
from holdfast.engine.upstream.upstream import Reply
from holdfast.errors import UpstreamError
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, Thinking, ToolResult
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.provider import Fault, Provider, ProviderSettings
from holdfast.testing.provider.calls import ScriptedAnswer
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.provider.server.answer_steps import INVALID_UTF8
from holdfast.testing.upstream import ProviderUpstream

STRIDE = example_counts.choose(quick=97, ci=41, thorough=1)
"""Distance in bytes between the broken places that are tried; all 22,000 take minutes."""
FIELDS = {
    "anthropic": {
        "max_tokens": 900,
        "thinking": {"type": "adaptive"},
        "tools": [{"name": "read", "input_schema": {"type": "object", "properties": {}}}],
    },
    "openai-responses": {
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "tools": [{"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}}],
    },
    "openai-chat": {
        "tools": [
            {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}
        ]
    },
    "gemini": {"tools": [{"functionDeclarations": [{"name": "read"}]}]},
}
ANSWER = ScriptedAnswer("Well.", (("read", {"path": "f"}),), "Let me see.")
WORDS = ProviderSettings(tokenizer="words")


class CorruptingUpstream:
    """The strict provider, with invalid bytes at ``position`` of its first answer, whose length is ``size``."""

    def __init__(self, position):
        self.upstream = ProviderUpstream(Provider(WORDS, [ANSWER]))
        self.position, self.size = position, 0

    @asynccontextmanager
    async def send(self, request):
        """Return the provider's reply."""
        async with self.upstream.send(request) as reply:
            body, position = await reply.read_body(), self.position if not self.size else None
            self.size = self.size or len(body)
            yield Reply(reply.status, reply.headers, yield_body(body, position))


async def yield_body(body, position):
    yield body if position is None else body[:position] + INVALID_UTF8 + body[position:]


@asynccontextmanager
async def open_session(upstream, api, **options):
    """Open a session whose requests ``upstream`` answers."""
    target = get_target(api, STRICTEST_MODELS[api], window=60_000)
    async with Engine.open(MemoryStore(), upstream=upstream, target=target, fields=FIELDS[api], **options) as engine:
        yield await engine.session(SAMPLE_KEY)


async def read_run(run):
    """Read a run to its end."""
    async with run as events:
        async for _ in events:
            pass


async def continue_after_corruption(position, api, stream):
    """Continue a session behind an answer with invalid bytes at ``position``; return the answer's length."""
    upstream = CorruptingUpstream(position)
    async with open_session(upstream, api) as session:
        with suppress(UpstreamError):  # its end may be what was lost
            await read_run(session.run("Read it.", stream=stream))
        calls = session.journal.state.history.open_call_ids
        results = tuple(ToolResult(id_, "read", (Text("kelp"),)) for id_ in calls)
        await session.append(Message("tool", results) if results else Message.from_text("user", "Go on."))
        assert (await session.ask()).message.parts
    return upstream.size


@pytest.mark.counts
@pytest.mark.uncounted
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", FIELDS)
def test_session_continues_behind_an_answer_with_invalid_utf8(api, stream):
    """Wherever the bytes stand, no damaged part is sent back, and the provider accepts the next request."""
    position = size = 0
    while position <= size:
        size = run_on_fake_clock(continue_after_corruption, position, api, stream)
        position += STRIDE


@pytest.mark.parametrize("api", ["anthropic", "openai-responses"])
def test_session_keeps_only_text_and_calls_of_a_damaged_answer(api):
    """Thinking, signatures and raw bytes of a damaged answer are not recorded; its text and calls are."""

    async def run_scenario(upstream):
        async with open_session(upstream, api) as session:
            await read_run(session.run("Read it.", stream=True))
            return session.journal.state.history.sized_messages[-1]

    undamaged = run_on_fake_clock(run_scenario, ProviderUpstream(Provider(WORDS, [ANSWER])))
    broken = run_on_fake_clock(run_scenario, ProviderUpstream(Provider(WORDS, [ANSWER]), [Fault("utf8", "first")]))
    assert isinstance(undamaged.message.parts[0], Thinking)
    assert undamaged.raw is not None
    assert (broken.message.text, broken.raw) == ("Well.", None)
    assert [(call.name, call.signature, call.raw) for call in broken.message.calls] == [("read", None, None)]
    assert len(broken.message.parts) == 2


@pytest.mark.parametrize("stage", ["first", "middle", "end"])
@pytest.mark.parametrize("api", ["anthropic", "openai-responses"])
def test_session_compact_retries_a_damaged_native_compaction(api, stage):
    """The provider could not decrypt a damaged compaction, so it is requested again."""

    async def run_scenario():
        upstream = ProviderUpstream(Provider(ProviderSettings(factor=1.3)), [Fault("utf8", stage, at=7)])
        async with open_session(upstream, api, native=True) as session:
            for number in range(6):
                await session.ask(f"{number} " + "kelp on the rock " * 400)
            result = await session.compact()
            assert (result.outcome, result.author, len(upstream.sent)) == ("compacted", "native", 8)
            assert b"\xef\xbf\xbd" not in bytes(session.journal.state.view.compaction.native)
            assert (await session.ask("And now?")).message.parts

    run_on_fake_clock(run_scenario)


def test_session_records_only_usage_of_a_damaged_answer_without_text():
    """A damaged answer that holds only thinking adds no message."""

    async def run_scenario():
        thinking_only = ScriptedAnswer("", (), "Let me see.")
        upstream = ProviderUpstream(Provider(WORDS, [thinking_only]), [Fault("utf8", "first")])
        async with open_session(upstream, "openai-responses") as session:
            await read_run(session.run("Read it.", stream=True))
            assert [slot.message.role for slot in session.journal.state.history.sized_messages] == ["user"]
            assert (await session.ask("Go on.")).message.parts

    run_on_fake_clock(run_scenario)


@pytest.mark.parametrize("stream", [False, True])
def test_session_sends_an_item_id_that_occurs_twice_only_once(stream):
    """The provider refuses two items with one id, so the id is sent with the first of them."""

    async def run_scenario():
        upstream = ProviderUpstream(Provider(WORDS), [Fault("unknown", at=0)])
        async with open_session(upstream, "openai-responses") as session:
            for _ in range(3):
                await read_run(session.run("Go on.", stream=stream))
            assert upstream.sent[-1].body.count(b'"hg_1"') == 1
            assert upstream.sent[-1].body.count(b"hologram_call") == 2

    run_on_fake_clock(run_scenario)
