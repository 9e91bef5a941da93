"""The worker: one verb after the other is done in a thread, each of them to its end, whoever gives up meanwhile."""

from __future__ import annotations

from asyncio import CancelledError, get_running_loop
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Generic, TypeVar

from anyio import CancelScope

T = TypeVar("T")


class Worker:
    """Does one thing at a time, in the order it came, in a thread that ends with it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)

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
