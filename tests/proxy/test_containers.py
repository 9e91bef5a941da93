"""A client of the proxy that knows nothing of containers goes on while code of the provider's waits for its tools."""

from __future__ import annotations

import json

import anyio
import httpx2
import pytest

from holdfast.store.memory import MemoryStore
from holdfast.store.open_store import open_store
from holdfast.testing.provider import Provider, ProviderSettings

CONTAINER = "container_a1"
RUN = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": {"code": "print(count())"}}
CALLER = {"type": "code_execution_20260120", "tool_id": "srvtoolu_1"}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "count", "input": {}, "caller": CALLER}
ANSWER = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-opus-4-8",
    "content": [RUN, CALL],
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 90, "output_tokens": 20},
    "container": {"id": CONTAINER, "expires_at": "2030-01-01T00:00:00Z"},
}
TOOLS = [
    {"type": "code_execution_20260120", "name": "code_execution"},
    {"name": "count", "input_schema": {"type": "object"}, "allowed_callers": ["code_execution_20260120"]},
]
USER = {"role": "user", "content": "how many?"}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "41"}]}


def build_body(*messages, **fields):
    """Return a request of these messages."""
    return {"model": "claude-opus-4-8", "max_tokens": 100, "tools": TOOLS, "messages": [*messages], **fields}


FIRST = build_body(USER)
SECOND = build_body(USER, {"role": "assistant", "content": [RUN, CALL]}, RESULT)


@pytest.fixture
def make_code_upstream(make_upstream):
    """Return a function that makes a strict provider whose first answer is `ANSWER`."""

    class CodeUpstream(make_upstream):
        """The strict provider, whose model at first runs code that calls the client's tool."""

        async def handle_async_request(self, request):
            if self.bodies:
                return await super().handle_async_request(request)
            self.sent.append(request)
            self.bodies.append(await request.aread())
            return httpx2.Response(200, json=ANSWER)

    return lambda **settings: CodeUpstream(Provider(ProviderSettings(tokenizer="words", **settings)))


def send_requests(open_client, upstream, store, *bodies):
    """Send ``bodies`` through a proxy that is opened for them; return the replies."""

    async def scenario():
        async with open_client(upstream, store) as client:
            return [await client.post("/v1/messages", body) for body in bodies]

    return anyio.run(scenario)


def test_proxy_names_the_container_after_a_restart(open_client, make_code_upstream, tmp_path):
    """The id is in the log of the session: a proxy that is started anew between call and result still sends it."""
    upstream = make_code_upstream()
    for body in (FIRST, SECOND):
        with open_store(tmp_path / "sessions.db") as store:
            (reply,) = send_requests(open_client, upstream, store, body)
        assert reply.status_code == 200
    assert json.loads(upstream.bodies[1]) == {**SECOND, "container": CONTAINER}


def test_proxy_names_the_container_for_an_answer_that_came_back_changed(open_client, make_code_upstream):
    """A client that sends the answer back a little changed makes a new branch; the code still waits there."""
    upstream = make_code_upstream()
    note = {"type": "text", "text": "Let me count."}
    changed = build_body(USER, {"role": "assistant", "content": [note, RUN, CALL]}, RESULT)
    replies = send_requests(open_client, upstream, MemoryStore(), FIRST, changed)
    assert [reply.status_code for reply in replies] == [200, 200]
    assert json.loads(upstream.bodies[1]) == {**changed, "container": CONTAINER}


@pytest.mark.parametrize("named", [{}, {"container": CONTAINER}], ids=["carried", "named by the client"])
def test_proxy_goes_on_without_an_expired_container(named, open_client, make_code_upstream):
    """After one refusal the run is ended by a line with its code; result and call stay, and no later request names the
    container, though the client does.
    """
    upstream = make_code_upstream(expired_containers=(CONTAINER,))
    second = {**SECOND, **named}
    third = build_body(*second["messages"], {"role": "assistant", "content": "41."}, USER, **named)
    replies = send_requests(open_client, upstream, MemoryStore(), FIRST, second, third)
    assert [reply.status_code for reply in replies] == [200, 200, 200]
    refused, *accepted = [json.loads(body) for body in upstream.bodies[1:]]
    assert refused["container"] == CONTAINER
    assert len(accepted) == 2
    for body in accepted:
        assert "container" not in body
        line, call = body["messages"][1]["content"]
        assert line["type"] == "text"
        assert "print(count())" in line["text"]
        assert call == {key: value for key, value in CALL.items() if key != "caller"}
        assert body["messages"][2] == RESULT
