"""One thing done beside another, and no longer."""

from __future__ import annotations

from asyncio import Handle, Task, get_running_loop
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from anyio import CancelScope


@contextmanager
def run_alongside(function: Callable[[], Awaitable[None]], delay: float = 0.0) -> Iterator[None]:
    """Let ``function`` begin ``delay`` so many seconds of the block and go on no longer than that.

    The first error of either comes out, in no group. It is a task of the loop's own: groups for it would take a tenth
    of all that a small request does. [M]
    """
    errors: list[Exception] = []
    loop, handles = get_running_loop(), list[Handle | Task[None]]()

    def begin() -> None:
        handles.append(loop.create_task(_run_or_cancel(function, block, errors)))

    with CancelScope() as block:
        if delay:
            handles.append(loop.call_later(delay, begin))
        else:
            begin()
        try:
            yield
        except Exception as error:  # noqa: BLE001 -- it is raised behind the scope, where what came first is known
            errors.append(error)
        finally:
            handles[-1].cancel()  # it does nothing more: what it waits for is all that it hears of it
    if errors:
        raise errors[0]


async def _run_or_cancel(action: Callable[[], Awaitable[None]], block: CancelScope, errors: list[Exception]) -> None:
    """Do ``action``; where it fails, say so and cancel ``block``."""
    try:
        await action()
    except Exception as error:  # noqa: BLE001 -- as above
        errors.append(error)
        block.cancel()
