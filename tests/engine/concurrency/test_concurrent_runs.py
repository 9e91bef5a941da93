"""Concurrency of an engine: model calls and permits, compactions and runs, and closing."""

from __future__ import annotations

from contextlib import asynccontextmanager

import anyio
import msgspec
import pytest
from long_conversation import build_long_conversation
from sample_entries import SAMPLE_KEY

from holdfast import events
from holdfast.config import get_target
from holdfast.engine.compaction import compact as compacting
from holdfast.engine.compaction.summarizer import SummaryWriter
from holdfast.engine.engine import Engine
from holdfast.messages.message import Message
from holdfast.planning.pipeline import OVER_WINDOW_RULE
from holdfast.planning.summary.prompts import SUMMARY_HEADINGS
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import CompactionEntry, FailureEntry, MessageEntry
from holdfast.state.plan import Notice, Plan
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import get_loop_time, run_on_fake_clock
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.upstream import ProviderUpstream, ScriptedReply, ScriptedUpstream

OPUS = get_target("anthropic", "claude-opus-5-5", window=32_000)
GPT = get_target("openai-chat", "gpt-5.5", window=64_000)
OUTPUT = {"max_tokens": 500}
SUMMARY = (
    "\n".join(f"## {heading}\n- kelp on the rock, note 39, keep it all\n" for heading in SUMMARY_HEADINGS)
    + "Read note 39. And now? "
    + "word " * 200
)
COMPACTED = CompactionEntry(1, Message.from_text("user", "what was"))


class CountingUpstream:
    """An upstream that answers after a second and counts the concurrent requests."""

    def __init__(self):
        self._upstream = ProviderUpstream(Provider(), latency=1)
        self.open_count = self.max_open_count = 0

    @asynccontextmanager
    async def send(self, request):
        self.open_count += 1
        self.max_open_count = max(self.max_open_count, self.open_count)
        try:
            async with self._upstream.send(request) as reply:
                yield reply
        finally:
            self.open_count -= 1


def open_engine(upstream, store=None, **options):
    """Return an engine to be opened, with a window of 32,000 tokens."""
    return Engine.open(store or MemoryStore(), upstream=upstream, target=OPUS, fields=OUTPUT, **options)


@pytest.mark.parametrize("permits", [1, 2])
def test_engine_makes_at_most_as_many_calls_at_once_as_permits(permits):
    """Of five concurrent requests, as many as there are permits run in the same second, the others afterwards."""
    upstream = CountingUpstream()

    async def run_scenario():
        async with open_engine(upstream, permits=permits) as engine, anyio.create_task_group() as group:
            for name in "abcde":
                group.start_soon((await engine.session(name)).ask, "Go.")
        return get_loop_time()

    assert run_on_fake_clock(run_scenario) == -(-5 // permits)
    assert upstream.max_open_count == permits


def test_engine_close_waits_for_running_answers():
    """An answer in flight when the engine closes is in the log when the close returns."""
    store = MemoryStore()

    async def run_scenario():
        async with anyio.create_task_group() as group:
            async with open_engine(ProviderUpstream(Provider(), latency=5), store) as engine:
                group.start_soon((await engine.session(SAMPLE_KEY)).ask, "Go.")
                await anyio.sleep(1)
            return get_loop_time(), [
                entry.body.sized_message.message.role
                for entry in store.read_path(SAMPLE_KEY)
                if isinstance(entry.body, MessageEntry)
            ]

    assert run_on_fake_clock(run_scenario) == (5, ["user", "assistant"])


def test_session_compact_waits_for_a_running_answer():
    """The compaction runs after the answer in flight, never beside it."""

    async def run_scenario():
        async with open_engine(ProviderUpstream(Provider(), latency=5)) as engine, anyio.create_task_group() as group:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*build_long_conversation(20))
            group.start_soon(session.ask, "Go.")
            await anyio.sleep(1)
            result = await session.compact()
            return result.outcome, get_loop_time(), session.journal.state.view.compaction is not None

    assert run_on_fake_clock(run_scenario) == ("compacted", 5, True)


def test_accepted_summary_resets_the_count_of_failed_ones():
    """Only three failures in a row stop a writer from being asked."""
    writer = ScriptedUpstream([])

    async def run_scenario():
        upstream = ProviderUpstream(Provider(ProviderSettings(window=32_000)))
        async with open_engine(upstream, writers=[SummaryWriter(writer, GPT)]) as engine:
            session = await engine.session(SAMPLE_KEY)
            calls = []
            for reply in ["no headings"] * 2 + [SUMMARY] + ["no headings"] * 4:
                writer.replies = [reply] * 100
                before = len(writer.sent)
                await session.append(*build_long_conversation())
                await session.ask("And now?")
                calls.append(len(writer.sent) > before)
            return calls

    assert run_on_fake_clock(run_scenario) == [True, True, True, True, True, True, False]


def test_overflow_count_above_the_body_size_is_ignored():
    """A server that counts more tokens than the request has bytes does not calibrate the estimate."""
    why = "prompt is too long: 9000000 tokens > 32000 maximum"
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": why}}
    store, seen_events = MemoryStore(), []

    async def run_scenario():
        upstream = ScriptedUpstream([ScriptedReply((msgspec.json.encode(error),), 400), "yes"])
        async with open_engine(upstream, store, listen=seen_events.append) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*build_long_conversation(20))
            await session.ask("And now?")

    run_on_fake_clock(run_scenario)
    assert [event.requested_tokens for event in seen_events if isinstance(event, events.RequestRefused)] == [0]
    assert not any(
        entry.body.requested_tokens for entry in store.read_path(SAMPLE_KEY) if isinstance(entry.body, FailureEntry)
    )


@pytest.mark.parametrize(
    ("step", "sizes", "rule", "failure"),
    [
        ("compact", (900, 800), "", ""),
        ("compact", (900, 900), "", "not_smaller"),
        ("compact", (900, 950), "", "not_smaller"),
        ("truncate", (900, 800), OVER_WINDOW_RULE, "not_smaller"),
        ("fallback", (900, 800), OVER_WINDOW_RULE, ""),
    ],
)
def test_find_shrink_failure_requires_a_smaller_request(step, sizes, rule, failure):
    """retries-shrink: a step fails if the request is no smaller, and any step but the last if it does not fit."""
    notices = (Notice(rule, "too large"),) if rule else ()
    plan = Plan(ConversationState(), compaction=COMPACTED, before=sizes[0], after=sizes[1], notices=notices)
    assert compacting.find_shrink_failure(plan, step) == failure


@pytest.mark.parametrize("is_same_session", [True, False], ids=["one session", "a session each"])
def test_requests_within_a_run_obey_lanes_and_permits(is_same_session):
    """Inside a run, requests of one session run one by one, and no more at once than there are permits."""
    upstream = CountingUpstream()

    async def main():
        async with open_engine(upstream, permits=2) as engine:
            session = await engine.session(SAMPLE_KEY)
            sessions = [session if is_same_session else await engine.session(f"sub{number}") for number in range(8)]
            async with session.run("Delegate.") as run, anyio.create_task_group() as group:
                await anext(run)
                for number, other in enumerate(sessions):
                    group.start_soon(other.ask, f"Part {number}.")
                if not is_same_session:  # its own call is one of those at once meanwhile
                    await anyio.sleep(10)
                async for _ in run:
                    pass
            return [message.role for message in session.journal.state.history.messages]

    roles = run_on_fake_clock(main)
    assert upstream.max_open_count == (1 if is_same_session else 1 + 2)
    assert roles == ["user", "assistant"] * (9 if is_same_session else 1)
