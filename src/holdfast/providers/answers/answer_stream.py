"""Bodies and streams of the four APIs as answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.errors import FormatError, UnrecognizedContent
from holdfast.providers.answers.accumulator import StreamAccumulator
from holdfast.providers.answers.error_reports import parse_error_report
from holdfast.providers.answers.parsed_answer import ParsedAnswer
from holdfast.providers.anthropic import response as anthropic
from holdfast.providers.common.json.lenient_json import (
    has_replaced_characters,
    is_utf8,
    make_json_readable,
    read_json_fields,
)
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.providers.common.sse import DONE_DATA, StreamEvent
from holdfast.providers.errors.report import ErrorReport
from holdfast.providers.gemini import response as gemini
from holdfast.providers.openai_chat import response as openai_chat
from holdfast.providers.openai_responses import response as openai_responses

_RawFields = Mapping[str, Raw]


class _AnswerParser(Struct, frozen=True):
    """How an API answers."""

    parse_body: Callable[[_RawFields], ParsedAnswer]
    new_accumulator: Callable[[], StreamAccumulator]


_ANSWER_PARSERS: dict[str, _AnswerParser] = {
    "anthropic": _AnswerParser(anthropic.parse_answer_body, anthropic.AnthropicAccumulator),
    "openai-chat": _AnswerParser(openai_chat.parse_answer_body, openai_chat.ChatAccumulator),
    "openai-responses": _AnswerParser(openai_responses.parse_answer_body, openai_responses.ResponsesAccumulator),
    "gemini": _AnswerParser(gemini.parse_answer_body, gemini.GeminiAccumulator),
}


def _get_answer_parser(api: str) -> _AnswerParser:
    if not isinstance(api, str) or api not in _ANSWER_PARSERS:
        raise UnrecognizedContent(f"nothing is known of answers of {api!r}; the APIs are {', '.join(_ANSWER_PARSERS)}")
    return _ANSWER_PARSERS[api]


def parse_answer(api: str, body: bytes) -> ParsedAnswer:
    """Return what a whole body says: an answer, or an error as an answer with nothing but ``error``.

    Raises ``FormatError`` when ``body`` is no JSON object.
    """
    if not isinstance(body, bytes | bytearray | memoryview):
        raise FormatError(f"the body is of type {type(body).__name__}; give the bytes of an answer")
    voice, clean = _get_answer_parser(api), make_json_readable(body)
    if clean is None or not clean.strip().startswith(b"{"):
        raise FormatError(f"the answer is no JSON object (it begins with {body[:40]!r}); send the whole body")
    parsed_answer = voice.parse_body(read_json_fields(clean))
    return replace(parsed_answer, is_damaged=True) if has_replaced_characters(body, clean) else parsed_answer


class AnswerStream:
    """A streamed answer, put together event by event. It takes any events: what it cannot read, it counts.

    Law: ``build_answer`` is the same as that of the body which the API gives when it does not stream.
    """

    def __init__(self, api: str) -> None:
        self._voice = _get_answer_parser(api)
        self._api = api
        self._folding = self._voice.new_accumulator()
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
        parsed_answer = self._voice.parse_body(read_json_fields(self.build_body()))
        parsed_answer = replace(parsed_answer, is_damaged=True) if self._damaged else parsed_answer
        if self._fault is not None:
            return replace(parsed_answer, stop_reason="error", error=self._fault, is_complete=False)
        return replace(parsed_answer, is_complete=self.is_complete and parsed_answer.is_complete)
