"""Serve the strict provider on a local port for the length of a ``with`` block."""

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
"""The only address that is served, so that no other machine can connect."""
# Longer than the SDKs' pools keep idle connections: a server that closes first makes them fail with a reset.
KEEP_ALIVE_SECONDS = 60
"""Seconds that an idle connection stays open."""

START_TIMEOUT = 30
"""Seconds after which a server counts as failed to start; usually it takes milliseconds."""


_CONNECTION_LOG = logging.getLogger("uvicorn.error.holdfast")
_CONNECTION_LOG.setLevel(logging.ERROR)
"""The logger of connections. Errors only: bytes that are not HTTP are answered with 400, which is report enough."""


class _FaultyConnection(H11Protocol):
    """A connection that its requests can reach, so that a fault can end it, and that closes with the server."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make the connection available to its requests, and send each event as soon as it is written."""
        super().connection_made(transport)
        self.access_log = False
        self.logger = _CONNECTION_LOG
        # Otherwise small events wait in the kernel, and a fault would strike before the client has seen them.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._line = ClientConnection(transport, asyncio.Event())
        self.app_state = {**self.app_state, "line": self._line}

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake the steps that wait for the client to leave."""
        super().connection_lost(exc)
        self._line.connection_lost.set()

    def shutdown(self) -> None:
        """End the connection at once; uvicorn would wait for answers to finish, and a stalled one never does."""
        self.transport.abort()

    def _unsupported_upgrade_warning(self) -> None:
        """Do not warn about WebSockets, which the application refuses."""


class _StoppableServer(Server):
    """A server that signals when it is ready, and that stops at once; uvicorn polls for both."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.ready = Event()
        self._stop_event = asyncio.Event()
        self._is_stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as uvicorn does, and then set ``ready``."""
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        self.ready.set()

    async def main_loop(self) -> None:
        """Serve until ``stop`` is called, which may happen before the loop runs."""
        if not self._is_stopped:
            await self._stop_event.wait()

    def stop(self) -> None:
        """Stop the server; callable from any thread."""
        self._is_stopped = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop_event.set)


@contextmanager
def serve_provider(
    provider: ProviderProtocol,
    faults: Sequence[Fault] = (),
    *,
    port: int = 0,
    on_request: Callable[[RequestReport], object] = lambda _: None,
) -> Iterator[str]:
    """Serve ``provider`` and yield the base URL. The server and its connections are closed after the block.

    ``port`` 0 takes a free port. ``on_request`` is called after each request, in the server's thread. Raises
    ``OSError`` if the port is taken, and ``ConfigError`` for an unknown fault.
    """
    asgi_app = make_provider_app(provider, faults, on_request)
    with socket.create_server((LOOPBACK, port)) as listener:
        # asyncio sets this only for sockets that it makes itself.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
    """Return uvicorn's settings: one loop, no logs, and no date header, so that equal requests get equal responses."""
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
