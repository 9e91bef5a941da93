"""One agent at a time works in a session: a lease of its own says so, and dies with its holder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

from anyio import to_thread

from holdfast.engine.session import Session
from holdfast.errors import StoreLocked

AT_WORK = "agent at work: "
"""What the name of the lease begins with; the session's own lease is held for single writes."""


@asynccontextmanager
async def alone(session: Session) -> AsyncIterator[None]:
    """Be the only agent that works in ``session`` until the end of the block; ``StoreLocked`` where another one does.

    One that ends within the store's ``LEASE_WAIT`` seconds is waited for.
    """
    with ExitStack() as stack:
        lease = session.means.store.writing(AT_WORK + session.key)
        try:
            await to_thread.run_sync(stack.enter_context, lease)
        except StoreLocked:
            msg = f"another agent works in session {session.key!r} now; end it, or wait until it has ended"
            raise StoreLocked(msg) from None
        yield
