"""A proxy that serves from a thread of this process, with an event loop of its own."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from threading import Thread

import anyio

from holdfast.config import Configuration
from holdfast.errors import HoldfastError
from holdfast.events import EventListener
from holdfast.proxy.server import get_loop_options, serve_proxy
from holdfast.proxy.settings import Settings
from holdfast.telemetry.switch import load_telemetry

START_SECONDS = 30.0
"""Seconds after which the proxy counts as failed to start; usually it takes 50 ms. Chosen by judgement."""
STOP_SECONDS = 20.0
"""Seconds to wait for the thread at the end: answers under way are recorded first. Chosen by judgement."""


class ProxyThread:
    """A proxy in a thread: it ends with this process whatever happens, and holds up nobody's event loop.

    ``store`` is the path of the store. ``listener`` is called with each event, in that thread.
    """

    def __init__(
        self, settings: Settings, configuration: Configuration, store: str, listener: EventListener | None
    ) -> None:
        self._settings = settings
        self._configuration = configuration
        self._store = store
        self._listener = listener
        self._address: Future[str] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_event: anyio.Event | None = None
        self._thread = Thread(target=self._run, name="holdfast-proxy", daemon=True)

    def start(self) -> str:
        """Start serving and return the address for clients, once the proxy answers there.

        Raises ``HoldfastError`` if the settings or the store do not allow it, and ``OSError`` if no port is free.
        """
        self._thread.start()
        try:
            return self._address.result(START_SECONDS)
        except FutureTimeoutError:
            raise HoldfastError(f"the proxy did not start within {START_SECONDS:.0f} seconds") from None

    def stop(self) -> None:
        """Stop serving; answers under way may end."""
        if self._loop is None or self._stop_event is None:
            return
        # The loop is closed if the proxy ended by itself.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop_event.set)
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        try:
            anyio.run(self._serve, backend_options=get_loop_options())
        except Exception as error:  # noqa: BLE001 -- of any kind: the program goes on without the proxy
            if not self._address.done():
                self._address.set_exception(error)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop_event = anyio.Event()
        await serve_proxy(
            self._settings,
            self._store,
            on_ready=self._address.set_result,
            stop=self._stop_event,
            loaded_configuration=self._configuration,
            on_event=self._listener,
            telemetry=load_telemetry(self._settings.telemetry, self._settings.telemetry_content),
        )
