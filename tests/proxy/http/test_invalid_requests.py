"""Every request is answered: by its provider where the proxy cannot read it, by the proxy where it must not pass."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import zlib
from pathlib import Path

import anyio
import example_counts
import pytest
import socket_proxy
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

APIS = list(socket_proxy.PATHS)
MAX_BODY_BYTES = 200_000
"""The body limit of this proxy."""


@pytest.fixture(scope="module")
def running():
    """A proxy for all of these tests."""
    with socket_proxy.run_proxy(body_bytes=MAX_BODY_BYTES) as proxy:
        yield proxy


@pytest.fixture
def proxy(running):
    """The proxy, before an upstream that answers completely; when the test is over it must be healthy and idle."""
    running.upstream.respond = socket_proxy.send_response
    running.upstream.requests.clear()
    yield running
    assert running.send(socket_proxy.build_request("/livez", method="GET")).json["troubles"] == []
    running.wait_idle()


# -- bodies ------------------------------------------------------------------------------------------------------------

GARBAGE = {
    "empty": b"",
    "zeros": bytes(40),
    "not JSON": b"kelp & rock",
    "not UTF-8": b'{"model":"m","messages":[{"role":"user","content":"\xff\xfe"}]}',
    "a list": b"[1,2,3]",
    "a string": b'"kelp"',
    "null": b"null",
    "an empty object": b"{}",
    "no messages": b'{"model":"m","messages":[],"input":[],"contents":[]}',
    "null messages": b'{"model":"m","messages":null,"input":null,"contents":null}',
    "numbers as messages": b'{"model":"m","messages":[1,2],"input":[1,2],"contents":[1,2]}',
    "invalid roles": b'{"model":"m","messages":[{"role":7,"content":[]}],"input":[{}],"contents":[{"role":[]}]}',
    "invalid model": b'{"model":{"a":1},"messages":[{"role":"user","content":"hi"}],"max_tokens":9}',
    "invalid max_tokens": b'{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":"many"}',
    "invalid stream": b'{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":9,"stream":7}',
    "duplicate keys": b'{"messages":[],"messages":[{"role":"user","content":"hi"}],"model":"m","max_tokens":9}',
    "number too large": b'{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":1e999}',
    "deeply nested": b'{"messages":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    "two values": b'{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":9}{}',
}


@pytest.mark.parametrize("what", GARBAGE)
@pytest.mark.parametrize("api", APIS)
def test_proxy_forwards_unreadable_bodies_to_the_provider(api, what, proxy):
    """A body that is not a conversation is forwarded byte for byte, and the provider's error is returned."""
    refusal = b'{"error":{"message":"not like this","type":"invalid_request_error"}}'

    async def refuse(connection, response):
        await socket_proxy.send_response(connection, socket_proxy.build_json_response(refusal, 400))

    proxy.upstream.respond = refuse
    data = GARBAGE[what]
    reply = proxy.send(socket_proxy.build_request(socket_proxy.PATHS[api], data))
    assert (reply.status, reply.body, reply.complete) == (400, refusal, True)
    assert [request.body for request in proxy.upstream.requests] == [data]


@pytest.mark.parametrize("api", APIS)
def test_proxy_forwards_truncated_json_to_the_provider(api, proxy):
    """A body that ends at any byte is forwarded as it arrived."""
    data = socket_proxy.build_body(api, "cut", "short", "again")
    places = range(0, len(data), 1 if example_counts.IS_THOROUGH else 7)
    for at in places:
        assert proxy.send(socket_proxy.build_request(socket_proxy.PATHS[api], data[:at])).status == 200
    assert [request.body for request in proxy.upstream.requests] == [data[:at] for at in places]


@settings(max_examples=example_counts.choose(quick=20, ci=40, thorough=300))
@given(
    api=st.sampled_from(APIS),
    cut=st.tuples(st.floats(0, 1), st.integers(0, 20)),
    put=st.one_of(
        st.binary(max_size=12), st.sampled_from([b"null", b"[[]]", b'{"a":', b"\x00", b'"\\u0000"', b"-1e9"])
    ),
)
def test_proxy_answers_any_damaged_body(api, cut, put, running):
    """A body with any bytes replaced gets a complete answer below 500, and the proxy stays healthy."""
    data = socket_proxy.build_body(api, "What holds?", "A holdfast.", "And what holds the holdfast?")
    at = int(cut[0] * len(data))
    damaged = data[:at] + put + data[at + cut[1] :]
    running.upstream.respond = socket_proxy.send_response
    reply = running.send(socket_proxy.build_request(socket_proxy.PATHS[api], damaged))
    assert reply.complete
    assert reply.status < 500, reply
    assert running.send(socket_proxy.build_request("/livez", method="GET")).json["status"] == "ok"


