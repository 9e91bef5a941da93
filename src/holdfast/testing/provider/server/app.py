"""The provider over HTTP: an ASGI application that speaks all four APIs and is struck by the faults asked for.

Addresses work with and without ``/v1`` (``/v1beta`` for Gemini), as clients and gateways send them. What a request is
answered is the judge's business (``ProviderInfo``); here it is heard, put into the API's words and sent.
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
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.testing.provider.apis import API_ENCODERS
from holdfast.testing.provider.apis.encode_reply import ApiCall, encode_late_error, encode_reply
from holdfast.testing.provider.apis.encoder import JSON_TYPE
from holdfast.testing.provider.apis.models import (
    DEFAULT_MAX_OUTPUT,
    DEFAULT_MODELS,
    MODEL_ENCODERS,
    MODEL_LIST_ENCODERS,
    ListedModel,
    choose_model_page,
)
from holdfast.testing.provider.calls import (
    CompactReply,
    Endpoint,
    IncomingRequest,
    ModelAnswer,
    ProviderReply,
    RefusalReply,
)
from holdfast.testing.provider.faults.fault_injection import answer_with_faults, is_status_fault, is_stream_requested
from holdfast.testing.provider.faults.fault_replies import make_fault_refusal
from holdfast.testing.provider.faults.faults import Fault, complete_fault, find_due_fault
from holdfast.testing.provider.provider import JudgedRequest
from holdfast.testing.provider.server.answer_steps import CloseStep, make_document_response, plan_server_steps
from holdfast.testing.provider.server.request_body import (
    IncomingBodyTooLarge,
    decompress_body,
    receive_request_body,
    redact_secret_headers,
)
from holdfast.testing.provider.server.send_steps import StepResponse, wait_for_disconnect
from holdfast.testing.provider.settings import ProviderSettings


class ProviderProtocol(Protocol):
    """Who decides what a request is answered: a ``ProviderInfo``, or one of your own."""

    @property
    def settings(self) -> ProviderSettings:
        """What kind of provider this is."""

    @property
    def requests(self) -> Sequence[JudgedRequest]:
        """What was answered so far, the newest last; may be empty."""

    def answer(self, request: IncomingRequest) -> ProviderReply:
        """Return the answer to one request."""


class RequestReport(Struct, frozen=True):
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


def make_provider_app(
    provider: ProviderProtocol,
    faults: Sequence[Fault] = (),
    on_request: Callable[[RequestReport], object] = lambda _: None,
) -> Starlette:
    """Return the application; ``on_request`` is told of each request. Raises ``ConfigError`` for a fault there is
    not.
    """
    front = _ProviderApp(provider, [complete_fault(fault) for fault in faults], on_request)
    away = {404: front.handle_unknown_address, 405: front.handle_unknown_address}
    return Starlette(routes=front.routes(), exception_handlers=away)  # type: ignore[arg-type]


class _ProviderApp:
    """Where requests come in: it numbers them and gives them to the judge."""

    def __init__(
        self, provider: ProviderProtocol, faults: Sequence[Fault], onlooker: Callable[[RequestReport], object]
    ) -> None:
        self._provider, self._faults, self._onlooker = provider, faults, onlooker
        self._tickets, self._answers = count(1), count(1)

    def routes(self) -> list[Route]:
        """Return the addresses of all four APIs."""
        all_routes = [Route("/", self._handle_root, methods=["GET", "HEAD"])]
        for base in ("/v1", ""):
            for path, (api, endpoint) in _ROUTES.items():
                all_routes.append(Route(f"{base}{path}", self._make_endpoint(api, endpoint), methods=["POST"]))
            all_routes.append(Route(f"{base}/responses", self._refuse_websocket, methods=["GET"]))
        for base in ("/v1beta", "/v1", ""):
            all_routes.append(Route(f"{base}/models/{{name:path}}", self._handle_gemini, methods=["POST"]))
            all_routes.append(Route(f"{base}/models/{{name:path}}", self._get_model, methods=["GET"]))
            all_routes.append(Route(f"{base}/models", self._list_models, methods=["GET"]))
        return all_routes

    # -- answers ---------------------------------------------------------------------------------------------------

    def _make_endpoint(self, api: str, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def take(request: Request) -> Response:
            return await self._handle_call(request, self._make_call(api, endpoint))

        return take

    async def _handle_gemini(self, request: Request) -> Response:
        """Answer ``models/NAME:METHOD``."""
        model, _, method = request.path_params["name"].rpartition(":")
        if method not in _GEMINI_METHODS:
            raise HTTPException(404)
        endpoint, stream = _GEMINI_METHODS[method]
        call = self._make_call("gemini", endpoint)
        is_array = stream and request.query_params.get("alt") != "sse"
        return await self._handle_call(
            request, msgspec.structs.replace(call, model=model, stream=stream, as_json_array=is_array)
        )

    def _make_call(self, api: str, endpoint: Endpoint) -> ApiCall:
        """Return the call with its number, and the fault that strikes this number."""
        struck = None if endpoint == "count" else find_due_fault(self._faults, next(self._answers))
        return ApiCall(api, endpoint, self._make_request_id(), struck)

    def _make_request_id(self) -> str:
        return f"req_{next(self._tickets):024}"

    async def _handle_call(self, request: Request, call: ApiCall) -> Response:
        fault = call.fault if call.fault and call.fault.stage == "body" else None
        if fault and fault.kind in ("reset", "cut"):
            self._report_request(request, call, 0, "no answer")
            return StepResponse([CloseStep(reset=fault.kind == "reset")])
        if fault and fault.kind == "stall":
            await wait_for_disconnect(request.scope, request.receive, fault.seconds or 0)
        if fault and is_status_fault(fault):
            return self._respond(
                request, call, IncomingRequest(call.api, call.endpoint, b""), make_fault_refusal(fault, call.api)
            )
        return await self._handle_body(request, call)

    async def _handle_body(self, request: Request, call: ApiCall) -> Response:
        """Answer a request once its body is there."""
        try:
            body = await receive_request_body(request.receive)
            if body is None:
                self._report_request(request, call, 0, "the client left")
                return StepResponse(())
            body = decompress_body(body, request.headers.get("content-encoding", ""))
        except FormatError as error:
            incoming = IncomingRequest(call.api, call.endpoint, b"")
            return self._respond(request, call, incoming, _refuse_unreadable(error, call.api))
        stream = is_stream_requested(body) if call.stream is None else call.stream
        headers = redact_secret_headers(request.headers)
        incoming = IncomingRequest(
            call.api, call.endpoint, body, call.model, stream and call.endpoint == "generate", headers
        )
        return self._respond(request, call, incoming, answer_with_faults(self._provider.answer, call, incoming))

    def _respond(
        self, request: Request, call: ApiCall, incoming_request: IncomingRequest, reply: ProviderReply
    ) -> Response:
        response = encode_reply(call, incoming_request, reply)
        self._report_request(request, call, response.status, _name_verdict(reply), reply)
        return StepResponse(
            plan_server_steps(
                response, call.fault, lambda before: encode_late_error(call, incoming_request, response, before)
            )
        )

    def _report_request(
        self, request: Request, call: ApiCall, status: int, verdict: str, reply: ProviderReply | None = None
    ) -> None:
        struck = f", {call.fault.kind} at {call.fault.stage}" if call.fault else ""
        tokens, cached = self._get_counted_tokens(reply)
        report = RequestReport(request.method, request.url.path, status, f"{verdict}{struck}", call.api, tokens, cached)
        self._onlooker(report)

    def _get_counted_tokens(self, reply: ProviderReply | None) -> tuple[int | None, int | None]:
        """Return the input tokens of a reply and how many came from the cache, where the judge counted them."""
        last = self._provider.requests[-1:]
        if reply is None or not last or last[0].reply is not reply:
            return None, None
        return last[0].tokens or None, last[0].cached

    # -- models, and addresses that are none -----------------------------------------------------------------------

    async def _handle_root(self, request: Request) -> Response:
        """Say that somebody is here: some clients knock first."""
        return self._respond_json(request, 200, {"provider": "holdfast", "apis": list(API_ENCODERS)})

    async def _list_models(self, request: Request) -> Response:
        names = self._provider.settings.models or DEFAULT_MODELS
        api = detect_client_api(request)
        model_page = choose_model_page(api, names, request.query_params)
        listing = MODEL_LIST_ENCODERS[api]([self._describe_model(name) for name in model_page.names])
        return self._respond_json(request, 200, listing | model_page.extra_fields)

    async def _get_model(self, request: Request) -> Response:
        name, settings = request.path_params["name"], self._provider.settings
        if settings.models and name not in settings.models:
            return self._respond_error(
                request, make_fault_refusal(complete_fault(Fault("404")), detect_client_api(request))
            )
        return self._respond_json(request, 200, MODEL_ENCODERS[detect_client_api(request)](self._describe_model(name)))

    def _describe_model(self, name: str) -> ListedModel:
        settings = self._provider.settings
        return ListedModel(name, settings.window, settings.max_output or DEFAULT_MAX_OUTPUT)

    async def _refuse_websocket(self, request: Request) -> Response:
        """Refuse a WebSocket, so that a client goes on over HTTP at once."""
        if "upgrade" not in request.headers:
            raise HTTPException(405, headers={"allow": "POST"})
        message = "WebSockets are not spoken here; send POST over HTTP"
        return self._respond_error(request, RefusalReply(426, "upgrade_required", message), {"upgrade": "HTTP/1.1"})

    async def handle_unknown_address(self, request: Request, error: HTTPException) -> Response:
        """Refuse an address or a method there is not."""
        api, place = detect_client_api(request), f"{request.method} {request.url.path}"
        if error.status_code == 404:
            error_reply = RefusalReply(
                404, {"anthropic": "not_found_error", "gemini": "NOT_FOUND"}.get(api, ""), f"Invalid URL ({place})"
            )
        else:
            code = {"anthropic": "invalid_request_error", "gemini": "UNIMPLEMENTED"}.get(api, "")
            error_reply = RefusalReply(error.status_code, code, f"Method not allowed ({place})")
        return self._respond_error(request, error_reply, dict(error.headers or {}))

    def _respond_error(
        self, request: Request, error: RefusalReply, headers: Mapping[str, str] | None = None
    ) -> Response:
        ticket, api = self._make_request_id(), detect_client_api(request)
        about = {API_ENCODERS[api].request_id_header: ticket, **(headers or {})}
        return self._respond_json(
            request, error.status, API_ENCODERS[api].encode_error(error, ticket), about, _name_verdict(error)
        )

    def _respond_json(
        self, request: Request, status: int, value: Any, headers: Mapping[str, str] | None = None, verdict: str = "ok"
    ) -> Response:
        self._onlooker(RequestReport(request.method, request.url.path, status, verdict))
        return StepResponse(
            plan_server_steps(
                make_document_response(status, {"content-type": JSON_TYPE, **(headers or {})}, encode_json(value))
            )
        )


_ROUTES: Mapping[str, tuple[str, Endpoint]] = {
    "/messages": ("anthropic", "generate"),
    "/messages/count_tokens": ("anthropic", "count"),
    "/chat/completions": ("openai-chat", "generate"),
    "/responses": ("openai-responses", "generate"),
    "/responses/compact": ("openai-responses", "compact"),
    "/responses/input_tokens": ("openai-responses", "count"),
}
"""Where what is asked for, behind ``/v1`` or alone."""
_GEMINI_METHODS: Mapping[str, tuple[Endpoint, bool]] = {
    "generateContent": ("generate", False),
    "streamGenerateContent": ("generate", True),
    "countTokens": ("count", False),
}
"""What Gemini's methods ask for, and whether for events."""


def detect_client_api(request: Request) -> str:
    """Return whose client this is, told from address and headers; without a sign, OpenAI's."""
    if request.url.path.startswith("/v1beta") or "x-goog-api-key" in request.headers:
        return "gemini"
    if request.url.path.startswith(("/v1/messages", "/messages")):
        return "anthropic"
    return "anthropic" if {"anthropic-version", "x-api-key"} & set(request.headers) else "openai-chat"


def _refuse_unreadable(error: FormatError, api: str) -> RefusalReply:
    kind = "413" if isinstance(error, IncomingBodyTooLarge) else "400"
    return msgspec.structs.replace(make_fault_refusal(complete_fault(Fault(kind)), api), message=str(error))


def _name_verdict(reply: ProviderReply) -> str:
    if isinstance(reply, RefusalReply):
        return reply.code or "refused"
    return (
        reply.stop if isinstance(reply, ModelAnswer) else "compacted" if isinstance(reply, CompactReply) else "counted"
    )
