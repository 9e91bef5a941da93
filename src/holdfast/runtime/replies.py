"""Replies as answers: event by event, or all at once. An error of any shape is an answer with ``error``."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from msgspec import Raw
from msgspec.structs import replace

from holdfast.errors import FormatError, UpstreamError
from holdfast.model.entries import Usage
from holdfast.model.slots import Slot
from holdfast.runtime import discreet
from holdfast.runtime.upstream import Reply, Sent, Upstream
from holdfast.view.foreign import native
from holdfast.view.sealed import sealed_by
from holdfast.wire.answers import Answer, Fold, answer
from holdfast.wire.overflow import ErrorReport
from holdfast.wire.sse import ArrayReader, Event, Reader

_EVENTS = "text/event-stream"


class Incoming:
    """A reply being read. Its events come as they were sent; ``answer`` is what they say so far.

    A reply that is no stream is one event, which holds the whole body.
    """

    def __init__(self, reply: Reply, sent: Sent) -> None:
        self.reply = reply
        self.api = sent.api
        self.fold: Fold | None = Fold(sent.api) if reply.is_fine and _is_streamed(reply, sent) else None
        self._body = b""

    @property
    def is_stream(self) -> bool:
        """Whether the answer comes as events."""
        return self.fold is not None

    async def events(self) -> AsyncGenerator[tuple[list[Event], bool]]:
        """Yield the events that came at once, and whether any holds something the model said."""
        if self.fold is None:
            self._body = await self.reply.read()
            yield [Event(self._body, raw=self._body)], self.reply.is_fine and bool(self._body)
            return
        reader = Reader() if _has_events(self.reply) else ArrayReader()
        try:
            async for chunk in self.reply.chunks:
                if events := reader.feed(chunk):
                    yield events, True in [self.fold.feed(event) for event in events]
            if events := reader.close():
                yield events, True in [self.fold.feed(event) for event in events]
        except FormatError as error:
            raise UpstreamError(f"the answer cannot be read: {error}", "network") from error

    def answer(self) -> Answer:
        """Return what the reply says so far; ``UpstreamError`` where a status of success came without an answer."""
        if self.fold is not None:
            return self._told(self.fold.answer())
        try:
            return self._told(answer(self.api, self._body))
        except FormatError as error:
            if self.reply.is_fine:
                told = str(error).rpartition("; ")[0] or str(error)  # its advice is for who made the body
                why = f"HTTP {self.reply.status} came without an answer: {told}; try again"
                raise UpstreamError(why, "server") from error
            return self._told(Answer(stop="error", complete=False))

    def _told(self, told: Answer) -> Answer:
        if self.reply.is_fine and told.error is None:
            return told
        said = told.error or ErrorReport(self.api, body=self._body)
        status = said.status if self.reply.is_fine else self.reply.status
        said = discreet.told(replace(said, status=status, headers=self.reply.headers), self.reply.secrets)
        return replace(told, error=said)


def _is_streamed(reply: Reply, sent: Sent) -> bool:
    """Whether the body comes as events, or as an array of them (Gemini without ``alt=sse``)."""
    return _has_events(reply) or (sent.stream and sent.api == "gemini")


def _has_events(reply: Reply) -> bool:
    return _EVENTS in reply.headers.get("content-type", "").lower()


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