# -- packed and typed --------------------------------------------------------------------------------------------------

PACKED = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "identity": bytes,
}


@pytest.mark.parametrize("coding", PACKED)
def test_proxy_decompresses_request_bodies(coding, proxy):
    """The provider gets the uncompressed body, and a compressed and an uncompressed request continue one session."""
    data = socket_proxy.build_body("anthropic", f"packed as {coding}")
    sent = socket_proxy.build_request(socket_proxy.PATHS["anthropic"], PACKED[coding](data), content_encoding=coding)
    compressed, plain = proxy.send(sent), proxy.send(socket_proxy.build_request(socket_proxy.PATHS["anthropic"], data))
    assert [request.body for request in proxy.upstream.requests] == [data, data]
    assert not any("content-encoding" in request.headers for request in proxy.upstream.requests)
    assert compressed.headers["x-holdfast-session"] == plain.headers["x-holdfast-session"]


@pytest.mark.parametrize(
    ("coding", "data", "status"),
    [
        ("gzip", b"no gzip at all", 400),
        ("gzip", gzip.compress(b'{"messages":[]}')[:-3], 400),
        ("zstd", b"\x28\xb5\x2f\xfd", 400),
        ("br", b"whatever", 415),
        ("kelp", b"whatever", 415),
        ("gzip", gzip.compress(bytes(50_000_000)), 413),
        ("gzip, gzip, gzip, gzip", b"", 415),
    ],
    ids=["damaged", "cut", "empty frame", "brotli", "unknown", "bomb", "four times"],
)
def test_proxy_refuses_bodies_it_cannot_decompress(coding, data, status, proxy):
    """The client gets an error in its API's words, and nothing is sent upstream."""
    reply = proxy.send(socket_proxy.build_request(socket_proxy.PATHS["anthropic"], data, content_encoding=coding))
    assert (reply.status, reply.json["type"]) == (status, "error")
    assert proxy.upstream.requests == []


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "application/xml",
        "multipart/form-data; boundary=x",
        "",
        "application/json; charset=latin-1",
        "-",
        "/",
    ],
)
def test_proxy_ignores_the_content_type_of_requests(kind, proxy):
    """The body decides how it is read, and its content type is forwarded unchanged."""
    data = socket_proxy.build_body("openai-chat", f"typed {kind}")
    reply = proxy.send(socket_proxy.build_request(socket_proxy.PATHS["openai-chat"], data, content_type=kind))
    assert reply.status == 200
    assert proxy.upstream.requests[0].body == data
    assert proxy.upstream.requests[0].headers.get("content-type", "-") == kind


# -- large -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("way", ["length", "chunked"])
def test_proxy_refuses_bodies_over_the_limit(api, way, proxy):
    """A body over the limit gets a 413 with the limit in its API's words, with a length or chunked, and nothing is sent
    upstream.
    """
    data = socket_proxy.build_body(api, "x" * MAX_BODY_BYTES)
    if way == "length":
        reply = proxy.send(socket_proxy.build_request(socket_proxy.PATHS[api], data))
    else:
        head = socket_proxy.build_request(socket_proxy.PATHS[api], content_length="-", transfer_encoding="chunked")
        reply = proxy.call(lambda: proxy.send_pieces(head, b"%x\r\n%s\r\n" % (len(data), data), b"0\r\n\r\n"))
    assert reply.status == 413
    assert f"{MAX_BODY_BYTES:,}" in json.dumps(reply.json["error"])
    assert proxy.upstream.requests == []


def test_proxy_accepts_a_body_of_exactly_the_limit(proxy):
    """A body of exactly the limit is accepted."""
    filled = MAX_BODY_BYTES - len(socket_proxy.build_body("anthropic", ""))
    data = socket_proxy.build_body("anthropic", "x" * filled)
    assert len(data) == MAX_BODY_BYTES
    assert proxy.send(socket_proxy.build_request(socket_proxy.PATHS["anthropic"], data)).status == 200


def test_proxy_streams_relayed_bodies_of_any_size(proxy):
    """A relayed body passes piece by piece whatever its size, beyond every limit."""
    size, piece = (200 if example_counts.IS_THOROUGH else 24) * 1_000_000, bytes(1_000_000)
    before, peak = _measure_resident_bytes(), [0]

    async def scenario():
        server = await asyncio.start_server(_make_counting_server(peak), socket_proxy.LOOPBACK, 0)
        port = server.sockets[0].getsockname()[1]
        head = socket_proxy.build_request(f"/u/http://127.0.0.1:{port}/v1/files", content_length=str(size))
        reply = await proxy.send_pieces(head, *[piece] * (size // len(piece)))
        server.close()
        return reply

    reply = proxy.call(scenario)
    assert (reply.status, reply.json) == (200, {"bytes": size})
    assert peak[0] - before < 16_000_000


def _make_counting_server(peak):
    """Return a server that answers the size of a request read in pieces; ``peak[0]`` gets the memory used meanwhile."""

    async def serve(reader, writer):
        size = 0
        async for piece in socket_proxy.iter_request_body(reader):
            size += len(piece)
            peak[0] = max(peak[0], _measure_resident_bytes())
        answer = b'{"bytes":%d}' % size
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(answer), answer))
        await writer.drain()
        writer.close()

    return serve


