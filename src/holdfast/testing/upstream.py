"""Upstreams without sockets: the strict provider with every fault there is, and a script of given replies.

Both send as ``holdfast.engine.upstream.upstream.Http`` does, errors too, and wait with ``anyio.sleep``: on a fake clock
(``holdfast.testing.clock``) a stall of ten minutes costs nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import count
from types import MappingProxyType
from typing import Any, TypeAlias

import anyio
from anyio.lowlevel import checkpoint
from msgspec import Struct
from msgspec.structs import replace

from holdfast.engine.upstream.upstream import CONNECT, PATIENCE, Reply, Sent
from holdfast.errors import ConfigError, UpstreamError, check_types
from holdfast.providers.common.json.raw_json import write
from holdfast.testing.provider.answers.saying import Setting, fit
from holdfast.testing.provider.answers.saying import speak as spoken_parts
from holdfast.testing.provider.calls import Answered, Asked, Refusal, Said, Used
from holdfast.testing.provider.faults.faults import KINDS, Fault, checked, striking
from holdfast.testing.provider.faults.struck import is_told, judged, wants_events
from holdfast.testing.provider.judge.counting import words
from holdfast.testing.provider.server.app import Answering
from holdfast.testing.provider.server.incoming import discreet
from holdfast.testing.provider.server.steps import Bare, Head, Leave, Step, Wait, steps
from holdfast.testing.provider.voices.speaking import Call, late, speak
from holdfast.testing.provider.voices.voice import JSON

CONNECTING: Mapping[str, str] = {
    "refused": "ConnectError: All connection attempts failed",
    "reset": "ConnectError: [Errno 104] Connection reset by peer",
    "tls": "ConnectError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate",
    "nowhere": "ConnectError: [Errno -2] Name or service not known",
    "stall": "ConnectTimeout",
}
"""What can go wrong at stage ``connect``, before anything is sent; the strict provider's server cannot do these."""
_BROKEN_OFF = "RemoteProtocolError: peer closed connection without sending complete message body"
_NOT_HTTP = "RemoteProtocolError: illegal status line"
_RESET = "ReadError: [Errno 104] Connection reset by peer"

Striking: TypeAlias = Sequence[Fault] | Callable[[Sent, int], Fault | None]
"""Faults by the number of the request, or what says which fault strikes a request; its number counts from 1."""


class ProviderUpstream:
    """The strict provider as an upstream, struck by ``faults``; ``sent`` holds all that was sent, the newest last.

    ``patience`` is how many seconds may pass without a byte before the connection counts as lost, ``latency`` how many
    pass before an answer begins. Raises ``ConfigError`` for a fault there is not, when made or when it strikes.
    """

    def __init__(
        self, provider: Answering, faults: Striking = (), *, patience: float = PATIENCE, latency: float = 0.0
    ) -> None:
        check_types(ConfigError, faults=(faults, Sequence | Callable))
        self.provider = provider
        self.patience = patience
        self.latency = latency
        self.sent: list[Sent] = []
        self._faults: Striking = faults if callable(faults) else [_checked(fault) for fault in faults]
        self._tickets, self._answers = count(1), count(1)

    @asynccontextmanager
    async def send(self, sent: Sent) -> AsyncIterator[Reply]:
        """Return the provider's reply to ``sent``; ``UpstreamError`` of kind ``network`` where a fault takes it."""
        self.sent.append(sent)
        fault = self._fault(sent)
        await anyio.sleep(self.latency)
        await self._connected(fault)
        async with aclosing(_played(await self._steps(sent, fault), self.patience)) as played:
            head = await anext(played)
            assert isinstance(head, Head)
            yield _reply(head, played)

    def _fault(self, sent: Sent) -> Fault | None:
        if sent.endpoint == "count":
            return None
        number = next(self._answers)
        if not callable(self._faults):
            return striking(self._faults, number)
        found = self._faults(sent, number)
        return _checked(found) if found is not None else None

    async def _connected(self, fault: Fault | None) -> None:
        if fault is None or fault.stage != "connect":
            return
        if fault.kind == "stall":
            await _pause(fault.seconds or 0, CONNECT, CONNECTING["stall"])
            return
        raise _lost(CONNECTING[fault.kind])

    async def _steps(self, sent: Sent, fault: Fault | None) -> list[Step]:
        """Return what the provider does once the request is there."""
        struck = None if fault is None or fault.stage == "connect" else fault
        call = Call(sent.api, sent.endpoint, f"req_{next(self._tickets):024}", struck)
        asked = _asked(sent)
        if struck is not None and struck.stage == "body" and not is_told(struck):
            await self._interrupted(struck)
        spoken = speak(call, asked, judged(self.provider.answer, call, asked))
        return steps(spoken, struck, lambda before: late(call, asked, spoken, before))

    async def _interrupted(self, fault: Fault) -> None:
        """Raise where the request does not arrive; return once it has."""
        if fault.kind != "stall":
            raise _lost("WriteError: [Errno 32] Broken pipe" if fault.kind == "cut" else _RESET)
        await _pause(fault.seconds or 0, self.patience)


