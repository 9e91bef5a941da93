"""A provider with a fixed answer, served over HTTP, for tests of the wire format."""

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
    """A provider that gives a fixed answer or refusal and records its requests."""

    text = "Kelp holds, 海藻 holds, and so does the rock beneath it."

    def __init__(self) -> None:
        self.settings, self.requests = ProviderSettings(window=32_000, max_output=4_000), ()
        self.received: list[IncomingRequest] = []
        self.refusal: RefusalReply | None = None

    def answer(self, request):
        self.received.append(request)
        if self.refusal is not None:
            return self.refusal
        if request.endpoint == "count":
            return TokenCountReply(42)
        if request.endpoint == "compact":
            return CompactReply(
                "resp_2", (b'{"id":"cmp_1","type":"compaction","encrypted_content":"x"}',), TokenUse(9, 4, 3)
            )
        signature = ProviderSignature(request.api, "m", "c2VhbA==") if request.api != "openai-chat" else None
        parts = (
            Thinking("Rocks first.", signature),
            Text(self.text),
            ToolCall("call_1", "read", '{"path":"a.txt","n":[1,2]}'),
        )
        return ModelAnswer("msg_1", "m", parts, "tool", TokenUse(100, 50, 30, 20, 7, 5))


@pytest.fixture(scope="module")
def served_parrot():
    """Serve a parrot; yield it, a client of it, and the reports of its requests."""
    parrot, reports = Parrot(), []
    with serve_provider(parrot, on_request=reports.append) as url, httpx2.Client(base_url=url, timeout=60) as client:
        yield parrot, client, reports


@pytest.fixture
def parrot(served_parrot):
    """Return the parrot without refusal, requests and reports."""
    served_parrot[0].refusal = None
    served_parrot[0].received.clear()
    served_parrot[2].clear()
    return served_parrot[0]


@pytest.fixture
def client(served_parrot, parrot):
    """Return a client of the parrot."""
    return served_parrot[1]
