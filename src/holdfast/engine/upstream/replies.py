"""Replies as answers: event by event, or all at once. An error of any shape is an answer with ``error``."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress

from msgspec import Raw
from msgspec.structs import replace

from holdfast.engine.upstream import redact as redacting
from holdfast.engine.upstream.upstream import Reply, Upstream, UpstreamRequest
from holdfast.errors import FormatError, UpstreamError
from holdfast.messages.signatures import set_signing_model
from holdfast.messages.sized_message import SizedMessage
from holdfast.messages.strip_foreign import strip_foreign_content
from holdfast.providers.answers.answer_stream import AnswerStream, parse_answer
from holdfast.providers.answers.parsed_answer import ParsedAnswer
from holdfast.providers.common.sse import JsonArrayReader, SseReader, StreamEvent
from holdfast.providers.errors.report import ErrorReport
from holdfast.providers.registry import API_SPECS
from holdfast.state.entries import Usage

_EVENT_STREAM_TYPE = "text/event-stream"
_JSON_TYPE = "application/json"
_SSE_PREFIXES = (b"data:", b"event:", b"id:", b"retry:", b":")
"""How a line of server-sent events begins that says something."""
_LEADING_BLANKS = b"\xef\xbb\xbf \t\r\n"
"""What may stand before: white space, and a byte order mark."""


class ReplyReader:
    """A reply being read. Its events come as they were sent; ``build_answer`` is what they say so far.

    A reply that is no stream is one event, which holds the whole body.
    """

    def __init__(self, reply: Reply, upstream_request: UpstreamRequest) -> None:
        self.reply = reply
        self.api = upstream_request.api
        self.fold: AnswerStream | None = None
        """What the events say, once it is known that they are some."""
        self._wants_stream = upstream_request.stream
        self._body = b""
        self._objects: list[bytes] = []
        """The first ones that came, where each may be an event, and one alone a whole answer."""

    @property
    def is_stream(self) -> bool:
        """Whether the answer comes as events."""
        return self.fold is not None

    async def read_events(self) -> AsyncGenerator[tuple[list[StreamEvent], bool]]:
        """Yield the events that came at once, and whether any holds something the model said."""
        chunks = aiter(self.reply.chunks)
        first, reader = await self._detect_reader(chunks)
        if reader is None:
            self._body = first + b"".join([chunk async for chunk in chunks])
            yield [StreamEvent(self._body, raw=self._body)], self.reply.is_success and bool(self._body)
            return
        fold = self.fold = AnswerStream(self.api)
        is_listed = isinstance(reader, JsonArrayReader)
        try:
            async for chunk in chunks if not first else _chain_chunks(first, chunks):
                if events := reader.feed(chunk):
                    if is_listed:
                        self._keep_objects(events)
                    yield events, True in [fold.add_event(event) for event in events]
            if events := reader.close():
                if is_listed:
                    self._keep_objects(events)
                yield events, True in [fold.add_event(event) for event in events]
        except FormatError as error:
            raise UpstreamError(f"the answer cannot be read: {error}", "network") from error

    async def _detect_reader(self, chunks: AsyncIterator[bytes]) -> tuple[bytes, SseReader | JsonArrayReader | None]:
        """Return what was read to tell what reads the rest, and that; nothing for a body that is no stream.

        Servers of one's own may call a stream anything, so it is told by how it begins.
        """
        kind, first = self.reply.headers.get("content-type", "").lower(), b""
        is_named = _EVENT_STREAM_TYPE in kind
        if not self.reply.is_success or not (is_named or self._wants_stream):
            return b"", None
        if is_named and self._wants_stream:
            return b"", SseReader()
        while (signs := _detect_sse(first)) is None and (chunk := await anext(chunks, None)) is not None:
            first += chunk
        begins = first.strip(_LEADING_BLANKS)[:1]
        is_object = begins == b"{"
        if signs or (is_named and not is_object):
            return first, SseReader()
        is_whole = is_named or kind.partition(";")[0].strip() == _JSON_TYPE
        is_listed = (
            begins in {b"{", b"["} if API_SPECS[self.api].answers.streams_json_array else is_object and not is_whole
        )
        return first, JsonArrayReader() if self._wants_stream and is_listed else None

    def _keep_objects(self, events: Sequence[StreamEvent]) -> None:
        """Keep the objects of ``events`` as long as it may be that one came alone."""
        if len(self._objects) < 2:
            self._objects += [event.data for event in events if event.data]

    def build_answer(self) -> ParsedAnswer:
        """Return what the reply says so far; ``UpstreamError`` where a status of success came without an answer."""
        if self.fold is not None:
            return self._add_reply_error(self._parse_single_object() or self.fold.build_answer())
        try:
            return self._add_reply_error(parse_answer(self.api, self._body))
        except FormatError as error:
            if self.reply.is_success:
                problem = str(error).rpartition("; ")[0] or str(error)  # its advice is for who made the body
                why = f"HTTP {self.reply.status} came without an answer: {problem}; try again"
                raise UpstreamError(why, "server") from error
            return self._add_reply_error(ParsedAnswer(stop_reason="error", is_complete=False))

    def _parse_single_object(self) -> ParsedAnswer | None:
        """Return what the one object that came says, where it is a whole answer and no event."""
        if len(self._objects) != 1:
            return None
        with suppress(FormatError):
            whole_answer = parse_answer(self.api, self._objects[0])
            return whole_answer if whole_answer.message.parts or whole_answer.error is not None else None
        return None

    def _add_reply_error(self, raw_answer: ParsedAnswer) -> ParsedAnswer:
        if self.reply.is_success and raw_answer.error is None:
            return raw_answer
        report = raw_answer.error or ErrorReport(self.api, body=self._body)
        status = report.status if self.reply.is_success else self.reply.status
        report = replace(report, status=status, headers=self.reply.headers, received_at=time.time())
        report = redacting.redact_report(report, self.reply.secrets)
        return replace(raw_answer, error=report)


async def _chain_chunks(first: bytes, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """Yield what was read already, then the rest."""
    yield first
    async for chunk in chunks:
        yield chunk


def _detect_sse(first: bytes) -> bool | None:
    """Whether a body begins as server-sent events do; nothing where that cannot be told yet."""
    start = first.strip(_LEADING_BLANKS)
    if not start or any(len(start) < len(sign) and sign.startswith(start) for sign in _SSE_PREFIXES):
        return None
    return start.startswith(_SSE_PREFIXES)


async def ask_upstream(upstream: Upstream, upstream_request: UpstreamRequest) -> ParsedAnswer:
    """Return the whole answer to ``upstream_request``; what the provider refuses is in its ``error``.

    ``UpstreamError`` where none came, or where it broke off.
    """
    async with upstream.send(upstream_request) as reply:
        incoming = ReplyReader(reply, upstream_request)
        async for _ in incoming.read_events():
            pass
        return incoming.build_answer()


def convert_answer_for_log(answer: ParsedAnswer, api: str, model: str = "") -> tuple[SizedMessage, Usage, str]:
    """Return an answer as the log takes it: in the provider's own bytes, what is sealed in it known to be ``model``'s.

    That is the model that was asked, by the name it was asked by: an answer may call the same model otherwise. Of one
    that came damaged the words and calls are left: the provider would refuse its own bytes, and all later requests.
    """
    if answer.is_damaged:
        return (
            SizedMessage(strip_foreign_content(answer.message, ""), api=api),
            answer.request_usage or Usage(),
            answer.stop_reason,
        )
    raw = Raw(b",".join(answer.history_elements)) if answer.history_elements else None
    return (
        SizedMessage(set_signing_model(answer.message, model), api=api, raw=raw),
        answer.request_usage or Usage(),
        answer.stop_reason,
    )
