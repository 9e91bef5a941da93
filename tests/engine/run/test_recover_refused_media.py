"""One image or document that a provider cannot read: a line stands for it, once, and everything else stays."""

from __future__ import annotations

import json
from base64 import b64encode

import pytest
from sample_entries import SAMPLE_KEY

from holdfast.engine.engine import Engine
from holdfast.errors import UpstreamError
from holdfast.events import NoticeGiven
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.provider.calls import ScriptedAnswer
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.settings import ProviderSettings
from holdfast.testing.upstream import ProviderUpstream

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\2\0\0\0\2\0\x08\x02\0\0\0"
DATA = {name: b64encode(PNG + name.encode() * 300).decode() for name in "ABCD"}
PDF = b64encode(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3" + b"P" * 300).decode()
MODEL = STRICTEST_MODELS["anthropic"]


def build_image(name):
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA[name]}}


def build_message(*blocks, words="Compare these."):
    return {"role": "user", "content": [*blocks, {"type": "text", "text": words}]}


def build_body(*messages):
    return json.dumps({"model": MODEL, "max_tokens": 900, "messages": messages}).encode()


def run_bodies(settings, *bodies):
    """Run the bodies in one session; return the upstream and the texts of the notices."""
    upstream = ProviderUpstream(Provider(settings, [ScriptedAnswer("fine")] * len(bodies)))
    notices = []

    def note_event(event):
        if isinstance(event, NoticeGiven):
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
    return upstream, notices


def list_shown(sent):
    return [name for name in DATA if DATA[name].encode() in sent.body]


def test_recover_replaces_the_newest_image_if_none_is_named():
    """ "Could not process image" names none: the newest that was not taken before goes, the others stay."""
    first = build_body(build_message(build_image("A")))
    later = [build_message(build_image("A")), {"role": "assistant", "content": "fine"}]
    second = build_body(*later, build_message(build_image("B"), build_image("C")))
    upstream, notices = run_bodies(ProviderSettings(unreadable_media=(DATA["C"],)), first, second)
    assert [list_shown(sent) for sent in upstream.sent] == [["A"], ["A", "B", "C"], ["A", "B"]]
    assert any("the provider refused this image or document" in text for text in notices)


def test_recover_replaces_the_document_that_the_path_names():
    """The path in the error counts, not the order: newer images stay."""
    document = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}}
    body = build_body(build_message(document, build_image("A")))
    upstream, _ = run_bodies(ProviderSettings(unreadable_media=(PDF,)), body)
    assert [PDF.encode() in sent.body for sent in upstream.sent] == [True, False]
    assert list_shown(upstream.sent[-1]) == ["A"]


def test_recover_remembers_the_refused_image():
    """The replacement is recorded: the next request has the line too, and is not refused."""
    turns = [build_message(build_image("A"))]
    later = [*turns, {"role": "assistant", "content": "fine"}, build_message(words="And now?")]
    upstream, _ = run_bodies(ProviderSettings(unreadable_media=(DATA["A"],)), build_body(*turns), build_body(*later))
    assert [list_shown(sent) for sent in upstream.sent] == [["A"], [], []]


def test_recover_tries_once_only():
    """Two unreadable images in one message: after one was replaced, the second refusal is the user's to see."""
    body = build_body(build_message(build_image("A"), build_image("B")))
    with pytest.raises(UpstreamError, match="Could not process image"):
        run_bodies(ProviderSettings(unreadable_media=(DATA["A"], DATA["B"])), body)
