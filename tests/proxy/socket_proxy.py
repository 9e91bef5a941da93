"""A real proxy on a free port, between a provider and clients that send and break off whatever bytes they like."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from holdfast.messages.parts import Text
from holdfast.proxy.server import serve_proxy
from holdfast.proxy.settings import Settings
from holdfast.store.open_store import open_store
from holdfast.testing.provider.apis.encode_reply import ApiCall, encode_reply
from holdfast.testing.provider.calls import IncomingRequest, ModelAnswer, TokenUse
from holdfast.testing.provider.client import STRICTEST_MODELS

LOOPBACK = "127.0.0.1"
SOON = 20.0
"""Seconds within which everything here is long over, on a busy machine too."""
PATHS = {
    "anthropic": "/v1/messages",
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "gemini": f"/v1beta/models/{STRICTEST_MODELS['gemini']}:generateContent",
}
ANSWER = "Kelp holds on to the rock, and the rock to the kelp. " * 8
"""Long enough for several events."""
STREAMED = PATHS | {"gemini": f"/v1beta/models/{STRICTEST_MODELS['gemini']}:streamGenerateContent?alt=sse"}


# -- the provider ------------------------------------------------------------------------------------------------------


class Heard(NamedTuple):
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Line(NamedTuple):
    """A connection on which a request waits for its answer."""

    heard: Heard
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def say(self, data: bytes) -> None:
        """Send ``data``."""
        self.writer.write(data)
        await self.writer.drain()

    async def left(self) -> None:
        """Return when the other side is gone."""
        try:
            await self.reader.read(1)
        except ConnectionError:
            return

    def cut(self, *, reset: bool = False) -> None:
        """End the connection, with a reset where that is asked for."""
        if reset:
            linger = struct.pack("ii", 1, 0)
            self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.close()


class Told(NamedTuple):
    """An answer: its status line and headers, and the pieces of its body as they stand in chunks."""

    head: bytes
    pieces: tuple[bytes, ...]
    end: bytes = b""

    @property
    def chunks(self) -> tuple[bytes, ...]:
        """The pieces as they are sent."""
        return tuple(b"%x\r\n%s\r\n" % (len(one), one) for one in self.pieces) if self.end else self.pieces


Play = Callable[[Line, Told], Awaitable[None]]


async def well(line: Line, told: Told) -> None:
    """Say the whole answer."""
    await line.say(b"".join([told.head, *told.chunks, told.end]))


class Upstream:
    """A provider over raw sockets, which says the same in every API's words, as ``play`` has it said."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []
        self.play: Play = well
        self.connections = 0
        """How many there are now."""
        self.port = 0

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection's requests."""
        self.connections += 1
        try:
            while (heard := await hear(reader)) is not None:
                self.heard.append(heard)
                await self.play(Line(heard, reader, writer), self.told(heard))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.connections -= 1
            writer.close()

    def told(self, heard: Heard) -> Told:
        """Return the whole answer to ``heard``."""
        path = heard.path.partition("?")[0]
        api = next((api for api, known in STREAMED.items() if path in (PATHS[api], known.partition("?")[0])), "")
        if not api:
            return whole(b'{"path":%s}' % json.dumps(heard.path).encode())
        model = STRICTEST_MODELS[api] if api == "gemini" else ""
        stream = path.endswith("streamGenerateContent") if api == "gemini" else b'"stream": true' in heard.body
        asked = IncomingRequest(api, "generate", heard.body, model, stream)
        answer = ModelAnswer("msg_1", STRICTEST_MODELS[api], (Text(ANSWER),), "end", TokenUse(100, 60))
        spoken = encode_reply(ApiCall(api, "generate", "req_1"), asked, answer)
        if not stream:
            return whole(b"".join(spoken.pieces), spoken.status)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        return Told(head, tuple(spoken.pieces), b"0\r\n\r\n")


def whole(body: bytes, status: int = 200) -> Told:
    """Return an answer that does not stream."""
    head = f"HTTP/1.1 {status} Told\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return Told(head.encode(), (body,))


async def hear(reader: asyncio.StreamReader) -> Heard | None:
    """Return the next request of a connection, or nothing at its end."""
    try:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
    except asyncio.IncompleteReadError:
        return None
    method, path, _ = lines[0].split(" ", 2)
    headers = _headers(lines)
    return Heard(method, path, headers, b"".join([piece async for piece in _body(reader, headers)]))


