"""Upstreams without sockets: the strict provider with every fault there is, and a script of given replies.

Both send as ``holdfast.HttpUpstream`` does, errors too, and wait with ``anyio.sleep``: on a
fake clock (``holdfast.testing.clock``) a stall of ten minutes costs nothing.
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

from holdfast.engine.upstream.upstream import CONNECT_TIMEOUT, READ_TIMEOUT, Reply, UpstreamRequest
from holdfast.errors import ConfigError, UpstreamError, raise_if_wrong_type
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.testing.provider.answers.encode_answer import AnswerSettings, fit_answer
from holdfast.testing.provider.answers.encode_answer import sign_answer as spoken_parts
from holdfast.testing.provider.apis.encode_reply import ApiCall, encode_late_error, encode_reply
from holdfast.testing.provider.apis.encoder import JSON_TYPE
from holdfast.testing.provider.calls import IncomingRequest, ModelAnswer, RefusalReply, ScriptedAnswer, TokenUse
from holdfast.testing.provider.checks.token_counter import count_word_pieces
from holdfast.testing.provider.faults.fault_injection import answer_with_faults, is_status_fault, is_stream_requested
from holdfast.testing.provider.faults.faults import FAULT_KINDS, Fault, complete_fault, find_due_fault
from holdfast.testing.provider.server.answer_steps import (
    CloseStep,
    HeadStep,
    RawBytesStep,
    ServerStep,
    WaitStep,
    plan_server_steps,
)
from holdfast.testing.provider.server.app import ProviderProtocol
from holdfast.testing.provider.server.request_body import redact_secret_headers

CONNECT_FAULTS: Mapping[str, str] = {
    "refused": "ConnectError: All connection attempts failed",
    "reset": "ConnectError: [Errno 104] Connection reset by peer",
    "tls": "ConnectError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate",
    "nowhere": "ConnectError: [Errno -2] Name or service not known",
    "stall": "ConnectTimeout",
}
"""What can go wrong at stage ``connect``, before anything is sent; the strict provider's server cannot do these."""
_CLOSED_EARLY = "RemoteProtocolError: peer closed connection without sending complete message body"
_BAD_STATUS_LINE = "RemoteProtocolError: illegal status line"
_CONNECTION_RESET = "ReadError: [Errno 104] Connection reset by peer"

FaultPlan: TypeAlias = Sequence[Fault] | Callable[[UpstreamRequest, int], Fault | None]
"""Faults by the number of the request, or what says which fault strikes a request; its number counts from 1."""


