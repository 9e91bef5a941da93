"""Answers that come with broken bytes: nothing of them that only their maker can check goes back to it."""

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
"""Bytes from one broken place to the next; every byte of 22,000 takes minutes."""
FIELDS = {
    "anthropic": {
        "max_tokens": 900,
        "thinking": {"type": "adaptive"},
        "tools": [{"name": "read", "input_schema": {"type": "object", "properties": {}}}],
    },
    "openai-responses": {
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}}],
    },
    "openai-chat": {"tools": [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]},
    "gemini": {"tools": [{"functionDeclarations": [{"name": "read"}]}]},
}
ANSWER = ScriptedAnswer("Well.", (("read", {"path": "f"}),), "Let me see.")
WORDS = ProviderSettings(tokenizer="words")


class Breaking:
    """The strict provider, in whose first answer broken bytes stand at ``place``; ``size`` is that of the answer."""

    def __init__(self, place):
        self.upstream = ProviderUpstream(Provider(WORDS, [ANSWER]))
        self.place, self.size = place, 0

    @asynccontextmanager
    async def send(self, sent):
        """Return the provider's reply."""
        async with self.upstream.send(sent) as reply:
            body, place = await reply.read_body(), self.place if not self.size else None
            self.size = self.size or len(body)
            yield Reply(reply.status, reply.headers, _pieces(body, place))


async def _pieces(body, place):
    yield body if place is None else body[:place] + INVALID_UTF8 + body[place:]


@asynccontextmanager
async def talking(upstream, api, **more):
    """Yield a session that ``upstream`` answers."""
    goal = get_target(api, STRICTEST_MODELS[api], window=60_000)
    async with Engine.open(MemoryStore(), upstream=upstream, target=goal, fields=FIELDS[api], **more) as engine:
        yield await engine.session(SAMPLE_KEY)


async def read(going):
    """Read a run to its end."""
    async with going as events:
        async for _ in events:
            pass


async def gone_on(place, api, stream):
    """Return how long an answer with broken bytes at ``place`` is, once the session has gone on behind it."""
    upstream = Breaking(place)
    async with talking(upstream, api) as session:
        with suppress(UpstreamError):  # its end may be what was lost
            await read(session.run("Read it.", stream=stream))
        calls = session.journal.state.history.open_call_ids
        results = tuple(ToolResult(id_, "read", (Text("kelp"),)) for id_ in calls)
        await session.append(Message("tool", results) if results else Message.from_text("user", "Go on."))
        assert (await session.ask()).message.parts
    return upstream.size


@pytest.mark.counts
@pytest.mark.uncounted
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", FIELDS)
def test_a_session_goes_on_behind_broken_bytes(api, stream):
    """Wherever in an answer they stand, the provider takes the next request: no byte that it would miss goes back."""
    place = size = 0
    while place <= size:
        size = run_on_fake_clock(gone_on, place, api, stream)
        place += STRIDE


@pytest.mark.parametrize("api", ["anthropic", "openai-responses"])
def test_words_and_calls_are_what_is_left(api):
    """Reasoning, names and bytes of a damaged answer stay out of the log; what it said and asked for is there."""

    async def go(upstream):
        async with talking(upstream, api) as session:
            await read(session.run("Read it.", stream=True))
            return session.journal.state.history.sized_messages[-1]

    whole = run_on_fake_clock(go, ProviderUpstream(Provider(WORDS, [ANSWER])))
    broken = run_on_fake_clock(go, ProviderUpstream(Provider(WORDS, [ANSWER]), [Fault("utf8", "first")]))
    assert isinstance(whole.message.parts[0], Thinking)
    assert whole.raw is not None
    assert (broken.message.text, broken.raw) == ("Well.", None)
    assert [(call.name, call.signature, call.raw) for call in broken.message.calls] == [("read", None, None)]
    assert len(broken.message.parts) == 2


@pytest.mark.parametrize("stage", ["first", "middle", "end"])
@pytest.mark.parametrize("api", ["anthropic", "openai-responses"])
def test_a_damaged_compaction_is_asked_for_again(api, stage):
    """The provider could not read what it sealed, nor answer anything behind it: such a compaction is none."""

    async def go():
        upstream = ProviderUpstream(Provider(ProviderSettings(factor=1.3)), [Fault("utf8", stage, at=7)])
        async with talking(upstream, api, native=True) as session:
            for number in range(6):
                await session.ask(f"{number} " + "kelp on the rock " * 400)
            done = await session.compact()
            assert (done.outcome, done.author, len(upstream.sent)) == ("compacted", "native", 8)
            assert b"\xef\xbf\xbd" not in bytes(session.journal.state.view.compaction.native)
            assert (await session.ask("And now?")).message.parts

    run_on_fake_clock(go)


def test_nothing_may_be_left_of_one():
    """A damaged answer that holds reasoning and nothing else is one without words: its usage is what is known of it."""

    async def go():
        thought = ScriptedAnswer("", (), "Let me see.")
        upstream = ProviderUpstream(Provider(WORDS, [thought]), [Fault("utf8", "first")])
        async with talking(upstream, "openai-responses") as session:
            await read(session.run("Read it.", stream=True))
            assert [slot.message.role for slot in session.journal.state.history.sized_messages] == ["user"]
            assert (await session.ask("Go on.")).message.parts

    run_on_fake_clock(go)


@pytest.mark.parametrize("stream", [False, True])
def test_items_that_a_server_names_alike_end_no_session(stream):
    """An id that stands in two answers goes out with the first of them: the provider takes no request with both."""

    async def go():
        upstream = ProviderUpstream(Provider(WORDS), [Fault("unknown", at=0)])
        async with talking(upstream, "openai-responses") as session:
            for _ in range(3):
                await read(session.run("Go on.", stream=stream))
            assert upstream.sent[-1].body.count(b'"hg_1"') == 1
            assert upstream.sent[-1].body.count(b"hologram_call") == 2

    run_on_fake_clock(go)
