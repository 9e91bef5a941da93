"""The proxy as a server on a port, from the first request to the end of the last answer."""

from __future__ import annotations

import asyncio
import logging
import socket
from asyncio import Task, wait
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.request import getproxies

import httpx2
from anyio import CancelScope, Event, create_task_group
from msgspec.structs import replace
from starlette.types import ASGIApp
from uvicorn import Config, Server

from holdfast.config import Configuration, load_configuration
from holdfast.engine.concurrency.lanes_and_permits import Permits
from holdfast.engine.engine_resources import EngineResources
from holdfast.engine.upstream.connections import FullDuplexTransport
from holdfast.engine.upstream.upstream import CONNECT_TIMEOUT, READ_TIMEOUT, Reply, UpstreamRequest
from holdfast.errors import ConfigError
from holdfast.events import EventListener
from holdfast.planning.pipeline import Policy
from holdfast.proxy.app import ProxyApp
from holdfast.proxy.conversation.open_branches import BranchPool
from holdfast.proxy.inspector_mount import MOUNT_PATH, InspectorMount
from holdfast.proxy.metrics.health import Health
from holdfast.proxy.modes import get_bypass_file
from holdfast.proxy.settings import Settings, adapt_policy_to_proxy
from holdfast.store.base import Quota, SessionStore
from holdfast.store.location import hide_password
from holdfast.store.open_store import open_store

if TYPE_CHECKING:
    from holdfast.telemetry.telemetry import Telemetry

# ``health`` reports what goes wrong.
logging.getLogger("uvicorn").addHandler(logging.NullHandler())
SEND_ERROR_MESSAGE = "socket.send() raised exception."
"""Message that asyncio logs again and again while it sends to a client that left, which is normal."""
logging.getLogger("asyncio").addFilter(lambda record: record.msg != SEND_ERROR_MESSAGE)
SHUTDOWN_WRITE_SECONDS = 10.0
"""Seconds that requests cut off by the shutdown have to store the answer so far. Chosen by judgement."""
LOCAL_PATTERNS = ("all://localhost", "all://127.0.0.1", "all://[::1]")
"""Addresses that are never asked through a network proxy (``HTTP_PROXY``), which cannot reach them."""
IDLE_SECONDS = 60.0
"""Seconds that an idle connection to a provider or a client stays open.

People read an answer for about so long; a longer time keeps sockets of clients that are gone. Chosen by judgement.
"""


def get_loop_options() -> dict[str, bool]:
    """Return options of ``anyio.run`` for the fastest available event loop: uvloop if it is installed."""
    return {"use_uvloop": find_spec("uvloop") is not None}


def has_httptools() -> bool:
    """Return whether httptools is installed to parse HTTP; without it h11 does, in Python."""
    return find_spec("httptools") is not None


class MissingUpstream:
    """The upstream of requests that bring none of their own. Every request of the proxy does."""

    def send(self, upstream_request: UpstreamRequest) -> AbstractAsyncContextManager[Reply]:
        """Raise ``ConfigError``, since this cannot happen."""
        raise ConfigError(f"a request of {upstream_request.api} has no provider address; please report this bug")


async def serve_proxy(
    settings: Settings,
    store: str,
    *,
    on_ready: Callable[[str], object] = lambda _: None,
    stop: Event | None = None,
    loaded_configuration: Configuration | None = None,
    changes: AsyncIterable[tuple[Settings, Configuration]] | None = None,
    on_event: EventListener | None = None,
    telemetry: Telemetry | None = None,
) -> Health:
    """Serve until ``stop`` is set, then let answers under way end; return the metrics.

    ``store`` is the store's name or path. ``on_ready`` is called with the address for clients. ``changes`` yields new
    settings to apply while running; address, token and telemetry stay. ``on_event`` is called with each event of a
    session. ``telemetry`` records spans and metrics, whatever the settings say of it. Raises ``OSError`` if the port is
    taken.
    """
    loaded_configuration = loaded_configuration or load_configuration()
    store_settings = loaded_configuration.store
    quota = Quota(**store_settings.set_limits)
    reopen_store = partial(open_store, store, quota=quota, blobs=store_settings.blobs)
    with _open_listener(settings) as listener, ExitStack() as cleanup:
        settings = replace(settings, port=listener.getsockname()[1])
        async with open_proxy(
            settings,
            reopen_store(),
            reopen=reopen_store,
            bypass_file=get_bypass_file(store),
            loaded_configuration=loaded_configuration,
            on_event=on_event,
            telemetry=telemetry,
        ) as app:
            # Late, since the store may have been replaced by then.
            cleanup.callback(lambda: app.resources.store.close())  # noqa: PLW0108 -- the one that is in use then
            stop = stop or Event()
            inspector = partial(_make_inspector, app, store, loaded_configuration, cleanup, stop.is_set)
            server = _ProxyServer(_make_server_config(InspectorMount(app, settings, inspector), settings))
            async with create_task_group() as tasks:
                tasks.start_soon(server.serve, [listener])
                await server.started_up.wait()
                on_ready(_format_address(settings, listener))
                async with create_task_group() as settings_tasks:
                    if changes is not None:
                        settings_tasks.start_soon(_apply_changes, changes, app, settings, server)
                    await stop.wait()
                    settings_tasks.cancel_scope.cancel()
                server.should_exit = True
            return app.health


