"""One thing done beside another, and no longer."""

from __future__ import annotations

from asyncio import Handle, Task, get_running_loop
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from anyio import CancelScope


@contextmanager
def beside(what: Callable[[], Awaitable[None]], after: float = 0.0) -> Iterator[None]:
    """Let ``what`` begin ``after`` so many seconds of the block and go on no longer than that.

    The first error of either comes out, in no group. It is a task of the loop's own: groups for it would take a tenth
    of all that a small request does. [M]
    """
    failed: list[Exception] = []
    loop, other = get_running_loop(), list[Handle | Task[None]]()

    def begin() -> None:
        other.append(loop.create_task(_tried(what, block, failed)))

    with CancelScope() as block:
        if after:
            other.append(loop.call_later(after, begin))
        else:
            begin()
        try:
            yield
        except Exception as error:  # noqa: BLE001 -- it is raised behind the scope, where what came first is known
            failed.append(error)
        finally:
            other[-1].cancel()  # it does nothing more: what it waits for is all that it hears of it
    if failed:
        raise failed[0]


async def _tried(what: Callable[[], Awaitable[None]], block: CancelScope, failed: list[Exception]) -> None:
    """Do ``what``; where it fails, say so and cancel ``block``."""
    try:
        await what()
    except Exception as error:  # noqa: BLE001 -- as above
        failed.append(error)
        block.cancel()
