"""A provider that says always the same, served over HTTP, for tests of what goes over the wire."""

from __future__ import annotations

import httpx2
import pytest

from holdfast.messages.parts import ProviderSignature, Text, Thinking, ToolCall
from holdfast.testing.provider.calls import (
    CompactReply,
    IncomingRequest,
    ModelAnswer,
    RefusalReply,
    TokenCountReply,
    TokenUse,
)
from holdfast.testing.provider.server.local_server import serve_provider
from holdfast.testing.provider.settings import ProviderSettings


class Parrot:
    """Says what it is told to say, and keeps what it was asked."""

    said = "Kelp holds, 海藻 holds, and so does the rock beneath it."

    def __init__(self) -> None:
        self.settings, self.requests = ProviderSettings(window=32_000, max_output=4_000), ()
        self.seen: list[IncomingRequest] = []
        self.refusal: RefusalReply | None = None

    def answer(self, asked):
        self.seen.append(asked)
        if self.refusal is not None:
            return self.refusal
        if asked.endpoint == "count":
            return TokenCountReply(42)
        if asked.endpoint == "compact":
            return CompactReply(
                "resp_2", (b'{"id":"cmp_1","type":"compaction","encrypted_content":"x"}',), TokenUse(9, 4, 3)
            )
        seal = ProviderSignature(asked.api, "m", "c2VhbA==") if asked.api != "openai-chat" else None
        parts = (
            Thinking("Rocks first.", seal),
            Text(self.said),
            ToolCall("call_1", "read", '{"path":"a.txt","n":[1,2]}'),
        )
        return ModelAnswer("msg_1", "m", parts, "tool", TokenUse(100, 50, 30, 20, 7, 5))


@pytest.fixture(scope="module")
def served():
    """A parrot, a client of it, and what an onlooker is told."""
    parrot, told = Parrot(), []
    with serve_provider(parrot, on_request=told.append) as url, httpx2.Client(base_url=url, timeout=60) as client:
        yield parrot, client, told


@pytest.fixture
def parrot(served):
    """The parrot, as new."""
    served[0].refusal = None
    served[0].seen.clear()
    served[2].clear()
    return served[0]


@pytest.fixture
def client(served, parrot):
    """A client of the parrot."""
    return served[1]
