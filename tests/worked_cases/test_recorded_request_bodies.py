"""Requests of real clients that lie beside the checkout, where they do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import Raw
from msgspec.json import Decoder

from holdfast.errors import FormatError
from holdfast.formats import request_bodies as bodies
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.anthropic import messages as anthropic
from holdfast.providers.foreign.convert_request import convert_request
from holdfast.providers.gemini import messages as gemini
from holdfast.providers.openai_chat import messages as openai_chat
from holdfast.providers.openai_responses import messages as openai_responses
from holdfast.providers.registry import API_NAMES, API_SPECS
from holdfast.providers.requests.message_dicts import decode_messages
from holdfast.providers.requests.request_body import parse_request, render_request

FILES = sorted((Path(__file__).parents[3] / "shared" / "shapes").glob("req-*.jsonl"))
LINES = Decoder(dict[str, Raw])
WAYS = {
    "/chat/completions": "openai-chat",
    "/responses": "openai-responses",
    "/v1/messages": "anthropic",
    "/models/": "gemini",
}
READERS = {module.API_NAME: module for module in (anthropic, openai_chat, openai_responses, gemini)}


def requests(file):
    """Return API and body of every request in a file that has a body."""
    for line in file.read_bytes().splitlines():
        found = LINES.decode(line)
        if bytes(found.get("body", Raw(b"null"))) != b"null":
            path = json.loads(bytes(found["path"]))
            yield next(api for way, api in WAYS.items() if way in path), bytes(found["body"])


if FILES:

    @pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
    def test_every_request_comes_back(file):
        """Each request is recognised and comes back byte for byte, also when it is told from its slots again."""
        for api, raw in requests(file):
            lens = parse_request(raw)
            assert lens.api == api
            assert render_request(lens, lens.messages) is raw
            again = [SizedMessage(slot.message, api=api, base_raw=slot.raw) for slot in lens.messages]
            wanted = json.loads(raw)
            if isinstance(wanted.get("input"), str):
                wanted["input"] = [{"role": "user", "content": wanted["input"]}]
            assert json.loads(render_request(lens, again)) == wanted

    @pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
    def test_no_request_is_a_stranger_to_its_own_reader(file):
        """What real clients send is read by ``decode_messages`` for their API; with a call in it, by no other."""
        for api, raw in requests(file):
            wire = json.loads(raw)[API_SPECS[api].messages_field]
            read = decode_messages(api, wire)
            assert read
            for other, reader in READERS.items() if any(message.calls for message in read) else ():
                if other != api:
                    with pytest.raises(FormatError):
                        decode_messages(reader.API_NAME, wire)

    @pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
    def test_every_request_is_a_session_and_can_change_its_api(file):
        """Each file of requests is a recording; each request has a form in every API, with the same words in order.

        One whose history lies with the provider is not whole, so it has none.
        """
        longest = max((len(parse_request(raw).messages) for _, raw in requests(file)), default=0)
        assert longest > 0
        assert bodies.read_request_bodies(file.read_bytes()).entries
        for _, raw in requests(file):
            for to in API_NAMES if not json.loads(raw).get("previous_response_id") else ():
                told = iter(words(parse_request(convert_request(raw, to, "m")[0], to)))
                assert all(one in told for one in words(parse_request(raw)) if one)


def words(lens):
    """Return what user and model say in a request, message by message."""
    return [slot.message.text for slot in lens.messages if slot.message.role in ("user", "assistant")]
