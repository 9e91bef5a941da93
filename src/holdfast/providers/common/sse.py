"""The bytes of a streamed answer as events: server-sent events, and Gemini's JSON array. No I/O, any chunking.

``SseReader`` follows the HTML standard (a line ends with LF, CR or CRLF; a blank line ends an event; a comment is a
line that begins with a colon). Each byte that comes in leaves in the ``raw`` of exactly one event, in order, so a relay
that writes every ``raw`` has forwarded the stream unchanged. Events that say nothing (blank lines, comments) have no
data.

Law: any chunking gives the same events, and their ``raw`` together are the input. To keep it, an event whose blank
line ends with CR is over there and then, and an LF behind that CR is an event of its own that says nothing. Time is
linear in the bytes, however they are cut.

httpx-sse and the SDKs' readers pull decoded lines from a response and drop their bytes. A relay needs each event's own
bytes, pushed in as they arrive, so the reader is written here.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator

from msgspec import Struct

from holdfast.errors import FormatError

MAX_EVENT_BYTES = 64 * 1024 * 1024
"""Bytes an event may have. The largest that an API sends are whole answers with media in them: twice the 32 MB that
the Messages API takes as a request."""
DONE_DATA = b"[DONE]"
"""What OpenAI's streams end with."""


class StreamEvent(Struct, frozen=True):
    """One event. ``data`` is its data lines, joined by LF; empty when it says nothing (a keep-alive, a blank line)."""

    data: bytes = b""
    event: str = ""
    """Its name, or empty."""
    id: str = ""
    retry: int | None = None
    """Milliseconds."""
    raw: bytes = b""
    """Exactly the bytes it came as, with the blank line."""
    is_complete: bool = True
    """Whether its end was seen. What is left when a stream closes has no blank line: a browser would drop it, but
    some servers end like that, so it is given, and JSON that was cut does not decode."""


class _EventReader(ABC):
    """Bytes that came and are no event yet. After a ``FormatError`` it stays broken; ``unread_bytes`` holds what is
    left.
    """

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._scanned = 0
        """How far the buffer was searched."""
        self._taken = 0
        """Bytes of the stream that were given as events."""
        self._fault = ""

    @property
    def unread_bytes(self) -> bytes:
        """The bytes that came and were not given in an event; a relay that gives up reading sends them as they are."""
        return bytes(self._buffer)

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """Return the events that ``chunk`` completes; ``FormatError`` when one is over the limit or cannot be read.

        Events before the bad one are still given; the error then comes with the next call.
        """
        self._raise_if_failed()
        self._buffer += chunk
        events = self._take_events()
        if len(self._buffer) > self._limit:
            self._fail_oversized()
        if not events:
            self._raise_if_failed()
        return events

    def close(self) -> list[StreamEvent]:
        """Return what is left when no more bytes come: nothing, or a last event that was not ended."""
        self._raise_if_failed()
        events = list(self._take_remainder())
        self._raise_if_failed()
        return events

    def _raise_if_failed(self) -> None:
        if self._fault:
            raise FormatError(self._fault)

    def _fail(self, reason: str) -> None:
        self._fault = f"{reason}, at byte {self._taken:,} of the stream; pass the bytes on unread or close it"

    def _fail_oversized(self) -> None:
        if not self._fault:
            self._fail(f"an event has more than {self._limit:,} bytes")

    def _take_bytes(self, end: int) -> bytes:
        """Return the buffer's first ``end`` bytes and let them go."""
        raw = bytes(self._buffer[:end])
        del self._buffer[:end]
        self._taken += end
        self._scanned = 0
        return raw

    def _take_events(self) -> list[StreamEvent]:
        events = list[StreamEvent]()
        while self._buffer and not self._fault and (end := self._find_event_end()):
            if end > self._limit:
                self._fail_oversized()
                break
            events.append(self._take_event(end))
        return events

    @abstractmethod
    def _find_event_end(self) -> int:
        """Return where the first event in the buffer ends; 0 when it is not all there."""

    @abstractmethod
    def _take_event(self, end: int, *, is_complete: bool = True) -> StreamEvent:
        """Return the first ``end`` bytes of the buffer as an event."""

    @abstractmethod
    def _take_remainder(self) -> Iterator[StreamEvent]:
        """Yield what is left."""


# -- server-sent events ------------------------------------------------------------------------------------------------

_LINE_BREAK_BYTE = re.compile(rb"[\r\n]")
"""The end of a line, or the second half of one."""
_CR, _LF = b"\r"[0], b"\n"[0]
_LINE_BREAK = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"
_NON_FIELD_STARTS = b"\n:" + _BOM[:1]
"""How a line begins that may be no field: a blank line, a comment, a byte order mark."""


