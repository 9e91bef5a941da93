"""Settings that are read again while the proxy runs: what comes later goes by them, whatever it is."""

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


class Waiting(httpx2.AsyncBaseTransport):
    """A provider that answers when all have asked."""

    def __init__(self, many) -> None:
        self._many, self._asked, self._all = many, 0, anyio.Event()

    async def handle_async_request(self, request):
        """Answer, once so many asked."""
        await request.aread()
        self._asked += 1
        if self._asked == self._many:
            self._all.set()
        await self._all.wait()
        return httpx2.Response(400, json={"type": "error", "error": {"type": "invalid_request_error", "message": "no"}})


def test_configure_proxy_raises_the_concurrency_limit_at_once():
    """A changed limit applies without a restart to requests that come after it."""
    told = Settings(anthropic="http://up", concurrent=1)

    async def go():
        async with (
            open_proxy(told, MemoryStore(), transport=Waiting(3)) as proxy,
            httpx2.AsyncClient(transport=httpx2.ASGITransport(proxy), base_url="http://127.0.0.1:8642") as web,
        ):
            configure_proxy(proxy, replace(told, concurrent=3), load_configuration())
            with anyio.fail_after(socket_proxy.SOON):
                async with anyio.create_task_group() as tasks:
                    for one in range(3):
                        data = socket_proxy.body("anthropic", f"number {one}")
                        tasks.start_soon(partial(web.post, "/v1/messages", content=data))

    anyio.run(go)


def test_stop_waits_for_the_reloaded_drain_time():
    """An answer that never ends delays the stop for the seconds of ``drain`` that were read last."""

    async def go():
        upstream, ready, stop = socket_proxy.Upstream(), asyncio.Event(), anyio.Event()
        upstream.play = _never
        server = await asyncio.start_server(upstream.meet, socket_proxy.LOOPBACK, 0)
        base = f"http://{socket_proxy.LOOPBACK}:{server.sockets[0].getsockname()[1]}"
        told, ports = Settings(anthropic=base, port=0, drain=60.0), []
        sends, changes = anyio.create_memory_object_stream(1)

        def begun(address):
            ports.append(int(address.rpartition(":")[2]))
            ready.set()

        async with server, sends, changes, anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: serve_proxy(told, ":memory:", on_ready=begun, stop=stop, changes=changes))
            await ready.wait()
            _, writer = await asyncio.open_connection(socket_proxy.LOOPBACK, ports[0])
            writer.write(
                socket_proxy.request(
                    "/v1/messages", socket_proxy.body("anthropic", "a word without an end", stream=True)
                )
            )
            await socket_proxy.until(lambda: bool(upstream.heard))
            await sends.send((replace(told, drain=1.0), load_configuration()))
            await socket_proxy.until(lambda: not changes.statistics().current_buffer_used)
            stop.set()
            with anyio.fail_after(socket_proxy.SOON):
                while upstream.connections:  # noqa: ASYNC110 -- nobody tells
                    await anyio.sleep(0.01)
            writer.close()

    anyio.run(go)


async def _never(line, told):
    """Begin an answer and never end it."""
    await line.say(told.head + told.chunks[0])
    await line.left()
