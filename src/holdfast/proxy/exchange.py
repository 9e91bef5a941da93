"""A request and its answer: what came in, where it goes, and what its client is sent."""

from __future__ import annotations

from msgspec import Struct

from holdfast.engine.compaction.summarizer import Writer
from holdfast.providers.request_body import Lens
from holdfast.proxy.http.headers import State
from holdfast.proxy.http.relay import Onward
from holdfast.proxy.http.request import Incoming
from holdfast.proxy.http.response import Outgoing
from holdfast.proxy.http.routes import Route


class Exchange(Struct, frozen=True):
    """A request as it came in, its provider, and the answer on its way to the client."""

    incoming: Incoming
    onward: Onward
    outgoing: Outgoing

    @property
    def route(self) -> Route:
        """What the address asks for."""
        return self.incoming.route

    @property
    def api(self) -> str:
        """Whose words the client understands."""
        return self.route.api


class Turn(Exchange, frozen=True):
    """A request that is part of a conversation: its body opened, and the session that it belongs to."""

    lens: Lens
    session: str
    """The key of the session."""
    is_summary: bool = False
    """Whether the client asks for its own summary of the conversation, beside it."""
    is_unkept: bool = False
    """Whether nothing of it is written down: a small summary of what nobody talks on, or one with its own address."""
    observe: bool = False
    """Whether it goes out as it came, and is only looked at and written down."""
    writers: tuple[Writer, ...] = ()
    """Models that write a summary, where one is due."""

    @property
    def model(self) -> str:
        """The model that is asked: the address says it, where it names any."""
        return self.route.model or self.lens.model

    @property
    def streams(self) -> bool:
        """Whether the answer is to come as events."""
        if self.api == "gemini":  # it says so in the address alone
            return self.route.stream
        return self.lens.streams

    @property
    def state(self) -> State:
        """What is done with it."""
        return "observed" if self.observe else self.outgoing.state
