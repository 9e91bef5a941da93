"""Run a function beside a block of code, and no longer than that."""

from __future__ import annotations

from asyncio import Handle, Task, get_running_loop
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from anyio import CancelScope


@contextmanager
def run_alongside(function: Callable[[], Awaitable[None]], delay: float = 0.0) -> Iterator[None]:
    """Run ``function`` beside the block, from ``delay`` seconds after its start until its end.

    If either raises, the other is cancelled and the error is raised as it is, not in an exception group. ``function``
    is a bare task of the event loop: with anyio's task groups this was measured to take a tenth of all the time that a
    small request takes.
    """
    errors: list[Exception] = []
    loop = get_running_loop()
    handles = list[Handle | Task[None]]()

    def begin() -> None:
        handles.append(loop.create_task(_run_or_cancel(function, block, errors)))

    with CancelScope() as block:
        if delay:
            handles.append(loop.call_later(delay, begin))
        else:
            begin()
        try:
            yield
        except Exception as error:  # noqa: BLE001 -- raised after the scope, where it is known which error came first
            errors.append(error)
        finally:
            # Not awaited: whatever the task waits for, it gets no further than this cancellation.
            handles[-1].cancel()
    if errors:
        raise errors[0]


async def _run_or_cancel(action: Callable[[], Awaitable[None]], block: CancelScope, errors: list[Exception]) -> None:
    """Await ``action``; if it fails, keep the error and cancel ``block``."""
    try:
        await action()
    except Exception as error:  # noqa: BLE001 -- as above
        errors.append(error)
        block.cancel()
