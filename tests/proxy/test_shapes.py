"""What real clients and libraries send (``tests/clients/record.py`` wrote it down), through the proxy as it came."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

SHAPES = sorted(Path(__file__).with_name("shapes").glob("*.jsonl"))
CONVERSATIONS = [file for file in SHAPES if not file.stem.startswith("sdk-")]
MENDED = "gemini-tools"
"""Gemini CLI repeats a tool's response when it resumes, which Gemini refuses."""
TURNS = 3
STATE, SESSION = "x-holdfast-state", "x-holdfast-session"


def lines(file):
    """Return the requests of a file that have a body."""
    told = [json.loads(line) for line in file.read_text().splitlines()]
    return [line for line in told if "body" in line]


def data(line):
    """Return a body in the client's own spelling."""
    return json.dumps(line["body"], separators=None if line.get("spaced") else (",", ":"), ensure_ascii=False).encode()


def sent(file, upstream, through, **given):
    """Return the answers to the requests of a file."""

    async def go():
        async with through(upstream, **given) as client:
            return [await client.post(line["path"], data(line), line["headers"].items()) for line in lines(file)]

    return anyio.run(go)


@pytest.mark.parametrize("file", [file for file in SHAPES if file.stem != MENDED], ids=lambda file: file.stem)
def test_every_recorded_request_goes_up_byte_for_byte(file, proxied, strict):
    """With nothing to reduce, the provider gets the client's own bytes and the client the provider's."""
    upstream = strict(200_000, seals="any", binds="never")
    replies = sent(file, upstream, proxied[0])
    assert upstream.bodies == [data(line) for line in lines(file)]
    assert [reply.content for reply in replies] == upstream.answers


@pytest.mark.parametrize("file", CONVERSATIONS, ids=lambda file: file.stem)
def test_a_recorded_conversation_is_one_session(file, proxied, strict):
    """However a client spells and marks its requests, one conversation is one session, and every turn is managed."""
    replies = sent(file, strict(200_000, seals="any", binds="never"), proxied[0])
    managed = [reply for reply in replies if reply.headers[STATE] == "managed"]
    assert len(managed) >= TURNS
    assert len({reply.headers[SESSION] for reply in managed}) == 1


def test_what_a_client_gets_wrong_is_mended(proxied, strict, tmp_path):
    """A request that the provider refuses as the client wrote it is answered through the proxy."""
    file = next(file for file in SHAPES if file.stem == MENDED)
    bare, mended = strict(200_000, seals="any"), strict(200_000, seals="any")
    refused = sent(file, bare, proxied[0], bypass=tmp_path)
    assert [reply.status_code for reply in refused][-1] == 400
    assert [reply.status_code for reply in sent(file, mended, proxied[0])] == [200] * len(refused)
