"""Upstreams without sockets: the strict provider with all its faults, and a script of given replies.

Both behave as ``holdfast.HttpUpstream`` does, including its errors, and wait with ``anyio.sleep``: on a fake clock
(``holdfast.testing.clock``) a stall of ten minutes takes no time.
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
from holdfast.testing.provider.answers.encode_answer import AnswerSettings, fit_answer, sign_answer
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
"""Faults of the stage ``connect``, before anything is sent, with the error of the HTTP client for each.

The strict provider's server cannot produce them, since it has accepted the connection already.
"""
_CLOSED_EARLY = "RemoteProtocolError: peer closed connection without sending complete message body"
_BAD_STATUS_LINE = "RemoteProtocolError: illegal status line"
_CONNECTION_RESET = "ReadError: [Errno 104] Connection reset by peer"
_BROKEN_PIPE = "WriteError: [Errno 32] Broken pipe"

FaultPlan: TypeAlias = Sequence[Fault] | Callable[[UpstreamRequest, int], Fault | None]
"""Faults by the number of the request, or a function that returns the fault for a request and its number (from 1)."""


class ProviderUpstream:
    """The strict provider as an upstream, with ``faults``. The list ``sent`` has all requests, the newest last.

    ``patience`` is the time in seconds without a byte after which the connection counts as lost, ``latency`` the time
    before an answer begins. An unknown fault raises ``ConfigError``, at creation or when its function returns it.
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
        self._faults: FaultPlan
        if callable(faults):
            self._faults = faults
        else:
            self._faults = [_complete_fault(fault) for fault in faults]
        self._request_numbers = count(1)
        self._answer_numbers = count(1)

    @asynccontextmanager
    async def send(self, upstream_request: UpstreamRequest) -> AsyncIterator[Reply]:
        """Send ``upstream_request`` and return the provider's reply.

        Raises ``UpstreamError`` of kind ``network`` if a fault of the connection strikes.
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
            # Faults count requests for an answer, as the server does.
            return None
        number = next(self._answer_numbers)
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
        """Return the steps with which the provider answers, after the faults that strike while the body is sent."""
        server_fault = None if fault is None or fault.stage == "connect" else fault
        request_id = f"req_{next(self._request_numbers):024}"
        server = self.provider.settings.server
        call = ApiCall(upstream_request.api, upstream_request.endpoint, request_id, server_fault, server=server)
        incoming = _to_incoming_request(upstream_request)
        if server_fault is not None and server_fault.stage == "body" and not is_status_fault(server_fault):
            await self._interrupt_request(server_fault)
        response = encode_reply(call, incoming, answer_with_faults(self.provider.answer, call, incoming))
        return plan_server_steps(
            response,
            server_fault,
            lambda before: encode_late_error(call, incoming, response, before),
        )

    async def _interrupt_request(self, fault: Fault) -> None:
        """Raise the error of a fault that loses the request, or return after a stall."""
        if fault.kind == "stall":
            await _wait_or_time_out(fault.seconds or 0, self.patience)
            return
        raise _make_network_error(_BROKEN_PIPE if fault.kind == "cut" else _CONNECTION_RESET)


def _complete_fault(fault: Fault) -> Fault:
    """Fill in the stage and seconds of a fault that are left out, or raise ``ConfigError`` for an unknown one.

    Faults while connecting have names of their own, some of which ("reset", "stall") other stages have too.
    """
    raise_if_wrong_type(ConfigError, fault=(fault, Fault))
    is_connect_only = fault.kind in CONNECT_FAULTS and fault.kind not in FAULT_KINDS
    if fault.stage != "connect" and not is_connect_only:
        return complete_fault(fault)
    if fault.kind not in CONNECT_FAULTS or fault.stage not in ("", "connect"):
        raise ConfigError(f"the fault {fault.kind!r} cannot strike at 'connect'; {', '.join(CONNECT_FAULTS)} can")
    seconds = fault.seconds
    if seconds is None and fault.kind == "stall":
        seconds = FAULT_KINDS["stall"].seconds
    return replace(fault, stage="connect", seconds=seconds)


def _to_incoming_request(upstream_request: UpstreamRequest) -> IncomingRequest:
    # Gemini's address names the model and the stream, the bodies of the other APIs do.
    if upstream_request.api == "gemini":
        model = upstream_request.model.removeprefix("models/")
        is_stream = upstream_request.stream
    else:
        model = ""
        is_stream = is_stream_requested(upstream_request.body)
    return IncomingRequest(
        api=upstream_request.api,
        endpoint=upstream_request.endpoint,
        body=upstream_request.body,
        model=model,
        stream=is_stream and upstream_request.endpoint == "generate",
        headers=redact_secret_headers(upstream_request.headers),
    )


# -- playing a server's steps ------------------------------------------------------------------------------------------


async def _play_steps(steps: Sequence[ServerStep], patience: float) -> AsyncGenerator[HeadStep | bytes]:
    """Yield the head and the pieces of a body as a client receives them; raise where the connection is lost."""
    for step in steps:
        match step:
            case WaitStep():
                await _wait_or_time_out(step.seconds, patience)
            case CloseStep():
                raise _make_network_error(_CONNECTION_RESET if step.reset else _CLOSED_EARLY)
            case RawBytesStep():
                raise _make_network_error(_BAD_STATUS_LINE)
            case _ if step:  # HTTP has no empty chunks
                yield step


def _make_upstream_reply(head: HeadStep, pieces: AsyncIterator[HeadStep | bytes]) -> Reply:
    async def chunks() -> AsyncIterator[bytes]:
        async for step in pieces:
            assert isinstance(step, bytes)
            yield step

    return Reply(head.status, {name.lower(): value for name, value in head.headers.items()}, chunks())


async def _wait_or_time_out(seconds: float, patience: float, error_name: str = "ReadTimeout") -> None:
    """Wait for ``seconds``, or for ``patience`` and then raise the time-out of the HTTP client."""
    await anyio.sleep(min(seconds, patience))
    if seconds > patience:
        raise _make_network_error(error_name)


def _make_network_error(description: str) -> UpstreamError:
    text = f"no answer came from the provider ({description}); check the address and the connection, then try again"
    return UpstreamError(text, "network")


# -- given replies -----------------------------------------------------------------------------------------------------


class ScriptedReply(Struct, frozen=True):
    """A reply as it arrives over the wire: status, headers, and a body in chunks."""

    chunks: tuple[bytes, ...] = ()
    status: int = 200
    headers: Mapping[str, str] = MappingProxyType({"content-type": JSON_TYPE})


ReplyScript: TypeAlias = str | ScriptedAnswer | RefusalReply | bytes | Mapping[str, Any] | ScriptedReply | Exception
"""One reply of a script.