class ProviderUpstream:
    """The strict provider as an upstream, struck by ``faults``; ``sent`` holds all that was sent, the newest last.

    ``patience`` is how many seconds may pass without a byte before the connection counts as lost, ``latency`` how many
    pass before an answer begins. Raises ``ConfigError`` for a fault there is not, when made or when it strikes.
    """

    def __init__(
        self,
        provider: ProviderProtocol,
        faults: FaultPlan = (),
        *,
        patience: float = READ_TIMEOUT,
        latency: float = 0.0,
    ) -> None:
        raise_if_wrong_type(ConfigError, faults=(faults, Sequence | Callable))
        self.provider = provider
        self.patience = patience
        self.latency = latency
        self.sent: list[UpstreamRequest] = []
        self._faults: FaultPlan = faults if callable(faults) else [_complete_fault(fault) for fault in faults]
        self._tickets, self._answers = count(1), count(1)

    @asynccontextmanager
    async def send(self, upstream_request: UpstreamRequest) -> AsyncIterator[Reply]:
        """Return the provider's reply to ``upstream_request``; ``UpstreamError`` of kind ``network`` where a fault
        takes it.
        """
        self.sent.append(upstream_request)
        fault = self._choose_fault(upstream_request)
        await anyio.sleep(self.latency)
        await self._connect(fault)
        async with aclosing(_play_steps(await self._make_steps(upstream_request, fault), self.patience)) as pieces:
            head = await anext(pieces)
            assert isinstance(head, HeadStep)
            yield _make_upstream_reply(head, pieces)

    def _choose_fault(self, upstream_request: UpstreamRequest) -> Fault | None:
        if upstream_request.endpoint == "count":
            return None
        number = next(self._answers)
        if not callable(self._faults):
            return find_due_fault(self._faults, number)
        fault = self._faults(upstream_request, number)
        return _complete_fault(fault) if fault is not None else None

    async def _connect(self, fault: Fault | None) -> None:
        if fault is None or fault.stage != "connect":
            return
        if fault.kind == "stall":
            await _wait_or_time_out(fault.seconds or 0, CONNECT_TIMEOUT, CONNECT_FAULTS["stall"])
            return
        raise _make_network_error(CONNECT_FAULTS[fault.kind])

    async def _make_steps(self, upstream_request: UpstreamRequest, fault: Fault | None) -> list[ServerStep]:
        """Return what the provider does once the request is there."""
        struck = None if fault is None or fault.stage == "connect" else fault
        call = ApiCall(upstream_request.api, upstream_request.endpoint, f"req_{next(self._tickets):024}", struck)
        incoming = _to_incoming_request(upstream_request)
        if struck is not None and struck.stage == "body" and not is_status_fault(struck):
            await self._interrupt_request(struck)
        response = encode_reply(call, incoming, answer_with_faults(self.provider.answer, call, incoming))
        return plan_server_steps(response, struck, lambda before: encode_late_error(call, incoming, response, before))

    async def _interrupt_request(self, fault: Fault) -> None:
        """Raise where the request does not arrive; return once it has."""
        if fault.kind != "stall":
            raise _make_network_error(
                "WriteError: [Errno 32] Broken pipe" if fault.kind == "cut" else _CONNECTION_RESET
            )
        await _wait_or_time_out(fault.seconds or 0, self.patience)


def _complete_fault(fault: Fault) -> Fault:
    """Return the fault with what is usual for its kind; one that strikes while connecting has its own names."""
    raise_if_wrong_type(ConfigError, fault=(fault, Fault))
    early = fault.stage == "connect" or (fault.kind in CONNECT_FAULTS and fault.kind not in FAULT_KINDS)
    if not early:
        return complete_fault(fault)
    if fault.kind not in CONNECT_FAULTS or fault.stage not in ("", "connect"):
        raise ConfigError(f"the fault {fault.kind!r} cannot strike at 'connect'; {', '.join(CONNECT_FAULTS)} can")
    usual = FAULT_KINDS["stall"].seconds if fault.kind == "stall" else None
    return replace(fault, stage="connect", seconds=usual if fault.seconds is None else fault.seconds)


def _to_incoming_request(upstream_request: UpstreamRequest) -> IncomingRequest:
    streams = (
        upstream_request.stream if upstream_request.api == "gemini" else is_stream_requested(upstream_request.body)
    )
    model = upstream_request.model.removeprefix("models/") if upstream_request.api == "gemini" else ""
    wants = streams and upstream_request.endpoint == "generate"
    return IncomingRequest(
        upstream_request.api,
        upstream_request.endpoint,
        upstream_request.body,
        model,
        wants,
        redact_secret_headers(upstream_request.headers),
    )


# -- playing -----------------------------------------------------------------------------------------------------------


async def _play_steps(doing: Sequence[ServerStep], patience: float) -> AsyncGenerator[HeadStep | bytes]:
    """Yield the head and the pieces of a body as a client gets them; raises where the connection is lost."""
    for step in doing:
        match step:
            case WaitStep():
                await _wait_or_time_out(step.seconds, patience)
            case CloseStep():
                raise _make_network_error(_CONNECTION_RESET if step.reset else _CLOSED_EARLY)
            case RawBytesStep():
                raise _make_network_error(_BAD_STATUS_LINE)
            case _ if step:
                yield step


def _make_upstream_reply(head: HeadStep, pieces: AsyncIterator[HeadStep | bytes]) -> Reply:
    async def chunks() -> AsyncIterator[bytes]:
        async for step in pieces:
            assert isinstance(step, bytes)
            yield step

    return Reply(head.status, {name.lower(): value for name, value in head.headers.items()}, chunks())


