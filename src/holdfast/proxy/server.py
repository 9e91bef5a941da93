"""The proxy as a server on a port, from its first request to the end of its last answer."""

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
from typing import Literal
from urllib.request import getproxies

import httpx2
from anyio import CancelScope, Event, create_task_group
from msgspec.structs import replace
from uvicorn import Config, Server

from holdfast.config import Configuration, load_configuration
from holdfast.engine.concurrency.lanes_and_permits import Permits
from holdfast.engine.engine_resources import EngineResources
from holdfast.engine.upstream.connections import FullDuplexTransport
from holdfast.engine.upstream.upstream import CONNECT_TIMEOUT, READ_TIMEOUT, Reply, UpstreamRequest
from holdfast.errors import ConfigError
from holdfast.planning.pipeline import Policy
from holdfast.proxy.app import ProxyApp
from holdfast.proxy.conversation.open_branches import BranchPool
from holdfast.proxy.metrics.health import Health
from holdfast.proxy.modes import get_bypass_file
from holdfast.proxy.settings import Settings, adapt_policy_to_proxy
from holdfast.store.base import Quota, SessionStore
from holdfast.store.open_store import open_store

logging.getLogger("uvicorn").addHandler(logging.NullHandler())  # what goes wrong is told by ``health``
SEND_ERROR_MESSAGE = "socket.send() raised exception."
"""What the loop says, again and again, where a client left while it was sent to: that is no news to anybody."""
logging.getLogger("asyncio").addFilter(lambda record: record.msg != SEND_ERROR_MESSAGE)
SHUTDOWN_WRITE_SECONDS = 10.0
"""Seconds in which requests that are cut off at the server's end write down what was said so far. [H]"""
LOCAL_PATTERNS = ("all://localhost", "all://127.0.0.1", "all://[::1]")
"""Addresses that are asked without the proxy of the network (``HTTP_PROXY``), which cannot know them."""
IDLE_SECONDS = 60.0
"""Seconds that an idle connection to a provider or a client stays open. [H]"""


def get_loop_options() -> dict[str, bool]:
    """Return the options of ``anyio.run`` for the fastest loop there is: uvloop, where it is installed."""
    return {"use_uvloop": find_spec("uvloop") is not None}


def has_httptools() -> bool:
    """Return whether HTTP is parsed by httptools, on either side; without it h11 does, in Python."""
    return find_spec("httptools") is not None


class MissingUpstream:
    """The upstream of requests that bring none: there are none."""

    def send(self, upstream_request: UpstreamRequest) -> AbstractAsyncContextManager[Reply]:
        """Raise ``ConfigError``."""
        raise ConfigError(f"a request of {upstream_request.api} was not told where to go; please report this")


async def serve_proxy(
    settings: Settings,
    store: str,
    *,
    on_ready: Callable[[str], object] = lambda _: None,
    stop: Event | None = None,
    loaded_configuration: Configuration | None = None,
    changes: AsyncIterable[tuple[Settings, Configuration]] | None = None,
) -> Health:
    """Serve until ``stop`` is set, then let answers under way end; return what was counted.

    ``store`` names the store. ``on_ready`` is told the address that clients use. ``changes`` are settings that count
    from then on, all but those about where it listens. ``OSError`` for a port that is taken.
    """
    loaded_configuration = loaded_configuration or load_configuration()
    limits = loaded_configuration.store.set_limits
    reopen_store = partial(open_store, store, quota=Quota(**limits))
    with _open_listener(settings) as listener, ExitStack() as ending:
        settings = replace(settings, port=listener.getsockname()[1])
        async with open_proxy(
            settings,
            reopen_store(),
            reopen=reopen_store,
            bypass_file=get_bypass_file(store),
            loaded_configuration=loaded_configuration,
        ) as app:
            ending.callback(lambda: app.resources.store.close())  # noqa: PLW0108 -- the one that there is then
            server = _ProxyServer(_make_server_config(app, settings))
            async with create_task_group() as tasks:
                tasks.start_soon(server.serve, [listener])
                await server.started_up.wait()
                on_ready(_format_address(settings, listener))
                async with create_task_group() as following:
                    if changes is not None:
                        following.start_soon(_apply_changes, changes, app, settings, server)
                    await (stop or Event()).wait()
                    following.cancel_scope.cancel()
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
) -> AsyncIterator[ProxyApp]:
    """Return the ASGI application over ``store``; behind the block its connections to providers are closed.

    ``reopen`` opens the store anew where its file was taken away or its disk was full; whoever called closes it. As
    long as the file ``bypass_file`` is there, requests are relayed and nothing else. ``transport`` takes requests to
    providers in place of the network.
    """
    loaded_configuration = loaded_configuration or load_configuration()
    health = Health()
    resources = EngineResources(
        store, MissingUpstream(), listener=health.count_event, check_mode="changed", trusts_client_limits=True
    )
    async with _make_provider_client(settings, transport) as web:
        proxy = ProxyApp(resources, web, health, reopen, bypass_file)
        configure_proxy(proxy, settings, loaded_configuration)
        yield proxy


