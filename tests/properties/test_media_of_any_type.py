"""Media whose declared type is not that of their bytes: corrected or replaced, whatever was mixed up with what.

The strict provider decodes media by code of its own.
"""

from __future__ import annotations

import json
from base64 import b64encode

import example_counts
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from holdfast.config import get_target
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Text, ToolCall, ToolResult
from holdfast.messages.sized_message import SizedMessage
from holdfast.normalize.normalize_history import normalize_history
from holdfast.providers.fix.fix_request import fix_request
from holdfast.providers.registry import API_NAMES
from holdfast.providers.requests.request_body import build_request_body
from holdfast.providers.rules.validate import validate_request
from holdfast.state.view import apply_normalization
from holdfast.testing.provider import Provider, ProviderSettings, RefusalReply

MODELS = {
    "anthropic": "claude-sonnet-4-5",
    "openai-chat": "gpt-5.2",
    "openai-responses": "gpt-5.2",
    "gemini": "gemini-2.5-flash",
}
FILES = {
    "image/png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x02\0\0\0\x02\x08\x02\0\0\0",
    "image/jpeg": b"\xff\xd8\xff\xe0\0\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0",
    "image/gif": b"GIF89a\x02\0\x02\0\x80\0\0\xff\xff\xff\0\0\0",
    "image/gif; older": b"GIF87a\x02\0\x02\0\x80\0\0\xff\xff\xff\0\0\0",
    "image/webp": b"RIFF\x24\0\0\0WEBPVP8L\x17\0\0\0\x2f\x01\x40\0\0",
    "image/bmp": b"BM\x46\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x02\0\0\0",
    "image/tiff": b"II*\0\x08\0\0\0\x0e\0\xfe\0\x04\0",
    "image/heic": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic",
    "image/avif": b"\0\0\0\x18ftypavif\0\0\0\0mif1avif",
    "image/svg+xml": b"<svg xmlns='http://www.w3.org/2000/svg' width='2' height='2'/>",
    "application/pdf": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj <<>> endobj",
    "audio/wav": b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0",
    "audio/mpeg": b"ID3\x04\0\0\0\0\0\0TIT2\0\0\0\0",
    "text/html": b"<!DOCTYPE html><html><body><h1>403 Forbidden</h1></body></html>",
    "application/json": b'{"error": {"code": 404, "message": "the tide table is gone"}}',
    "text/plain": b"The harbour camera is offline until Tuesday.",
}
DECLARED = ("image/png", "image/jpeg", "image/jpg", "image/gif", "image/webp", "application/pdf", "image/bmp")
SPOILERS = {
    "nothing": lambda data: data,
    "line ends": lambda data: data[:12] + "\n" + data[12:],
    "data URL": lambda data: f"data:image/png;base64,{data}",
    "no padding": lambda data: data.rstrip("="),
    "other characters": lambda data: data[:8] + "!?" + data[10:],
    "one character left over": lambda data: data.rstrip("=")[: len(data) // 4 * 4 - 3],
}
COUNT = example_counts.choose(quick=40, ci=150, thorough=2_000)


@st.composite
def media_strategy(draw):
    """Media of a random file, declared as a random type, sometimes with base64 that is spoiled."""
    content = FILES[draw(st.sampled_from(sorted(FILES)))] + draw(st.binary(max_size=9))
    mime = draw(st.sampled_from(DECLARED))
    kind = "document" if mime == "application/pdf" else "image"
    spoil = SPOILERS[draw(st.sampled_from(["nothing", "nothing", *sorted(SPOILERS)]))]
    return Media(kind, mime, len(content), "tide.bin", spoil(b64encode(content).decode()), form="base64")


def build_history(shown, returned):
    """Return a conversation in which the user shows a medium and a tool returns one."""
    return [
        Message("user", (Text("What is on the pier?"), shown)),
        Message("assistant", (ToolCall("call_12345", "camera", "{}"),)),
        Message("tool", (ToolResult("call_12345", "camera", (Text("here it is"), returned)),)),
    ]


def build_body(api, messages, *, normalized):
    """Return the request of a conversation, with or without normalization."""
    model = MODELS[api]
    sized_messages = [SizedMessage(message) for message in messages]
    edits = normalize_history(messages, get_target(api, model).dialect) if normalized else ()
    fields = {"max_tokens": 1_024} if api == "anthropic" else {}
    return build_request_body(api, model, apply_normalization(sized_messages, edits), setup_fields=fields)


def list_refusals(api, body):
    """Return what the strict provider and the validator have against a request."""
    reply = Provider(ProviderSettings(accepted_seals="any")).answer_body(api, body, model=MODELS[api])
    findings = [hit for hit in validate_request(body, api, model=MODELS[api]) if hit.level == "error"]
    return [*([reply.message] if isinstance(reply, RefusalReply) else []), *findings]


@pytest.mark.counts
@pytest.mark.parametrize("api", API_NAMES)
def test_normalized_media_are_accepted(api):
    """valid-request: whatever the bytes and their base64 are, the request is accepted, and its words are all there."""

    @settings(max_examples=COUNT)
    @given(media_strategy(), media_strategy())
    def check(shown, returned):
        body = build_body(api, build_history(shown, returned), normalized=True)
        assert list_refusals(api, body) == []
        assert b"What is on the pier?" in body
        assert b"here it is" in body

    check()


@pytest.mark.counts
@pytest.mark.parametrize("api", API_NAMES)
def test_accepted_media_are_untouched(api):
    """A request that the provider and the validator accept as it is has no media that get corrected."""

    @settings(max_examples=COUNT)
    @given(media_strategy())
    def check(shown):
        messages = [Message("user", (Text("What is on the pier?"), shown))]
        body = build_body(api, messages, normalized=False)
        if not list_refusals(api, body):
            assert build_body(api, messages, normalized=True) == body

    check()


@pytest.mark.parametrize("api", API_NAMES)
def test_media_of_the_wrong_type_are_refused_without_normalization(api):
    """Otherwise the properties above would prove nothing."""
    wrong = [Media("image", "image/png", 9, "", b64encode(FILES[name]).decode(), form="base64") for name in FILES]
    bodies = [build_body(api, [Message("user", (media,))], normalized=False) for media in wrong]
    assert sum(bool(list_refusals(api, body)) for body in bodies) == len(FILES) - 1  # one of them is a PNG


@pytest.mark.counts
@pytest.mark.parametrize("api", API_NAMES)
def test_fix_corrects_media_once(api):
    """The fixed request is valid, and fixing it again changes nothing."""

    @settings(max_examples=COUNT // 2)
    @given(media_strategy(), media_strategy())
    def check(shown, returned):
        body = build_body(api, build_history(shown, returned), normalized=False)
        once = fix_request(body, api, model=MODELS[api])
        assert once.is_valid
        assert list_refusals(api, once.body) == []
        assert fix_request(once.body, api, model=MODELS[api]).body == once.body

    check()


def test_corrected_media_keep_their_other_fields():
    """Only the type is corrected; cache marks and fields that Holdfast does not know stay byte for byte."""
    jpeg = b64encode(FILES["image/jpeg"]).decode()
    source = '{"data": "%s", "media_type": "%s", "type": "base64"}'
    image = '{"type": "image", "source": ' + source + ', "cache_control": {"type": "ephemeral"}}'
    result = '{"type": "tool_result", "tool_use_id": "t1", "content": [%s], "x": 1.50}'
    parts = (Media("image", "image/png", 22, "", jpeg, Raw((image % (jpeg, "image/png")).encode()), "base64"),)
    shown = Message("tool", (ToolResult("t1", "", parts, raw=Raw((result % (image % (jpeg, "image/png"))).encode())),))
    call = Message("assistant", (ToolCall("t1", "camera", "{}"),))
    messages = [Message.from_text("user", "look"), call, shown]
    (edit,) = normalize_history(messages, get_target("anthropic", MODELS["anthropic"]).dialect)
    (corrected,) = edit.replacement[0].results
    assert bytes(corrected.raw) == (result % (image % (jpeg, "image/jpeg"))).encode()
    assert json.loads(bytes(corrected.content[0].raw))["source"]["media_type"] == "image/jpeg"
    assert edit.why == "declared image/png, but the bytes are image/jpeg: the type is corrected"
