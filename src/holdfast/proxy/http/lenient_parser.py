"""Parse answers whose head httptools refuses but httpx2 accepts, with h11 as httpx2 does."""

from __future__ import annotations

from typing import Protocol

import h11


class ResponseCallbacks(Protocol):
    """Receives the parts of an answer; the names are those that httptools calls."""

    def on_header(self, name: bytes, value: bytes) -> None:
        """Receive a header."""

    def on_headers_complete(self) -> None:
        """Receive the end of the head."""

    def on_body(self, piece: bytes) -> None:
        """Receive a piece of the body."""

    def on_message_complete(self) -> None:
        """Receive the end of the answer."""


class LenientParser:
    """Parses one answer for ``receiver``, in place of ``httptools.HttpResponseParser``.

    h11 accepts lines that end with LF alone, headers continued on a second line, a Content-Length that is repeated or
    beside chunks, control characters in values, HTTP/1.2, and interim answers with a length. It is slower, so it only
    parses odd answers.
    """

    def __init__(self, receiver: ResponseCallbacks, method: str, head_bytes: int) -> None:
        self._receiver = receiver
        self._status = 0
        self._connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=head_bytes)
        self._connection.send(h11.Request(method=method, target="/", headers=[("Host", "")]))
        self._connection.send(h11.EndOfMessage())

    def feed_data(self, data: bytes) -> None:
        """Parse ``data``; raise ``h11.RemoteProtocolError`` if it is no HTTP for h11 either."""
        self._connection.receive_data(data)
        while True:
            event = self._connection.next_event()
            if isinstance(event, h11.Response):
                self._status = event.status_code
                for name, value in event.headers.raw_items():
                    self._receiver.on_header(name, value)
                self._receiver.on_headers_complete()
            elif isinstance(event, h11.Data):
                self._receiver.on_body(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                self._receiver.on_message_complete()
                return
            elif not isinstance(event, h11.InformationalResponse):
                # More data is needed.
                return

    def get_status_code(self) -> int:
        """Return the status of the answer."""
        return self._status

    def get_http_version(self) -> str:
        """Return the version that h11 assumes."""
        return "1.1"

    def should_keep_alive(self) -> bool:
        """Return False: a server that answers oddly once gets a new connection for its next request."""
        return False
