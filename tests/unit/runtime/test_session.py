"""The session: what goes over the wire, what comes back, and what the log says of both."""

from __future__ import annotations

import anyio
import httpx2
import msgspec
import pytest
from msgspec import Struct

from holdfast.config import target
from holdfast.errors import HoldfastError, UpstreamError
from holdfast.model.entries import Answer, Failure, Request
from holdfast.model.messages import Message
from holdfast.model.parts import Text, ToolResult
from holdfast.runtime.journal import Journal
from holdfast.runtime.session import Session
from holdfast.runtime.upstream import Http, Reply
from holdfast.store.memory import MemoryStore
from holdfast.testing.provider import Fault, Provider, Settings
from holdfast.testing.provider.client import MODELS
from holdfast.testing.provider.serving import serving
from holdfast.testing.samples import KEY

TOOL = {"name": "read", "description": "Reads a file.", "input_schema": {"type": "object", "properties": {}}}
FIELDS = {
    "anthropic": {"max_tokens": 900, "tools": [TOOL]},
    "openai-chat": {"tools": [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]},
    "openai-responses": {"tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}}]},
    "gemini": {"tools": [{"functionDeclarations": [{"name": "read"}]}]},
}
ASK = Message.of("user", 'call read {"path": "a"}')


def result(answer, text="kelp"):
    """Return the results of all calls of an answer."""
    parts = tuple(ToolResult(call.id, call.name, (Text(text),)) for call in answer.message.calls)
    return Message("tool", parts)


class Scripted:
    """An upstream that gives these replies one after the other, and keeps what it was sent."""

    def __init__(self, *replies):
        self.replies, self.sent = list(replies), []

    async def send(self, body, model):
        self.sent.append((body, model))
        return self.replies.pop(0)


def said(text):
    """Return the reply of a model that says ``text``."""
    body = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 12, "output_tokens": 3},
    }
    return Reply(200, {}, msgspec.json.encode(body))


@pytest.mark.parametrize("api", MODELS)
def test_a_turn_with_a_tool_over_http(api):
    """Asked over HTTP, the strict provider answers a call and its result; the log holds both answers and their cost."""

    async def talk(url):
        async with Http(url, api, {"x-api-key": "k", "authorization": "Bearer k"}) as upstream:
            session = Session(journal, upstream, target(api, MODELS[api]))
            await session.append(ASK)
            first = await session.ask(FIELDS[api])
            assert [call.name for call in first.message.calls] == ["read"]
            assert first.stop == "tool"
            await session.append(result(first))
            return await session.ask(FIELDS[api])

    with serving(provider := Provider()) as url, MemoryStore() as store:
        journal = Journal.open(store, KEY)
        second = anyio.run(talk, url)
        bodies = [entry.body for entry in store.path(KEY)]
    assert second.message.text == "ok 2"
    answers = [body for body in bodies if isinstance(body, Answer)]
    assert [body.usage for body in answers][-1] == second.usage
    assert [body.usage.input for body in answers] == [one.tokens for one in provider.requests]
    requests = [body.basis for body in bodies if isinstance(body, Request)]
    assert [body.basis for body in answers] == requests
    assert journal.branch.frame.tokens > 0


@pytest.mark.parametrize(
    ("base", "api", "model", "where"),
    [
        ("https://a.test", "anthropic", "m", "https://a.test/v1/messages"),
        ("https://a.test/", "openai-chat", "m", "https://a.test/v1/chat/completions"),
        ("https://a.test/v1", "openai-responses", "m", "https://a.test/v1/responses"),
        ("https://a.test/paas/v4/", "openai-chat", "m", "https://a.test/paas/v4/chat/completions"),
        ("https://a.test", "gemini", "models/g-3", "https://a.test/v1beta/models/g-3:generateContent"),
        ("https://a.test/v1beta", "gemini", "../x?y#z", "https://a.test/v1beta/models/..%2Fx%3Fy%23z:generateContent"),
    ],
)
def test_where_requests_go(base, api, model, where):
    """A version in the base address counts; a model's name never becomes part of the path."""
    assert Http(base, api).address(model) == where


def test_an_upstream_that_nobody_speaks():
    """An API without a form is refused when the upstream is made."""
    with pytest.raises(HoldfastError, match="no module speaks"):
        Http("https://a.test", "smoke-signals")


def test_a_server_that_is_not_there_is_a_typed_error():
    """``network``, with the address and what to do; the log holds the failure, and a retry is the same request."""

    def down(_):
        raise httpx2.ConnectError("connection refused")

    async def talk():
        async with Http("https://a.test", "anthropic", transport=httpx2.MockTransport(down)) as upstream:
            session = Session(journal, upstream, target("anthropic", "claude-opus-5-5"))
            await session.append(Message.of("user", "Are you there?"))
            with pytest.raises(UpstreamError, match=r"https://a\.test .*connection refused.*try again") as caught:
                await session.ask()
            session.upstream = Scripted(said("yes"))
            await session.ask()
            return caught.value

    journal = Journal.open(MemoryStore(), KEY)
    assert anyio.run(talk).kind == "network"
    kinds = [type(entry.body).__name__ for entry in journal.store.path(KEY)]
    assert kinds == ["Note", "Said", "Request", "Failure", "Said", "Answer"]


