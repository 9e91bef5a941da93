"""Replies as answers: event by event, or all at once. An error of any shape is an answer with ``error``."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress

from msgspec import Raw
from msgspec.structs import replace

from holdfast.engine.upstream import redact as redacting
from holdfast.engine.upstream.upstream import Reply, Sent, Upstream
from holdfast.errors import FormatError, UpstreamError
from holdfast.messages.signatures import sealed_by
from holdfast.messages.sized_message import Slot
from holdfast.messages.strip_foreign import native
from holdfast.providers.common.sse import ArrayReader, Event, Reader
from holdfast.providers.overflow import ErrorReport
from holdfast.providers.responses import Answer, Fold, answer
from holdfast.state.entries import Usage

_EVENTS = "text/event-stream"
_JSON = "application/json"
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
"""How a line of server-sent events begins that says something."""
_BLANKS = b"\xef\xbb\xbf \t\r\n"
"""What may stand before: white space, and a byte order mark."""


class Incoming:
    """A reply being read. Its events come as they were sent; ``answer`` is what they say so far.

    A reply that is no stream is one event, which holds the whole body.
    """

    def __init__(self, reply: Reply, sent: Sent) -> None:
        self.reply = reply
        self.api = sent.api
        self.fold: Fold | None = None
        """What the events say, once it is known that they are some."""
        self._is_asked = sent.stream
        self._body = b""
        self._objects: list[bytes] = []
        """The first ones that came, where each may be an event, and one alone a whole answer."""

    @property
    def is_stream(self) -> bool:
        """Whether the answer comes as events."""
        return self.fold is not None

    async def events(self) -> AsyncGenerator[tuple[list[Event], bool]]:
        """Yield the events that came at once, and whether any holds something the model said."""
        chunks = aiter(self.reply.chunks)
        first, reader = await self._begun(chunks)
        if reader is None:
            self._body = first + b"".join([chunk async for chunk in chunks])
            yield [Event(self._body, raw=self._body)], self.reply.is_fine and bool(self._body)
            return
        fold = self.fold = Fold(self.api)
        is_listed = isinstance(reader, ArrayReader)
        try:
            async for chunk in chunks if not first else _then(first, chunks):
                if events := reader.feed(chunk):
                    if is_listed:
                        self._note(events)
                    yield events, True in [fold.feed(event) for event in events]
            if events := reader.close():
                if is_listed:
                    self._note(events)
                yield events, True in [fold.feed(event) for event in events]
        except FormatError as error:
            raise UpstreamError(f"the answer cannot be read: {error}", "network") from error

    async def _begun(self, chunks: AsyncIterator[bytes]) -> tuple[bytes, Reader | ArrayReader | None]:
        """Return what was read to tell what reads the rest, and that; nothing for a body that is no stream.

        Servers of one's own may call a stream anything, so it is told by how it begins.
        """
        kind, first = self.reply.headers.get("content-type", "").lower(), b""
        is_named = _EVENTS in kind
        if not self.reply.is_fine or not (is_named or self._is_asked):
            return b"", None
        if is_named and self._is_asked:
            return b"", Reader()
        while (signs := _signs(first)) is None and (chunk := await anext(chunks, None)) is not None:
            first += chunk
        begins = first.strip(_BLANKS)[:1]
        is_object = begins == b"{"
        if signs or (is_named and not is_object):
            return first, Reader()
        is_whole = is_named or kind.partition(";")[0].strip() == _JSON
        is_listed = begins in {b"{", b"["} if self.api == "gemini" else is_object and not is_whole
        return first, ArrayReader() if self._is_asked and is_listed else None

    def _note(self, events: Sequence[Event]) -> None:
        """Keep the objects of ``events`` as long as it may be that one came alone."""
        if len(self._objects) < 2:
            self._objects += [event.data for event in events if event.data]

    def answer(self) -> Answer:
        """Return what the reply says so far; ``UpstreamError`` where a status of success came without an answer."""
        if self.fold is not None:
            return self._told(self._alone() or self.fold.answer())
        try:
            return self._told(answer(self.api, self._body))
        except FormatError as error:
            if self.reply.is_fine:
                told = str(error).rpartition("; ")[0] or str(error)  # its advice is for who made the body
                why = f"HTTP {self.reply.status} came without an answer: {told}; try again"
                raise UpstreamError(why, "server") from error
            return self._told(Answer(stop="error", complete=False))

    def _alone(self) -> Answer | None:
        """Return what the one object that came says, where it is a whole answer and no event."""
        if len(self._objects) != 1:
            return None
        with suppress(FormatError):
            told = answer(self.api, self._objects[0])
            return told if told.message.parts or told.error is not None else None
        return None

    def _told(self, told: Answer) -> Answer:
        if self.reply.is_fine and told.error is None:
            return told
        said = told.error or ErrorReport(self.api, body=self._body)
        status = said.status if self.reply.is_fine else self.reply.status
        said = replace(said, status=status, headers=self.reply.headers, at=time.time())
        said = redacting.told(said, self.reply.secrets)
        return replace(told, error=said)


async def _then(first: bytes, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """Yield what was read already, then the rest."""
    yield first
    async for chunk in chunks:
        yield chunk


def _signs(first: bytes) -> bool | None:
    """Whether a body begins as server-sent events do; nothing where that cannot be told yet."""
    said = first.strip(_BLANKS)
    if not said or any(len(said) < len(sign) and sign.startswith(said) for sign in _FIELDS):
        return None
    return said.startswith(_FIELDS)


async def ask(upstream: Upstream, sent: Sent) -> Answer:
    """Return the whole answer to ``sent``; what the provider refuses is in its ``error``.

    ``UpstreamError`` where none came, or where it broke off.
    """
    async with upstream.send(sent) as reply:
        incoming = Incoming(reply, sent)
        async for _ in incoming.events():
            pass
        return incoming.answer()


def as_said(told: Answer, api: str, model: str = "") -> tuple[Slot, Usage, str]:
    """Return an answer as the log takes it: in the provider's own bytes, what is sealed in it known to be ``model``'s.

    That is the model that was asked, by the name it was asked by: an answer may call the same model otherwise. Of one
    that came damaged the words and calls are left: the provider would refuse its own bytes, and all later requests.
    """
    if told.damaged:
        return Slot(native(told.message, ""), api=api), told.asked or Usage(), told.stop
    raw = Raw(b",".join(told.history)) if told.history else None
    return Slot(sealed_by(told.message, model), api=api, raw=raw), told.asked or Usage(), told.stop
