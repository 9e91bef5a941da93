"""A real proxy on a free port, between an upstream and clients that send arbitrary bytes and may disconnect."""

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
TIMEOUT = 20.0
"""Seconds after which a test gives up, also on a busy machine."""
PATHS = {
    "anthropic": "/v1/messages",
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "gemini": f"/v1beta/models/{STRICTEST_MODELS['gemini']}:generateContent",
}
ANSWER = "Kelp holds on to the rock, and the rock to the kelp. " * 8
"""The text of every answer, long enough for several stream events."""
STREAM_PATHS = PATHS | {"gemini": f"/v1beta/models/{STRICTEST_MODELS['gemini']}:streamGenerateContent?alt=sse"}


# -- the upstream ------------------------------------------------------------------------------------------------------


class ReceivedRequest(NamedTuple):
    """A request as it reached the upstream."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class UpstreamConnection(NamedTuple):
    """A connection to the upstream whose request waits for a response."""

    request: ReceivedRequest
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        """Send ``data``."""
        self.writer.write(data)
        await self.writer.drain()

    async def wait_closed(self) -> None:
        """Wait until the other side has closed the connection."""
        try:
            await self.reader.read(1)
        except ConnectionError:
            return

    def close(self, *, reset: bool = False) -> None:
        """Close the connection, with a TCP reset if asked to."""
        if reset:
            linger = struct.pack("ii", 1, 0)
            self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.close()


class PreparedResponse(NamedTuple):
    """A response: its head, the pieces of its body, and the final chunk of a chunked one."""

    head: bytes
    pieces: tuple[bytes, ...]
    end: bytes = b""

    @property
    def chunks(self) -> tuple[bytes, ...]:
        """The pieces, framed as HTTP chunks if the response is chunked."""
        return tuple(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in self.pieces) if self.end else self.pieces


Responder = Callable[[UpstreamConnection, PreparedResponse], Awaitable[None]]


async def send_response(connection: UpstreamConnection, response: PreparedResponse) -> None:
    """Send the whole response."""
    await connection.send(b"".join([response.head, *response.chunks, response.end]))


class Upstream:
    """A provider over raw sockets with the same answer in every API's form; ``respond`` decides how it is sent."""

    def __init__(self) -> None:
        self.requests: list[ReceivedRequest] = []
        self.respond: Responder = send_response
        self.connections = 0
        """Number of open connections."""
        self.port = 0

    async def serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        self.connections += 1
        try:
            while (request := await read_request(reader)) is not None:
                self.requests.append(request)
                await self.respond(UpstreamConnection(request, reader, writer), self.build_response(request))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.connections -= 1
            writer.close()

    def build_response(self, request: ReceivedRequest) -> PreparedResponse:
        """Build the complete response to a request."""
        path = request.path.partition("?")[0]
        api = next((api for api, known in STREAM_PATHS.items() if path in (PATHS[api], known.partition("?")[0])), "")
        if not api:
            return build_json_response(b'{"path":%s}' % json.dumps(request.path).encode())
        model = STRICTEST_MODELS[api] if api == "gemini" else ""
        stream = path.endswith("streamGenerateContent") if api == "gemini" else b'"stream": true' in request.body
        incoming = IncomingRequest(api, "generate", request.body, model, stream)
        answer = ModelAnswer("msg_1", STRICTEST_MODELS[api], (Text(ANSWER),), "end", TokenUse(100, 60))
        encoded = encode_reply(ApiCall(api, "generate", "req_1"), incoming, answer)
        if not stream:
            return build_json_response(b"".join(encoded.pieces), encoded.status)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        return PreparedResponse(head, tuple(encoded.pieces), b"0\r\n\r\n")


def build_json_response(body: bytes, status: int = 200) -> PreparedResponse:
    """Build an unstreamed response."""
    head = f"HTTP/1.1 {status} Told\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return PreparedResponse(head.encode(), (body,))


async def read_request(reader: asyncio.StreamReader) -> ReceivedRequest | None:
    """Read the next request of a connection, or return None at its end."""
    try:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
    except asyncio.IncompleteReadError:
        return None
    method, path, _ = lines[0].split(" ", 2)
    headers = _parse_headers(lines)
    return ReceivedRequest(method, path, headers, b"".join([piece async for piece in _iter_body(reader, headers)]))


