"""Split the bytes of a streamed answer into events: server-sent events, or Gemini's JSON array. No I/O, any chunking.

``SseReader`` follows the HTML standard: a line ends with LF, CR or CRLF, a blank line ends an event, a line that begins
with a colon is a comment. Each byte received leaves in the ``raw`` of exactly one event, in order, so a relay that
writes every ``raw`` has forwarded the stream unchanged. Events without content (blank lines, comments) have no data.

Law: any chunking gives the same events, and their ``raw`` joined is the input. To keep it, an event that ends with the
CR of a blank line is complete at once, and an LF after that CR becomes an event of its own without data. Time is
linear in the bytes, however they are cut.

httpx-sse and the SDKs' readers pull decoded lines from a response and drop their bytes. A relay needs the bytes of each
event, pushed in as they arrive, so the reader is written here.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator

from msgspec import Struct

from holdfast.errors import FormatError

MAX_EVENT_BYTES = 64 * 1024 * 1024
"""The largest event that is buffered, in bytes. The largest that an API sends are whole answers with media in them;
this is twice the 32 MB that the Messages API accepts as a request. Without a limit, a broken server could fill the
memory."""
DONE_DATA = b"[DONE]"
"""The data of the event that ends OpenAI's streams."""


class StreamEvent(Struct, frozen=True):
    """One event. ``data`` is its data lines joined by LF, empty for a keep-alive or a blank line."""

    data: bytes = b""
    event: str = ""
    """Its name; empty without one."""
    id: str = ""
    retry: int | None = None
    """Reconnection time in milliseconds."""
    raw: bytes = b""
    """Exactly the bytes it arrived as, with the blank line."""
    is_complete: bool = True
    """Whether the end of the event was seen. Bytes left when a stream closes have no blank line after them. A browser
    drops them, but some servers end their streams like that, so they are passed on; JSON that was cut does not decode.
    """


class _EventReader(ABC):
    """A buffer of bytes that are not an event yet.

    After a ``FormatError`` a reader stays broken; ``unread_bytes`` holds the rest.
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
        """The bytes that arrived and were not given out in an event; a relay that stops reading forwards them as they
        are.
        """
        return bytes(self._buffer)

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """Return the events that ``chunk`` completes.

        Raises ``FormatError`` if an event exceeds the limit or cannot be read. Events before the bad one are returned
        first; the error is raised by the next call.
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
        """Return the rest of a stream that has ended: nothing, or a last event without its end."""
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
        """Remove the first ``end`` bytes from the buffer and return them."""
        raw = bytes(self._buffer[:end])
        del self._buffer[:end]
        self._taken += end
        self._scanned = 0
        return raw

    def _take_events(self) -> list[StreamEvent]:
        events = list[StreamEvent]()
        while self._buffer and not self._fault:
            end = self._find_event_end()
            if not end:
                break
            if end > self._limit:
                self._fail_oversized()
                break
            events.append(self._take_event(end))
        return events

    @abstractmethod
    def _find_event_end(self) -> int:
        """Return the position where the first event in the buffer ends, or 0 if it is not complete."""

    @abstractmethod
    def _take_event(self, end: int, *, is_complete: bool = True) -> StreamEvent:
        """Remove the first ``end`` bytes from the buffer and return them as an event."""

    @abstractmethod
    def _take_remainder(self) -> Iterator[StreamEvent]:
        """Yield the bytes left in the buffer as an event without its end."""


# -- server-sent events ------------------------------------------------------------------------------------------------

_LINE_BREAK_BYTE = re.compile(rb"[\r\n]")
"""The end of a line, or the second byte of one that is a CRLF."""
_CR, _LF = b"\r"[0], b"\n"[0]
_LINE_BREAK = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"
_NON_FIELD_STARTS = b"\n:" + _BOM[:1]
"""First bytes of lines that may not be fields: blank lines, comments, the byte order mark."""


