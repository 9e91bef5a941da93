"""The worker, and who gives up in ways that no scope shields from: ``asyncio.timeout``, ``Task.cancel``, ^C."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest
from sample_entries import SAMPLE_KEY

from holdfast.engine.concurrency.worker import WorkerThread
from holdfast.engine.engine import Engine
from holdfast.store.memory import MemoryStore
from holdfast.testing.upstream import ScriptedUpstream


class Doing:
    """What takes until it may end."""

    def __init__(self):
        self.began, self.may_end, self.ended = threading.Event(), threading.Event(), False

    def __call__(self):
        self.began.set()
        self.may_end.wait()
        self.ended = True
        return "done"


async def until(event):
    while not event.is_set():  # noqa: ASYNC110 -- a thread sets it
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("times", [1, 3])
def test_what_began_ends_before_its_caller_does(times):
    """However often its task is cancelled, what is being done is done, and nothing else is done meanwhile."""

    async def main():
        worker, one, two = WorkerThread(), Doing(), Doing()
        first = asyncio.create_task(worker.run(one))
        await until(one.began)
        for _ in range(times):
            first.cancel()
            await asyncio.sleep(0.01)
        second = asyncio.create_task(worker.run(two))
        await asyncio.sleep(0.05)
        assert (first.done(), two.began.is_set()) == (False, False)
        one.may_end.set()
        two.may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert one.ended
        assert await second == "done"

    asyncio.run(main())


@pytest.mark.parametrize("fails", [False, True])
def test_what_has_not_begun_is_done_in_its_turn(fails):
    """Who is cancelled while others are at work had something to write: an answer, say. It is written once."""
    told = []

    def written():
        told.append("written")
        if fails:
            raise OSError

    async def main():
        worker, one = WorkerThread(), Doing()
        first = asyncio.create_task(worker.run(one))
        await until(one.began)
        second = asyncio.create_task(worker.run(written))
        await asyncio.sleep(0.01)
        second.cancel()
        one.may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert await first == "done"

    asyncio.run(main())
    assert told == ["written"]


def test_its_thread_ends_with_it():
    """Who opens an engine for each thing that it does leaves no thread behind."""

    async def main():
        thread = await WorkerThread().run(threading.current_thread)
        assert thread is not threading.main_thread()
        await asyncio.to_thread(thread.join, 5)
        return thread.is_alive()

    assert not asyncio.run(main())


class Slow(MemoryStore):
    """A store that takes its time, once it is told to."""

    def __init__(self):
        super().__init__()
        self.doing = None

    def append_entries(self, *args, **options):
        doing, self.doing = self.doing, None
        if doing is not None:
            doing()
        return super().append_entries(*args, **options)


def test_a_message_beside_one_that_was_given_up():
    """unique-entry-ids: both are in the log, one behind the other: what was cancelled was being
    written all the same.
    """

    async def main():
        store = Slow()
        async with Engine.open(store, upstream=ScriptedUpstream([])) as engine:
            session = await engine.session(SAMPLE_KEY)
            doing = store.doing = Doing()
            first = asyncio.create_task(session.append("One."))
            await until(doing.began)
            first.cancel()
            second = asyncio.create_task(session.append("Two."))
            await asyncio.sleep(0.05)
            doing.may_end.set()
            with pytest.raises(asyncio.CancelledError):
                await first
            await second
            return [slot.message.text for slot in store.open_state(SAMPLE_KEY).history.sized_messages], len(
                store.read_tips(SAMPLE_KEY)
            )

    assert asyncio.run(main()) == (["One.", "Two."], 1)


LATE = """
import asyncio, threading, time
from holdfast.engine.concurrency.worker import WorkerThread

async def late():
    worker = WorkerThread()
    for number in range(3):
        print(await worker.run(lambda: number), flush=True)
        await asyncio.sleep(0.2)

threading.Thread(target=lambda: asyncio.run(late())).start()
time.sleep(0.1)
"""


def test_another_thread_may_go_on_when_the_main_one_has_ended():
    """It may have an answer to write down; the process ends behind it."""
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.split(), done.stderr) == (["0", "1", "2"], "")
