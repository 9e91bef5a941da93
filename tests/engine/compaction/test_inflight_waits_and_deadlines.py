"""Waiting for compactions, and deadlines during one, through the public methods of a session."""

from __future__ import annotations

from contextlib import asynccontextmanager

import anyio
import pytest

from holdfast import events
from holdfast.config import get_target
from holdfast.engine.compaction.inflight import CompactionTracker
from holdfast.engine.compaction.summarizer import SummaryWriter
from holdfast.engine.engine import Engine
from holdfast.errors import ContextOverflow, DeadlineExceeded, UpstreamError
from holdfast.messages.message import Message
from holdfast.state.entries import CompactionEntry
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.upstream import ProviderUpstream, ScriptedUpstream

CLAUDE = get_target("anthropic", "claude-sonnet-4-5", window=200_000)


class DelayedUpstream:
    """The strict provider with a small window and a delay per request; the last delay holds for all later ones."""

    def __init__(self, window, *seconds):
        self._provider = ProviderUpstream(Provider(ProviderSettings(window=window)))
        self._seconds = list(seconds)
        self.request_count = 0

    @asynccontextmanager
    async def send(self, request):
        await anyio.sleep(self._seconds[min(self.request_count, len(self._seconds) - 1)])
        self.request_count += 1
        async with self._provider.send(request) as reply:
            yield reply


async def open_filled_session(engine):
    """Open a session and fill it with about 40,000 tokens."""
    session = await engine.session("k")
    for number in range(44):
        text = "".join(f"line {line} of {number}\n" for line in range(150))
        await session.append(Message.from_text("user", text), Message.from_text("assistant", "Done."))
    return session


@pytest.mark.parametrize("has_writer", [False, True], ids=["extract", "rejected"])
def test_wait_for_compaction_ends_with_the_answer_of_the_retry(has_writer):
    """Whoever wrote the summary, the wait ends with the retry's answer, even if that takes over a minute."""
    writers = [SummaryWriter(ScriptedUpstream(["no summary"] * 9), CLAUDE)] if has_writer else []

    async def main():
        upstream, end_times = DelayedUpstream(30_000, 1, 100), {}
        async with Engine.open(MemoryStore(), upstream=upstream, target=CLAUDE, writers=writers) as engine:
            session = await open_filled_session(engine)

            async def wait_for_compaction():
                await anyio.sleep(2)
                await session.wait_for_compaction()
                end_times["wait"] = anyio.current_time()

            async with anyio.create_task_group() as group:
                group.start_soon(wait_for_compaction)
                await session.ask("And now?")
                end_times["answer"] = anyio.current_time()
        return end_times

    end_times = run_on_fake_clock(main)
    assert end_times == {"wait": 101, "answer": 101}


def test_wait_for_compaction_ends_when_the_retry_fails():
    """A retry that is refused for good releases the waiters, with nothing pending."""

    async def main():
        async with Engine.open(MemoryStore(), upstream=DelayedUpstream(500, 1, 100), target=CLAUDE) as engine:
            session, failed_at = await open_filled_session(engine), []

            async def ask_and_expect_error():
                with pytest.raises(UpstreamError):
                    await session.ask("And now?")
                failed_at.append(anyio.current_time())

            async with anyio.create_task_group() as group:
                group.start_soon(ask_and_expect_error)
                await anyio.sleep(2)
                await session.wait_for_compaction()
                waited_until = anyio.current_time()
            return waited_until, failed_at[0], session.compaction_tracker.status.is_busy

    waited_until, failed_at, is_busy = run_on_fake_clock(main)
    assert waited_until == failed_at > 100
    assert not is_busy


def test_wait_for_compaction_ends_after_a_minute_when_nobody_reads_the_run():
    """A caller that stops reading the retry's events does not block the waiters."""

    async def main():
        async with Engine.open(MemoryStore(), upstream=DelayedUpstream(30_000, 1), target=CLAUDE) as engine:
            session = await open_filled_session(engine)
            async with session.run("And now?", stream=True) as run:
                await anext(run)
                started_at = anyio.current_time()
                await session.wait_for_compaction()
                return anyio.current_time() - started_at

    assert run_on_fake_clock(main) == 60


def ask_beyond_deadline(upstream):
    """Ask with a deadline of 50 seconds; return the error and the session's journal."""

    async def main():
        async with Engine.open(MemoryStore(), upstream=upstream, target=CLAUDE) as engine:
            session = await open_filled_session(engine)
            with pytest.raises(DeadlineExceeded) as caught:
                await session.ask("And now?", deadline=50)
            return caught.value, session.journal

    return run_on_fake_clock(main)


def test_limit_run_names_the_log_position_when_it_ends_a_compaction():
    """A compaction cancelled at the deadline counts as under way, and the error names the entry that stands."""

    async def main():
        tracker = CompactionTracker()

        async def compact():
            tracker.start()
            try:
                await anyio.sleep(1_000)
            finally:
                tracker.end("cancelled")

        with pytest.raises(DeadlineExceeded) as caught, tracker.limit_run(100, 30, lambda: "entry e7, 12 messages"):
            await compact()
        return anyio.current_time(), caught.value

    stopped, error = run_on_fake_clock(main)
    assert stopped == 130
    assert error.during_compaction
    assert "took longer than 100 s, during a compaction; the log is kept: entry e7, 12 messages" in str(error)
    assert error.snapshot == "entry e7, 12 messages"


def test_ask_deadline_during_a_retry_names_the_compaction_that_stands():
    """A deadline during the retry counts as the compaction's timeout, and the compaction stays."""
    error, journal = ask_beyond_deadline(DelayedUpstream(30_000, 1, 10_000))
    assert error.during_compaction
    assert "tried again after a compaction" in str(error)
    assert journal.state.view.compaction is not None
    assert f"message {journal.state.view.first_kept} first" in error.snapshot


def test_ask_deadline_without_a_compaction_does_not_mention_one():
    """A silent provider is not a compaction's fault."""
    error, _ = ask_beyond_deadline(DelayedUpstream(200_000, 10_000))
    assert not error.during_compaction
    assert error.snapshot == ""
    assert "compaction" not in str(error)


def test_compaction_after_an_overflow_is_recorded_with_that_trigger():
    """The entry has the same trigger as the event."""
    seen_events = []

    async def main():
        async with Engine.open(
            MemoryStore(), upstream=DelayedUpstream(30_000, 1), target=CLAUDE, listen=seen_events.append
        ) as engine:
            session = await open_filled_session(engine)
            await session.ask("And now?")
            return [
                entry.body.trigger
                for entry in engine.resources.store.read_path("k")
                if isinstance(entry.body, CompactionEntry)
            ]

    triggers = run_on_fake_clock(main)
    assert (
        triggers
        == [event.trigger for event in seen_events if isinstance(event, events.CompactionStarted)]
        == ["overflow"]
    )


def test_final_overflow_error_suggests_a_larger_window_or_a_new_session():
    """When nothing can be left out any more, the error names both ways out: a larger window or a new session."""

    async def main():
        async with Engine.open(MemoryStore(), upstream=DelayedUpstream(300, 1), target=CLAUDE) as engine:
            session = await open_filled_session(engine)
            with pytest.raises(ContextOverflow, match="larger window, or begin a new session"):
                await session.ask("And now?")

    run_on_fake_clock(main)