def _checked(fault: Fault) -> Fault:
    """Return the fault with what is usual for its kind; one that strikes while connecting has its own names."""
    check_types(ConfigError, fault=(fault, Fault))
    early = fault.stage == "connect" or (fault.kind in CONNECTING and fault.kind not in KINDS)
    if not early:
        return checked(fault)
    if fault.kind not in CONNECTING or fault.stage not in ("", "connect"):
        raise ConfigError(f"the fault {fault.kind!r} cannot strike at 'connect'; {', '.join(CONNECTING)} can")
    usual = KINDS["stall"].seconds if fault.kind == "stall" else None
    return replace(fault, stage="connect", seconds=usual if fault.seconds is None else fault.seconds)


def _asked(sent: Sent) -> Asked:
    streams = sent.stream if sent.api == "gemini" else wants_events(sent.body)
    model = sent.model.removeprefix("models/") if sent.api == "gemini" else ""
    wants = streams and sent.endpoint == "generate"
    return Asked(sent.api, sent.endpoint, sent.body, model, wants, discreet(sent.headers))


# -- playing -----------------------------------------------------------------------------------------------------------


async def _played(doing: Sequence[Step], patience: float) -> AsyncGenerator[Head | bytes]:
    """Yield the head and the pieces of a body as a client gets them; raises where the connection is lost."""
    for step in doing:
        match step:
            case Wait():
                await _pause(step.seconds, patience)
            case Leave():
                raise _lost(_RESET if step.reset else _BROKEN_OFF)
            case Bare():
                raise _lost(_NOT_HTTP)
            case _ if step:
                yield step


def _reply(head: Head, played: AsyncIterator[Head | bytes]) -> Reply:
    async def chunks() -> AsyncIterator[bytes]:
        async for step in played:
            assert isinstance(step, bytes)
            yield step

    return Reply(head.status, {name.lower(): value for name, value in head.headers.items()}, chunks())


async def _pause(seconds: float, patience: float, lost: str = "ReadTimeout") -> None:
    """Return after so many seconds; the client has no more ``patience`` than that."""
    await anyio.sleep(min(seconds, patience))
    if seconds > patience:
        raise _lost(lost)


def _lost(what: str) -> UpstreamError:
    text = f"no answer came from the provider ({what}); check the address and the connection, then try again"
    return UpstreamError(text, "network")


# -- given replies -----------------------------------------------------------------------------------------------------


class Given(Struct, frozen=True):
    """A reply as it comes over the wire."""

    chunks: tuple[bytes, ...] = ()
    status: int = 200
    headers: Mapping[str, str] = MappingProxyType({"content-type": JSON})


Scripted: TypeAlias = str | Said | Refusal | bytes | Mapping[str, Any] | Given | Exception
"""Words or calls of the model, or a refusal, in the API's own form; a body as it is; a whole reply; or what is raised.
"""


class ScriptedUpstream:
    """An upstream that gives these replies one after the other; ``sent`` holds what it was sent. It judges nothing.

    One request more than there are replies raises ``AssertionError``.
    """

    def __init__(self, replies: Sequence[Scripted]) -> None:
        check_types(ConfigError, replies=(replies, Sequence))
        self.replies = list(replies)
        self.sent: list[Sent] = []

    @asynccontextmanager
    async def send(self, sent: Sent) -> AsyncIterator[Reply]:
        """Return the next reply; what is given as an error is raised."""
        self.sent.append(sent)
        await checkpoint()
        if len(self.sent) > len(self.replies):
            raise AssertionError(f"request {len(self.sent)} has no reply: {len(self.replies)} were given, give more")
        given = _given(self.replies[len(self.sent) - 1], sent, len(self.sent))
        async with aclosing(_chunks(given)) as chunks:
            yield Reply(given.status, given.headers, chunks)


async def _chunks(given: Given) -> AsyncGenerator[bytes]:
    for chunk in given.chunks:
        yield chunk


def _given(reply: Scripted, sent: Sent, number: int) -> Given:
    match reply:
        case Exception():
            raise reply
        case Given():
            return reply
        case bytes():
            return Given((reply,))
        case Mapping():
            return Given((write(reply),))
        case str():
            return _said(Said(reply), sent, number)
        case _:
            return _said(reply, sent, number)


def _said(reply: Said | Refusal, sent: Sent, number: int) -> Given:
    """Return a reply in the words of the API that it was asked in."""
    asked = _asked(sent)
    told = reply if isinstance(reply, Refusal) else _answered(reply, asked, sent.model, number)
    spoken = speak(Call(sent.api, "generate", f"req_{number}"), asked, told)
    return Given(spoken.pieces, spoken.status, spoken.headers)


def _answered(said: Said, asked: Asked, model: str, number: int) -> Answered:
    setting = Setting(asked.api, model, f"scripted {number}", number)
    fitted = fit(said, None, words)
    used = Used(words(asked.body.decode("utf-8", "replace")), fitted.output, reasoning=fitted.reasoning)
    return Answered(setting.id("msg_"), model, spoken_parts(said, setting), fitted.stop, used)
