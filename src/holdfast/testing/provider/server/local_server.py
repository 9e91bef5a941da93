"""The provider as a real server on a port of this machine, for as long as a ``with`` block lasts."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread

from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.testing.provider.faults.faults import Fault
from holdfast.testing.provider.server.app import ProviderProtocol, RequestReport, make_provider_app
from holdfast.testing.provider.server.send_steps import ClientConnection

LOOPBACK = "127.0.0.1"
"""The only address that is served: nobody else can come in."""
KEEP_ALIVE_SECONDS = 60
"""Seconds that an idle connection stays open; the SDKs' pools keep theirs for less."""

START_TIMEOUT = 30
"""Seconds that a server may take to start; it takes a few milliseconds."""


_CONNECTION_LOG = logging.getLogger("uvicorn.error.holdfast")
_CONNECTION_LOG.setLevel(logging.ERROR)
"""What a connection logs to: bytes that are no HTTP are answered with 400, and that is enough."""


class _FaultyConnection(H11Protocol):
    """A connection that its requests can reach, so that a fault can end it, and that closes when the server does."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Put the connection where requests find it, and let each event leave when it is written."""
        super().connection_made(transport)
        self.access_log = False
        self.logger = _CONNECTION_LOG
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._line = ClientConnection(transport, asyncio.Event())
        self.app_state = {**self.app_state, "line": self._line}

    def connection_lost(self, exc: Exception | None) -> None:
        """Let those know who wait for it."""
        super().connection_lost(exc)
        self._line.connection_lost.set()

    def shutdown(self) -> None:
        """End the connection at once, with whatever waits on it: a stalled answer is never over by itself."""
        self.transport.abort()

    def _unsupported_upgrade_warning(self) -> None:
        """Keep silent: a WebSocket is refused by the application."""


class _StoppableServer(Server):
    """A server that says when it is ready, and that ends when it is told to, not at its next look."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.ready = Event()
        self._over, self._is_over = asyncio.Event(), False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so."""
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        self.ready.set()

    async def main_loop(self) -> None:
        """Serve until ``stop``, which may have come before the loop was there."""
        if not self._is_over:
            await self._over.wait()

    def stop(self) -> None:
        """End the server; from any thread."""
        self._is_over = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._over.set)


@contextmanager
def serve_provider(
    provider: ProviderProtocol,
    faults: Sequence[Fault] = (),
    *,
    port: int = 0,
    on_request: Callable[[RequestReport], object] = lambda _: None,
) -> Iterator[str]:
    """Yield the base URL of a server that speaks for ``provider``; it is gone after the block, its connections too.

    ``port`` 0 takes a free one. ``on_request`` is told of each request, in the server's thread. Raises ``OSError`` for
    a port that is taken and ``ConfigError`` for a fault there is not.
    """
    asgi_app = make_provider_app(provider, faults, on_request)
    with socket.create_server((LOOPBACK, port)) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio does so for sockets of its own making
        server = _StoppableServer(_make_provider_server_config(asgi_app))
        thread = Thread(target=server.run, args=([listener],), name="holdfast-provider", daemon=True)
        thread.start()
        try:
            if not server.ready.wait(START_TIMEOUT):
                raise OSError(f"the server did not start within {START_TIMEOUT} seconds; see what it logged")
            yield f"http://{LOOPBACK}:{listener.getsockname()[1]}"
        finally:
            server.stop()
            thread.join()


def _make_provider_server_config(asgi_app: Callable[..., object]) -> Config:
    """Return how the application is served: one loop, no logs of its own, no header that tells the time."""
    return Config(
        asgi_app,
        http=_FaultyConnection,
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )
