"""Perform the planned steps of an answer on a connection: send, wait, close or reset."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Sequence
from math import inf

import anyio
from msgspec import Struct
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.testing.provider.server.answer_steps import CloseStep, HeadStep, RawBytesStep, ServerStep, WaitStep

_LINGER_OFF = struct.pack("ii", 1, 0)
"""``SO_LINGER`` with zero seconds: closing the socket then sends a reset."""


class ClientConnection(Struct, frozen=True):
    """A connection, which ``local_server`` passes to its requests as ``scope["state"]["line"]``."""

    transport: asyncio.Transport
    connection_lost: asyncio.Event
    """Set once the connection is closed."""


class StepResponse(Response):
    """A response that performs steps one by one; without steps it sends nothing."""

    def __init__(self, steps: Sequence[ServerStep]) -> None:
        # Not calling the base class: it would compute headers, which are part of the steps here.
        self.steps = tuple(steps)
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Perform the steps, and end the body unless the connection was closed."""
        for step in self.steps:
            if isinstance(step, CloseStep | RawBytesStep):
                await _close_connection(step, scope, receive)
                return
            if isinstance(step, WaitStep):
                if await wait_for_disconnect(scope, receive, step.seconds):
                    return
            else:
                await send(_make_asgi_message(step))
        if self.steps:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def _make_asgi_message(step: HeadStep | bytes) -> dict[str, object]:
    if isinstance(step, HeadStep):
        headers = [(name.encode(), value.encode("latin-1", "replace")) for name, value in step.headers.items()]
        return {"type": "http.response.start", "status": step.status, "headers": headers}
    return {"type": "http.response.body", "body": step, "more_body": True}


async def wait_for_disconnect(scope: Scope, receive: Receive, seconds: float) -> bool:
    """Wait for the client to leave, at most for ``seconds``, and return whether it did."""
    connection = _get_connection(scope)
    with anyio.move_on_after(seconds):
        if connection is not None:
            await connection.connection_lost.wait()
            return True
        # Other servers report the end of a connection only as a message to the application.
        while (await receive())["type"] != "http.disconnect":
            pass
        return True
    return False


def _get_connection(scope: Scope) -> ClientConnection | None:
    """Return the connection of a request, or None under a server other than ``local_server``."""
    connection = scope.get("state", {}).get("line")
    return connection if isinstance(connection, ClientConnection) else None


async def _close_connection(step: CloseStep | RawBytesStep, scope: Scope, receive: Receive) -> None:
    """Close or reset the connection.

    Raises ``ConnectionAbortedError`` under a server other than ``local_server``, which offers no access to it.
    """
    connection = _get_connection(scope)
    if connection is None:
        raise ConnectionAbortedError(
            "a connection can be ended only under holdfast.testing.provider.server.local_server"
        )
    if isinstance(step, RawBytesStep):
        connection.transport.write(step.data)
    if isinstance(step, CloseStep) and step.reset:
        client_socket = connection.transport.get_extra_info("socket")
        client_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_OFF)
        connection.transport.abort()
    else:
        connection.transport.close()
    # Returning at once would let the server end the response in its own way, on a connection that is still closing.
    await wait_for_disconnect(scope, receive, inf)
