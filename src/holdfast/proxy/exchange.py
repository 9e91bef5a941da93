"""A request and its answer as they travel through the proxy."""

from __future__ import annotations

from msgspec import Struct

from holdfast.engine.compaction.summarizer import SummaryWriter
from holdfast.engine.engine_resources import EngineResources
from holdfast.engine.run.request_target import resolve_request_target
from holdfast.providers.registry import API_SPECS
from holdfast.providers.requests.parsed_request import ParsedRequest
from holdfast.proxy.http.client_request import ClientRequest
from holdfast.proxy.http.client_response import ClientResponse
from holdfast.proxy.http.headers import RequestState
from holdfast.proxy.http.relay import UpstreamRelay
from holdfast.proxy.http.routes import Route
from holdfast.state.target import Target


class Exchange(Struct, frozen=True):
    """A request, the connection to its provider, and the answer on its way to the client."""

    client_request: ClientRequest
    relay: UpstreamRelay
    client_response: ClientResponse

    @property
    def route(self) -> Route:
        """The API and the endpoint that the request's address asks for."""
        return self.client_request.route

    @property
    def api(self) -> str:
        """The API that the client speaks, and in which it is answered."""
        return self.route.api


class ConversationRequest(Exchange, frozen=True):
    """A request that is part of a conversation, with its parsed body and the key of its session."""

    parsed_body: ParsedRequest
    session_key: str
    is_summary: bool = False
    """Whether the client asks for its own summary of the conversation; it is recorded on a branch beside it."""
    is_ephemeral: bool = False
    """Whether nothing of it is stored: it stands alone, is a remote compaction, or the store cannot be written."""
    observe_only: bool = False
    """Whether it is sent unchanged and only recorded."""
    writers: tuple[SummaryWriter, ...] = ()
    """Models that can write a summary if one is due."""

    @property
    def model(self) -> str:
        """The requested model; one in the address wins over one in the body."""
        return self.route.model or self.parsed_body.model

    def resolve_target(self, resources: EngineResources) -> Target:
        """Return the target of this request: its model's, with the window that it negotiated or its server stated."""
        return resolve_request_target(resources, self.api, self.model, self.relay, self.parsed_body)

    @property
    def wants_stream(self) -> bool:
        """Whether the client wants the answer as a stream of events."""
        # An API with a separate address for streams (Gemini) does not say so in the body.
        if API_SPECS[self.api].endpoints.stream:
            return self.route.stream
        return self.parsed_body.is_streaming

    @property
    def state(self) -> RequestState:
        """The state of the request, as its client is told."""
        if self.observe_only:
            return "observed"
        return self.client_response.state
