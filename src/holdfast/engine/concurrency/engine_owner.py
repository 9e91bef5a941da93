"""Bind an engine to one event loop of one process."""

from __future__ import annotations

import os
from asyncio import AbstractEventLoop, get_running_loop

from holdfast.errors import OperationAborted


class EngineOwner:
    """The event loop and the process in which an engine was first used; it refuses to work anywhere else.

    A task that waits in an event loop can only be woken there, and a forked child has none of its parent's threads.
    """

    def __init__(self) -> None:
        self._loop: AbstractEventLoop | None = None
        self._process_id = 0

    @property
    def is_forked(self) -> bool:
        """Whether this process is a forked child of the engine's own."""
        return self._loop is not None and self._process_id != os.getpid()

    def require(self) -> None:
        """Bind the engine to the running event loop at its first use; raise ``OperationAborted`` in any other one."""
        loop = _find_running_loop()
        if self._loop is None:
            self._loop, self._process_id = loop, os.getpid()
        if self.is_forked:
            raise make_forked_error()
        if loop is None:
            raise OperationAborted(
                "this engine needs an event loop, and none is running here; call it in the loop it was opened in, "
                "or open it with holdfast.sync"
            )
        if loop is not self._loop:
            raise OperationAborted(
                "this engine is bound to another event loop; open one engine in each loop, or one for all threads with "
                "holdfast.sync"
            )


def _find_running_loop() -> AbstractEventLoop | None:
    """Return the event loop that runs in this thread, or None."""
    try:
        return get_running_loop()
    except RuntimeError:
        return None


def make_forked_error() -> OperationAborted:
    """Build the error for an engine that is used in a forked child."""
    return OperationAborted("this engine belongs to another process, from which this one was forked; open it here too")
