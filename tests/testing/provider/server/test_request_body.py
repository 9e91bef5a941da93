"""Request bodies on the server: compressed, cut off, too large, or arbitrary bytes."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import socket
import time
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import FormatError
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.server.local_server import serve_provider
from holdfast.testing.provider.server.request_body import IncomingBodyTooLarge, decompress_body, receive_request_body


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("zstd", zstandard.compress),
        ("identity", bytes),
        ("gzip, zstd", lambda body: zstandard.compress(gzip.compress(body))),
    ],
)
def test_server_decompresses_bodies(parrot, client, encoding, compress):
    """The provider gets a compressed body as it was before the compression."""
    assert (
        client.post("/v1/responses", content=compress(b'{"a":1}'), headers={"content-encoding": encoding}).status_code
        == 200
    )
    assert parrot.received[0].body == b'{"a":1}'


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd", "br"])
def test_server_refuses_bodies_it_cannot_decompress(parrot, client, encoding):
    """The refusal is a 400 in the API's shape, and the provider does not get the body."""
    answer = client.post("/v1/messages", content=b'{"a":1}', headers={"content-encoding": encoding})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert "content-encoding" in answer.json()["error"]["message"]
    assert parrot.received == []


def test_decompress_body_stops_at_the_size_limit():
    """The limit is on the decompressed size, however small the compressed body is."""
    for encoding, compress in (("gzip", gzip.compress), ("zstd", zstandard.compress), ("deflate", zlib.compress)):
        assert decompress_body(compress(bytes(1_000)), encoding, 1_000) == bytes(1_000)
        with pytest.raises(IncomingBodyTooLarge, match="more than 1,000 bytes"):
            decompress_body(compress(bytes(5_000_000)), encoding, 1_000)


@given(st.binary(max_size=60), st.lists(st.sampled_from(["gzip", "zstd", "deflate", "identity", "br", ""])))
def test_decompress_body_returns_bytes_or_raises_format_error(body, encodings):
    """No bytes under any encoding raise another error."""
    try:
        assert isinstance(decompress_body(body, ", ".join(encodings), 10_000), bytes)
    except FormatError:
        return


def test_receive_request_body_reads_a_too_large_body_to_its_end():
    """The refused body is read but not kept, and a client that disconnects gives None."""

    def make_receive(*messages):
        remaining = iter(messages)

        async def receive():
            return next(remaining)

        return receive

    chunk = {"type": "http.request", "body": bytes(600), "more_body": True}
    last = chunk | {"more_body": False}
    assert asyncio.run(receive_request_body(make_receive(chunk, last), 1_200)) == bytes(1_200)
    with pytest.raises(IncomingBodyTooLarge):
        asyncio.run(receive_request_body(make_receive(chunk, chunk, last), 1_200))
    assert asyncio.run(receive_request_body(make_receive(chunk, {"type": "http.disconnect"}), 1_200)) is None


def test_server_survives_a_client_that_disconnects(served_parrot, parrot, client):
    """A client that disconnects inside its request is reported, and the server goes on."""
    host, port = str(client.base_url).removeprefix("http://").strip("/").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    assert client.post("/v1/messages", json={}).status_code == 200
    deadline = time.monotonic() + 60
    while "the client left" not in {report.verdict for report in served_parrot[2]}:
        assert time.monotonic() < deadline
        client.get("/")


# -- arbitrary bodies --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def strict_connection():
    """Serve a strict provider and connect to it."""
    with serve_provider(Provider()) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        yield connection
        connection.close()


FIELDS = [
    *("model", "messages", "input", "contents", "parts", "role", "content", "tools", "stream", "type", "text"),
    *("max_tokens", "system", "user", "stream_options", "instructions"),
]
PATHS = [
    "/v1/messages",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1beta/models/m:generateContent",
    "/v1/messages/count_tokens",
    "/v1/responses/compact",
    "/v1/responses/input_tokens",
    "/v1beta/models/m:streamGenerateContent",
    "/v1beta/models/m:countTokens",
    "/v1/nothing",
]
jsons = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5),
    max_leaves=12,
)
bodies = st.binary(max_size=80) | jsons.map(lambda value: json.dumps(value).encode())


@given(st.sampled_from(PATHS), bodies)
def test_server_answers_any_bytes_at_any_path(strict_connection, path, body):
    """The response is an answer, or a refusal with a message in the API's shape."""
    strict_connection.request("POST", path, body)
    answer = strict_connection.getresponse()
    content = answer.read()
    assert answer.status in (200, 400, 404, 413, 422), content
    if answer.status != 200:
        assert json.loads(content)["error"]["message"]
