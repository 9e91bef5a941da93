"""What an engine does at once, and what waits: model calls and permits, compactions and runs, closing."""

from __future__ import annotations

from contextlib import asynccontextmanager

import anyio
import msgspec
import pytest
from long_conversation import talk
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


class Counting:
    """An upstream that answers after a second and knows how many asked at once."""

    def __init__(self):
        self._asked = ProviderUpstream(Provider(), latency=1)
        self.inside = self.most = 0

    @asynccontextmanager
    async def send(self, sent):
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            async with self._asked.send(sent) as reply:
                yield reply
        finally:
            self.inside -= 1


def opened(upstream, store=None, **more):
    """Return an engine about to be opened, with a window of 32,000 tokens."""
    return Engine.open(store or MemoryStore(), upstream=upstream, target=OPUS, fields=OUTPUT, **more)


@pytest.mark.parametrize("permits", [1, 2])
def test_an_engine_makes_no_more_calls_at_once_than_it_has_permits(permits):
    """Five sessions ask together; as many as have a permit are answered in the same second, the others after them."""
    upstream = Counting()

    async def go():
        async with opened(upstream, permits=permits) as engine, anyio.create_task_group() as group:
            for name in "abcde":
                group.start_soon((await engine.session(name)).ask, "Go.")
        return get_loop_time()

    assert run_on_fake_clock(go) == -(-5 // permits)
    assert upstream.most == permits


def test_closing_waits_for_what_runs():
    """An answer that is on its way when the engine closes is in the log when it is closed, and nothing new begins."""
    store = MemoryStore()

    async def go():
        async with anyio.create_task_group() as group:
            async with opened(ProviderUpstream(Provider(), latency=5), store) as engine:
                group.start_soon((await engine.session(SAMPLE_KEY)).ask, "Go.")
                await anyio.sleep(1)
            return get_loop_time(), [
                entry.body.sized_message.message.role
                for entry in store.read_path(SAMPLE_KEY)
                if isinstance(entry.body, MessageEntry)
            ]

    assert run_on_fake_clock(go) == (5, ["user", "assistant"])


def test_a_compaction_waits_for_the_run_before_it():
    """What is asked for while an answer is on its way is compacted behind that answer, never beside it."""

    async def go():
        async with opened(ProviderUpstream(Provider(), latency=5)) as engine, anyio.create_task_group() as group:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*talk(20))
            group.start_soon(session.ask, "Go.")
            await anyio.sleep(1)
            made = await session.compact()
            return made.outcome, get_loop_time(), session.journal.state.view.compaction is not None

    assert run_on_fake_clock(go) == ("compacted", 5, True)


def test_a_summary_that_is_taken_makes_up_for_those_that_were_not():
    """Only failures in a row count: two, a summary, and two more leave the writer in its place."""
    writer = ScriptedUpstream([])

    async def go():
        upstream = ProviderUpstream(Provider(ProviderSettings(window=32_000)))
        async with opened(upstream, writers=[SummaryWriter(writer, GPT)]) as engine:
            session = await engine.session(SAMPLE_KEY)
            calls = []
            for said in ["no headings"] * 2 + [SUMMARY] + ["no headings"] * 4:
                writer.replies = [said] * 100
                before = len(writer.sent)
                await session.append(*talk())
                await session.ask("And now?")
                calls.append(len(writer.sent) > before)
            return calls

    assert run_on_fake_clock(go) == [True, True, True, True, True, True, False]


def test_a_count_that_no_text_can_have_is_none():
    """A server that counted more tokens than the request has bytes teaches nothing of how tokens are counted."""
    why = "prompt is too long: 9000000 tokens > 32000 maximum"
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": why}}
    store, heard = MemoryStore(), []

    async def go():
        upstream = ScriptedUpstream([ScriptedReply((msgspec.json.encode(error),), 400), "yes"])
        async with opened(upstream, store, listen=heard.append) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*talk(20))
            await session.ask("And now?")

    run_on_fake_clock(go)
    assert [event.requested_tokens for event in heard if isinstance(event, events.RequestRefused)] == [0]
    assert not any(
        one.body.requested_tokens for one in store.read_path(SAMPLE_KEY) if isinstance(one.body, FailureEntry)
    )


@pytest.mark.parametrize(
    ("step", "sizes", "rule", "said"),
    [
        ("compact", (900, 800), "", ""),
        ("compact", (900, 900), "", "not_smaller"),
        ("compact", (900, 950), "", "not_smaller"),
        ("truncate", (900, 800), OVER_WINDOW_RULE, "not_smaller"),
        ("fallback", (900, 800), OVER_WINDOW_RULE, ""),
    ],
)
def test_what_is_pressed_for_is_smaller_or_does_not_go_out(step, sizes, rule, said):
    """retries-shrink: a compaction that leaves as much is useless, and so is a step but the last that leaves more than
    fits.
    """
    notices = (Notice(rule, "too large"),) if rule else ()
    plan = Plan(ConversationState(), compaction=COMPACTED, before=sizes[0], after=sizes[1], notices=notices)
    assert compacting.find_shrink_failure(plan, step) == said


@pytest.mark.parametrize("is_one", [True, False], ids=["one session", "a session each"])
def test_what_is_asked_within_a_run_is_asked_in_turn(is_one):
    """Runs of one session go one after the other there too, and no more at once than there are permits."""
    upstream = Counting()

    async def main():
        async with opened(upstream, permits=2) as engine:
            session = await engine.session(SAMPLE_KEY)
            others = [session if is_one else await engine.session(f"sub{number}") for number in range(8)]
            async with session.run("Delegate.") as going, anyio.create_task_group() as group:
                await anext(going)
                for number, other in enumerate(others):
                    group.start_soon(other.ask, f"Part {number}.")
                if not is_one:  # its own call is one of those at once meanwhile
                    await anyio.sleep(10)
                async for _ in going:
                    pass
            return [message.role for message in session.journal.state.history.messages]

    roles = run_on_fake_clock(main)
    assert upstream.most == (1 if is_one else 1 + 2)
    assert roles == ["user", "assistant"] * (9 if is_one else 1)


class Held(ScriptedUpstream):
    """An upstream that answers once it may."""

    def __init__(self, replies):
        super().__init__(replies)
        self.asked, self.may_answer = anyio.Event(), anyio.Event()

    @asynccontextmanager
    async def send(self, sent):
        self.asked.set()
        if not self.may_answer.is_set():
            await self.may_answer.wait()
        async with super().send(sent) as reply:
            yield reply
