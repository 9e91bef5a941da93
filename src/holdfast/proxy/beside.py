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
    async with create_task_group() as tasks:
        tasks.start_soon(_tried, what, tasks.cancel_scope, failed)
        try:
            yield
        except Exception as error:  # noqa: BLE001 -- it is raised behind the group, which would wrap it
            failed.append(error)
        tasks.cancel_scope.cancel()
    if failed:
        raise failed[0]


async def _tried(what: Callable[[], Awaitable[None]], scope: CancelScope, failed: list[Exception]) -> None:
    """Do ``what``; where it fails, say so and cancel ``scope``."""
    try:
        await what()
    except Exception as error:  # noqa: BLE001 -- as above
        failed.append(error)
        scope.cancel()
