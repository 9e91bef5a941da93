"""A request and its answer: what came in, where it goes, and what its client is sent."""

from __future__ import annotations

from msgspec import Struct

from holdfast.engine.compaction.summarizer import SummaryWriter
from holdfast.providers.registry import API_SPECS
from holdfast.providers.requests.request_body import ParsedRequest
from holdfast.proxy.http.client_request import ClientRequest
from holdfast.proxy.http.client_response import ClientResponse
from holdfast.proxy.http.headers import RequestState
from holdfast.proxy.http.relay import UpstreamRelay
from holdfast.proxy.http.routes import Route


class Exchange(Struct, frozen=True):
    """A request as it came in, its provider, and the answer on its way to the client."""

    client_request: ClientRequest
    relay: UpstreamRelay
    client_response: ClientResponse

    @property
    def route(self) -> Route:
        """What the address asks for."""
        return self.client_request.route

    @property
    def api(self) -> str:
        """Whose words the client understands."""
        return self.route.api


class ConversationRequest(Exchange, frozen=True):
    """A request that is part of a conversation: its body opened, and the session that it belongs to."""

    parsed_body: ParsedRequest
    session_key: str
    """The key of the session."""
    is_summary: bool = False
    """Whether the client asks for its own summary of the conversation, beside it."""
    is_ephemeral: bool = False
    """Whether nothing of it is written down: a small summary of what nobody talks on, or one with its own address."""
    observe_only: bool = False
    """Whether it goes out as it came, and is only looked at and written down."""
    writers: tuple[SummaryWriter, ...] = ()
    """Models that write a summary, where one is due."""

    @property
    def model(self) -> str:
        """The model that is asked: the address says it, where it names any."""
        return self.route.model or self.parsed_body.model

    @property
    def wants_stream(self) -> bool:
        """Whether the answer is to come as events."""
        if API_SPECS[self.api].endpoints.stream:  # it says so in the address alone
            return self.route.stream
        return self.parsed_body.is_streaming

    @property
    def state(self) -> RequestState:
        """What is done with it."""
        return "observed" if self.observe_only else self.client_response.state
