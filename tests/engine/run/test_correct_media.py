"""Media that are not what they are declared to be, from a client's body to the bytes that are sent."""

from __future__ import annotations

import json
from base64 import b64encode

from sample_entries import SAMPLE_KEY

from holdfast.engine.engine import Engine
from holdfast.events import NoticeGiven
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.provider.calls import ScriptedAnswer
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.settings import ProviderSettings
from holdfast.testing.upstream import ProviderUpstream

CACHE_MARK = b',"cache_control":{"type":"ephemeral"}'
MODEL = STRICTEST_MODELS["anthropic"]
JPEG = b64encode(b"\xff\xd8\xff\xe0\0\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0" + bytes(300)).decode()
PAGE = b64encode(b"<!DOCTYPE html><html><body>502 Bad Gateway</body></html>").decode()


def build_image(data, **fields):
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}, **fields}


def encode(value):
    return json.dumps(value, separators=(",", ":"))


def build_body(*messages):
    tools = [{"name": "camera", "input_schema": {"type": "object"}}]
    return encode({"model": MODEL, "max_tokens": 900, "tools": tools, "messages": messages}).encode()


FIRST = [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, build_image(JPEG)]}]
SECOND = [
    *FIRST,
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "camera", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [build_image(PAGE)]}]},
]


def run_bodies(*bodies):
    """Run the bodies in one session; return what is sent, without breakpoints, and notices."""
    upstream = ProviderUpstream(Provider(ProviderSettings(), [ScriptedAnswer("fine")] * len(bodies)))
    notices = []

    def note_event(event):
        if isinstance(event, NoticeGiven) and event.rule == "media-bytes":
            notices.append(event.why)

    async def run_scenario():
        async with Engine.open(
            MemoryStore(), upstream=upstream, api="anthropic", model=MODEL, listen=note_event
        ) as engine:
            session = await engine.session(SAMPLE_KEY)
            for body in bodies:
                async with session.run(body) as run:
                    async for _ in run:
                        pass

    run_on_fake_clock(run_scenario)
    return [sent.body.replace(CACHE_MARK, b"") for sent in upstream.sent], notices


def test_engine_corrects_the_type_and_keeps_all_other_bytes():
    """Only the declared type differs from the client's body, and the provider is asked once."""
    body = build_body(*FIRST)
    [sent], notices = run_bodies(body)
    assert sent == body.replace(b'"media_type":"image/png"', b'"media_type":"image/jpeg"')
    assert notices == ["declared image/png, but the bytes are image/jpeg: the type is corrected (message 1)"]


def test_engine_repeats_the_correction_in_every_request():
    """The next request begins with the bytes of the first one, and says nothing new about them."""
    first, second = build_body(*FIRST), build_body(*SECOND)
    [sent_first, sent_second], notices = run_bodies(first, second)
    assert sent_second.startswith(sent_first.removesuffix(b"]}"))
    assert PAGE.encode() not in sent_second
    assert b"[image left out: declared image/png, but the bytes are an HTML page]" in sent_second
    assert len(notices) == 2
