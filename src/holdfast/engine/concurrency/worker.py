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
Queue: TypeAlias = "SimpleQueue[Callable[[], None] | None]"
"""What is to be done, in order; nothing ends its thread."""

_beginning = Lock()
"""Held while a thread begins, and while the process forks."""
os.register_at_fork(before=_beginning.acquire, after_in_parent=_beginning.release, after_in_child=_beginning.release)


class Worker:
    """Does one thing at a time, in the order it came, in a thread that ends with it."""

    def __init__(self) -> None:
        self._thread = _OneThread()

    async def done(self, verb: Callable[[], T]) -> T:
        """Return what ``verb`` returns; it is done when this ends, however its caller is cancelled.

        No scope shields from ``Task.cancel``, by which ``asyncio.timeout`` and ^C give up.
        """
        job, context, loop = _Job(verb), copy_context(), get_running_loop()
        given_up: BaseException | None = None
        with CancelScope(shield=True):
            while not job.is_over:
                try:
                    await loop.run_in_executor(self._thread, context.run, job.do)
                except CancelledError as why:
                    given_up = why
        if given_up is not None:
            raise given_up
        return job.told()


class _OneThread(Executor):
    """A thread that begins with the first call in each process, and ends with this.

    That of a ``ThreadPoolExecutor`` is missing in a child that is forked, and takes nothing more once the main thread
    has ended, while another may still have an answer to write down.
    """

    def __init__(self) -> None:
        self._queue: Queue = SimpleQueue()
        self._process = 0
        """That in which the thread is."""

    def submit(self, call: Callable[..., T], /, *args: Any, **named: Any) -> Future[T]:
        """Return what becomes of a call."""
        future: Future[T] = Future()
        self._begun().put(partial(_do, future, partial(call, *args, **named)))
        return future

    def _begun(self) -> Queue:
        if self._process != os.getpid():
            with _beginning:
                if self._process != os.getpid():
                    self._queue, self._process = SimpleQueue(), os.getpid()
                    Thread(target=_work, args=(self._queue,), name="worker of holdfast", daemon=True).start()
                    finalize(self, self._queue.put, None).atexit = False
        return self._queue


def _work(queue: Queue) -> None:
    """Do what comes, until nothing does."""
    while (call := queue.get()) is not None:
        call()
        del call  # it holds on to what came of it


def _do(future: Future[T], call: Callable[[], T]) -> None:
    """Let ``future`` know what becomes of ``call``."""
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 -- it is raised where it is waited for
            future.set_exception(error)


class _Job(Generic[T]):
    """Something that is done once, however often it is asked for."""

    _found: T

    def __init__(self, verb: Callable[[], T]) -> None:
        self._verb = verb
        self._error: BaseException | None = None
        self.is_over = False

    def do(self) -> None:
        """Do it, where it was not done."""
        if not self.is_over:
            try:
                self._found = self._verb()
            except BaseException as error:  # noqa: BLE001 -- it is raised where it is waited for
                self._error = error
            self.is_over = True

    def told(self) -> T:
        """Return what came of it, or raise that, once."""
        try:
            if self._error is not None:
                raise self._error
            return self._found
        finally:
            self._error = None  # an error holds on to all that was there when it was raised
