"""Read a provider's reply as an answer, event by event or all at once.

An error of any shape becomes an answer whose ``error`` is set.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import NamedTuple

from msgspec import Raw
from msgspec.structs import replace

from holdfast.engine.upstream.redact import redact_report
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
"""Prefixes of the lines that server-sent events consist of."""
_LEADING_BLANKS = b"\xef\xbb\xbf \t\r\n"
"""A byte order mark and white space, which may come before the first event or the body."""


class LoggedAnswer(NamedTuple):
    """An answer in the form in which the log stores it."""

    sized_message: SizedMessage
    usage: Usage
    stop_reason: str


class ReplyReader:
    """Reads one reply: iterate ``read_events``; ``build_answer`` returns the answer as far as it has come.

    A reply that is not a stream is read as one event that holds the whole body.
    """

    def __init__(self, reply: Reply, upstream_request: UpstreamRequest) -> None:
        self.reply = reply
        self.api = upstream_request.api
        self.fold: AnswerStream | None = None
        """The answer folded from the events so far; None until the reply is known to be a stream."""
        self._wants_stream = upstream_request.stream
        self._body = b""
        self._objects: list[bytes] = []
        """The first two objects of a JSON stream. Some servers answer a request for a stream with one JSON object,
        which is then not an event but the whole answer."""

    @property
    def is_stream(self) -> bool:
        """Whether the answer comes as events."""
        return self.fold is not None

    async def read_events(self) -> AsyncGenerator[tuple[list[StreamEvent], bool]]:
        """Yield the events that arrived together, and whether any of them has content from the model.

        Raises ``UpstreamError`` if the bytes cannot be read as events.
        """
        chunks = aiter(self.reply.chunks)
        first_bytes, reader = await self._detect_reader(chunks)
        if reader is None:
            self._body = first_bytes + b"".join([chunk async for chunk in chunks])
            has_content = self.reply.is_success and bool(self._body)
            yield [StreamEvent(self._body, raw=self._body)], has_content
            return
        self.fold = AnswerStream(self.api)
        all_chunks = _chain_chunks(first_bytes, chunks) if first_bytes else chunks
        try:
            async for chunk in all_chunks:
                if events := reader.feed(chunk):
                    yield events, self._fold_events(events, reader)
            if events := reader.close():
                yield events, self._fold_events(events, reader)
        except FormatError as error:
            raise UpstreamError(f"the answer cannot be read: {error}", "network") from error

    def _fold_events(self, events: Sequence[StreamEvent], reader: SseReader | JsonArrayReader) -> bool:
        """Add events to the answer; return whether any of them has content from the model."""
        assert self.fold is not None
        if isinstance(reader, JsonArrayReader) and len(self._objects) < 2:
            self._objects += [event.data for event in events if event.data]
        has_content = False
        for event in events:
            # Every event has to be folded, so this must not stop at the first one with content.
            has_content = self.fold.add_event(event) or has_content
        return has_content

    async def _detect_reader(self, chunks: AsyncIterator[bytes]) -> tuple[bytes, SseReader | JsonArrayReader | None]:
        """Return the reader for the body, or None if it is not a stream, and the bytes read to find that out.

        Self-hosted servers label a stream with any content type, so how the body begins decides, not its label alone.
        """
        if not self.reply.is_success:
            return b"", None
        content_type = self.reply.headers.get("content-type", "").lower()
        is_labeled_sse = _EVENT_STREAM_TYPE in content_type
        if not is_labeled_sse and not self._wants_stream:
            return b"", None
        if is_labeled_sse and self._wants_stream:
            return b"", SseReader()

        first_bytes = b""
        is_sse = _detect_sse(first_bytes)
        while is_sse is None:
            chunk = await anext(chunks, None)
            if chunk is None:
                break
            first_bytes += chunk
            is_sse = _detect_sse(first_bytes)
        first_char = first_bytes.strip(_LEADING_BLANKS)[:1]
        is_object = first_char == b"{"
        if is_sse or (is_labeled_sse and not is_object):
            return first_bytes, SseReader()
        if not self._wants_stream:
            return first_bytes, None
        if API_SPECS[self.api].answers.streams_json_array:
            is_json_stream = first_char in {b"{", b"["}
        else:
            is_labeled_json = content_type.partition(";")[0].strip() == _JSON_TYPE
            is_json_stream = is_object and not (is_labeled_sse or is_labeled_json)
        return first_bytes, JsonArrayReader() if is_json_stream else None

    def build_answer(self) -> ParsedAnswer:
        """Return the answer as far as it has come.

        Raises ``UpstreamError`` if the status says success and the body is no answer.
        """
        if self.fold is not None:
            return self._add_reply_error(self._parse_single_object() or self.fold.build_answer())
        try:
            return self._add_reply_error(parse_answer(self.api, self._body))
        except FormatError as error:
            if self.reply.is_success:
                # The second half of the message is advice for whoever made the body, not for the one who asked.
                problem = str(error).rpartition("; ")[0] or str(error)
                message = f"HTTP {self.reply.status} came without an answer: {problem}; try again"
                raise UpstreamError(message, "server") from error
            return self._add_reply_error(ParsedAnswer(stop_reason="error", is_complete=False))

    def _parse_single_object(self) -> ParsedAnswer | None:
        """Return the only object of a JSON stream as a whole answer, or None if it is an event or one of several."""
        if len(self._objects) != 1:
            return None
        try:
            answer = parse_answer(self.api, self._objects[0])
        except FormatError:
            return None
        if answer.message.parts or answer.error is not None:
            return answer
        return None

    def _add_reply_error(self, answer: ParsedAnswer) -> ParsedAnswer:
        """Return ``answer`` with the status, headers and time of the reply in its error, and secrets removed from it.

        A reply without success status gets an error even if its body has none.
        """
        if self.reply.is_success and answer.error is None:
            return answer
        report = answer.error or ErrorReport(self.api, body=self._body)
        # An error inside a successful stream names its own status; HTTP 200 would hide it.
        status = report.status if self.reply.is_success else self.reply.status
        report = replace(
            report,
            status=status,
            headers=self.reply.headers,
            received_at=time.time(),
        )
        return replace(answer, error=redact_report(report, self.reply.secrets))


async def _chain_chunks(first_bytes: bytes, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    yield first_bytes
    async for chunk in chunks:
        yield chunk


def _detect_sse(first_bytes: bytes) -> bool | None:
    """Return whether a body beginning with ``first_bytes`` is server-sent events, or None if that needs more bytes."""
    start = first_bytes.strip(_LEADING_BLANKS)
    if not start:
        return None
    for prefix in _SSE_PREFIXES:
        if len(start) < len(prefix) and prefix.startswith(start):
            return None
    return start.startswith(_SSE_PREFIXES)


async def ask_upstream(upstream: Upstream, upstream_request: UpstreamRequest) -> ParsedAnswer:
    """Send ``upstream_request`` and return the whole answer; a refusal of the provider is in its ``error``.

    Raises ``UpstreamError`` if no answer came, or if it broke off.
    """
    async with upstream.send(upstream_request) as reply:
        reader = ReplyReader(reply, upstream_request)
        async for _ in reader.read_events():
            pass
        return reader.build_answer()


def convert_answer_for_log(answer: ParsedAnswer, api: str, model: str = "") -> LoggedAnswer:
    """Return ``answer`` as the log stores it: in the provider's own bytes, with signatures bound to ``model``.

    ``model`` is the name that the request used: the answer may call the same model something else, and a later request
    compares names. A damaged answer keeps only its text and calls: the provider would refuse its own damaged bytes,
    and with them every later request.
    """
    usage = answer.request_usage or Usage()
    if answer.is_damaged:
        sized_message = SizedMessage(strip_foreign_content(answer.message, ""), api=api)
        return LoggedAnswer(sized_message, usage, answer.stop_reason)
    if answer.history_elements:
        raw = Raw(b",".join(answer.history_elements))
    else:
        raw = None
    sized_message = SizedMessage(set_signing_model(answer.message, model), api=api, raw=raw)
    return LoggedAnswer(sized_message, usage, answer.stop_reason)