async def _wait_or_time_out(seconds: float, patience: float, error_name: str = "ReadTimeout") -> None:
    """Return after so many seconds; the client has no more ``patience`` than that."""
    await anyio.sleep(min(seconds, patience))
    if seconds > patience:
        raise _make_network_error(error_name)


def _make_network_error(description: str) -> UpstreamError:
    text = f"no answer came from the provider ({description}); check the address and the connection, then try again"
    return UpstreamError(text, "network")


# -- given replies -----------------------------------------------------------------------------------------------------


class ScriptedReply(Struct, frozen=True):
    """A reply as it comes over the wire."""

    chunks: tuple[bytes, ...] = ()
    status: int = 200
    headers: Mapping[str, str] = MappingProxyType({"content-type": JSON_TYPE})


ReplyScript: TypeAlias = str | ScriptedAnswer | RefusalReply | bytes | Mapping[str, Any] | ScriptedReply | Exception
"""Words or calls of the model, or a refusal, in the API's own form; a body as it is; a whole reply; or what is raised.
"""


class ScriptedUpstream:
    """An upstream that gives these replies one after the other; ``sent`` holds what it was sent. It judges nothing.

    One request more than there are replies raises ``AssertionError``.
    """

    def __init__(self, replies: Sequence[ReplyScript]) -> None:
        raise_if_wrong_type(ConfigError, replies=(replies, Sequence))
        self.replies = list(replies)
        self.sent: list[UpstreamRequest] = []

    @asynccontextmanager
    async def send(self, upstream_request: UpstreamRequest) -> AsyncIterator[Reply]:
        """Return the next reply; what is given as an error is raised."""
        self.sent.append(upstream_request)
        await checkpoint()
        if len(self.sent) > len(self.replies):
            raise AssertionError(f"request {len(self.sent)} has no reply: {len(self.replies)} were given, give more")
        given_reply = _resolve_reply(self.replies[len(self.sent) - 1], upstream_request, len(self.sent))
        async with aclosing(_iterate_chunks(given_reply)) as chunks:
            yield Reply(given_reply.status, given_reply.headers, chunks)


async def _iterate_chunks(reply: ScriptedReply) -> AsyncGenerator[bytes]:
    for chunk in reply.chunks:
        yield chunk


def _resolve_reply(reply: ReplyScript, upstream_request: UpstreamRequest, number: int) -> ScriptedReply:
    match reply:
        case Exception():
            raise reply
        case ScriptedReply():
            return reply
        case bytes():
            return ScriptedReply((reply,))
        case Mapping():
            return ScriptedReply((encode_json(reply),))
        case str():
            return _render_reply(ScriptedAnswer(reply), upstream_request, number)
        case _:
            return _render_reply(reply, upstream_request, number)


def _render_reply(
    reply: ScriptedAnswer | RefusalReply, upstream_request: UpstreamRequest, number: int
) -> ScriptedReply:
    """Return a reply in the words of the API that it was asked in."""
    incoming = _to_incoming_request(upstream_request)
    answer = (
        reply
        if isinstance(reply, RefusalReply)
        else _make_scripted_answer(reply, incoming, upstream_request.model, number)
    )
    response = encode_reply(ApiCall(upstream_request.api, "generate", f"req_{number}"), incoming, answer)
    return ScriptedReply(response.pieces, response.status, response.headers)


def _make_scripted_answer(answer: ScriptedAnswer, request: IncomingRequest, model: str, number: int) -> ModelAnswer:
    setting = AnswerSettings(request.api, model, f"scripted {number}", number)
    fitted_answer = fit_answer(answer, None, count_word_pieces)
    used = TokenUse(
        count_word_pieces(request.body.decode("utf-8", "replace")),
        fitted_answer.output,
        reasoning=fitted_answer.reasoning,
    )
    return ModelAnswer(setting.make_id("msg_"), model, spoken_parts(answer, setting), fitted_answer.stop, used)
