"""Bodies as they come: packed, cut off, too large, or any bytes at all."""

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
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("zstd", zstandard.compress),
        ("identity", bytes),
        ("gzip, zstd", lambda body: zstandard.compress(gzip.compress(body))),
    ],
)
def test_packed_bodies(parrot, client, encoding, pack):
    """A packed body is judged as what it was before it was packed."""
    assert (
        client.post("/v1/responses", content=pack(b'{"a":1}'), headers={"content-encoding": encoding}).status_code
        == 200
    )
    assert parrot.seen[0].body == b'{"a":1}'


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd", "br"])
def test_bodies_that_are_not_what_they_say(parrot, client, encoding):
    """A body that cannot be unpacked is a 400 in the API's shape and never reaches the judge."""
    answer = client.post("/v1/messages", content=b'{"a":1}', headers={"content-encoding": encoding})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert "content-encoding" in answer.json()["error"]["message"]
    assert parrot.seen == []


def test_a_body_that_swells_is_stopped():
    """Unpacking ends at the limit, however small the packed body is."""
    for encoding, pack in (("gzip", gzip.compress), ("zstd", zstandard.compress), ("deflate", zlib.compress)):
        assert decompress_body(pack(bytes(1_000)), encoding, 1_000) == bytes(1_000)
        with pytest.raises(IncomingBodyTooLarge, match="more than 1,000 bytes"):
            decompress_body(pack(bytes(5_000_000)), encoding, 1_000)


@given(st.binary(max_size=60), st.lists(st.sampled_from(["gzip", "zstd", "deflate", "identity", "br", ""])))
def test_unpacking_any_bytes(body, encodings):
    """Any bytes under any encoding are unpacked or refused with a typed error."""
    try:
        assert isinstance(decompress_body(body, ", ".join(encodings), 10_000), bytes)
    except FormatError:
        return


def test_a_body_that_is_too_large_is_read_to_its_end():
    """A body over the limit is refused once it is read, and its bytes are not kept; a client that leaves is nothing."""

    def coming(*messages):
        waiting = iter(messages)

        async def receive():
            return next(waiting)

        return receive

    chunk = {"type": "http.request", "body": bytes(600), "more_body": True}
    last = chunk | {"more_body": False}
    assert asyncio.run(receive_request_body(coming(chunk, last), 1_200)) == bytes(1_200)
    with pytest.raises(IncomingBodyTooLarge):
        asyncio.run(receive_request_body(coming(chunk, chunk, last), 1_200))
    assert asyncio.run(receive_request_body(coming(chunk, {"type": "http.disconnect"}), 1_200)) is None


def test_a_client_that_leaves_is_no_fault(served, parrot, client):
    """A client that leaves in the middle of its own request is told of, and the server serves on."""
    host, port = str(client.base_url).removeprefix("http://").strip("/").split(":")
    with socket.create_connection((host, int(port))) as line:
        line.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    assert client.post("/v1/messages", json={}).status_code == 200
    over = time.monotonic() + 60
    while "the client left" not in {told.verdict for told in served[2]}:
        assert time.monotonic() < over
        client.get("/")


# -- whatever comes ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def strict():
    """A strict provider and a connection to it."""
    with serve_provider(Provider()) as url:
        line = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        yield line
        line.close()


FIELDS = [
    *("model", "messages", "input", "contents", "parts", "role", "content", "tools", "stream", "type", "text"),
    *("max_tokens", "system", "user", "stream_options", "instructions"),
]
PLACES = [
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


@given(st.sampled_from(PLACES), bodies)
def test_any_bytes_get_an_answer(strict, path, body):
    """Any bytes at any address get an answer in the API's shape: a refusal that says why, or an answer."""
    strict.request("POST", path, body)
    answer = strict.getresponse()
    found = answer.read()
    assert answer.status in (200, 400, 404, 413, 422), found
    if answer.status != 200:
        assert json.loads(found)["error"]["message"]