A text, a ``ScriptedAnswer`` or a ``RefusalReply`` is encoded in the form of the API that the request speaks; bytes or a
mapping are a body that is sent as it is; a ``ScriptedReply`` is a whole reply; an exception is raised.
"""


class ScriptedUpstream:
    """An upstream that gives the replies of a script one after the other, whatever the requests say.

    The list ``sent`` has all requests. A request for which no reply is left raises ``AssertionError``.
    """

    def __init__(self, replies: Sequence[ReplyScript]) -> None:
        raise_if_wrong_type(ConfigError, replies=(replies, Sequence))
        self.replies = list(replies)
        self.sent: list[UpstreamRequest] = []

    @asynccontextmanager
    async def send(self, upstream_request: UpstreamRequest) -> AsyncIterator[Reply]:
        """Return the next reply of the script, or raise it if it is an exception."""
        self.sent.append(upstream_request)
        await checkpoint()  # a real upstream never answers without yielding to other tasks
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
    reply: ScriptedAnswer | RefusalReply,
    upstream_request: UpstreamRequest,
    number: int,
) -> ScriptedReply:
    """Encode a reply in the form of the API that the request speaks."""
    incoming = _to_incoming_request(upstream_request)
    provider_reply: RefusalReply | ModelAnswer
    if isinstance(reply, RefusalReply):
        provider_reply = reply
    else:
        provider_reply = _make_scripted_answer(reply, incoming, upstream_request.model, number)
    response = encode_reply(ApiCall(upstream_request.api, "generate", f"req_{number}"), incoming, provider_reply)
    return ScriptedReply(response.pieces, response.status, response.headers)


def _make_scripted_answer(
    answer: ScriptedAnswer,
    request: IncomingRequest,
    model: str,
    number: int,
) -> ModelAnswer:
    settings = AnswerSettings(request.api, model, f"scripted {number}", number)
    fitted_answer = fit_answer(answer, None, count_word_pieces)
    usage = TokenUse(
        count_word_pieces(request.body.decode("utf-8", "replace")),
        fitted_answer.output,
        reasoning=fitted_answer.reasoning,
    )
    return ModelAnswer(
        settings.make_id("msg_"),
        model,
        sign_answer(answer, settings),
        fitted_answer.stop,
        usage,
    )