class SseReader(_EventReader):
    """An incremental reader of server-sent events."""

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        super().__init__(limit)
        self._line = 0
        """Where the unfinished line begins."""
        self._has_cr = False
        """Whether a CR came, so that lines may end in any way."""

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """Return the events that ``chunk`` completes; see ``_EventReader.feed``."""
        self._has_cr = self._has_cr or b"\r" in chunk
        # Providers flush after every event, so most chunks are one event. They are parsed without passing the buffer.
        is_between_events = bool(self._taken) and not self._buffer
        if is_between_events and not self._fault and not self._has_cr and self._is_single_event(chunk):
            self._taken += len(chunk)
            return [_parse_sse_event(bytes(chunk), chunk.split(b"\n"), is_complete=True)]
        return super().feed(chunk)

    def _is_single_event(self, chunk: bytes) -> bool:
        """Return whether ``chunk`` is exactly one event that begins with a field and has LF line ends."""
        return (
            2 < len(chunk) <= self._limit
            and chunk[0] not in _NON_FIELD_STARTS
            and chunk.find(b"\n\n") == len(chunk) - 2
        )

    def _find_event_end(self) -> int:
        """Return the position after the first blank line, or after a comment that precedes any field; 0 without
        one.
        """
        if not (self._scanned or self._has_cr or self._buffer[0] in _NON_FIELD_STARTS):
            # The usual case: the event begins with a field and its lines end with LF, so a blank line is two LFs.
            end = self._buffer.find(b"\n\n")
            if end > 0:
                return end + 2
        while (match := _LINE_BREAK_BYTE.search(self._buffer, self._scanned)) is not None:
            is_end = not self._is_crlf_tail(match.start()) and self._is_event_end(match.start())
            self._line = self._scanned = match.end()
            if is_end:
                return match.end()
        self._scanned = len(self._buffer)
        return 0

    def _is_crlf_tail(self, at: int) -> bool:
        """Return whether the line break at ``at`` is the LF of a CRLF, so that the line has already ended with the
        CR.
        """
        return 0 < at == self._line and self._buffer[at] == _LF and self._buffer[at - 1] == _CR

    def _is_event_end(self, stop: int) -> bool:
        """Return whether the unfinished line, if it stops here, ends an event: a blank line, or a comment on its
        own.
        """
        line = self._line
        first = line + self._count_bom_bytes(line)
        return stop == first or (line == 0 and self._buffer.startswith(b":", first))

    def _count_bom_bytes(self, line: int) -> int:
        """Return the length of the byte order mark at the beginning of this line; only the first line may have one."""
        first = self._taken == 0 and line == 0
        return len(_BOM) if first and self._buffer.startswith(_BOM) else 0

    def _take_event(self, end: int, *, is_complete: bool = True) -> StreamEvent:
        skip = 0 if self._taken else self._count_bom_bytes(0)
        raw = self._take_bytes(end)
        self._line = 0
        event_bytes = raw[skip:]
        if self._has_cr:
            lines = _LINE_BREAK.split(event_bytes)
        else:
            lines = event_bytes.split(b"\n")
        return _parse_sse_event(raw, lines, is_complete=is_complete)

    def _take_remainder(self) -> Iterator[StreamEvent]:
        if self._buffer:
            yield self._take_event(len(self._buffer), is_complete=False)


def _parse_sse_event(raw: bytes, lines: list[bytes], *, is_complete: bool) -> StreamEvent:
    """Return the event that ``lines`` describe. Unknown fields are ignored, as the standard demands."""
    data: list[bytes] = []
    name, identity, retry = "", "", None
    for line in lines:
        field, _, value = line.partition(b":")
        # By the standard one space after the colon is not part of the value. Ids with a null character and retry times
        # that are not digits are ignored.
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
"""The first byte of an array element; whitespace, commas and brackets between elements are skipped."""
_BRACE_OR_QUOTE = re.compile(rb'[{}"]')
_QUOTE_OR_ESCAPE = re.compile(rb'["\\]')


class JsonArrayReader(_EventReader):
    """An incremental reader of an array of JSON objects, as Gemini streams it without ``alt=sse``.

    Each object is one event; the brackets, commas and spaces before it are in its ``raw``. A bare object (an error) is
    one event too. Only braces and quotes are looked at: whoever decodes an object finds out whether it is valid JSON.
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
        """Find the beginning of an object in the buffer, and return whether there is one."""
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
        """Return the next brace or quote, or inside a string the next quote or backslash; None if more bytes are
        needed.
        """
        pattern = _QUOTE_OR_ESCAPE if self._quoted else _BRACE_OR_QUOTE
        match = pattern.search(self._buffer, self._scanned)
        if match is None:
            # An escaped byte that has not arrived yet has already moved the position past the end of the buffer.
            self._scanned = max(self._scanned, len(self._buffer))
        return match

    def _track_nesting(self, byte: bytes) -> None:
        if byte == b"\\":
            self._scanned += 1  # the escaped byte; it may not have arrived yet, so this may point past the buffer
        elif byte == b'"':
            self._quoted = not self._quoted
        else:
            self._depth += 1 if byte == b"{" else -1

    def _take_event(self, end: int, *, is_complete: bool = True) -> StreamEvent:
        start = self._start
        self._start = -1
        raw = self._take_bytes(end)
        return StreamEvent(raw[start:], raw=raw, is_complete=is_complete)

    def _take_remainder(self) -> Iterator[StreamEvent]:
        if self._start >= 0:
            yield self._take_event(len(self._buffer), is_complete=False)
        elif self._buffer:
            yield StreamEvent(raw=self._take_bytes(len(self._buffer)))
