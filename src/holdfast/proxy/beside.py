"""One thing done beside another, and no longer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from anyio import CancelScope, create_task_group


@asynccontextmanager
async def beside(what: Callable[[], Awaitable[None]] | None) -> AsyncIterator[None]:
    """Let ``what`` go on beside the block and no longer; the first error of either comes out, in no group."""
    if what is None:
        yield
        return
    failed: list[Exception] = []
    own = CancelScope()  # a task that ends of itself leaves no error behind, whose frames would hold all they know
    async with create_task_group() as tasks:
        tasks.start_soon(_tried, what, own, tasks.cancel_scope, failed)
        try:
            yield
        except Exception as error:  # noqa: BLE001 -- it is raised behind the group, which would wrap it
            failed.append(error)
        own.cancel()
    if failed:
        raise failed[0]


async def _tried(
    what: Callable[[], Awaitable[None]], own: CancelScope, block: CancelScope, failed: list[Exception]
) -> None:
    """Do ``what`` until ``own`` is cancelled; where it fails, say so and cancel ``block``."""
    try:
        with own:
            await what()
    except Exception as error:  # noqa: BLE001 -- as above
        failed.append(error)
        block.cancel()
