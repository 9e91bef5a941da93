"""The strict provider as an ASGI application, which speaks all four APIs and injects faults.

Addresses work with and without ``/v1`` (``/v1beta`` for Gemini), because clients and gateways send both. The provider
decides the reply to a request; this module receives requests, and encodes and sends the replies.
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
from holdfast.testing.provider.dialects.registry import SERVERS, find_server
from holdfast.testing.provider.dialects.server_dialect import ServedModel, ServerDialect, ServerEndpoint
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
    """Decides the replies to requests: a ``Provider``, or a class of your own."""

    @property
    def settings(self) -> ProviderSettings:
        """Size and strictness of the provider."""

    @property
    def requests(self) -> Sequence[JudgedRequest]:
        """The requests that were answered, the newest last. May always be empty, and then no tokens are reported."""

    def answer(self, request: IncomingRequest) -> ProviderReply:
        """Return the reply to one request."""


class RequestReport(Struct, frozen=True):
    """A request and its outcome, for the log of a server."""

    method: str
    path: str
    status: int
    """HTTP status; 0 if no answer was sent."""
    verdict: str
    """The stop reason or the error code, with the fault that struck."""
    api: str = ""
    tokens: int | None = None
    """Input tokens, or None if they were not counted."""
    cached: int | None = None
    """Input tokens that were read from the cache, or None if they were not counted."""


def make_provider_app(
    provider: ProviderProtocol,
    faults: Sequence[Fault] = (),
    on_request: Callable[[RequestReport], object] = lambda _: None,
) -> Starlette:
    """Create the application; ``on_request`` is called after each request.

    Raises ``ConfigError`` for an unknown fault.
    """
    app = _ProviderApp(provider, [complete_fault(fault) for fault in faults], on_request)
    exception_handlers = {404: app.handle_unknown_address, 405: app.handle_unknown_address}
    return Starlette(routes=app.routes(), exception_handlers=exception_handlers)  # type: ignore[arg-type]


class _ProviderApp:
    """Receives requests, numbers them, and sends the provider's replies."""

    def __init__(
        self,
        provider: ProviderProtocol,
        faults: Sequence[Fault],
        on_request: Callable[[RequestReport], object],
    ) -> None:
        self._provider = provider
        self._faults = faults
        self._on_request = on_request
        self._request_numbers = count(1)
        self._answer_numbers = count(1)

    def routes(self) -> list[Route]:
        """Return the routes of all four APIs."""
        all_routes = [Route("/", self._handle_root, methods=["GET", "HEAD"])]
        server = find_server(self._provider.settings.server)
        all_routes += self._list_server_routes(server)
        for base in ("/v1", *_SERVER_BASES, ""):
            for path, (api, endpoint) in _ROUTES.items():
                all_routes.append(Route(f"{base}{path}", self._make_endpoint(api, endpoint), methods=["POST"]))
            # Codex asks for a WebSocket at this address first.
            all_routes.append(Route(f"{base}/responses", self._refuse_websocket, methods=["GET"]))
        # Names of models may contain slashes, hence the path converter.
        for base in ("/v1beta", "/v1", *_SERVER_BASES, ""):
            all_routes.append(Route(f"{base}/models/{{name:path}}", self._handle_gemini, methods=["POST"]))
            all_routes.append(Route(f"{base}/models/{{name:path}}", self._get_model, methods=["GET"]))
            all_routes.append(Route(f"{base}/models", self._list_models, methods=["GET"]))
        return all_routes

    def _list_server_routes(self, server: ServerDialect | None) -> list[Route]:
        """Return the routes that only the server has: its own endpoints, and those of clouds with the model in them."""
        if server is None:
            return []
        server_routes = []
        for endpoint in server.endpoints:
            server_routes.append(
                Route(endpoint.path, self._make_server_endpoint(endpoint), methods=list(endpoint.methods))
            )
        if server.list_models is not None:
            models_endpoint = ServerEndpoint("/models", server.list_models)
            for base in ("/v1", *server.base_paths, ""):
                server_routes.append(
                    Route(f"{base}/models", self._make_server_endpoint(models_endpoint), methods=["GET"])
                )
        if server.name == "bedrock":
            server_routes.append(Route("/model/{name:path}/{method}", self._handle_bedrock, methods=["POST"]))
        if server.name == "vertex":
            server_routes.append(
                Route("/{place:path}/publishers/{vendor}/models/{name:path}", self._handle_vertex, methods=["POST"])
            )
        return server_routes

    def _make_server_endpoint(self, endpoint: ServerEndpoint) -> Callable[[Request], Awaitable[Response]]:
        async def handle_request(request: Request) -> Response:
            names = self._provider.settings.models or (self._get_default_model(),)
            settings = self._provider.settings
            max_output = settings.max_output or DEFAULT_MAX_OUTPUT
            models = [ServedModel(name, settings.window, max_output) for name in names]
            return self._respond_json(request, 200, endpoint.make_document(models))

        return handle_request

    def _get_default_model(self) -> str:
        server = find_server(self._provider.settings.server)
        return server.default_model if server is not None else DEFAULT_MODELS[0]

    # -- answers ---------------------------------------------------------------------------------------------------

    def _make_endpoint(self, api: str, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def handle_request(request: Request) -> Response:
            return await self._handle_call(request, self._make_call(api, endpoint))

        return handle_request

    async def _handle_gemini(self, request: Request) -> Response:
        """Answer ``models/NAME:METHOD``."""
        model, _, method = request.path_params["name"].rpartition(":")
        if method not in _GEMINI_METHODS:
            raise HTTPException(404)
        endpoint, is_stream = _GEMINI_METHODS[method]
        is_array = is_stream and request.query_params.get("alt") != "sse"
        call = self._make_call("gemini", endpoint)
        call = msgspec.structs.replace(call, model=model, stream=is_stream, as_json_array=is_array)
        return await self._handle_call(request, call)

    async def _handle_bedrock(self, request: Request) -> Response:
        """Answer ``model/NAME/invoke``; the stream of Bedrock, in frames of its own, is not modelled."""
        if request.path_params["method"] != "invoke":
            raise HTTPException(404)
        call = self._make_call("anthropic", "generate")
        model = request.path_params["name"]
        return await self._handle_call(request, msgspec.structs.replace(call, model=model, stream=False))

    async def _handle_vertex(self, request: Request) -> Response:
        """Answer ``publishers/anthropic/models/NAME:rawPredict`` and its stream; Google's models as Gemini."""
        if request.path_params["vendor"] != "anthropic":
            return await self._handle_gemini(request)
        model, _, method = request.path_params["name"].rpartition(":")
        if method not in ("rawPredict", "streamRawPredict"):
            raise HTTPException(404)
        is_count = model == "count-tokens"
        call = self._make_call("anthropic", "count" if is_count else "generate")
        is_stream = method == "streamRawPredict"
        return await self._handle_call(request, msgspec.structs.replace(call, model=model, stream=is_stream))

    def _make_call(self, api: str, endpoint: Endpoint) -> ApiCall:
        """Create a call with the next request id, and with the fault that is due."""
        fault = None
        # Counts of tokens are not numbered: clients send them as they like, and faults are planned for answers.
        if endpoint != "count":
            fault = find_due_fault(self._faults, next(self._answer_numbers))
        server = self._provider.settings.server
        return ApiCall(api, endpoint, self._make_request_id(), fault, server=server)

    def _make_request_id(self) -> str:
        return f"req_{next(self._request_numbers):024}"

    async def _handle_call(self, request: Request, call: ApiCall) -> Response:
        # These faults strike before the body is read; all others are part of the steps that send the answer.
        fault = call.fault if call.fault and call.fault.stage == "body" else None
        if fault and fault.kind in ("reset", "cut"):
            self._report_request(request, call, 0, "no answer")
            return StepResponse([CloseStep(reset=fault.kind == "reset")])
        if fault and fault.kind == "stall":
            await wait_for_disconnect(request.scope, request.receive, fault.seconds or 0)
        if fault and is_status_fault(fault):
            incoming = IncomingRequest(call.api, call.endpoint, b"")
            return self._respond(request, call, incoming, make_fault_refusal(fault, call.api))
        return await self._handle_body(request, call)

    async def _handle_body(self, request: Request, call: ApiCall) -> Response:
        """Receive the body of a request and answer it."""
        try:
            body = await receive_request_body(request.receive)
            if body is None:
                self._report_request(request, call, 0, "the client left")
                return StepResponse(())
            body = decompress_body(body, request.headers.get("content-encoding", ""))
        except FormatError as error:
            incoming = IncomingRequest(call.api, call.endpoint, b"")
            return self._respond(request, call, incoming, _refuse_unreadable(error, call.api))
        is_stream = is_stream_requested(body) if call.stream is None else call.stream
        incoming = IncomingRequest(
            api=call.api,
            endpoint=call.endpoint,
            body=body,
            model=call.model,
            stream=is_stream and call.endpoint == "generate",
            headers=redact_secret_headers(request.headers),
        )
        reply = answer_with_faults(self._provider.answer, call, incoming)
        return self._respond(request, call, incoming, reply)

    def _respond(
        self,
        request: Request,
        call: ApiCall,
        incoming_request: IncomingRequest,
        reply: ProviderReply,
    ) -> Response:
        response = encode_reply(call, incoming_request, reply)
        self._report_request(request, call, response.status, _name_verdict(reply), reply)
        steps = plan_server_steps(
            response,
            call.fault,
            lambda before: encode_late_error(call, incoming_request, response, before),
        )
        return StepResponse(steps)

    def _report_request(
        self,
        request: Request,
        call: ApiCall,
        status: int,
        verdict: str,
        reply: ProviderReply | None = None,
    ) -> None:
        if call.fault:
            verdict = f"{verdict}, {call.fault.kind} at {call.fault.stage}"
        report = RequestReport(request.method, request.url.path, status, verdict, call.api)
        judged_request = self._find_judged_request(reply)
        if judged_request is not None:
            report = msgspec.structs.replace(report, tokens=judged_request.tokens or None, cached=judged_request.cached)
        self._on_request(report)

    def _find_judged_request(self, reply: ProviderReply | None) -> JudgedRequest | None:
        """Return the provider's record of a reply, or None if it keeps none or a fault replaced the reply."""
        if reply is None or not self._provider.requests:
            return None
        newest = self._provider.requests[-1]
        return newest if newest.reply is reply else None

    # -- models and unknown addresses ------------------------------------------------------------------------------

    async def _handle_root(self, request: Request) -> Response:
        """Answer the base URL, which some clients ask first to see whether a server is there."""
        return self._respond_json(request, 200, {"provider": "holdfast", "apis": list(API_ENCODERS)})

    async def _list_models(self, request: Request) -> Response:
        names = self._provider.settings.models or DEFAULT_MODELS
        api = detect_client_api(request)
        model_page = choose_model_page(api, names, request.query_params)
        listing = MODEL_LIST_ENCODERS[api]([self._describe_model(name) for name in model_page.names])
        return self._respond_json(request, 200, listing | model_page.extra_fields)

    async def _get_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        known_names = self._provider.settings.models
        api = detect_client_api(request)
        if known_names and name not in known_names:
            return self._respond_error(request, make_fault_refusal(complete_fault(Fault("404")), api))
        return self._respond_json(request, 200, MODEL_ENCODERS[api](self._describe_model(name)))

    def _describe_model(self, name: str) -> ListedModel:
        settings = self._provider.settings
        return ListedModel(name, settings.window, settings.max_output or DEFAULT_MAX_OUTPUT)

    async def _refuse_websocket(self, request: Request) -> Response:
        """Refuse a WebSocket with 426.

        Codex then continues over HTTP at once; after a 404 it tries seven times, for over six seconds.
        """
        if "upgrade" not in request.headers:
            raise HTTPException(405, headers={"allow": "POST"})
        message = "WebSockets are not supported; send a POST request"
        return self._respond_error(request, RefusalReply(426, "upgrade_required", message), {"upgrade": "HTTP/1.1"})

    async def handle_unknown_address(self, request: Request, error: HTTPException) -> Response:
        """Refuse an unknown address or method, in the form of the API that the client seems to speak."""
        api = detect_client_api(request)
        address = f"{request.method} {request.url.path}"
        if error.status_code == 404:
            code = {"anthropic": "not_found_error", "gemini": "NOT_FOUND"}.get(api, "")
            refusal = RefusalReply(404, code, f"Invalid URL ({address})")
        else:
            code = {"anthropic": "invalid_request_error", "gemini": "UNIMPLEMENTED"}.get(api, "")
            refusal = RefusalReply(error.status_code, code, f"Method not allowed ({address})")
        return self._respond_error(request, refusal, dict(error.headers or {}))

    def _respond_error(
        self,
        request: Request,
        refusal: RefusalReply,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        encoder = API_ENCODERS[detect_client_api(request)]
        request_id = self._make_request_id()
        error_headers = {encoder.request_id_header: request_id, **(headers or {})}
        error = encoder.encode_error(refusal, request_id)
        return self._respond_json(request, refusal.status, error, error_headers, _name_verdict(refusal))

    def _respond_json(
        self,
        request: Request,
        status: int,
        value: Any,
        headers: Mapping[str, str] | None = None,
        verdict: str = "ok",
    ) -> Response:
        self._on_request(RequestReport(request.method, request.url.path, status, verdict))
        response_headers = {"content-type": JSON_TYPE, **(headers or {})}
        response = make_document_response(status, response_headers, encode_json(value))
        return StepResponse(plan_server_steps(response))


_SERVER_BASES = tuple(sorted({base for server in SERVERS.values() for base in server.base_paths}))
"""What base URLs of servers have in place of ``/v1``; served always, so that a client keeps its path."""
_ROUTES: Mapping[str, tuple[str, Endpoint]] = {
    "/messages": ("anthropic", "generate"),
    "/messages/count_tokens": ("anthropic", "count"),
    "/chat/completions": ("openai-chat", "generate"),
    "/responses": ("openai-responses", "generate"),
    "/responses/compact": ("openai-responses", "compact"),
    "/responses/input_tokens": ("openai-responses", "count"),
}
"""API and endpoint by path, which may have ``/v1`` before it."""
_GEMINI_METHODS: Mapping[str, tuple[Endpoint, bool]] = {
    "generateContent": ("generate", False),
    "streamGenerateContent": ("generate", True),
    "countTokens": ("count", False),
}
"""Endpoint by method of Gemini, and whether the answer is a stream."""


def detect_client_api(request: Request) -> str:
    """Return the API that a client speaks, by address and headers; the default is Chat Completions."""
    path = request.url.path
    if path.startswith("/v1beta") or "x-goog-api-key" in request.headers:
        return "gemini"
    has_anthropic_header = "anthropic-version" in request.headers or "x-api-key" in request.headers
    if path.startswith(("/v1/messages", "/messages")) or has_anthropic_header:
        return "anthropic"
    return "openai-chat"


def _refuse_unreadable(error: FormatError, api: str) -> RefusalReply:
    status = "413" if isinstance(error, IncomingBodyTooLarge) else "400"
    refusal = make_fault_refusal(complete_fault(Fault(status)), api)
    return msgspec.structs.replace(refusal, message=str(error))


def _name_verdict(reply: ProviderReply) -> str:
    if isinstance(reply, RefusalReply):
        return reply.code or "refused"
    if isinstance(reply, ModelAnswer):
        return reply.stop
    return "compacted" if isinstance(reply, CompactReply) else "counted"
