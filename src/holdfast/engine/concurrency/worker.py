"""A worker thread that makes one call after the other, each to its end, even if the caller is cancelled meanwhile."""

from __future__ import annotations

from asyncio import CancelledError, Future, get_running_loop, wait
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from anyio import CancelScope

T = TypeVar("T")


class WorkerThread:
    """Makes one call at a time, in order, in a thread that ends with this object.

    At exit the interpreter waits for the accepted calls, so that everything to be written is written.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="worker of holdfast")

    async def run(self, call: Callable[[], T]) -> T:
        """Make ``call`` in the thread and return its result; a cancelled caller still waits for its end."""
        try:
            future = get_running_loop().run_in_executor(self._executor, copy_context().run, call)
        except RuntimeError:
            # The main thread has ended, and with it all executors, while this event loop runs on in another thread. It
            # may have a paid answer to store: make the call here, once the thread has finished the accepted ones.
            self._executor.shutdown(wait=True)
            return call()
        await _wait_until_done(future)
        try:
            return future.result()
        finally:
            # The error it may hold refers to this frame: a reference cycle that would wait for the garbage collector.
            del future


async def _wait_until_done(future: Future[T]) -> None:
    """Wait for ``future``; if this task is cancelled meanwhile, raise that once it is done.

    The scope shields from cancellation by anyio, but not from ``Task.cancel``, which ``asyncio.timeout`` and ^C use.
    """
    cancellation: CancelledError | None = None
    with CancelScope(shield=True):
        while not future.done():
            try:
                await wait([future])
            except CancelledError as error:
                cancellation = error
    if cancellation is not None:
        raise cancellation