class SseReader(_EventReader):
    """An incremental reader of server-sent events."""

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        super().__init__(limit)
        self._line = 0
        """Where the unfinished line begins."""
        self._has_cr = False
        """Whether a CR came, so that lines may end in any way."""

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """Return the events that ``chunk`` completes; see ``_EventReader``."""
        self._has_cr = self._has_cr or b"\r" in chunk
        if self._taken and not (self._buffer or self._fault or self._has_cr) and self._is_single_event(chunk):
            self._taken += len(chunk)
            return [_parse_sse_event(bytes(chunk), chunk.split(b"\n"), is_complete=True)]
        return super().feed(chunk)

    def _is_single_event(self, chunk: bytes) -> bool:
        """Return whether ``chunk`` is one event and no more, as most come: fields, of which each line ends with LF."""
        return (
            2 < len(chunk) <= self._limit
            and chunk[0] not in _NON_FIELD_STARTS
            and chunk.find(b"\n\n") == len(chunk) - 2
        )

    def _find_event_end(self) -> int:
        """Return where a blank line, or a comment before any field, ends."""
        if not (self._scanned or self._has_cr or self._buffer[0] in _NON_FIELD_STARTS):
            end = self._buffer.find(b"\n\n")  # as in most: an event begins with a field, and its lines end with LF
            if end > 0:
                return end + 2
        while (match := _LINE_BREAK_BYTE.search(self._buffer, self._scanned)) is not None:
            whole = not self._is_crlf_tail(match.start()) and self._is_event_end(match.start())
            self._line = self._scanned = match.end()
            if whole:
                return match.end()
        self._scanned = len(self._buffer)
        return 0

    def _is_crlf_tail(self, at: int) -> bool:
        """Return whether the line's end at ``at`` is the LF of a CRLF, whose CR has ended the line."""
        return 0 < at == self._line and self._buffer[at] == _LF and self._buffer[at - 1] == _CR

    def _is_event_end(self, stop: int) -> bool:
        """Return whether the unfinished line, if it stops here, ends an event: it is blank, or a lone comment."""
        line = self._line
        first = line + self._count_bom_bytes(line)
        return stop == first or (line == 0 and self._buffer.startswith(b":", first))

    def _count_bom_bytes(self, line: int) -> int:
        """Return how many bytes a byte order mark takes at the beginning of this line: only the first may have one."""
        first = self._taken == 0 and line == 0
        return len(_BOM) if first and self._buffer.startswith(_BOM) else 0

    def _take_event(self, end: int, *, is_complete: bool = True) -> StreamEvent:
        skip = 0 if self._taken else self._count_bom_bytes(0)
        raw, self._line = self._take_bytes(end), 0
        event_bytes = raw[skip:]
        return _parse_sse_event(
            raw, _LINE_BREAK.split(event_bytes) if self._has_cr else event_bytes.split(b"\n"), is_complete=is_complete
        )

    def _take_remainder(self) -> Iterator[StreamEvent]:
        if self._buffer:
            yield self._take_event(len(self._buffer), is_complete=False)


def _parse_sse_event(raw: bytes, lines: list[bytes], *, is_complete: bool) -> StreamEvent:
    """Return the event that ``lines`` say; fields nobody knows are ignored, as the standard has it."""
    data: list[bytes] = []
    name, identity, retry = "", "", None
    for line in lines:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value.decode(errors="replace")
        elif field == b"id" and b"\0" not in value:
            identity = value.decode(errors="replace")
        elif field == b"retry" and value.isdigit() and len(value) < 10:
            retry = int(value)
    return StreamEvent(b"\n".join(data), name, identity, retry, raw, is_complete)


# -- a JSON array ------------------------------------------------------------------------------------------------------

_ELEMENT_START = re.compile(rb"[^\s,\[\]]")
"""What begins an element of the array; all else between elements is skipped."""
_BRACE_OR_QUOTE = re.compile(rb'[{}"]')
_QUOTE_OR_ESCAPE = re.compile(rb'["\\]')


class JsonArrayReader(_EventReader):
    """An incremental reader of an array of JSON objects, as Gemini streams it without ``alt=sse``.

    Each object is one event; the brackets, commas and spaces before it are in its ``raw``. A bare object (an error) is
    one event too. Whether the objects themselves are valid JSON is for the one who decodes them.
    """

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        super().__init__(limit)
        self._start = -1
        """Where the object begins, once it has."""
        self._depth = 0
        self._quoted = False

    def _find_event_end(self) -> int:
        if self._start < 0 and not self._find_object_start():
            return 0
        while (match := self._find_structural_byte()) is not None:
            self._scanned = match.end()
            self._track_nesting(match[0])
            if self._depth == 0:
                return self._scanned
        return 0

    def _find_object_start(self) -> bool:
        """Return whether an object begins in the buffer."""
        match = _ELEMENT_START.search(self._buffer, self._scanned)
        if match is None:
            self._scanned = len(self._buffer)
            return False
        if match[0] != b"{":
            self._fail(f"an element of the array begins with {match[0]!r} where an object was expected")
            return False
        self._start, self._depth, self._scanned = match.start(), 1, match.end()
        return True

    def _find_structural_byte(self) -> re.Match[bytes] | None:
        """Return the next byte that matters for where the object ends."""
        match = (_QUOTE_OR_ESCAPE if self._quoted else _BRACE_OR_QUOTE).search(self._buffer, self._scanned)
        if match is None:
            self._scanned = max(self._scanned, len(self._buffer))
        return match

    def _track_nesting(self, byte: bytes) -> None:
        if byte == b"\\":
            self._scanned += 1
        elif byte == b'"':
            self._quoted = not self._quoted
        else:
            self._depth += 1 if byte == b"{" else -1

    def _take_event(self, end: int, *, is_complete: bool = True) -> StreamEvent:
        start, self._start = self._start, -1
        raw = self._take_bytes(end)
        return StreamEvent(raw[start:], raw=raw, is_complete=is_complete)

    def _take_remainder(self) -> Iterator[StreamEvent]:
        if self._start >= 0:
            yield self._take_event(len(self._buffer), is_complete=False)
        elif self._buffer:
            yield StreamEvent(raw=self._take_bytes(len(self._buffer)))
