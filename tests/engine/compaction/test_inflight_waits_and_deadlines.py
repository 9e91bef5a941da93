"""Who waits for a compaction, and what a deadline in the middle of one says: through the doors of a session."""

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


class Paced:
    """The strict provider in a small window; requests wait the seconds given for each, the last for all that follow."""

    def __init__(self, window, *seconds):
        self._provider = ProviderUpstream(Provider(ProviderSettings(window=window)))
        self._seconds = list(seconds)
        self.asked = 0

    @asynccontextmanager
    async def send(self, sent):
        await anyio.sleep(self._seconds[min(self.asked, len(self._seconds) - 1)])
        self.asked += 1
        async with self._provider.send(sent) as reply:
            yield reply


async def filled(engine):
    """Return a session with some 40,000 tokens in it."""
    session = await engine.session("k")
    for number in range(44):
        said = "".join(f"line {line} of {number}\n" for line in range(150))
        await session.append(Message.from_text("user", said), Message.from_text("assistant", "Done."))
    return session


@pytest.mark.parametrize("writes", [False, True], ids=["extract", "rejected"])
def test_wait_for_compaction_outlasts_the_retry(writes):
    """Whoever wrote the summary, the wait ends with the answer of the retry, also where that takes over a minute."""
    refused = [SummaryWriter(ScriptedUpstream(["no summary"] * 9), CLAUDE)] if writes else []

    async def main():
        upstream, ended = Paced(30_000, 1, 100), {}
        async with Engine.open(MemoryStore(), upstream=upstream, target=CLAUDE, writers=refused) as engine:
            session = await filled(engine)

            async def waits():
                await anyio.sleep(2)
                await session.wait_for_compaction()
                ended["wait"] = anyio.current_time()

            async with anyio.create_task_group() as group:
                group.start_soon(waits)
                await session.ask("And now?")
                ended["answer"] = anyio.current_time()
        return ended

    ended = run_on_fake_clock(main)
    assert ended == {"wait": 101, "answer": 101}


def test_wait_for_compaction_ends_where_the_retry_fails():
    """A retry that is refused for good releases those that wait, with nothing pending."""

    async def main():
        async with Engine.open(MemoryStore(), upstream=Paced(500, 1, 100), target=CLAUDE) as engine:
            session, failed = await filled(engine), []

            async def asks():
                with pytest.raises(UpstreamError):
                    await session.ask("And now?")
                failed.append(anyio.current_time())

            async with anyio.create_task_group() as group:
                group.start_soon(asks)
                await anyio.sleep(2)
                await session.wait_for_compaction()
                waited = anyio.current_time()
            return waited, failed[0], session.compaction_tracker.status.is_busy

    waited, failed, is_busy = run_on_fake_clock(main)
    assert waited == failed > 100
    assert not is_busy


def test_a_run_that_nobody_reads_holds_no_waiter():
    """Where the caller has the first event of the retry and asks for no more, the wait ends after its minute."""

    async def main():
        async with Engine.open(MemoryStore(), upstream=Paced(30_000, 1), target=CLAUDE) as engine:
            session = await filled(engine)
            async with session.run("And now?", stream=True) as asked:
                await anext(asked)
                began = anyio.current_time()
                await session.wait_for_compaction()
                return anyio.current_time() - began

    assert run_on_fake_clock(main) == 60


def late(upstream):
    """Return the error of a question that had 50 seconds, and the session's newest entry then."""

    async def main():
        async with Engine.open(MemoryStore(), upstream=upstream, target=CLAUDE) as engine:
            session = await filled(engine)
            with pytest.raises(DeadlineExceeded) as caught:
                await session.ask("And now?", deadline=50)
            return caught.value, session.journal

    return run_on_fake_clock(main)


def test_a_deadline_in_a_compaction_names_what_stands():
    """A compaction that ends because its run is cancelled was under way at the deadline, and the error says so."""

    async def main():
        flying = CompactionTracker()

        async def compacts():
            flying.start()
            try:
                await anyio.sleep(1_000)
            finally:
                flying.end("cancelled")

        with pytest.raises(DeadlineExceeded) as caught, flying.limit_run(100, 30, lambda: "entry e7, 12 messages"):
            await compacts()
        return anyio.current_time(), caught.value

    stopped, error = run_on_fake_clock(main)
    assert stopped == 130
    assert error.during_compaction
    assert "100 s were over during a compaction; the log has what was recorded: entry e7, 12 messages" in str(error)
    assert error.snapshot == "entry e7, 12 messages"


def test_a_deadline_in_the_retry_of_a_compaction_names_what_stands():
    """A retry that is under way at the deadline counts as the compaction's timeout; that compaction stands."""
    error, journal = late(Paced(30_000, 1, 10_000))
    assert error.during_compaction
    assert "tried again after a compaction" in str(error)
    assert journal.state.view.compaction is not None
    assert f"message {journal.state.view.first_kept} first" in error.snapshot


def test_a_deadline_without_a_compaction_is_no_compactions():
    """A provider that does not answer is no compaction's fault, and nothing is said of one."""
    error, _ = late(Paced(200_000, 10_000))
    assert not error.during_compaction
    assert error.snapshot == ""
    assert "compaction" not in str(error)


def test_a_compaction_after_an_overflow_is_logged_as_one():
    """The entry in the log has the trigger that its event told."""
    told = []

    async def main():
        async with Engine.open(MemoryStore(), upstream=Paced(30_000, 1), target=CLAUDE, listen=told.append) as engine:
            session = await filled(engine)
            await session.ask("And now?")
            return [
                entry.body.trigger
                for entry in engine.resources.store.read_path("k")
                if isinstance(entry.body, CompactionEntry)
            ]

    logged = run_on_fake_clock(main)
    assert logged == [event.trigger for event in told if isinstance(event, events.CompactionStarted)] == ["overflow"]


def test_the_last_overflow_error_suggests_a_new_session():
    """Where nothing is left to leave out, the error names both ways out: a larger window, or a new session."""

    async def main():
        async with Engine.open(MemoryStore(), upstream=Paced(300, 1), target=CLAUDE) as engine:
            session = await filled(engine)
            with pytest.raises(ContextOverflow, match="larger window, or begin a new session"):
                await session.ask("And now?")

    run_on_fake_clock(main)
