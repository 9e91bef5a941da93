"""The worker: one verb after the other is done in a thread, each of them to its end, whoever gives up meanwhile."""

from __future__ import annotations

import os
from asyncio import CancelledError, get_running_loop
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import finalize

from anyio import CancelScope

T = TypeVar("T")
WorkQueue: TypeAlias = "SimpleQueue[Callable[[], None] | None]"
"""What is to be done, in order; nothing ends its thread."""

_thread_start_lock = Lock()
"""Held while a thread begins, and while the process forks."""
os.register_at_fork(
    before=_thread_start_lock.acquire,
    after_in_parent=_thread_start_lock.release,
    after_in_child=_thread_start_lock.release,
)


class WorkerThread:
    """Does one thing at a time, in the order it came, in a thread that ends with it."""

    def __init__(self) -> None:
        self._thread = _SingleThreadExecutor()

    async def run(self, verb: Callable[[], T]) -> T:
        """Return what ``verb`` returns; it is done when this ends, however its caller is cancelled.

        No scope shields from ``Task.cancel``, by which ``asyncio.timeout`` and ^C give up.
        """
        job, context, loop = _OnceCall(verb), copy_context(), get_running_loop()
        given_up: BaseException | None = None
        with CancelScope(shield=True):
            while not job.is_over:
                try:
                    await loop.run_in_executor(self._thread, context.run, job.run)
                except CancelledError as why:
                    given_up = why
        if given_up is not None:
            raise given_up
        return job.take_result()


class _SingleThreadExecutor(Executor):
    """A thread that begins with the first call in each process, and ends with this.

    That of a ``ThreadPoolExecutor`` is missing in a child that is forked, and takes nothing more once the main thread
    has ended, while another may still have an answer to write down.
    """

    def __init__(self) -> None:
        self._queue: WorkQueue = SimpleQueue()
        self._process = 0
        """That in which the thread is."""

    def submit(self, call: Callable[..., T], /, *args: Any, **keywords: Any) -> Future[T]:
        """Return what becomes of a call."""
        future: Future[T] = Future()
        self._ensure_thread().put(partial(_complete_future, future, partial(call, *args, **keywords)))
        return future

    def _ensure_thread(self) -> WorkQueue:
        if self._process != os.getpid():
            with _thread_start_lock:
                if self._process != os.getpid():
                    self._queue, self._process = SimpleQueue(), os.getpid()
                    Thread(target=_run_queue, args=(self._queue,), name="worker of holdfast", daemon=True).start()
                    finalize(self, self._queue.put, None).atexit = False
        return self._queue


def _run_queue(queue: WorkQueue) -> None:
    """Do what comes, until nothing does."""
    while (call := queue.get()) is not None:
        call()
        del call  # it holds on to what came of it


def _complete_future(future: Future[T], call: Callable[[], T]) -> None:
    """Let ``future`` know what becomes of ``call``."""
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 -- it is raised where it is waited for
            future.set_exception(error)


class _OnceCall(Generic[T]):
    """Something that is done once, however often it is asked for."""

    _result: T

    def __init__(self, verb: Callable[[], T]) -> None:
        self._function = verb
        self._error: BaseException | None = None
        self.is_over = False

    def run(self) -> None:
        """Do it, where it was not done."""
        if not self.is_over:
            try:
                self._result = self._function()
            except BaseException as error:  # noqa: BLE001 -- it is raised where it is waited for
                self._error = error
            self.is_over = True

    def take_result(self) -> T:
        """Return what came of it, or raise that, once."""
        try:
            if self._error is not None:
                raise self._error
            return self._result
        finally:
            self._error = None  # an error holds on to all that was there when it was raised
