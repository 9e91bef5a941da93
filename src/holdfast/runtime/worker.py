"""The worker: one verb after the other is done in a thread, each of them to its end, whoever gives up meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

from anyio import CancelScope, CapacityLimiter, get_cancelled_exc_class, to_thread

T = TypeVar("T")


class Worker:
    """Does one thing at a time, in the order it came."""

    def __init__(self) -> None:
        self._limiter = CapacityLimiter(1)
        self._turn = Lock()
        """Held while something is done: who is cancelled as asyncio alone does it gives back the limiter too early."""

    async def done(self, verb: Callable[[], T]) -> T:
        """Return what ``verb`` returns; it is done when this ends, however its caller is cancelled.

        No scope shields from ``Task.cancel``, by which ``asyncio.timeout`` and ^C give up.
        """
        job = _Job(verb, self._turn)
        given_up: BaseException | None = None
        with CancelScope(shield=True):
            while not job.is_over:
                try:
                    await to_thread.run_sync(job.do, limiter=self._limiter)
                except get_cancelled_exc_class() as why:
                    given_up = why
        if given_up is not None:
            raise given_up
        return job.told()


class _Job(Generic[T]):
    """Something that is done once, however often it is asked for."""

    _found: T

    def __init__(self, verb: Callable[[], T], turn: Lock) -> None:
        self._verb, self._turn = verb, turn
        self._error: BaseException | None = None
        self.is_over = False

    def do(self) -> None:
        """Do it, where it was not done."""
        with self._turn:
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
