"""A fake clock: an event loop that jumps to the next deadline as soon as no task can run.

::

    async def patient() -> float:
        await anyio.sleep(3_600)
        return anyio.current_time()

    run(patient)  # 3600.0, at once

Worker threads (``anyio.to_thread``, executors) are waited for in real time, during which the fake clock stands still.
While a socket or a child process is watched, the clock runs with real time. If no task can ever go on, ``Deadlock`` is
raised, and names the tasks that wait.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from concurrent.futures import Executor
from contextvars import Context
from math import inf
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import anyio
from anyio import to_thread
from anyio._backends._asyncio import _threadpool_idle_workers, _threadpool_workers  # no public API tells busy threads

T = TypeVar("T")

_LISTED_TASKS = 8
"""Tasks that the message of a deadlock names; enough to see the pattern, few enough to read."""
# Where the system has no pidfd, asyncio waits for child processes in threads. The selector does not see them.
_CHILD_THREAD_PREFIX = "waitpid-"
"""Prefix of the names of those threads."""
_WAITING_PACKAGES = ("asyncio", "anyio", "anyio._backends", "anyio._core")
"""Packages that are left out when the waiting line of a task is shown."""


class Deadlock(RuntimeError):
    """Every task waits, and no timer, thread or socket is left that could wake one."""


class FakeClock:
    """A clock that stands still until ``run`` or ``advance`` moves it.

    Calling it returns its time in seconds, from any thread. The time goes on from one ``run`` to the next, as it does
    when a program is restarted.
    """

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def __call__(self) -> float:
        """Return the current time in seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward; a negative number of seconds has no effect."""
        self._now += max(0.0, seconds)

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run ``function(*args)`` on this clock and return its result.

        Raises ``Deadlock``, and whatever the function raises.
        """

        async def run_function() -> T:
            # The call below is not yet visible in the lists of threads, so it is counted by hand.
            loop.pending_calls += 1
            # Any call in a thread: anyio creates its lists of threads with the first one.
            await to_thread.run_sync(int)
            loop.pending_calls -= 1
            loop.workers = _threadpool_workers.get()
            loop.idle_workers = _threadpool_idle_workers.get()
            return await function(*args)

        loop = _FakeClockLoop(self)
        return anyio.run(run_function, backend_options={"loop_factory": lambda: loop})


def run_on_fake_clock(function: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run ``function(*args)`` on a new clock that begins at 0, and return its result."""
    return FakeClock().run(function, *args)


def get_loop_time() -> float:
    """Return the time of the running loop in seconds, fake or real."""
    return asyncio.get_running_loop().time()


class _FakeClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is that of a fake clock."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.workers: Collection[object] = ()
        self.idle_workers: Collection[object] = ()
        """All threads of anyio's backend, and those of them that are idle."""
        self.pending_calls = 0
        """Calls in executors that have not finished."""
        super().__init__(_FakeClockSelector(self))

    def time(self) -> float:
        """Return the time of the fake clock in seconds."""
        return self.clock()

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Schedule a call as asyncio does, but drop one at infinity.

        ``sleep_forever`` and endless timeouts are calls at infinity. As timers they would hide a deadlock.
        """
        if when == inf:
            return asyncio.TimerHandle(when, callback, args, self, context)
        return super().call_at(when, callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]
        self,
        executor: Executor | None,
        func: Callable[..., T],
        *args: Any,
    ) -> asyncio.Future[T]:
        """Run a call in a thread as asyncio does, and count it as pending until it has finished."""
        self.pending_calls += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._finish_call)
        return future

    async def shutdown_default_executor(self, *args: Any) -> None:
        """Wait for the executor's threads to end; they count as pending meanwhile."""
        self.pending_calls += 1
        await super().shutdown_default_executor(*args)
        self.pending_calls -= 1

    def _finish_call(self, _: asyncio.Future[Any]) -> None:
        self.pending_calls -= 1

    @property
    def is_threaded(self) -> bool:
        """Whether a thread is at work that will report a result to the loop."""
        return self.pending_calls > 0 or len(self.workers) > len(self.idle_workers)


class _FakeClockSelector(selectors.DefaultSelector):
    """The selector in which the loop sleeps; it advances the clock in place of sleeping."""

    def __init__(self, loop: _FakeClockLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the ready sockets; sleep only for threads, sockets and child processes, else advance the clock."""
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        # No time passes for a thread: its work is real, and jumping to the next timer would let timeouts strike it.
        if self._loop.is_threaded:
            return super().select(None)
        # One socket is always watched: the loop's own, by which threads wake it.
        watches_sockets = len(self.get_map()) > 1
        if watches_sockets or any(_CHILD_THREAD_PREFIX in thread.name for thread in threading.enumerate()):
            return self._select_in_real_time(timeout)
        # The thread of a child process may have reported its end, and ended itself, since the first look.
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise Deadlock(_describe_deadlock(self._loop))
        self._loop.clock.advance(timeout)
        return ready

    def _select_in_real_time(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        start = time.monotonic()
        ready = super().select(timeout)
        self._loop.clock.advance(time.monotonic() - start)
        return ready


def _describe_deadlock(loop: asyncio.AbstractEventLoop) -> str:
    tasks = sorted(map(_describe_waiting_task, asyncio.all_tasks(loop)))
    places = "; ".join(tasks[:_LISTED_TASKS])
    return f"{len(tasks)} tasks wait, and no timer, thread or socket is left that could wake one: {places}"


def _describe_waiting_task(task: asyncio.Task[Any]) -> str:
    """Return a task's name and the innermost line at which it waits, outside of asyncio and anyio."""
    frames = list(_iterate_coroutine_frames(task.get_coro()))
    if not frames:
        return f"{task.get_name()} at its end"
    innermost = frames[-1]
    for frame in frames:
        if frame.f_globals.get("__package__") not in _WAITING_PACKAGES:
            innermost = frame
    file_name = Path(innermost.f_code.co_filename).name
    return f"{task.get_name()} at {file_name}:{innermost.f_lineno}"


def _iterate_coroutine_frames(coroutine: Any) -> Iterator[FrameType]:
    """Yield the frames of a coroutine and of those it awaits, the outermost first."""
    # A coroutine or a generator-based one (`types.coroutine`), which name these attributes differently.
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            yield frame
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
