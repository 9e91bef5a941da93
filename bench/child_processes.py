"""Processes that the proxy's benchmarks start and measure: an upstream that answers at once, a bare relay, a proxy.

Usage: python bench/child_processes.py upstream | python bench/child_processes.py bare URL

Both print the port they listen on. The upstream sends prepared bytes. The end of a request chooses them:
``answer-EVENTS-PAUSE`` asks for that many events with that many ms between them, 0 for all at once. The bare relay is
the same stack (uvicorn, ASGI, httpx2) that only forwards; ``stack`` returns the names of its parts.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httpx2
import uvicorn

LOOPBACK = "127.0.0.1"
PATHS = ("/v1/messages", "/v1/chat/completions")
"""Paths that the upstream answers."""
PATIENCE = 240.0
"""Seconds that a child may take to listen: LiteLLM's proxy takes ten when the machine has nothing else to do."""
IDLE, RESTING = 0.1, 1.0
"""A child counts as idle if it takes less than ``RESTING`` ms of processor time in ``IDLE`` seconds."""

# -- processes ---------------------------------------------------------------------------------------------------------


class Child:
    """A process that listens on a port and is ended with the block. Its figures are available on Linux only."""

    def __init__(self, command: Sequence[str], port: int = 0, environment: Mapping[str, str] | None = None) -> None:
        self._command, self.port = command, port
        self._environment = os.environ | (environment or {})

    def __enter__(self) -> Self:
        out = None if os.environ.get("BENCH_VERBOSE") else subprocess.DEVNULL
        self._process = subprocess.Popen(
            self._command, stdout=out if self.port else subprocess.PIPE, stderr=out, env=self._environment
        )
        if not self.port:
            assert self._process.stdout is not None
            self.port = int(self._process.stdout.readline())
        self._wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _wait(self) -> None:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and self._process.poll() is None:
            try:
                socket.create_connection((LOOPBACK, self.port), 1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise SystemExit(f"{' '.join(self._command)} does not listen on {self.port}; see with BENCH_VERBOSE=1")

    @property
    def url(self) -> str:
        """The address on which it listens."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def cpu(self) -> float:
        """Processor time so far in ms, of all its threads."""
        return time.clock_gettime(~self._process.pid << 3 | 2) * 1e3  # clock_getcpuclockid(3) of Linux

    @property
    def resident(self) -> float:
        """Its anonymous memory in MB, without mapped files."""
        told = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(told.partition("RssAnon:")[2].split()[0]) * 1_024 / 1e6

    @property
    def descriptors(self) -> int:
        """The number of open files and sockets."""
        return len(list(Path(f"/proc/{self._process.pid}/fd").iterdir()))

    def settled(self) -> float:
        """Wait until the process is idle, at most three seconds, and return its processor time in ms."""
        before, now = -1.0, self.cpu
        for _ in range(30):
            time.sleep(IDLE)
            before, now = now, self.cpu
            if now - before < RESTING:
                break
        return now


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        return int(listener.getsockname()[1])


def upstream() -> Child:
    """Start the upstream in a process of its own."""
    return Child([sys.executable, __file__, "upstream"])


def bare(url: str) -> Child:
    """Return the relay that only forwards."""
    return Child([sys.executable, __file__, "bare", url])


def least(url: str, file: Path) -> Child:
    """Return the relay that only forwards and writes the messages to ``file``."""
    return Child([sys.executable, str(Path(__file__).with_name("least_relay.py")), url, str(file)])


def holdfast(url: str, store: Path, *options: str, **environment: str) -> Child:
    """Return our proxy, which keeps its sessions in ``store``."""
    port = free_port()
    command = [sys.executable, "-m", "holdfast", "serve", "--store", str(store), "--port", str(port)]
    places = {"ANTHROPIC_BASE_URL": url, "OPENAI_BASE_URL": f"{url}/v1", "GOOGLE_GEMINI_BASE_URL": url}
    return Child([*command, *options], port, places | environment)


def litellm(url: str, program: str, folder: Path) -> Child:
    """Return LiteLLM's proxy with everything switched off that can be: keys, log, cache, counts, database.

    Requests to ``/raw/…`` go through its pass-through, which neither parses nor routes them.
    """
    routes = [
        _route("gpt-*", "openai/gpt-*", f"{url}/v1"),
        _route("claude-*", "anthropic/claude-*", url),
    ]
    raw = [{"path": f"/raw{path}", "target": url + path, "headers": {}, "forward_headers": True} for path in PATHS]
    config = {
        "model_list": routes,
        "litellm_settings": {
            "telemetry": False,
            "turn_off_message_logging": True,
            "disable_token_counter": True,
            "suppress_debug_info": True,
            "num_retries": 0,
        },
        "general_settings": {"disable_spend_logs": True, "disable_error_logs": True, "pass_through_endpoints": raw},
    }
    place, port = folder / "litellm.yaml", free_port()
    place.write_text(json.dumps(config))  # YAML is a superset of JSON
    alone = {
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOG": "ERROR",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        "DISABLE_ADMIN_UI": "True",
        "NO_DOCS": "True",
        "NO_PROXY": "*",
    }
    return Child([program, "--config", str(place), "--host", LOOPBACK, "--port", str(port)], port, alone)


def _route(name: str, model: str, base: str) -> dict[str, Any]:
    return {"model_name": name, "litellm_params": {"model": model, "api_base": base, "api_key": "key"}}


# -- the upstream ------------------------------------------------------------------------------------------------------

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_ASKED = re.compile(rb"answer-(\d+)-(\d+)")
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_HEAD_JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


def said(number: int) -> str:
    """Return the text of one event of an answer. All differ, because LiteLLM takes a repetition for a fault."""
    return f"kelp{number}."


def anthropic(count: int) -> list[str]:
    """Return the events of an answer of the Messages API."""
    usage = '"usage":{"input_tokens":250000,"output_tokens":1}'
    begun = f'{{"id":"msg_1","type":"message","role":"assistant","model":"claude","content":[],{usage}}}'
    delta = '"content_block_delta","index":0,"delta":{"type":"text_delta","text":"%s"}'
    told = [
        f'"message_start","message":{begun}',
        '"content_block_start","index":0,"content_block":{"type":"text","text":""}',
        *[delta % said(number) for number in range(count)],
        '"content_block_stop","index":0',
        f'"message_delta","delta":{{"stop_reason":"end_turn"}},"usage":{{"output_tokens":{count}}}',
        '"message_stop"',
    ]
    return [f'event: {one.split(chr(34), 2)[1]}\ndata: {{"type":{one}}}\n\n' for one in told]


def chat(count: int) -> list[str]:
    """Return the events of an answer of Chat Completions."""
    head = '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt","choices":['
    usage = '"usage":{"prompt_tokens":250000,"completion_tokens":9,"total_tokens":250009}'
    told = [
        f'{head}{{"index":0,"delta":{{"role":"assistant","content":""}},"finish_reason":null}}]}}',
        *[
            f'{head}{{"index":0,"delta":{{"content":"{said(number)}"}},"finish_reason":null}}]}}'
            for number in range(count)
        ],
        f'{head}{{"index":0,"delta":{{}},"finish_reason":"stop"}}]}}',
        f"{head}],{usage}}}",
        "[DONE]",
    ]
    return [f"data: {one}\n\n" for one in told]


TELLS: Mapping[str, Callable[[int], list[str]]] = {"/v1/messages": anthropic, "/v1/chat/completions": chat}
"""Functions that build the events of an answer, by path."""


@lru_cache
def canned(path: str, count: int) -> tuple[bytes, ...]:
    """Return the encoded events of an answer of ``count`` pieces, or an empty tuple for an unknown path."""
    return tuple(event.encode() for event in TELLS[path](count)) if path in TELLS else ()


@lru_cache
def _chunked(path: str, count: int) -> tuple[bytes, ...]:
    return tuple(b"%x\r\n%s\r\n" % (len(event), event) for event in canned(path, count))


class _Answering(asyncio.Protocol):
    """A connection to the upstream: it counts the bytes of a request and answers at its end."""

    def connection_made(self, transport: Any) -> None:
        self._transport, self._data, self._missing, self._asked = transport, bytearray(), -1, 0
        self._path = ""
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._missing < 0:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                return
            head, length = bytes(self._data[:end]), _LENGTH.search(self._data, 0, end)
            self._path = head.split(b" ", 2)[1].decode().partition("?")[0]
            self._missing = end + 4 + (int(length[1]) if length else 0)
        if len(self._data) >= self._missing:
            last = _ASKED.match(self._data, max(0, self._data.rfind(b"answer-")))
            asked = [int(one) for one in last.groups()] if last else [0, 0]
            self._data.clear()
            self._missing = -1
            self._answer(*asked)

    def _answer(self, count: int, pause: int) -> None:
        chunks = _chunked(self._path, count)
        if not chunks:
            self._transport.write(_HEAD_JSON % 2 + b"{}")
        elif not pause:
            self._transport.write(_HEAD + b"".join(chunks) + b"0\r\n\r\n")
        else:
            self._transport.write(_HEAD)
            self._telling = asyncio.ensure_future(self._tell(chunks, pause / 1e3))

    async def _tell(self, chunks: Sequence[bytes], pause: float) -> None:
        for chunk in chunks:
            self._transport.write(chunk)
            await asyncio.sleep(pause)
            if self._transport.is_closing():
                return
        self._transport.write(b"0\r\n\r\n")


async def _upstream() -> None:
    server = await asyncio.get_running_loop().create_server(_Answering, LOOPBACK, 0, backlog=1_000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def stack() -> str:
    """Return what the bare relay and our proxy run on; the compiled packages if they are installed."""
    http, loop = (name if find_spec(name) else other for name, other in (("httptools", "h11"), ("uvloop", "asyncio")))
    return f"uvicorn with {http} on {loop}, httpx2"


# -- the bare relay ----------------------------------------------------------------------------------------------------

_HOP = frozenset({b"host", b"connection", b"content-length", b"transfer-encoding", b"keep-alive"})


class Bare:
    """An ASGI application that forwards a request and its answer without looking at them."""

    def __init__(self, base: str) -> None:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        self._base, self._client = base, httpx2.AsyncClient(limits=limits, timeout=600)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Forward one request and its answer."""
        headers = [(name, value) for name, value in scope["headers"] if name not in _HOP]
        body = b"".join([chunk async for chunk in _received(receive)])
        await self.before(body)
        url, passed = self._base + scope["path"], list[bytes]()
        async with self._client.stream(scope["method"], url, content=body, headers=headers) as reply:
            told = [(name, value) for name, value in reply.headers.raw if name.lower() not in _HOP]
            await send({"type": "http.response.start", "status": reply.status_code, "headers": told})
            async for chunk in reply.aiter_raw():
                passed.append(chunk)
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await self.after(passed)
        await send({"type": "http.response.body", "body": b""})

    async def before(self, body: bytes) -> None:
        """Handle a request before it is forwarded; here nothing."""

    async def after(self, answer: Sequence[bytes]) -> None:
        """Handle a forwarded answer; here nothing."""


async def _received(receive: Any) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await receive()
        yield message.get("body", b"")
        more = message.get("more_body", False)


def listening(app: Bare) -> None:
    """Serve ``app``, and print its port."""
    listener = socket.create_server((LOOPBACK, 0), backlog=1_000)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as the proxy's
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
    uvicorn.Server(config).run([listener])


# -- requests ----------------------------------------------------------------------------------------------------------


class Refused(OSError):
    """An answer with another status than 200."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"HTTP {status}: {body[:300]!r}")
        self.status, self.body = status, body


async def asked(url: str, path: str, body: bytes) -> bytes:
    """Send one request over a new connection and return the body of the answer, without the framing of chunks.

    Raises ``Refused`` for another status than 200, ``OSError`` or ``EOFError`` if the answer is incomplete.
    """
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        head = f"POST {path} HTTP/1.1\r\nhost: {place.netloc}\r\ncontent-type: application/json\r\n"
        keys = "authorization: Bearer key\r\nanthropic-version: 2023-06-01\r\nconnection: close\r\n"
        writer.write(f"{head}{keys}content-length: {len(body)}\r\n\r\n".encode() + body)
        told = await reader.readuntil(b"\r\n\r\n")
        rest = await reader.read()
    finally:
        writer.close()
    status, answer = int(told.split(b" ", 2)[1]), unchunked(rest) if b"chunked" in told.lower() else rest
    if status != 200:
        raise Refused(status, answer)
    return answer


def unchunked(data: bytes) -> bytes:
    """Return a chunked body without the framing; raise ``OSError`` if the last chunk is missing."""
    found, at = list[bytes](), 0
    while at < len(data):
        size, _, _ = data[at : at + 20].partition(b"\r\n")
        begin, length = at + len(size) + 2, int(size, 16)
        if not length:
            return b"".join(found)
        found.append(data[begin : begin + length])
        at = begin + length + 2
    raise OSError("the answer broke off")


if __name__ == "__main__":
    if sys.argv[1] == "upstream":
        asyncio.run(_upstream())
    else:
        listening(Bare(sys.argv[2]))