def _measure_resident_bytes():
    """Return the memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("path", [socket_proxy.PATHS["anthropic"], "/v1/files", "/v1/messages/batches"])
def test_proxy_answers_a_stalled_body_with_408(path, proxy, monkeypatch):
    """A client whose body stops gets a 408 in its API's form, whether it is parsed or relayed, and its slot is free
    again.
    """
    monkeypatch.setattr("holdfast.proxy.http.client_request.CLIENT_TIMEOUT", 0.2)
    reply = proxy.send(socket_proxy.build_request(path, content_length="50") + b'{"model"')
    assert (reply.status, reply.complete, reply.headers["x-holdfast-state"]) == (408, True, "refused")
    assert "send the request again" in reply.json["error"]["message"]
    assert proxy.send(socket_proxy.build_request("/v1/messages/batches", b"{}")).status == 200


# -- addresses and headers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/files/file-1?purpose=x&a=%2F", {}),
        ("/v1/embeddings", {}),
        ("/v1/messages/batches", {}),
        ("/v1beta/cachedContents", {}),
        ("/v9/what/is/this?key=%20", {"x-api-key": "k"}),
        ("/", {"x-goog-api-key": "k"}),
    ],
)
def test_proxy_relays_unknown_paths_of_known_providers(method, path, headers, proxy):
    """Method, path, query and body are forwarded as they arrived, and the answer returns unchanged."""
    data = b"" if method in ("GET", "OPTIONS") else b"any bytes \x00\xff"
    reply = proxy.send(socket_proxy.build_request(path, data, method, **headers))
    [request] = proxy.upstream.requests
    assert (request.method, request.path, request.body) == (method, path, data)
    assert (reply.status, reply.headers["x-holdfast-state"]) == (200, "relayed")


@pytest.mark.parametrize(
    "path",
    [
        "/v9/what/is/this",
        "/v1/what",
        "/u/https://",
        "/u/ftp://a/b",
        "/u/http://127.0.0.1:99999/v1/messages",
        "/u/http://127.0.0.1:kelp/v1/files",
        "/u/http://[::1/v1/messages",
        "//",
        "/%00",
        "/..;/",
    ],
)
def test_proxy_refuses_paths_without_a_provider(path, proxy):
    """A key is never sent to a provider it may not be for: the client gets a 404 that says what to do."""
    reply = proxy.send(socket_proxy.build_request(path, b"{}", authorization="Bearer k"))
    assert reply.status == 404
    assert (reply.json["error"]["type"], reply.json["error"]["code"]) == ("invalid_request_error", None), "no model"
    assert (
        f"base address to http://{socket_proxy.LOOPBACK}/u/ followed by the provider" in reply.json["error"]["message"]
    )
    assert proxy.upstream.requests == []


@pytest.mark.parametrize(
    ("path", "state"),
    [("/v1/messages", "managed"), ("/v1/messages/count_tokens", "relayed"), ("/v1/files", "relayed")],
)
@pytest.mark.parametrize("host", ["[v1.x]", "a" * 300])
def test_proxy_reports_an_unreachable_upstream_with_502(host, path, state, proxy):
    """A host that cannot be reached gives a 502 that is not a trouble of the proxy, and the state header is set all the
    same.
    """
    reply = proxy.send(
        socket_proxy.build_request(f"/u/http://{host}:9{path}", socket_proxy.build_body("anthropic", "hi"))
    )
    assert (reply.status, reply.complete) == (502, True)
    assert reply.headers["x-holdfast-state"] == state
    assert "no answer came from" in reply.json["error"]["message"]


@pytest.mark.parametrize(
    "headers",
    [
        {"x-kelp": "\xe4\xf6\xfc\x80"},
        {"x-claude-code-session-id": "../../etc/passwd"},
        {"x-claude-code-session-id": "'; drop table sessions; --"},
        {"x-holdfast-session": "x" * 5_000},
        {"x-session-id": "\xff" * 200},
        {"user-agent": "claude-cli/" + "9" * 5_000},
        {"x-codex-turn-metadata": "{" * 3_000},
        {"x-codex-turn-metadata": '{"request_kind": ["compaction"]}'},
        {"anthropic-beta": ",,,,"},
        {"accept-encoding": "br;q=9, *;q=-1"},
        {"content-encoding": ", ,identity,"},
        {"origin": "http://localhost:3000"},
        {"expect": "100-continue"},
        {"te": "trailers", "trailer": "x-a"},
        {"x-holdfast-state": "managed", "x-holdfast-request": "0"},
    ],
    ids=lambda headers: next(iter(headers)),
)
def test_proxy_survives_hostile_headers(headers, proxy):
    """Hostile header values never become paths, keys or SQL; the request is answered, and no header of ours is sent
    upstream.
    """
    data = socket_proxy.build_body("anthropic", f"with {next(iter(headers))}")
    reply = proxy.send(socket_proxy.build_request(socket_proxy.PATHS["anthropic"], data, **headers))
    assert reply.status == 200, reply
    [request] = proxy.upstream.requests
    assert request.body == data
    assert not [
        name for name in request.headers if name.startswith("x-holdfast") or name in ("te", "trailer", "expect")
    ]
    assert proxy.store.parent.exists()
    assert {path.name.partition(".")[0] for path in proxy.store.parent.iterdir()} == {"store"}


def test_proxy_never_writes_auth_headers_to_disk(proxy):
    """Auth headers are forwarded unchanged and are in no file of the store."""
    secrets = {"authorization": "Bearer kelp-secret-1", "x-api-key": "kelp-secret-2", "cookie": "a=kelp-secret-3"}
    proxy.send(
        socket_proxy.build_request(
            socket_proxy.PATHS["anthropic"], socket_proxy.build_body("anthropic", "a word"), **secrets
        )
    )
    [request] = proxy.upstream.requests
    assert secrets.items() <= request.headers.items()
    stored = b"".join(path.read_bytes() for path in proxy.store.parent.rglob("*") if path.is_file())
    assert b"a word" in stored
    assert b"kelp-secret" not in stored


@pytest.mark.parametrize("path", [socket_proxy.PATHS["anthropic"], "/v1/files", "/stats", "/livez"])
@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:8642"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "127.0.0.1@evil.example"},
        {"host": "localhost.evil.example"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
    ],
    ids=lambda headers: "-".join(*headers.items()),
)
def test_proxy_refuses_foreign_hosts_and_origins(headers, path, proxy):
    """A web page that reaches this machine by its own name gets a 403, and nothing is sent upstream."""
    reply = proxy.send(socket_proxy.build_request(path, b"{}", "POST" if path.startswith("/v1") else "GET", **headers))
    assert reply.status == 403
    assert reply.complete
    assert proxy.upstream.requests == []


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"kelp\r\n\r\n",
        b"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: -5\r\n\r\n",
        b"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        b"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: \x00\r\n\r\n",
    ],
    ids=["tls", "not http", "negative", "two lengths", "bad chunk", "long path", "nul"],
)
def test_proxy_refuses_invalid_http(data, proxy):
    """Bytes that are not HTTP get a 400 or no answer, nothing is sent upstream, and the proxy keeps running."""
    reply = proxy.send(data)
    assert reply.status in (0, 400, 431), reply
    assert proxy.upstream.requests == []


def test_proxy_never_splits_an_ambiguous_request(proxy):
    """A request with both a length and chunks is never forwarded as two requests."""
    inner = b"0\r\n\r\nPOST /v1/files HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 0\r\n\r\n"
    head = socket_proxy.build_request(
        "/v1/files", content_length=str(len(inner)), transfer_encoding="chunked", connection="close"
    )
    proxy.send(head + inner)
    assert len(proxy.upstream.requests) <= 1


def test_proxy_refuses_requests_over_the_concurrency_limit():
    """A request over the limit is refused as overloaded in its API's words and never counts as concurrent; the others
    are answered.
    """
    with socket_proxy.run_proxy(concurrent=3) as proxy:
        opened = []

        async def wait(connection, response):
            await opened[0].wait()
            await socket_proxy.send_response(connection, response)

        async def scenario():
            opened.append(anyio.Event())
            proxy.upstream.respond = wait
            requests = [
                socket_proxy.build_request("/v1/messages", socket_proxy.build_body("anthropic", f"number {number}"))
                for number in range(3)
            ]
            waiting = [asyncio.ensure_future(proxy.send_pieces(request)) for request in requests]
            await socket_proxy.wait_until(lambda: len(proxy.upstream.requests) == 3)
            refused = await proxy.send_pieces(
                socket_proxy.build_request("/v1/messages", socket_proxy.build_body("anthropic", "one more"))
            )
            opened[0].set()
            return refused, await asyncio.gather(*waiting)

        refused, fine = proxy.call(scenario)
        assert (refused.status, refused.json["error"]["type"]) == (529, "overloaded_error"), refused
        assert [reply.status for reply in fine] == [200] * 3
        assert proxy.stats()["concurrent"]["most"] == 3
        proxy.wait_idle()
