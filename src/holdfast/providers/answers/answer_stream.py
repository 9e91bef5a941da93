"""Bodies and streams of every API as answers."""

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
        raise UnrecognizedContent(f"nothing is known of answers of {api!r}; the APIs are {', '.join(API_SPECS)}")
    return API_SPECS[api].answers


def parse_answer(api: str, body: bytes) -> ParsedAnswer:
    """Return what a whole body says: an answer, or an error as an answer with nothing but ``error``.

    Raises ``FormatError`` when ``body`` is no JSON object.
    """
    if not isinstance(body, bytes | bytearray | memoryview):
        raise FormatError(f"the body is of type {type(body).__name__}; give the bytes of an answer")
    answer_format, clean = _get_answer_format(api), make_json_readable(body)
    if clean is None or not clean.strip().startswith(b"{"):
        raise FormatError(f"the answer is no JSON object (it begins with {body[:40]!r}); send the whole body")
    parsed_answer = answer_format.parse_body(read_json_fields(clean))
    return replace(parsed_answer, is_damaged=True) if has_replaced_characters(body, clean) else parsed_answer


class AnswerStream:
    """A streamed answer, put together event by event. It takes any events: what it cannot read, it counts.

    Law: ``build_answer`` is the same as that of the body which the API gives when it does not stream.
    """

    def __init__(self, api: str) -> None:
        self._answer_format = _get_answer_format(api)
        self._api = api
        self._folding = self._answer_format.new_accumulator()
        self._fault: ErrorReport | None = None
        self.unreadable_events = 0
        """Events whose data was no JSON."""
        self._damaged = False

    @property
    def is_complete(self) -> bool:
        """Whether the API's last word came, and no error."""
        return self._folding.is_complete and self._fault is None

    def add_event(self, event: StreamEvent) -> bool:
        """Take ``event``; return whether it holds something the model said, so that from here on an answer was begun.

        What comes before may be held back: names, keep-alives, empty beginnings. Errors, reasons and usage are not
        meaningful either: an error, and a stream that ends without a word, can still be answered by another try.
        """
        goes_on = None if event.event == "error" else self._folding.add_text_delta(event.data)
        return self._add_parsed_event(event) if goes_on is None else goes_on

    def _add_parsed_event(self, event: StreamEvent) -> bool:
        """Do the same with an event of any kind."""
        data = event.data.strip()
        if data == DONE_DATA:
            self._folding.add_event("[DONE]", {})
            return False
        clean = make_json_readable(data) if data else None
        if clean is None:
            self._damaged = self._damaged or not is_utf8(event.raw)
            self.unreadable_events += bool(data)
            return False
        self._damaged = self._damaged or has_replaced_characters(data, clean)
        fields = read_json_fields(clean)
        self._fault = self._fault or self._find_event_error(fields, event)
        return self._folding.add_event(event.event, fields) and bool(fields)

    def _find_event_error(self, fields: _RawFields, event: StreamEvent) -> ErrorReport | None:
        """Return the error that an event says, here or inside of a failed response; its body is the event's data."""
        fault = parse_error_report(fields, self._api, event.event)
        if fault is None and "response" in fields:
            fault = parse_error_report(read_json_fields(fields["response"]), self._api)
        return None if fault is None else replace(fault, body=event.data)

    def build_body(self) -> bytes:
        """Return the body so far, as it would be if it did not come as a stream."""
        return encode_json(self._folding.build_body())

    def build_answer(self) -> ParsedAnswer:
        """Return what was said so far."""
        parsed_answer = self._answer_format.parse_body(read_json_fields(self.build_body()))
        parsed_answer = replace(parsed_answer, is_damaged=True) if self._damaged else parsed_answer
        if self._fault is not None:
            return replace(parsed_answer, stop_reason="error", error=self._fault, is_complete=False)
        return replace(parsed_answer, is_complete=self.is_complete and parsed_answer.is_complete)
