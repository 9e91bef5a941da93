"""The worker thread, whose callers can be cancelled unshielded: by ``asyncio.timeout``, ``Task.cancel``, Ctrl-C."""

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


class BlockingWork:
    """Work that blocks until it is allowed to end."""

    def __init__(self):
        self.has_begun, self.may_end, self.has_ended = threading.Event(), threading.Event(), False

    def __call__(self):
        self.has_begun.set()
        self.may_end.wait()
        self.has_ended = True
        return "done"


async def wait_for_event(event):
    while not event.is_set():  # noqa: ASYNC110 -- a thread sets it
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("times", [1, 3])
def test_worker_run_finishes_started_work_before_its_cancelled_caller(times):
    """However often the caller is cancelled, started work is finished and no other work runs beside it."""

    async def main():
        worker, first_work, second_work = WorkerThread(), BlockingWork(), BlockingWork()
        first = asyncio.create_task(worker.run(first_work))
        await wait_for_event(first_work.has_begun)
        for _ in range(times):
            first.cancel()
            await asyncio.sleep(0.01)
        second = asyncio.create_task(worker.run(second_work))
        await asyncio.sleep(0.05)
        assert (first.done(), second_work.has_begun.is_set()) == (False, False)
        first_work.may_end.set()
        second_work.may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert first_work.has_ended
        assert await second == "done"

    asyncio.run(main())


@pytest.mark.parametrize("fails", [False, True])
def test_worker_run_executes_queued_work_of_a_cancelled_caller_once(fails):
    """A caller cancelled while it waits may have an answer to write, so its work still runs."""
    calls = []

    def record_call():
        calls.append("written")
        if fails:
            raise OSError

    async def main():
        worker, first_work = WorkerThread(), BlockingWork()
        first = asyncio.create_task(worker.run(first_work))
        await wait_for_event(first_work.has_begun)
        second = asyncio.create_task(worker.run(record_call))
        await asyncio.sleep(0.01)
        second.cancel()
        first_work.may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert await first == "done"

    asyncio.run(main())
    assert calls == ["written"]


def test_worker_thread_ends_with_its_worker():
    """A program that opens an engine for each task leaves no threads behind."""

    async def main():
        thread = await WorkerThread().run(threading.current_thread)
        assert thread is not threading.main_thread()
        await asyncio.to_thread(thread.join, 5)
        return thread.is_alive()

    assert not asyncio.run(main())


class BlockingStore(MemoryStore):
    """A store whose next append blocks on the given work."""

    def __init__(self):
        super().__init__()
        self.blocking_work = None

    def append_entries(self, *args, **options):
        blocking_work, self.blocking_work = self.blocking_work, None
        if blocking_work is not None:
            blocking_work()
        return super().append_entries(*args, **options)


def test_session_append_follows_a_cancelled_append():
    """unique-entry-ids: a cancelled append that was being written is in the log, and the next one stands behind it."""

    async def main():
        store = BlockingStore()
        async with Engine.open(store, upstream=ScriptedUpstream([])) as engine:
            session = await engine.session(SAMPLE_KEY)
            blocking_work = store.blocking_work = BlockingWork()
            first = asyncio.create_task(session.append("One."))
            await wait_for_event(blocking_work.has_begun)
            first.cancel()
            second = asyncio.create_task(session.append("Two."))
            await asyncio.sleep(0.05)
            blocking_work.may_end.set()
            with pytest.raises(asyncio.CancelledError):
                await first
            await second
            return [slot.message.text for slot in store.open_state(SAMPLE_KEY).history.sized_messages], len(
                store.read_tips(SAMPLE_KEY)
            )

    assert asyncio.run(main()) == (["One.", "Two."], 1)


LATE_WORK_PROGRAM = """
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


def test_worker_serves_other_threads_after_the_main_thread_ended():
    """Another thread may have an answer to write; the process ends after it."""
    completed = subprocess.run(
        [sys.executable, "-c", LATE_WORK_PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert (completed.stdout.split(), completed.stderr) == (["0", "1", "2"], "")
