"""Recorded request bodies of real clients, where present."""

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
from holdfast.providers.requests.parsed_request import parse_request
from holdfast.providers.requests.request_body import render_request

FILES = sorted((Path(__file__).parents[3] / "shared" / "shapes").glob("req-*.jsonl"))
LINES = Decoder(dict[str, Raw])
APIS_BY_PATH = {
    "/chat/completions": "openai-chat",
    "/responses": "openai-responses",
    "/v1/messages": "anthropic",
    "/models/": "gemini",
}
READERS = {module.API_NAME: module for module in (anthropic, openai_chat, openai_responses, gemini)}


def iter_requests(file):
    """Yield API and body of every request in a file that has a body."""
    for line in file.read_bytes().splitlines():
        record = LINES.decode(line)
        if bytes(record.get("body", Raw(b"null"))) != b"null":
            path = json.loads(bytes(record["path"]))
            yield next(api for path_part, api in APIS_BY_PATH.items() if path_part in path), bytes(record["body"])


if FILES:

    @pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
    def test_render_request_returns_recorded_bodies_unchanged(file):
        """Each request is recognized and rendered byte for byte; rendered again from its messages it has equal JSON."""
        for api, raw in iter_requests(file):
            parsed = parse_request(raw)
            assert parsed.api == api
            assert render_request(parsed, parsed.messages) is raw
            messages = [SizedMessage(sized.message, api=api, base_raw=sized.raw) for sized in parsed.messages]
            expected = json.loads(raw)
            if isinstance(expected.get("input"), str):
                expected["input"] = [{"role": "user", "content": expected["input"]}]
            assert json.loads(render_request(parsed, messages)) == expected

    @pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
    def test_decode_messages_reads_recorded_requests_of_its_own_api_only(file):
        """``decode_messages`` reads real requests of its API; with a call in them no other API's decoder does."""
        for api, raw in iter_requests(file):
            wire = json.loads(raw)[API_SPECS[api].messages_field]
            decoded = decode_messages(api, wire)
            assert decoded
            for other, reader in READERS.items() if any(message.calls for message in decoded) else ():
                if other != api:
                    with pytest.raises(FormatError):
                        decode_messages(reader.API_NAME, wire)

    @pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
    def test_convert_request_keeps_the_texts_of_recorded_requests(file):
        """Each file can be read as a recording, and each request converts to every API with the same texts in order.

        A request whose history is stored at the provider is incomplete and is not converted.
        """
        longest = max((len(parse_request(raw).messages) for _, raw in iter_requests(file)), default=0)
        assert longest > 0
        assert bodies.read_request_bodies(file.read_bytes()).entries
        for _, raw in iter_requests(file):
            for target_api in API_NAMES if not json.loads(raw).get("previous_response_id") else ():
                converted_texts = iter(list_texts(parse_request(convert_request(raw, target_api, "m")[0], target_api)))
                assert all(text in converted_texts for text in list_texts(parse_request(raw)) if text)


def list_texts(parsed):
    """Return the user and assistant texts of a request, message by message."""
    return [sized.message.text for sized in parsed.messages if sized.message.role in ("user", "assistant")]