async def iter_request_body(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the pieces of the next request's body as they arrive."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    async for piece in _iter_body(reader, _parse_headers(head.splitlines())):
        yield piece


def _parse_headers(lines: Sequence[str]) -> dict[str, str]:
    pairs = (line.partition(":") for line in lines[1:] if line)
    return {name.lower(): value.strip() for name, _, value in pairs}


async def _iter_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
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


class ClientResponse(NamedTuple):
    """What a client received until the connection ended."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool
    """Whether the body arrived completely."""

    @property
    def json(self):
        """The body decoded as JSON."""
        return json.loads(self.body)


def build_request(path: str, body: bytes = b"", method: str = "POST", **headers: str) -> bytes:
    """Build the bytes of a request; ``headers`` replace the defaults of the same names, and "-" omits one."""
    defaults = {"host": LOOPBACK, "content-type": "application/json", "connection": "close"}
    merged = (
        defaults
        | {"content-length": str(len(body))}
        | {name.replace("_", "-"): value for name, value in headers.items()}
    )
    lines = "".join(f"{name}: {value}\r\n" for name, value in merged.items() if value != "-")
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body


def parse_response(data: bytes) -> ClientResponse:
    """Parse the bytes of a response, which may be incomplete."""
    head, _, rest = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").splitlines() or ["HTTP/1.1 0 nothing"]
    headers, status = _parse_headers(lines), int(lines[0].split()[1])
    if status == 100:
        return parse_response(rest)
    if "chunked" not in headers.get("transfer-encoding", ""):
        return ClientResponse(status, headers, rest, len(rest) == int(headers.get("content-length", -1)))
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        if not int(size or b"0", 16):
            return ClientResponse(status, headers, body, complete=size == b"0")
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    return ClientResponse(status, headers, body, complete=False)


def build_body(api: str, *texts: str, stream: bool = False, **fields: object) -> bytes:
    """Build a request body whose texts are alternately the user's and the model's."""
    roles = ("user", "model") if api == "gemini" else ("user", "assistant")
    if api == "gemini":
        messages = [{"role": roles[at % 2], "parts": [{"text": text}]} for at, text in enumerate(texts)]
        return json.dumps({"contents": messages, **fields}).encode()
    field = "input" if api == "openai-responses" else "messages"
    limit = {"max_tokens": 400} if api == "anthropic" else {}
    streams = {"stream": True} if stream else {}
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
    return json.dumps({"model": STRICTEST_MODELS[api], **limit, field: messages, **streams, **fields}).encode()


# -- the proxy ---------------------------------------------------------------------------------------------------------


class RunningProxy:
    """A proxy on a port, and its upstream."""

    def __init__(self, upstream: Upstream, port: int, store: Path, portal: BlockingPortal) -> None:
        self.upstream, self.port, self.store = upstream, port, store
        self.call, self.start = portal.call, portal.start_task_soon
        """Run a coroutine function in the loop of the proxy; ``start`` returns a future at once."""

    def send(self, data: bytes) -> ClientResponse:
        """Send the bytes of a request and return the response."""
        return self.call(lambda: self.send_pieces(data))

    async def send_pieces(self, *pieces: bytes) -> ClientResponse:
        """Send ``pieces`` one after the other and return the response."""
        reader, writer = await asyncio.open_connection(LOOPBACK, self.port)
        with anyio.fail_after(TIMEOUT):
            return parse_response(await _exchange(reader, writer, pieces))

    def stats(self) -> dict:
        """Return the figures of ``/stats``."""
        return self.send(build_request("/stats", method="GET")).json

    def wait_idle(self) -> None:
        """Wait until no task for any request is running; raise ``TimeoutError`` if that does not happen."""
        self.call(self._wait_idle)

    async def _wait_idle(self) -> None:
        await wait_until(lambda: not any(map(_is_request, asyncio.all_tasks())))
        assert (await self.send_pieces(build_request("/stats", method="GET"))).json["concurrent"]["now"] == 0

    def sessions(self) -> dict[str, list]:
        """Return the entries of every session in the store, after checking that no log is damaged."""
        with open_store(self.store) as store:
            keys = [info.key for info in store.list_sessions()]
            assert not any(store.find_damage(key) for key in keys)
            return {key: store.read_entries(key) for key in keys}


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pieces: Sequence[bytes]) -> bytes:
    """Send ``pieces`` and read to the end; a refusal may arrive before everything is sent."""
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
    """Whether this task of the proxy serves a request."""
    name, coroutine_name = task.get_name(), task.get_coro().__qualname__
    return "run_asgi" in coroutine_name or (".proxy." in name and ".server." not in name)


async def wait_until(is_true: Callable[[], bool]) -> None:
    """Wait until ``is_true``; raise ``TimeoutError`` if that does not happen."""
    with anyio.fail_after(TIMEOUT):
        while not is_true():  # noqa: ASYNC110 -- nothing signals it
            await anyio.sleep(0.005)


@contextmanager
def run_proxy(folder=None, **settings):
    """Run a proxy with these settings in front of an upstream, both in one loop of another thread.

    Its store is in ``folder``, or in a temporary folder.
    """
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(_run_in_portal(folder, settings, portal)) as proxy,
    ):
        yield proxy


@asynccontextmanager
async def _run_in_portal(folder, settings, portal):
    upstream, ready, stop = Upstream(), asyncio.Event(), anyio.Event()
    server = await asyncio.start_server(upstream.serve_connection, LOOPBACK, 0)
    upstream.port = server.sockets[0].getsockname()[1]
    base, ports = f"http://{LOOPBACK}:{upstream.port}", []

    def on_ready(address):
        ports.append(int(address.rpartition(":")[2]))
        ready.set()

    # The upstream counts its requests, so none is made but those of the tests.
    options = {"ask_windows": False, **settings}
    values = Settings(anthropic=base, openai=f"{base}/v1", gemini=base, port=0, **options)
    with TemporaryDirectory() if folder is None else nullcontext(folder) as store_folder:
        path = Path(store_folder) / "store.db"
        async with server, anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: serve_proxy(values, str(path), on_ready=on_ready, stop=stop))
            await ready.wait()
            try:
                yield RunningProxy(upstream, ports[0], path, portal)
            finally:
                stop.set()
