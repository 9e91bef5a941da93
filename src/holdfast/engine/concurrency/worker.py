"""The worker: one call after the other is made in a thread, each to its end, whoever gives up meanwhile."""

from __future__ import annotations

from asyncio import CancelledError, Future, get_running_loop, wait
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from anyio import CancelScope

T = TypeVar("T")


class WorkerThread:
    """Makes one call at a time, in the order they came, in a thread that ends with this object.

    The interpreter waits at its exit for calls that were taken, so what was to be written is written.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="worker of holdfast")

    async def run(self, call: Callable[[], T]) -> T:
        """Return what ``call`` returns; it is over when this ends, also where the caller is cancelled."""
        try:
            future = get_running_loop().run_in_executor(self._executor, copy_context().run, call)
        except RuntimeError:
            # The main thread has ended, and with it all executors, while this loop goes on in another thread. It may
            # have a paid answer to store: once the thread has done what it took, the call is made here.
            self._executor.shutdown(wait=True)
            return call()
        await _wait_until_done(future)
        try:
            return future.result()
        finally:
            del future  # the error it may hold refers to this frame: a cycle that only the collector would free


async def _wait_until_done(future: Future[T]) -> None:
    """Return when ``future`` is done; a cancellation meanwhile is raised then.

    The scope shields from those of anyio, but not from ``Task.cancel``, by which ``asyncio.timeout`` and ^C give up.
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