@asynccontextmanager
async def open_proxy(
    settings: Settings,
    store: SessionStore,
    *,
    reopen: Callable[[], SessionStore] | None = None,
    bypass_file: Path | None = None,
    loaded_configuration: Configuration | None = None,
    transport: httpx2.AsyncBaseTransport | None = None,
    on_event: EventListener | None = None,
    telemetry: Telemetry | None = None,
) -> AsyncIterator[ProxyApp]:
    """Open the ASGI application over ``store``; at the end of the block its connections to providers are closed.

    ``reopen`` opens the store anew if its file was removed or its disk was full; the caller closes it in the end. While
    ``bypass_file`` exists, requests are only relayed. ``transport`` replaces the network, for tests.
    """
    loaded_configuration = loaded_configuration or load_configuration()
    health = Health(on_event=on_event)
    # Only what Holdfast changed is checked before it is sent: a client's own content may break our rules and still be
    # accepted.
    resources = EngineResources(
        store,
        MissingUpstream(),
        listener=health.count_event,
        telemetry=telemetry,
        check_mode="changed",
        trusts_client_limits=True,
    )
    async with _make_provider_client(settings, transport) as client:
        proxy = ProxyApp(resources, client, health, reopen, bypass_file)
        configure_proxy(proxy, settings, loaded_configuration)
        try:
            yield proxy
        finally:
            await resources.server_windows.close()


async def _apply_changes(
    changes: AsyncIterable[tuple[Settings, Configuration]],
    proxy: ProxyApp,
    first_settings: Settings,
    server: Server,
) -> None:
    """Apply each of ``changes``, but keep the address and the token of ``first_settings``."""
    async for settings, loaded_configuration in changes:
        server.config.timeout_graceful_shutdown = _get_drain_seconds(settings)
        # The socket is open and clients know the token: both need a restart.
        new_settings = replace(
            settings,
            host=first_settings.host,
            port=first_settings.port,
            token=first_settings.token,
        )
        configure_proxy(proxy, new_settings, loaded_configuration)


def configure_proxy(proxy: ProxyApp, settings: Settings, loaded_configuration: Configuration) -> None:
    """Make ``proxy`` follow ``settings`` from now on, with the models and policies of ``loaded_configuration``."""

    def get_policy(name: str) -> Policy:
        policy = adapt_policy_to_proxy(loaded_configuration.build_policy(name))
        # An observed conversation is recorded, but nothing is decided about it.
        if settings.observe:
            policy = replace(policy, stages=())
        return policy

    default_policy = get_policy(settings.policy)
    proxy.resources.permits = Permits(settings.concurrent)
    # A proxy that only observes sends nothing of its own.
    proxy.resources.asks_local_servers = settings.ask_windows and not settings.observe
    proxy.resources.set_catalog(loaded_configuration.catalog, settings.window or None)
    proxy.use_settings(settings, BranchPool(proxy.resources, default_policy, get_policy))


def _make_provider_client(settings: Settings, transport: httpx2.AsyncBaseTransport | None) -> httpx2.AsyncClient:
    """Make the HTTP client for all providers. Requests are sent with their own headers only.

    It keeps no cookies, which would be sent with the requests of other clients.
    """
    limits = httpx2.Limits(max_keepalive_connections=settings.concurrent, keepalive_expiry=IDLE_SECONDS)
    mounts: dict[str, httpx2.AsyncBaseTransport | None] = dict.fromkeys(LOCAL_PATTERNS)
    if transport is None:
        mounts = _make_direct_mounts(settings, limits)
    client = httpx2.AsyncClient(
        timeout=httpx2.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT),
        limits=limits,
        mounts=mounts,
        transport=transport,
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
    )
    client.headers.clear()
    return client


