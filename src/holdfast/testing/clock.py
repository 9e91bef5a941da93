"""Time that costs nothing: a loop whose clock jumps to the next deadline as soon as nobody has anything to do.

::

    async def patient() -> float:
        await anyio.sleep(3_600)
        return anyio.current_time()

    run(patient)  # 3600.0, at once

Worker threads (``anyio.to_thread``, executors) are waited for in real time, and no time passes meanwhile. While a
socket or a child process is watched, time passes as it does outside. Where nobody can ever go on, ``Deadlock`` says
who waits.
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
from anyio._backends._asyncio import _threadpool_idle_workers, _threadpool_workers  # nobody else knows who is at work

T = TypeVar("T")

_LISTED_TASKS = 8
"""Tasks that a deadlock names."""
_CHILD_THREAD_PREFIX = "waitpid-"
"""What asyncio has in the names of the threads that wait for child processes, where it needs some."""
_WAITING_PACKAGES = ("asyncio", "anyio", "anyio._backends", "anyio._core")
"""Packages whose own lines say nothing about who waits."""


class Deadlock(RuntimeError):
    """Every task waits, for no timer, no thread and no socket: none of them will ever go on."""


class FakeClock:
    """A clock that stands still until ``run`` or ``advance`` moves it; calling it tells its seconds, from any thread.

    It goes on from one ``run`` to the next, as the day does when a program is started again.
    """

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def __call__(self) -> float:
        """Return the seconds that it shows."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass."""
        self._now += max(0.0, seconds)

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Return what ``function(*args)`` returns, run on this clock. Raises ``Deadlock``, and whatever it raises."""

        async def begin() -> T:
            loop.pending_calls += 1
            await to_thread.run_sync(int)  # from here on the backend has its lists of threads
            loop.pending_calls -= 1
            loop.workers, loop.idle_workers = _threadpool_workers.get(), _threadpool_idle_workers.get()
            return await function(*args)

        loop = _FakeClockLoop(self)
        return anyio.run(begin, backend_options={"loop_factory": lambda: loop})


def run_on_fake_clock(function: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Return what ``function(*args)`` returns, run on a clock of its own that begins at 0."""
    return FakeClock().run(function, *args)


def get_loop_time() -> float:
    """Return the seconds on the clock of the running loop."""
    return asyncio.get_running_loop().time()


class _FakeClockLoop(asyncio.SelectorEventLoop):
    """An event loop on a fake clock."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.workers: Collection[object] = ()
        self.idle_workers: Collection[object] = ()
        """The backend's threads, and those of them that have nothing to do."""
        self.pending_calls = 0
        """Calls that executors have not answered."""
        super().__init__(_FakeClockSelector(self))

    def time(self) -> float:
        """Return the seconds on the fake clock."""
        return self.clock()

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Return the handle of a call at that time; one that never comes is no timer, and wakes nobody."""
        if when == inf:
            return asyncio.TimerHandle(when, callback, args, self, context)
        return super().call_at(when, callback, *args, context=context)

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Return the future of a call in a thread, which is waited for."""
        self.pending_calls += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._finish_call)
        return future

    async def shutdown_default_executor(self, *args: Any) -> None:
        """Return once the executor's threads are gone."""
        self.pending_calls += 1
        await super().shutdown_default_executor(*args)
        self.pending_calls -= 1

    def _finish_call(self, _: asyncio.Future[Any]) -> None:
        self.pending_calls -= 1

    @property
    def is_threaded(self) -> bool:
        """Whether a thread is at work whose result the loop will be told."""
        return self.pending_calls > 0 or len(self.workers) > len(self.idle_workers)


class _FakeClockSelector(selectors.DefaultSelector):
    """What the loop sleeps in: where only time would pass, it passes at once."""

    def __init__(self, loop: _FakeClockLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready: at once, after a jump of the clock, or once a thread or a socket has something."""
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self._loop.is_threaded:
            return super().select(None)
        if len(self.get_map()) > 1 or any(_CHILD_THREAD_PREFIX in thread.name for thread in threading.enumerate()):
            return self._select_in_real_time(
                timeout
            )  # the first that is watched is the loop's own, by which threads wake it
        ready = super().select(0)  # a child's thread may have told its end, and ended, since the first look
        if ready:
            return ready
        if timeout is None:
            raise Deadlock(_describe_deadlock(self._loop))
        self._loop.clock.advance(timeout)
        return ready

    def _select_in_real_time(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        began = time.monotonic()
        ready = super().select(timeout)
        self._loop.clock.advance(time.monotonic() - began)
        return ready


def _describe_deadlock(loop: asyncio.AbstractEventLoop) -> str:
    tasks = sorted(map(_describe_waiting_task, asyncio.all_tasks(loop)))
    places = "; ".join(tasks[:_LISTED_TASKS])
    return f"{len(tasks)} tasks wait, and no timer, thread or socket is left that could wake one: {places}"


def _describe_waiting_task(task: asyncio.Task[Any]) -> str:
    """Return a task's name and the innermost line that waits, not counting those of the libraries that do it."""
    frames = list(_iterate_coroutine_frames(task.get_coro()))
    own = [frame for frame in frames if frame.f_globals.get("__package__") not in _WAITING_PACKAGES] or frames
    where = f"{Path(own[-1].f_code.co_filename).name}:{own[-1].f_lineno}" if own else "its end"
    return f"{task.get_name()} at {where}"


def _iterate_coroutine_frames(coroutine: Any) -> Iterator[FrameType]:
    """Yield the frames of a coroutine, from the outermost to the one that waits."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            yield frame
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