async def _apply_changes(
    changes: AsyncIterable[tuple[Settings, Configuration]], proxy: ProxyApp, began: Settings, server: Server
) -> None:
    """Let each of ``changes`` count; where the proxy listens stays as it ``began``."""
    async for settings, loaded_configuration in changes:
        server.config.timeout_graceful_shutdown = _get_drain_seconds(settings)
        configure_proxy(
            proxy, replace(settings, host=began.host, port=began.port, token=began.token), loaded_configuration
        )


def configure_proxy(proxy: ProxyApp, settings: Settings, loaded_configuration: Configuration) -> None:
    """Let ``proxy`` do from now on what ``settings`` say, by the models and policies of ``loaded_configuration``."""

    def named(name: str) -> Policy:
        chosen = adapt_policy_to_proxy(loaded_configuration.build_policy(name))
        return replace(chosen, stages=()) if settings.observe else chosen

    policy = named(settings.policy)
    proxy.resources.permits = Permits(settings.concurrent)
    proxy.resources.set_catalog(loaded_configuration.catalog, settings.window or None)
    proxy.use_settings(settings, BranchPool(proxy.resources, policy, named))


def _make_provider_client(settings: Settings, transport: httpx2.AsyncBaseTransport | None) -> httpx2.AsyncClient:
    """Return the connections to providers: kept for the next request, of which nothing but its own headers go out.

    No cookie is kept: it would go out with the requests of others.
    """
    limits = httpx2.Limits(max_keepalive_connections=settings.concurrent, keepalive_expiry=IDLE_SECONDS)
    web = httpx2.AsyncClient(
        timeout=httpx2.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT),
        limits=limits,
        mounts=_make_direct_mounts(settings, limits) if transport is None else dict.fromkeys(LOCAL_PATTERNS),
        transport=transport,
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
    )
    web.headers.clear()
    return web


def _make_direct_mounts(settings: Settings, limits: httpx2.Limits) -> dict[str, httpx2.AsyncBaseTransport | None]:
    """Return which servers are asked over connections of our own: all that no proxy of the network stands before.

    httpx2 looks for the most particular pattern, so that a proxy for ``https://`` stays before ``all://``; one for
    ``all://`` itself would not.
    """
    patterns = LOCAL_PATTERNS if getproxies().get("all") else (*LOCAL_PATTERNS, "all://")
    if not has_httptools():
        return dict.fromkeys(patterns, FullDuplexTransport(limits))
    from holdfast.proxy.http.direct_transport import DirectTransport

    return dict.fromkeys(patterns, DirectTransport(settings.concurrent, IDLE_SECONDS))


# -- the server --------------------------------------------------------------------------------------------------------


class _ProxyServer(Server):
    """A server that says when it has begun, and leaves signals to who began it."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.started_up = Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin, then say so."""
        await super().startup(sockets)
        self.started_up.set()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until ``should_exit``; no signal is taken. All requests are over then, or ``SHUTDOWN_WRITE_SECONDS``
        has passed.
        """
        try:
            await self._serve(sockets)
        finally:
            with CancelScope(shield=True):
                await _cancel_and_wait(self.server_state.tasks)


async def _cancel_and_wait(tasks: Iterable[Task[None]]) -> None:
    """Cancel ``tasks``, where they were not, and return when they have written down what became of them."""
    remaining_tasks = [*tasks]
    for task in remaining_tasks:
        if not task.cancelling():
            task.cancel()
    if remaining_tasks:
        await wait(remaining_tasks, timeout=SHUTDOWN_WRITE_SECONDS)


def _open_listener(settings: Settings) -> socket.socket:
    """Return a socket that listens where it was asked for; a socket does not outlive its block.

    What it accepts sends each piece of an answer at once: asyncio sees to that for sockets of its own making alone, and
    without it a piece waits 40 ms for the client to acknowledge the one before.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.create_server((settings.host, settings.port), family=family, backlog=1_024)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _format_address(settings: Settings, listener: socket.socket) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{listener.getsockname()[1]}"


def _make_server_config(app: ProxyApp, settings: Settings) -> Config:
    """Return how the application is served: no logs of its own, no header that tells more than the provider's."""
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
    """Return what parses requests."""
    if not has_httptools():
        return "h11"
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class HttpTools(HttpToolsProtocol):
        """As uvicorn's own, which answers a CONNECT to ``HOST:PORT`` itself, in no words that help."""

        def on_headers_complete(self) -> None:
            if self.parser.get_method() == b"CONNECT":
                self.url = b"/"
            super().on_headers_complete()

    return HttpTools


def _get_drain_seconds(settings: Settings) -> int:
    """Return the seconds that answers under way have when the server is told to stop."""
    return max(1, round(settings.drain))
