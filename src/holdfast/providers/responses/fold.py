"""Bodies and streams of the four APIs as answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.errors import FormatError, Unrecognised
from holdfast.providers.anthropic import response as anthropic
from holdfast.providers.common.json.lenient_json import fields_of, is_mended, is_text, readable
from holdfast.providers.common.json.raw_json import write
from holdfast.providers.common.sse import DONE, Event
from holdfast.providers.gemini import response as gemini
from holdfast.providers.openai_chat import response as openai_chat
from holdfast.providers.openai_responses import response as openai_responses
from holdfast.providers.overflow.report import ErrorReport
from holdfast.providers.responses.base import Folding
from holdfast.providers.responses.errors import fault_of
from holdfast.providers.responses.values import Answer

_Fields = Mapping[str, Raw]


class _Voice(Struct, frozen=True):
    """How an API answers."""

    read: Callable[[_Fields], Answer]
    folding: Callable[[], Folding]


_VOICES: dict[str, _Voice] = {
    "anthropic": _Voice(anthropic.read, anthropic.Folding),
    "openai-chat": _Voice(openai_chat.read, openai_chat.Folding),
    "openai-responses": _Voice(openai_responses.read, openai_responses.Folding),
    "gemini": _Voice(gemini.read, gemini.Folding),
}


def _voice(api: str) -> _Voice:
    if not isinstance(api, str) or api not in _VOICES:
        raise Unrecognised(f"nothing is known of answers of {api!r}; the APIs are {', '.join(_VOICES)}")
    return _VOICES[api]


def answer(api: str, body: bytes) -> Answer:
    """Return what a whole body says: an answer, or an error as an answer with nothing but ``error``.

    Raises ``FormatError`` when ``body`` is no JSON object.
    """
    if not isinstance(body, bytes | bytearray | memoryview):
        raise FormatError(f"the body is of type {type(body).__name__}; give the bytes of an answer")
    voice, clean = _voice(api), readable(body)
    if clean is None or not clean.strip().startswith(b"{"):
        raise FormatError(f"the answer is no JSON object (it begins with {body[:40]!r}); send the whole body")
    told = voice.read(fields_of(clean))
    return replace(told, damaged=True) if is_mended(body, clean) else told


class Fold:
    """A streamed answer, put together event by event. It takes any events: what it cannot read, it counts.

    Law: ``answer`` is the same as that of the body which the API gives when it does not stream.
    """

    def __init__(self, api: str) -> None:
        self._voice = _voice(api)
        self._api = api
        self._folding = self._voice.folding()
        self._fault: ErrorReport | None = None
        self.unread = 0
        """Events whose data was no JSON."""
        self._damaged = False

    @property
    def complete(self) -> bool:
        """Whether the API's last word came, and no error."""
        return self._folding.complete and self._fault is None

    def feed(self, event: Event) -> bool:
        """Take ``event``; return whether it holds something the model said, so that from here on an answer was begun.

        What comes before may be held back: names, keep-alives, empty beginnings. Errors, reasons and usage are not
        meaningful either: an error, and a stream that ends without a word, can still be answered by another try.
        """
        goes_on = None if event.event == "error" else self._folding.go_on(event.data)
        return self._read(event) if goes_on is None else goes_on

    def _read(self, event: Event) -> bool:
        """Do the same with an event of any kind."""
        told = event.data.strip()
        if told == DONE:
            self._folding.add("[DONE]", {})
            return False
        clean = readable(told) if told else None
        if clean is None:
            self._damaged = self._damaged or not is_text(event.raw)
            self.unread += bool(told)
            return False
        self._damaged = self._damaged or is_mended(told, clean)
        found = fields_of(clean)
        self._fault = self._fault or self._broken(found, event)
        return self._folding.add(event.event, found) and bool(found)

    def _broken(self, found: _Fields, event: Event) -> ErrorReport | None:
        """Return the error that an event says, here or inside of a failed response; its body is the event's data."""
        fault = fault_of(found, self._api, event.event)
        if fault is None and "response" in found:
            fault = fault_of(fields_of(found["response"]), self._api)
        return None if fault is None else replace(fault, body=event.data)

    def body(self) -> bytes:
        """Return the body so far, as it would be if it did not come as a stream."""
        return write(self._folding.body())

    def answer(self) -> Answer:
        """Return what was said so far."""
        told = self._voice.read(fields_of(self.body()))
        told = replace(told, damaged=True) if self._damaged else told
        if self._fault is not None:
            return replace(told, stop="error", error=self._fault, complete=False)
        return replace(told, complete=self.complete and told.complete)
