"""What the judge answered, in the words of the API: status, headers, body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from holdfast.providers.common.json.raw_json import write
from holdfast.testing.provider.calls import Asked, Compacted, Counted, Endpoint, Refusal, Reply
from holdfast.testing.provider.faults.faults import Fault
from holdfast.testing.provider.faults.mishaps import trouble
from holdfast.testing.provider.server.steps import Outgoing, document
from holdfast.testing.provider.voices import VOICES
from holdfast.testing.provider.voices.gemini import array
from holdfast.testing.provider.voices.voice import EVENT_STREAM, JSON, Stream


class Call(Struct, frozen=True):
    """One request for an answer, a count or a compaction."""

    api: str
    endpoint: Endpoint
    ticket: str
    fault: Fault | None = None
    model: str = ""
    stream: bool | None = None
    """Whether events are asked for, where the address says it."""
    lined: bool = False
    """Whether the events are to be one JSON array (Gemini without ``alt=sse``)."""


def speak(call: Call, asked: Asked, reply: Reply) -> Outgoing:
    """Return ``reply`` as it is sent: status, headers, and the body in pieces."""
    voice = VOICES[call.api]
    about = {"content-type": JSON, voice.ticket: call.ticket}
    if isinstance(reply, Refusal):
        return _refused(call, asked, reply, about)
    if isinstance(reply, Counted):
        return document(200, about, write(voice.counted(reply.tokens)))
    if isinstance(reply, Compacted):
        return document(200, about, write(voice.compacted(reply)))
    if asked.stream:
        return _streamed(call, voice.stream(asked, reply), about)
    return document(200, about, write(voice.whole(asked, reply)))


def _refused(call: Call, asked: Asked, reply: Refusal, about: Mapping[str, str]) -> Outgoing:
    voice = VOICES[call.api]
    if reply.in_stream and asked.stream:
        return _streamed(call, Stream(voice.late(asked, reply, call.ticket, 0), 1), about)
    body = reply.body or write(voice.refused(reply, call.ticket))
    if call.fault and call.fault.kind == "413-empty":
        body = b""
    return document(reply.status, {**about, "content-type": _mime(body), **voice.waiting(reply)}, body)


def _mime(body: bytes) -> str:
    """Return what kind of text an error's body is, told from its first character."""
    return {b"{": JSON, b"[": JSON, b"<": "text/html"}.get(body[:1], "text/plain; charset=utf-8")


def _streamed(call: Call, stream: Stream, about: Mapping[str, str]) -> Outgoing:
    mime = f"{JSON}; charset=UTF-8" if call.lined else EVENT_STREAM
    told = _events(call, stream)
    return Outgoing(
        200, {**about, "content-type": mime, "cache-control": "no-cache"}, told.events, told.closing, streamed=True
    )


def _events(call: Call, stream: Stream, before: int = 0) -> Stream:
    """Return the events as this call wants them; ``before`` of them were sent already."""
    return array(stream, before) if call.lined else stream


def late(call: Call, asked: Asked, spoken: Outgoing, before: int) -> Sequence[bytes]:
    """Return how an error is told inside an answer of which so many events were sent already."""
    voice, error = VOICES[call.api], trouble(call.api)
    if not spoken.streamed:
        return (write(voice.refused(error, call.ticket)),)
    return _events(call, Stream(voice.late(asked, error, call.ticket, before), 1), before).events
