"""Parse bodies and streams of any API to answers."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Raw
from msgspec.structs import replace

from holdfast.errors import FormatError, UnrecognizedContent
from holdfast.providers.answers.answer_errors import parse_error_report
from holdfast.providers.answers.parsed_answer import ParsedAnswer
from holdfast.providers.api_spec import AnswerFormat
from holdfast.providers.common.json.lenient_json import (
    has_replaced_characters,
    is_utf8,
    make_json_readable,
    read_json_fields,
)
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.providers.common.sse import DONE_DATA, StreamEvent
from holdfast.providers.errors.report import ErrorReport
from holdfast.providers.registry import API_SPECS

_RawFields = Mapping[str, Raw]


def _get_answer_format(api: str) -> AnswerFormat:
    if not isinstance(api, str) or api not in API_SPECS:
        raise UnrecognizedContent(f"no API is called {api!r}; the APIs are {', '.join(API_SPECS)}")
    return API_SPECS[api].answers


def parse_answer(api: str, body: bytes) -> ParsedAnswer:
    """Parse a complete body. An error becomes an answer with nothing but its ``error``.

    Raises ``FormatError`` if ``body`` is not a JSON object, and ``UnrecognizedContent`` for an unknown API.
    """
    if not isinstance(body, bytes | bytearray | memoryview):
        raise FormatError(f"the body is of type {type(body).__name__}; give the bytes of an answer")
    answer_format = _get_answer_format(api)
    readable_body = make_json_readable(body)
    if readable_body is None or not readable_body.strip().startswith(b"{"):
        raise FormatError(f"the answer is not a JSON object (it begins with {body[:40]!r}); send the whole body")
    answer = answer_format.parse_body(read_json_fields(readable_body))
    if has_replaced_characters(body, readable_body):
        return replace(answer, is_damaged=True)
    return answer


class AnswerStream:
    """Accumulates the events of a streamed answer. Events that cannot be read are counted, and raise nothing.

    ``build_answer`` returns the same as parsing the body that the API gives when it does not stream (a tested law).
    """

    def __init__(self, api: str) -> None:
        self._answer_format = _get_answer_format(api)
        self._api = api
        self._accumulator = self._answer_format.new_accumulator()
        self._error: ErrorReport | None = None
        self.unreadable_events = 0
        """Number of events with data that is not JSON."""
        self._is_damaged = False

    @property
    def is_complete(self) -> bool:
        """Whether the final event of the API has arrived and no error has."""
        return self._accumulator.is_complete and self._error is None

    def add_event(self, event: StreamEvent) -> bool:
        """Add ``event``; return whether it holds output of the model, so that the answer has begun.

        Events before that (names, keep-alives, empty beginnings) may be held back from the client. Errors, stop reasons
        and usage are no output: after an error, or a stream that ends without output, the request can be tried again.
        """
        # An event named "error" must not pass as a text, whatever its data looks like.
        if event.event == "error":
            has_text = None
        else:
            has_text = self._accumulator.add_text_delta(event.data)
        if has_text is None:
            return self._add_parsed_event(event)
        return has_text

    def _add_parsed_event(self, event: StreamEvent) -> bool:
        """Add an event of any kind by decoding it in full; the result is that of ``add_event``."""
        data = event.data.strip()
        if data == DONE_DATA:  # the end mark of Chat's streams, the only data that is not JSON
            self._accumulator.add_event("[DONE]", {})
            return False
        readable_data = make_json_readable(data) if data else None
        if readable_data is None:
            # JSON that was cut or mangled is lost; only bytes that are no text make the rest of the answer suspect.
            self._is_damaged = self._is_damaged or not is_utf8(event.raw)
            self.unreadable_events += bool(data)
            return False
        self._is_damaged = self._is_damaged or has_replaced_characters(data, readable_data)
        fields = read_json_fields(readable_data)
        if self._error is None:  # the first error is the cause, later ones its consequences
            self._error = self._find_event_error(fields, event)
        return self._accumulator.add_event(event.event, fields) and bool(fields)

    def _find_event_error(self, fields: _RawFields, event: StreamEvent) -> ErrorReport | None:
        """Return the error in an event, at its top or in a failed response (Responses), or None."""
        error = parse_error_report(fields, self._api, event.event)
        if error is None and "response" in fields:
            error = parse_error_report(read_json_fields(fields["response"]), self._api)
        return None if error is None else replace(error, body=event.data)

    def build_body(self) -> bytes:
        """Return the body of the answer so far, in the form it has without streaming."""
        return encode_json(self._accumulator.build_body())

    def build_answer(self) -> ParsedAnswer:
        """Return the answer so far."""
        # Through the body's own parser, so that streamed and complete answers cannot be read differently.
        answer = self._answer_format.parse_body(read_json_fields(self.build_body()))
        if self._is_damaged:
            answer = replace(answer, is_damaged=True)
        if self._error is not None:
            return replace(
                answer,
                stop_reason="error",
                error=self._error,
                is_complete=False,
            )
        return replace(answer, is_complete=self.is_complete and answer.is_complete)