def _make_direct_mounts(settings: Settings, limits: httpx2.Limits) -> dict[str, httpx2.AsyncBaseTransport | None]:
    """Return our own transport for all servers that no network proxy stands before.

    httpx2 takes the most specific pattern, so a network proxy for ``https://`` still wins over ``all://``; but one for
    ``all://`` itself would not, and then only local servers are asked directly.
    """
    patterns: tuple[str, ...] = LOCAL_PATTERNS
    if not getproxies().get("all"):
        patterns = (*LOCAL_PATTERNS, "all://")
    if not has_httptools():
        return dict.fromkeys(patterns, FullDuplexTransport(limits))
    from holdfast.proxy.http.direct_transport import DirectTransport

    return dict.fromkeys(patterns, DirectTransport(settings.concurrent, IDLE_SECONDS))


# -- the server --------------------------------------------------------------------------------------------------------


class _ProxyServer(Server):
    """A server that tells when it has started, and leaves signals to its caller."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.started_up = Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and set ``started_up``."""
        await super().startup(sockets)
        self.started_up.set()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until ``should_exit``, without signal handlers.

        On return all requests are over, or ``SHUTDOWN_WRITE_SECONDS`` have passed.
        """
        try:
            await self._serve(sockets)
        finally:
            with CancelScope(shield=True):
                await _cancel_and_wait(self.server_state.tasks)


async def _cancel_and_wait(tasks: Iterable[Task[None]]) -> None:
    """Cancel ``tasks`` and wait until they have stored the outcome of their requests."""
    remaining_tasks = [*tasks]
    for task in remaining_tasks:
        if not task.cancelling():
            task.cancel()
    if remaining_tasks:
        await wait(remaining_tasks, timeout=SHUTDOWN_WRITE_SECONDS)


def _open_listener(settings: Settings) -> socket.socket:
    """Return a listening socket; the caller closes it.

    Accepted connections send each piece at once (``TCP_NODELAY``). asyncio sets that only for sockets it makes itself,
    and without it a piece waits 40 ms for the client to acknowledge the one before.
    """
    family = socket.AF_INET
    if ":" in settings.host:
        family = socket.AF_INET6
    listener = socket.create_server((settings.host, settings.port), family=family, backlog=1_024)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _format_address(settings: Settings, listener: socket.socket) -> str:
    host = settings.host
    if ":" in host:
        host = f"[{host}]"
    _, port, *_ = listener.getsockname()
    return f"http://{host}:{port}"


def _make_inspector(
    app: ProxyApp,
    store: str,
    configuration: Configuration,
    cleanup: ExitStack,
    is_stopping: Callable[[], bool],
    is_for_this_machine: bool,
) -> ASGIApp:
    """Return the inspector of the store into which the proxy records.

    Once ``is_stopping``, its pages that follow a session end: the proxy waits for answers under way.
    """
    from holdfast.inspector.app import make_inspector_app
    from holdfast.inspector.sources import InspectedStore

    if store == ":memory:":
        source = InspectedStore(app.resources.store, configuration, name="the memory of the proxy")
    else:
        opened = cleanup.enter_context(open_store(store, readonly=True))
        open_writer = partial(open_store, store)
        source = InspectedStore(
            opened, configuration, name=hide_password(store), open_writer=open_writer, location=store
        )
    cleanup.callback(source.comparisons.close)
    return make_inspector_app(source, MOUNT_PATH, is_for_this_machine=is_for_this_machine, is_stopping=is_stopping)


def _make_server_config(app: ASGIApp, settings: Settings) -> Config:
    """Return uvicorn's configuration: no logs, and no headers beside the provider's."""
    return Config(
        app,
        http=_get_http_protocol(),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=int(IDLE_SECONDS),
        timeout_graceful_shutdown=_get_drain_seconds(settings),
    )


def _get_http_protocol() -> type[asyncio.Protocol] | Literal["h11"]:
    """Return the parser of requests: httptools if it is installed, else h11."""
    if not has_httptools():
        return "h11"
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class HttpTools(HttpToolsProtocol):
        """As uvicorn's, which answers a CONNECT to ``HOST:PORT`` itself, with an error that does not help."""

        def on_headers_complete(self) -> None:
            # With an ordinary path the request reaches our own application, whose error says what to do.
            if self.parser.get_method() == b"CONNECT":
                self.url = b"/"
            super().on_headers_complete()

    return HttpTools


def _get_drain_seconds(settings: Settings) -> int:
    """Return how many seconds answers under way have when the server is told to stop."""
    return max(1, round(settings.drain))
