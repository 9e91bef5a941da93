"""The provider over HTTP: an ASGI application that speaks all four APIs and is struck by the faults asked for.

Addresses work with and without ``/v1`` (``/v1beta`` for Gemini), as clients and gateways send them. What a request is
answered is the judge's business (``Provider``); here it is heard, put into the API's words and sent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import Any, Protocol

import msgspec
from msgspec import Struct
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.errors import FormatError
from holdfast.providers.common.json.raw_json import write
from holdfast.testing.provider.calls import Answered, Asked, Compacted, Endpoint, Refusal, Reply
from holdfast.testing.provider.faults.faults import Fault, checked, striking
from holdfast.testing.provider.faults.mishaps import refusal
from holdfast.testing.provider.faults.struck import is_told, judged, wants_events
from holdfast.testing.provider.provider import Judged
from holdfast.testing.provider.server.incoming import TooLarge, discreet, received, unpacked
from holdfast.testing.provider.server.performance import Performance, gone
from holdfast.testing.provider.server.steps import Leave, document, steps
from holdfast.testing.provider.settings import Settings
from holdfast.testing.provider.voices import VOICES
from holdfast.testing.provider.voices.models import ALL, MODELS, ONE, OUTPUT, Model, page
from holdfast.testing.provider.voices.speaking import Call, late, speak
from holdfast.testing.provider.voices.voice import JSON


class Answering(Protocol):
    """Who decides what a request is answered: a ``Provider``, or one of your own."""

    @property
    def settings(self) -> Settings:
        """What kind of provider this is."""

    @property
    def requests(self) -> Sequence[Judged]:
        """What was answered so far, the newest last; may be empty."""

    def answer(self, asked: Asked) -> Reply:
        """Return the answer to one request."""


class Told(Struct, frozen=True):
    """One request and what became of it, for those who look on."""

    method: str
    path: str
    status: int
    """HTTP status; 0 where no answer was sent."""
    verdict: str
    """Why the answer ended, or the word of the error; with the fault that struck."""
    api: str = ""
    tokens: int | None = None
    """Input tokens, where they were counted."""
    cached: int | None = None
    """Input tokens that were read from the cache."""


def app(
    provider: Answering, faults: Sequence[Fault] = (), onlooker: Callable[[Told], object] = lambda _: None
) -> Starlette:
    """Return the application; ``onlooker`` is told of each request. Raises ``ConfigError`` for a fault there is not."""
    front = _Front(provider, [checked(fault) for fault in faults], onlooker)
    away = {404: front.nowhere, 405: front.nowhere}
    return Starlette(routes=front.routes(), exception_handlers=away)  # type: ignore[arg-type]


class _Front:
    """Where requests come in: it numbers them and gives them to the judge."""

    def __init__(self, provider: Answering, faults: Sequence[Fault], onlooker: Callable[[Told], object]) -> None:
        self._provider, self._faults, self._onlooker = provider, faults, onlooker
        self._tickets, self._answers = count(1), count(1)

    def routes(self) -> list[Route]:
        """Return the addresses of all four APIs."""
        found = [Route("/", self._hello, methods=["GET", "HEAD"])]
        for base in ("/v1", ""):
            for path, (api, endpoint) in _ADDRESSES.items():
                found.append(Route(f"{base}{path}", self._taking(api, endpoint), methods=["POST"]))
            found.append(Route(f"{base}/responses", self._socket, methods=["GET"]))
        for base in ("/v1beta", "/v1", ""):
            found.append(Route(f"{base}/models/{{name:path}}", self._gemini, methods=["POST"]))
            found.append(Route(f"{base}/models/{{name:path}}", self._model, methods=["GET"]))
            found.append(Route(f"{base}/models", self._models, methods=["GET"]))
        return found

    # -- answers ---------------------------------------------------------------------------------------------------

    def _taking(self, api: str, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def take(request: Request) -> Response:
            return await self._take(request, self._call(api, endpoint))

        return take

    async def _gemini(self, request: Request) -> Response:
        """Answer ``models/NAME:METHOD``."""
        model, _, method = request.path_params["name"].rpartition(":")
        if method not in _METHODS:
            raise HTTPException(404)
        endpoint, stream = _METHODS[method]
        call = self._call("gemini", endpoint)
        lined = stream and request.query_params.get("alt") != "sse"
        return await self._take(request, msgspec.structs.replace(call, model=model, stream=stream, lined=lined))

    def _call(self, api: str, endpoint: Endpoint) -> Call:
        """Return the call with its number, and the fault that strikes this number."""
        struck = None if endpoint == "count" else striking(self._faults, next(self._answers))
        return Call(api, endpoint, self._ticket(), struck)

    def _ticket(self) -> str:
        return f"req_{next(self._tickets):024}"

    async def _take(self, request: Request, call: Call) -> Response:
        fault = call.fault if call.fault and call.fault.stage == "body" else None
        if fault and fault.kind in ("reset", "cut"):
            self._tell(request, call, 0, "no answer")
            return Performance([Leave(reset=fault.kind == "reset")])
        if fault and fault.kind == "stall":
            await gone(request.scope, request.receive, fault.seconds or 0)
        if fault and is_told(fault):
            return self._said(request, call, Asked(call.api, call.endpoint, b""), refusal(fault, call.api))
        return await self._heard(request, call)

    async def _heard(self, request: Request, call: Call) -> Response:
        """Answer a request once its body is there."""
        try:
            body = await received(request.receive)
            if body is None:
                self._tell(request, call, 0, "the client left")
                return Performance(())
            body = unpacked(body, request.headers.get("content-encoding", ""))
        except FormatError as error:
            asked = Asked(call.api, call.endpoint, b"")
            return self._said(request, call, asked, _unreadable(error, call.api))
        stream = wants_events(body) if call.stream is None else call.stream
        heard = discreet(request.headers)
        asked = Asked(call.api, call.endpoint, body, call.model, stream and call.endpoint == "generate", heard)
        return self._said(request, call, asked, judged(self._provider.answer, call, asked))

    def _said(self, request: Request, call: Call, asked: Asked, reply: Reply) -> Response:
        spoken = speak(call, asked, reply)
        self._tell(request, call, spoken.status, _verdict(reply), reply)
        return Performance(steps(spoken, call.fault, lambda before: late(call, asked, spoken, before)))

    def _tell(self, request: Request, call: Call, status: int, verdict: str, reply: Reply | None = None) -> None:
        struck = f", {call.fault.kind} at {call.fault.stage}" if call.fault else ""
        tokens, cached = self._counted(reply)
        told = Told(request.method, request.url.path, status, f"{verdict}{struck}", call.api, tokens, cached)
        self._onlooker(told)

    def _counted(self, reply: Reply | None) -> tuple[int | None, int | None]:
        """Return the input tokens of a reply and how many came from the cache, where the judge counted them."""
        last = self._provider.requests[-1:]
        if reply is None or not last or last[0].reply is not reply:
            return None, None
        return last[0].tokens or None, last[0].cached

    # -- models, and addresses that are none -----------------------------------------------------------------------

    async def _hello(self, request: Request) -> Response:
        """Say that somebody is here: some clients knock first."""
        return self._plain(request, 200, {"provider": "holdfast", "apis": list(VOICES)})

    async def _models(self, request: Request) -> Response:
        names = self._provider.settings.models or MODELS
        api = api_of(request)
        shown = page(api, names, request.query_params)
        found = ALL[api]([self._told_model(name) for name in shown.names])
        return self._plain(request, 200, found | shown.more)

    async def _model(self, request: Request) -> Response:
        name, settings = request.path_params["name"], self._provider.settings
        if settings.models and name not in settings.models:
            return self._error(request, refusal(checked(Fault("404")), api_of(request)))
        return self._plain(request, 200, ONE[api_of(request)](self._told_model(name)))

    def _told_model(self, name: str) -> Model:
        settings = self._provider.settings
        return Model(name, settings.window, settings.max_output or OUTPUT)

    async def _socket(self, request: Request) -> Response:
        """Refuse a WebSocket, so that a client goes on over HTTP at once."""
        if "upgrade" not in request.headers:
            raise HTTPException(405, headers={"allow": "POST"})
        said = "WebSockets are not spoken here; send POST over HTTP"
        return self._error(request, Refusal(426, "upgrade_required", said), {"upgrade": "HTTP/1.1"})

    async def nowhere(self, request: Request, error: HTTPException) -> Response:
        """Refuse an address or a method there is not."""
        api, place = api_of(request), f"{request.method} {request.url.path}"
        if error.status_code == 404:
            lost = Refusal(
                404, {"anthropic": "not_found_error", "gemini": "NOT_FOUND"}.get(api, ""), f"Invalid URL ({place})"
            )
        else:
            code = {"anthropic": "invalid_request_error", "gemini": "UNIMPLEMENTED"}.get(api, "")
            lost = Refusal(error.status_code, code, f"Method not allowed ({place})")
        return self._error(request, lost, dict(error.headers or {}))

    def _error(self, request: Request, error: Refusal, headers: Mapping[str, str] | None = None) -> Response:
        ticket, api = self._ticket(), api_of(request)
        about = {VOICES[api].ticket: ticket, **(headers or {})}
        return self._plain(request, error.status, VOICES[api].refused(error, ticket), about, _verdict(error))

    def _plain(
        self, request: Request, status: int, value: Any, headers: Mapping[str, str] | None = None, verdict: str = "ok"
    ) -> Response:
        self._onlooker(Told(request.method, request.url.path, status, verdict))
        return Performance(steps(document(status, {"content-type": JSON, **(headers or {})}, write(value))))


_ADDRESSES: Mapping[str, tuple[str, Endpoint]] = {
    "/messages": ("anthropic", "generate"),
    "/messages/count_tokens": ("anthropic", "count"),
    "/chat/completions": ("openai-chat", "generate"),
    "/responses": ("openai-responses", "generate"),
    "/responses/compact": ("openai-responses", "compact"),
    "/responses/input_tokens": ("openai-responses", "count"),
}
"""Where what is asked for, behind ``/v1`` or alone."""
_METHODS: Mapping[str, tuple[Endpoint, bool]] = {
    "generateContent": ("generate", False),
    "streamGenerateContent": ("generate", True),
    "countTokens": ("count", False),
}
"""What Gemini's methods ask for, and whether for events."""


def api_of(request: Request) -> str:
    """Return whose client this is, told from address and headers; without a sign, OpenAI's."""
    if request.url.path.startswith("/v1beta") or "x-goog-api-key" in request.headers:
        return "gemini"
    if request.url.path.startswith(("/v1/messages", "/messages")):
        return "anthropic"
    return "anthropic" if {"anthropic-version", "x-api-key"} & set(request.headers) else "openai-chat"


def _unreadable(error: FormatError, api: str) -> Refusal:
    kind = "413" if isinstance(error, TooLarge) else "400"
    return msgspec.structs.replace(refusal(checked(Fault(kind)), api), message=str(error))


def _verdict(reply: Reply) -> str:
    if isinstance(reply, Refusal):
        return reply.code or "refused"
    return reply.stop if isinstance(reply, Answered) else "compacted" if isinstance(reply, Compacted) else "counted"
