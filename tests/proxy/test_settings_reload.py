"""Settings that are reloaded while the proxy runs apply to everything that comes later."""

from __future__ import annotations

import asyncio
from functools import partial

import anyio
import httpx2
import socket_proxy
from msgspec.structs import replace

from holdfast.config import load_configuration
from holdfast.proxy.server import configure_proxy, open_proxy, serve_proxy
from holdfast.proxy.settings import Settings
from holdfast.store.memory import MemoryStore


class WaitingUpstream(httpx2.AsyncBaseTransport):
    """A provider that answers once ``count`` requests have arrived."""

    def __init__(self, count) -> None:
        self._count, self._received, self._has_all = count, 0, anyio.Event()

    async def handle_async_request(self, request):
        """Wait for all requests, then answer."""
        await request.aread()
        self._received += 1
        if self._received == self._count:
            self._has_all.set()
        await self._has_all.wait()
        return httpx2.Response(400, json={"type": "error", "error": {"type": "invalid_request_error", "message": "no"}})


def test_configure_proxy_raises_the_concurrency_limit_at_once():
    """A changed limit applies without a restart to requests that come after it."""
    settings = Settings(anthropic="http://up", concurrent=1)

    async def scenario():
        async with (
            open_proxy(settings, MemoryStore(), transport=WaitingUpstream(3)) as proxy,
            httpx2.AsyncClient(transport=httpx2.ASGITransport(proxy), base_url="http://127.0.0.1:8642") as web,
        ):
            configure_proxy(proxy, replace(settings, concurrent=3), load_configuration())
            with anyio.fail_after(socket_proxy.TIMEOUT):
                async with anyio.create_task_group() as tasks:
                    for number in range(3):
                        data = socket_proxy.build_body("anthropic", f"number {number}")
                        tasks.start_soon(partial(web.post, "/v1/messages", content=data))

    anyio.run(scenario)


def test_stop_waits_for_the_reloaded_drain_time():
    """An answer that never ends delays the stop for the seconds of ``drain`` that were read last."""

    async def scenario():
        upstream, ready, stop = socket_proxy.Upstream(), asyncio.Event(), anyio.Event()
        upstream.respond = _never
        server = await asyncio.start_server(upstream.serve_connection, socket_proxy.LOOPBACK, 0)
        base = f"http://{socket_proxy.LOOPBACK}:{server.sockets[0].getsockname()[1]}"
        settings, ports = Settings(anthropic=base, port=0, drain=60.0), []
        sends, changes = anyio.create_memory_object_stream(1)

        def on_ready(address):
            ports.append(int(address.rpartition(":")[2]))
            ready.set()

        async with server, sends, changes, anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: serve_proxy(settings, ":memory:", on_ready=on_ready, stop=stop, changes=changes))
            await ready.wait()
            _, writer = await asyncio.open_connection(socket_proxy.LOOPBACK, ports[0])
            writer.write(
                socket_proxy.build_request(
                    "/v1/messages", socket_proxy.build_body("anthropic", "a word without an end", stream=True)
                )
            )
            await socket_proxy.wait_until(lambda: bool(upstream.requests))
            await sends.send((replace(settings, drain=1.0), load_configuration()))
            await socket_proxy.wait_until(lambda: not changes.statistics().current_buffer_used)
            stop.set()
            with anyio.fail_after(socket_proxy.TIMEOUT):
                while upstream.connections:  # noqa: ASYNC110 -- nothing signals it
                    await anyio.sleep(0.01)
            writer.close()

    anyio.run(scenario)


async def _never(connection, response):
    """Begin an answer and never end it."""
    await connection.send(response.head + response.chunks[0])
    await connection.wait_closed()