class Case(Struct):
    """A reply, and the kind of error that it is."""

    kind: str
    status: int
    body: bytes
    retry_after: float | None = None


CASES = [
    Case("overloaded", 529, b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'),
    Case("auth", 401, b'{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}'),
    Case("rate_limit", 429, b'{"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}', 7.0),
    Case("server", 502, b"<html><body>Bad gateway</body></html>"),
    Case("server", 200, b"<html>kept alive</html>"),
    Case("server", 200, b""),
    Case(
        "context_window",
        400,
        b'{"type":"error","error":{"type":"invalid_request_error",'
        b'"message":"prompt is too long: 215000 tokens > 200000 maximum"}}',
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{case.status}")
def test_a_refusal_is_a_typed_error(case):
    """Its kind is the classifier's; it says what to do; the log tells the failure and no answer."""
    headers = {} if case.retry_after is None else {"retry-after": str(case.retry_after)}
    journal = Journal.open(MemoryStore(), KEY)

    async def talk():
        upstream = Scripted(Reply(case.status, headers, case.body))
        session = Session(journal, upstream, target("anthropic", "claude-opus-5-5"))
        await session.append(Message.of("user", "Go."))
        with pytest.raises(UpstreamError) as caught:
            await session.ask()
        return caught.value

    error = anyio.run(talk)
    assert (error.kind, error.retry_after) == (case.kind, case.retry_after)
    assert ";" in str(error)
    *_, request, failure = [entry.body for entry in journal.store.path(KEY)]
    assert isinstance(request, Request)
    assert isinstance(failure, Failure)
    assert failure.reason.startswith(case.kind)
    if case.kind == "context_window":
        assert "215,000 of 200,000 tokens" in str(error)


def test_an_overflow_of_the_strict_provider_is_told_with_its_numbers():
    """The provider's own window counts, whatever we took it for."""

    async def talk(url):
        async with Http(url, "anthropic", {"x-api-key": "k"}) as upstream:
            session = Session(journal, upstream, target("anthropic", "claude-opus-5-5", window=200_000))
            await session.append(Message.of("user", "kelp " * 30_000))
            with pytest.raises(UpstreamError) as caught:
                await session.ask({"max_tokens": 100})
            return caught.value

    journal = Journal.open(MemoryStore(), KEY)
    with serving(Provider(Settings(window=5_000))) as url:
        error = anyio.run(talk, url)
    assert error.kind == "context_window"
    assert "5,000 tokens" in str(error)


def test_an_answer_that_breaks_off_is_a_typed_error():
    """A connection that ends in the middle is ``network``: no half answer is recorded."""

    async def talk(url):
        async with Http(url, "anthropic", {"x-api-key": "k"}) as upstream:
            session = Session(journal, upstream, target("anthropic", "claude-opus-5-5"))
            await session.append(Message.of("user", "Go."))
            with pytest.raises(UpstreamError) as caught:
                await session.ask({"max_tokens": 100})
            return caught.value

    journal = Journal.open(MemoryStore(), KEY)
    with serving(Provider(), [Fault("cut", "middle")]) as url:
        assert anyio.run(talk, url).kind == "network"
    assert [entry.body for entry in journal.store.path(KEY) if isinstance(entry.body, Answer)] == []


def test_who_asks_at_once_is_answered_in_turn():
    """A branch's work runs one at a time: each request holds the answers to those before it."""
    journal = Journal.open(MemoryStore(), KEY)
    upstream = Scripted(*(said(f"answer {number}") for number in range(5)))

    async def talk():
        session = Session(journal, upstream, target("anthropic", "claude-opus-5-5"))
        await session.append(Message.of("user", "Go."))
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(session.ask)

    anyio.run(talk)
    held = [[f"answer {n}".encode() in body for n in range(5)] for body, _ in upstream.sent]
    assert held == [[n < number for n in range(5)] for number in range(5)]


def test_giving_up_leaves_a_log_that_goes_on():
    """P6: a request that was cancelled is in the log as sent; the next one shows the same."""
    journal = Journal.open(MemoryStore(), KEY)

    class Silent:
        async def send(self, body, model):
            await anyio.sleep_forever()

    async def talk():
        session = Session(journal, Silent(), target("anthropic", "claude-opus-5-5"))
        await session.append(Message.of("user", "Go."))
        with anyio.move_on_after(0.05):
            await session.ask()
        session.upstream = Scripted(said("yes"))
        return await session.ask()

    assert anyio.run(talk).message.text == "yes"
    kinds = [type(entry.body).__name__ for entry in journal.store.path(KEY)]
    assert kinds == ["Note", "Said", "Request", "Said", "Answer"]
