"""One thing done beside another, and no longer."""

from __future__ import annotations

from asyncio import ensure_future
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from anyio import CancelScope


@asynccontextmanager
async def beside(what: Callable[[], Awaitable[None]] | None) -> AsyncIterator[None]:
    """Let ``what`` go on beside the block and no longer; the first error of either comes out, in no group.

    It is a task of the loop's own: groups for it would take a tenth of all that a small request does. [M]
    """
    if what is None:
        yield
        return
    failed: list[Exception] = []
    with CancelScope() as block:
        other = ensure_future(_tried(what, block, failed))
        try:
            yield
        except Exception as error:  # noqa: BLE001 -- it is raised behind the scope, where what came first is known
            failed.append(error)
        finally:
            other.cancel()  # it does nothing more: what it waits for is all that it hears of it
    if failed:
        raise failed[0]


async def _tried(what: Callable[[], Awaitable[None]], block: CancelScope, failed: list[Exception]) -> None:
    """Do ``what``; where it fails, say so and cancel ``block``."""
    try:
        await what()
    except Exception as error:  # noqa: BLE001 -- as above
        failed.append(error)
        block.cancel()
