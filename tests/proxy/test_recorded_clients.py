"""What real clients and libraries send is forwarded unchanged.

``tests/clients/client_request_recorder.py`` recorded it.
"""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

SHAPES = sorted(Path(__file__).with_name("shapes").glob("*.jsonl"))
CONVERSATIONS = [file for file in SHAPES if not file.stem.startswith("sdk-")]
REFUSED_SHAPE = "gemini-tools"
"""Gemini CLI repeats a tool's response when it resumes, which Gemini refuses."""
TURNS = 3
BINDING_MODEL = "claude-fable-5-1"
"""A model that binds its thinking to the prefix and accepts system messages between the others."""
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "c2lnbmVk"}
STATE, SESSION = "x-holdfast-state", "x-holdfast-session"


def read_requests(file):
    """Return the recorded requests of a file that have a body."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [line for line in lines if "body" in line]


def encode_body(line):
    """Encode the body of a recorded request with the client's whitespace."""
    return json.dumps(line["body"], separators=None if line.get("spaced") else (",", ":"), ensure_ascii=False).encode()


def send_recorded_requests(file, upstream, open_client, **options):
    """Send the requests of a file and return the replies."""

    async def scenario():
        async with open_client(upstream, **options) as client:
            return [
                await client.post(line["path"], encode_body(line), line["headers"].items())
                for line in read_requests(file)
            ]

    return anyio.run(scenario)


@pytest.mark.parametrize("file", [file for file in SHAPES if file.stem != REFUSED_SHAPE], ids=lambda file: file.stem)
def test_proxy_forwards_recorded_requests_byte_for_byte(file, open_client, make_strict_upstream):
    """With nothing to reduce, the provider gets the recorded client's own bytes and the client gets the provider's."""
    upstream = make_strict_upstream(200_000, accepted_seals="any", binds_thinking="never")
    replies = send_recorded_requests(file, upstream, open_client)
    assert upstream.bodies == [encode_body(line) for line in read_requests(file)]
    assert [reply.content for reply in replies] == upstream.answers


def add_thinking(line):
    """Encode a request to the binding model, with thinking before each answer."""
    body = json.loads(json.dumps(line["body"] | {"model": BINDING_MODEL}))
    for message in body["messages"]:
        if message["role"] == "assistant" and isinstance(message["content"], list):
            message["content"].insert(0, THOUGHT)
    return encode_body(line | {"body": body})


@pytest.mark.parametrize(
    "file",
    [file for file in CONVERSATIONS if read_requests(file)[-1]["path"] == "/v1/messages"],
    ids=lambda file: file.stem,
)
def test_proxy_forwards_recorded_thinking_from_the_middle_on(file, open_client, make_strict_upstream):
    """A conversation begun without the proxy is forwarded byte for byte from its first proxied request, with all its
    thinking.
    """
    upstream, later = make_strict_upstream(200_000, accepted_seals="any"), read_requests(file)[-TURNS:]
    bodies = [add_thinking(line) for line in later]

    async def scenario():
        async with open_client(upstream) as client:
            for line, body in zip(later, bodies, strict=True):
                await client.post(line["path"], body, line["headers"].items())

    anyio.run(scenario)
    assert upstream.bodies == bodies
    assert bodies[0].count(THOUGHT["signature"].encode()) >= TURNS - 1


@pytest.mark.parametrize("file", CONVERSATIONS, ids=lambda file: file.stem)
def test_recorded_conversation_is_one_session(file, open_client, make_strict_upstream):
    """However a client formats and labels its requests, one conversation is one session, and every turn is managed."""
    replies = send_recorded_requests(
        file, make_strict_upstream(200_000, accepted_seals="any", binds_thinking="never"), open_client
    )
    managed = [reply for reply in replies if reply.headers[STATE] == "managed"]
    assert len(managed) >= TURNS
    assert len({reply.headers[SESSION] for reply in managed}) == 1


def test_proxy_fixes_a_recorded_request_the_provider_refuses(open_client, make_strict_upstream, tmp_path):
    """A recorded request that the provider refuses as written is answered through the proxy."""
    file = next(file for file in SHAPES if file.stem == REFUSED_SHAPE)
    bare, fixed = (
        make_strict_upstream(200_000, accepted_seals="any"),
        make_strict_upstream(200_000, accepted_seals="any"),
    )
    refused = send_recorded_requests(file, bare, open_client, bypass=tmp_path)
    assert [reply.status_code for reply in refused][-1] == 400
    assert [reply.status_code for reply in send_recorded_requests(file, fixed, open_client)] == [200] * len(refused)