async def pieces(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the body of the next request as it comes."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    async for piece in _body(reader, _headers(head.splitlines())):
        yield piece


def _headers(lines: Sequence[str]) -> dict[str, str]:
    parted = (line.partition(":") for line in lines[1:] if line)
    return {name.lower(): value.strip() for name, _, value in parted}


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    if "chunked" not in headers.get("transfer-encoding", ""):
        left = int(headers.get("content-length", "0"))
        while left:
            yield (piece := await reader.readexactly(min(left, 1 << 16)))
            left -= len(piece)
        return
    while size := int(await reader.readline(), 16):
        yield (await reader.readexactly(size + 2))[:-2]
    await reader.readline()


# -- clients -----------------------------------------------------------------------------------------------------------


class Got(NamedTuple):
    """What a client was sent until the connection ended."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool
    """Whether the body came to its end."""

    @property
    def json(self):
        """The body's value."""
        return json.loads(self.body)


def request(path: str, body: bytes = b"", method: str = "POST", **headers: str) -> bytes:
    """Return the bytes of a request; ``headers`` come instead of the usual ones of their names, or are left out."""
    usual = {"host": LOOPBACK, "content-type": "application/json", "connection": "close"}
    told = usual | {"content-length": str(len(body))} | {name.replace("_", "-"): one for name, one in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in told.items() if value != "-")
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body


def got(data: bytes) -> Got:
    """Return the answer that ``data`` is, as far as it came."""
    head, _, rest = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").splitlines() or ["HTTP/1.1 0 nothing"]
    headers, status = _headers(lines), int(lines[0].split()[1])
    if status == 100:
        return got(rest)
    if "chunked" not in headers.get("transfer-encoding", ""):
        return Got(status, headers, rest, len(rest) == int(headers.get("content-length", -1)))
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        if not int(size or b"0", 16):
            return Got(status, headers, body, complete=size == b"0")
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    return Got(status, headers, body, complete=False)


def body(api: str, *said: str, stream: bool = False, **fields: object) -> bytes:
    """Return a request's body: what a user, then a model, then the user said, and so on."""
    roles = ("user", "model") if api == "gemini" else ("user", "assistant")
    if api == "gemini":
        told = [{"role": roles[at % 2], "parts": [{"text": text}]} for at, text in enumerate(said)]
        return json.dumps({"contents": told, **fields}).encode()
    field = "input" if api == "openai-responses" else "messages"
    limit = {"max_tokens": 400} if api == "anthropic" else {}
    streams = {"stream": True} if stream else {}
    told = [{"role": roles[at % 2], "content": text} for at, text in enumerate(said)]
    return json.dumps({"model": STRICTEST_MODELS[api], **limit, field: told, **streams, **fields}).encode()


# -- the proxy ---------------------------------------------------------------------------------------------------------


class Proxied:
    """A proxy on a port, and its upstream."""

    def __init__(self, upstream: Upstream, port: int, store: Path, portal: BlockingPortal) -> None:
        self.upstream, self.port, self.store = upstream, port, store
        self.call, self.start = portal.call, portal.start_task_soon
        """Run a coroutine function where the proxy runs; ``start`` returns at once."""

    def send(self, data: bytes) -> Got:
        """Return what comes back for the bytes of a request."""
        return self.call(lambda: self.sent(data))

    async def sent(self, *pieces: bytes) -> Got:
        """Return what comes back for ``pieces``."""
        reader, writer = await asyncio.open_connection(LOOPBACK, self.port)
        with anyio.fail_after(SOON):
            return got(await _said(reader, writer, pieces))

    def stats(self) -> dict:
        """Return what the proxy counted."""
        return self.send(request("/stats", method="GET")).json

    def at_rest(self) -> None:
        """Return when nothing is left running for any request; ``TimeoutError`` where that does not happen."""
        self.call(self._at_rest)

    async def _at_rest(self) -> None:
        await until(lambda: not any(map(_is_request, asyncio.all_tasks())))
        assert (await self.sent(request("/stats", method="GET"))).json["concurrent"]["now"] == 0

    def sessions(self) -> dict[str, list]:
        """Return the entries of every session in the store, whose logs are sound."""
        with open_store(self.store) as store:
            keys = [info.key for info in store.list_sessions()]
            assert not any(store.find_damage(key) for key in keys)
            return {key: store.read_entries(key) for key in keys}


async def _said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pieces: Sequence[bytes]) -> bytes:
    """Return all that comes back; a refusal may come before everything was said."""
    data = b""
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
    except ConnectionError:
        pass
    try:
        while more := await reader.read(65_536):
            data += more
    except ConnectionError:
        pass
    finally:
        writer.close()
    return data


def _is_request(task: asyncio.Task) -> bool:
    """Whether a task of the proxy works for a request."""
    name, where = task.get_name(), task.get_coro().__qualname__
    return "run_asgi" in where or (".proxy." in name and ".server." not in name)


async def until(is_so: Callable[[], bool]) -> None:
    """Return when it is so; ``TimeoutError`` where that does not happen."""
    with anyio.fail_after(SOON):
        while not is_so():  # noqa: ASYNC110 -- nobody tells
            await anyio.sleep(0.005)


@contextmanager
def proxied(folder=None, **given):
    """Yield a proxy with these settings before an upstream; both run in a thread of their own, one loop for both.

    Its store is in ``folder``, or in one that is gone behind the block.
    """
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(_running(folder, given, portal)) as proxy:
        yield proxy


@asynccontextmanager
async def _running(folder, given, portal):
    upstream, ready, stop = Upstream(), asyncio.Event(), anyio.Event()
    server = await asyncio.start_server(upstream.meet, LOOPBACK, 0)
    upstream.port = server.sockets[0].getsockname()[1]
    base, ports = f"http://{LOOPBACK}:{upstream.port}", []

    def told(address):
        ports.append(int(address.rpartition(":")[2]))
        ready.set()

    settings = Settings(anthropic=base, openai=f"{base}/v1", gemini=base, port=0, **given)
    with TemporaryDirectory() if folder is None else nullcontext(folder) as held:
        place = Path(held) / "store.db"
        async with server, anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: serve_proxy(settings, str(place), on_ready=told, stop=stop))
            await ready.wait()
            try:
                yield Proxied(upstream, ports[0], place, portal)
            finally:
                stop.set()
