"""The provider over HTTP: addresses, shapes, headers, bodies as they come."""

from __future__ import annotations

import json
import logging
import socket

import httpx2
import pytest
from msgspec import Raw

from holdfast.messages.parts import Opaque, Text
from holdfast.testing.provider.apis import API_ENCODERS
from holdfast.testing.provider.calls import IncomingRequest, ModelAnswer, RefusalReply, TokenUse
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.server.app import RequestReport
from holdfast.testing.provider.server.local_server import serve_provider
from holdfast.testing.provider.settings import ProviderSettings

ADDRESSES = {
    "anthropic": "/v1/messages",
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "gemini": "/v1beta/models/m:generateContent",
}


def events(answer: httpx2.Response) -> list[dict]:
    """Return the data of all events; ``[DONE]`` is none."""
    found = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(data) for data in found if data != "[DONE]"]


# -- addresses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "api", "endpoint"),
    [
        ("/v1/messages", "anthropic", "generate"),
        ("/messages?beta=true", "anthropic", "generate"),
        ("/v1/messages/count_tokens", "anthropic", "count"),
        ("/v1/chat/completions", "openai-chat", "generate"),
        ("/chat/completions", "openai-chat", "generate"),
        ("/v1/responses", "openai-responses", "generate"),
        ("/responses", "openai-responses", "generate"),
        ("/v1/responses/compact", "openai-responses", "compact"),
        ("/responses/input_tokens", "openai-responses", "count"),
        ("/v1beta/models/g-1:generateContent", "gemini", "generate"),
        ("/models/g-1:streamGenerateContent", "gemini", "generate"),
        ("/v1/models/g-1:countTokens", "gemini", "count"),
    ],
)
def test_addresses(parrot, client, path, api, endpoint):
    """Each address asks for what it names, with and without the version before it."""
    assert client.post(path, json={"x": 1}).status_code == 200
    [asked] = parrot.seen
    assert (asked.api, asked.endpoint, asked.body) == (api, endpoint, b'{"x":1}')
    assert asked.model == ("g-1" if api == "gemini" else "")


@pytest.mark.parametrize(("api", "path"), ADDRESSES.items())
def test_events_are_asked_for(parrot, client, api, path):
    """Whether events are wanted is told by the body, for Gemini by the address; anything else is a no."""
    if api == "gemini":
        client.post(path)
        client.post("/v1beta/models/m:streamGenerateContent")
    else:
        for body in (b'{"stream":false}', b'{"stream":true}', b'{"stream":"true"}', b"[", b"[true]", b""):
            client.post(path, content=body)
    assert [asked.stream for asked in parrot.seen][:2] == [False, True]
    assert not any(asked.stream for asked in parrot.seen[2:])


def test_keys_are_not_kept(parrot, client):
    """The headers of a request are handed on in lower case, those with keys without their values."""
    client.post("/v1/messages", headers={"X-API-Key": "sk-1", "Authorization": "Bearer b", "Anthropic-Beta": "c-1"})
    headers = parrot.seen[0].headers
    assert (headers["x-api-key"], headers["authorization"]) == ("(kept out)", "(kept out)")
    assert headers["anthropic-beta"] == "c-1"


@pytest.mark.parametrize(
    ("headers", "path", "error"),
    [
        ({}, "/v1/nothing", {"type": "invalid_request_error", "param": None}),
        ({"anthropic-version": "2023-06-01"}, "/v1/nothing", {"type": "not_found_error"}),
        ({}, "/v1beta/nothing", {"status": "NOT_FOUND", "code": 404}),
        ({"x-goog-api-key": "k"}, "/v1/models/m:sing", {"status": "NOT_FOUND"}),
    ],
)
def test_an_address_that_is_none(client, headers, path, error):
    """An address there is not gets a 404 in the shape of the API whose client seems to ask."""
    answer = client.post(path, headers=headers)
    assert answer.status_code == 404
    assert error.items() <= answer.json()["error"].items()
    assert path in answer.json()["error"]["message"]


def test_a_wrong_method(client):
    """A method that an address does not take is a 405 in the API's shape, which names those it takes."""
    answer = client.delete("/v1/messages")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_websocket_is_told_to_use_http(client, capfd, caplog):
    """A client that asks for a WebSocket gets 426 at once, and nothing is logged of it."""
    caplog.set_level(logging.INFO)
    wanted = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    answer = client.get("/v1/responses", headers=wanted)
    assert answer.status_code == 426
    assert answer.json()["error"]["code"] == "upgrade_required"
    assert client.get("/v1/responses").status_code == 405
    assert [record for record in caplog.records if record.name.startswith("uvicorn")] == []
    assert capfd.readouterr().err == ""


def test_a_knock_is_answered(client):
    """``HEAD /`` and ``GET /`` say that somebody is there; some clients ask before anything else."""
    assert client.head("/").status_code == 200
    assert client.get("/").json()["apis"] == list(ADDRESSES)


@pytest.mark.parametrize(
    ("headers", "base", "inside"),
    [
        ({"anthropic-version": "1"}, "/v1", {"type": "model", "id": "m/1", "max_input_tokens": 32_000}),
        ({"authorization": "Bearer k"}, "/v1", {"object": "model", "id": "m/1"}),
        ({}, "/v1beta", {"name": "models/m/1", "inputTokenLimit": 32_000, "outputTokenLimit": 4_000}),
        ({"x-goog-api-key": "k"}, "", {"name": "models/m/1"}),
    ],
)
def test_models(client, headers, base, inside):
    """The models endpoints speak the API of the client that asks and tell the window where the API does."""
    assert inside.items() <= client.get(f"{base}/models/m/1", headers=headers).json().items()
    listed = client.get(f"{base}/models", headers=headers).json()
    assert len(listed.get("data", listed.get("models"))) > 1


def test_models_that_are_not_there():
    """Where the settings name models, these are listed and no other is there."""
    provider = Provider(ProviderSettings(models=("only-1",)))
    with serve_provider(provider) as url, httpx2.Client(base_url=url) as client:
        assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["only-1"]
        assert client.get("/v1/models/only-1").status_code == 200
        assert client.get("/v1/models/other").json()["error"]["code"] == "model_not_found"


def test_pages_of_models():
    """Anthropic and Gemini list as many models as are asked for and say where to go on; OpenAI lists all."""
    names = ("a", "b", "c")
    with serve_provider(Provider(ProviderSettings(models=names))) as url, httpx2.Client(base_url=url) as client:
        client.headers["anthropic-version"] = "1"
        first = client.get("/v1/models?limit=2").json()
        assert ([one["id"] for one in first["data"]], first["has_more"]) == (["a", "b"], True)
        last = client.get("/v1/models", params={"limit": 2, "after_id": first["last_id"]}).json()
        assert ([one["id"] for one in last["data"]], last["has_more"]) == (["c"], False)
        assert len(client.get("/v1/models?limit=x&after_id=z").json()["data"]) == 3
        found = client.get("/v1beta/models?pageSize=2").json()
        rest = client.get("/v1beta/models", params={"pageSize": 2, "pageToken": found["nextPageToken"]}).json()
        assert [one["name"] for one in rest["models"]] == ["models/c"]
        assert "nextPageToken" not in rest
    with serve_provider(Provider(ProviderSettings(models=names))) as url:
        assert len(httpx2.get(f"{url}/v1/models?limit=1").json()["data"]) == 3


def test_bytes_that_are_no_http(capfd, caplog):
    """What is no HTTP is answered with 400, and nothing is printed beside what the caller prints."""
    with serve_provider(Provider()) as url:
        place = url.removeprefix("http://").split(":")
        with socket.create_connection((place[0], int(place[1]))) as line:
            line.sendall(b"GARBAGE\r\n\r\n")
            assert line.recv(100).startswith(b"HTTP/1.1 400")
    assert (capfd.readouterr(), caplog.records) == (("", ""), [])


# -- answers -----------------------------------------------------------------------------------------------------------


def test_usage_in_each_api(client):
    """Cached tokens stand beside the input tokens of Anthropic and inside those of the other three."""
    found = {api: client.post(path, json={}).json() for api, path in ADDRESSES.items()}
    usage = found["anthropic"]["usage"]
    assert usage | {"service_tier": "standard"} == {
        "input_tokens": 100,
        "cache_creation_input_tokens": 20,
        "cache_read_input_tokens": 30,
        "cache_creation": {"ephemeral_5m_input_tokens": 15, "ephemeral_1h_input_tokens": 5},
        "output_tokens": 50,
        "output_tokens_details": {"thinking_tokens": 7},
        "service_tier": "standard",
    }
    chat = found["openai-chat"]["usage"]
    assert (chat["prompt_tokens"], chat["total_tokens"]) == (150, 200)
    assert chat["prompt_tokens_details"] == {"cached_tokens": 30, "cache_write_tokens": 20}
    responses = found["openai-responses"]["usage"]
    assert (responses["input_tokens"], responses["input_tokens_details"]["cached_tokens"]) == (150, 30)
    assert responses["output_tokens_details"] == {"reasoning_tokens": 7}
    assert found["gemini"]["usageMetadata"] == {
        "promptTokenCount": 150,
        "cachedContentTokenCount": 30,
        "candidatesTokenCount": 43,
        "thoughtsTokenCount": 7,
        "totalTokenCount": 200,
    }


def test_events_of_anthropic(parrot, client):
    """A stream is start, blocks with their deltas, stop reason with all usage, stop; each event bears its name."""
    answer = client.post("/v1/messages", json={"stream": True})
    found = events(answer)
    assert [line[7:] for line in answer.text.splitlines() if line.startswith("event: ")] == [
        event["type"] for event in found
    ]
    kinds = [event["type"] for event in found if event["type"] not in ("content_block_delta", "ping")]
    assert kinds == [
        "message_start",
        *["content_block_start", "content_block_stop"] * 3,
        "message_delta",
        "message_stop",
    ]
    assert found[0]["message"]["usage"]["cache_read_input_tokens"] == 30
    assert found[-2]["usage"]["output_tokens"] == 50
    assert found[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    deltas = [event["delta"] for event in found if event["type"] == "content_block_delta"]
    assert "".join(delta.get("text", "") for delta in deltas) == parrot.said
    assert json.loads("".join(delta.get("partial_json", "") for delta in deltas)) == {"path": "a.txt", "n": [1, 2]}
    assert [delta["signature"] for delta in deltas if delta["type"] == "signature_delta"] == ["c2VhbA=="]


@pytest.mark.parametrize(
    ("options", "wanted"), [({"include_usage": True}, True), ({"include_usage": False}, False), (None, False)]
)
def test_usage_of_a_chat_stream_is_asked_for(client, options, wanted):
    """Only ``stream_options.include_usage`` brings a chunk with usage; it is the last one and has no choice."""
    body = {"stream": True, "stream_options": options}
    answer = client.post("/v1/chat/completions", json=body)
    found = events(answer)
    assert answer.text.endswith("data: [DONE]\n\n")
    assert [chunk["choices"][0]["finish_reason"] for chunk in found if chunk["choices"]][-1] == "tool_calls"
    assert (found[-1].get("usage") or {}).get("prompt_tokens") == (150 if wanted else None)
    assert (found[-1]["choices"] == []) == wanted


def test_events_of_responses(client):
    """Events are numbered from 0 without a gap, and the last one holds the whole response."""
    found = events(client.post("/v1/responses", json={"stream": True}))
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert [event["type"] for event in found[:2]] == ["response.created", "response.in_progress"]
    whole = found[-1]["response"]
    assert (found[-1]["type"], whole["status"], len(whole["output"])) == ("response.completed", "completed", 3)
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert done == whole["output"]
    plain = client.post("/v1/responses", json={}).json()
    assert plain == whole


def test_gemini_streams_an_array_unless_told(parrot, client):
    """``streamGenerateContent`` is one JSON array of chunks, with ``alt=sse`` the same chunks as events."""
    path = "/v1beta/models/m:streamGenerateContent"
    listed = client.post(path, json={})
    assert listed.headers["content-type"].startswith("application/json")
    assert listed.json() == events(client.post(f"{path}?alt=sse", json={}))
    parts = [part for chunk in listed.json() for part in chunk["candidates"][0]["content"]["parts"]]
    assert "".join(part.get("text", "") for part in parts if not part.get("thought")) == parrot.said
    assert ["thoughtSignature" in part for part in parts if part.get("thought")] == [False, False, True]
    assert parts[-1]["functionCall"] == {"id": "call_1", "name": "read", "args": {"path": "a.txt", "n": [1, 2]}}
    ends = [chunk["candidates"][0].get("finishReason") for chunk in listed.json()]
    assert ends == [*[None] * (len(ends) - 1), "STOP"]


def test_counts_and_compactions(client):
    """Each API counts in its own shape; a compaction is a response of its own kind."""
    assert client.post("/v1/messages/count_tokens").json() == {"input_tokens": 42}
    assert client.post("/v1/responses/input_tokens").json() == {"object": "response.input_tokens", "input_tokens": 42}
    assert client.post("/v1beta/models/m:countTokens").json() == {"totalTokens": 42}
    compacted = client.post("/v1/responses/compact").json()
    assert (compacted["object"], compacted["output"][0]["type"]) == ("response.compaction", "compaction")
    assert compacted["usage"]["input_tokens"] == 12


def test_a_block_has_its_own_bytes():
    """A part with bytes of its own goes out with them, also where it comes whole in a stream."""
    block = Raw(b'{"type":"compaction", "content":"S","encrypted_content":"E"}')
    answered = ModelAnswer("msg_1", "m", (Opaque("compaction", block),), "compaction", TokenUse(0, 0), TokenUse(50, 9))
    asked = IncomingRequest("anthropic", "generate", b"{}")
    whole = API_ENCODERS["anthropic"].encode_answer(asked, answered)
    assert whole["content"] == [block]
    assert whole["usage"]["iterations"][0]["output_tokens"] == 9
    told = b"".join(API_ENCODERS["anthropic"].encode_stream(asked, answered).events)
    assert b'"delta":{"type":"compaction_delta","content":"S","encrypted_content":"E"}' in told


def test_reasoning_that_was_dropped_is_told():
    """Thinking that the model will not read is listed, in each API's words."""
    answered = ModelAnswer(
        "x_1", "m", (Text("a"),), "end", TokenUse(1, 1), dropped_blocks=(("messages.1.content.0", "prefix_mismatch"),)
    )
    found = {
        api: API_ENCODERS[api].encode_answer(IncomingRequest(api, "generate", b"{}"), answered)
        for api in ("anthropic", "openai-responses")
    }
    assert found["anthropic"]["input_transformations"][0]["reason"] == "prefix_binding_mismatch"
    assert found["openai-responses"]["input_transformations"][0]["reason"] == "prefix_mismatch"


def test_a_response_that_was_cut_short():
    """An answer that met its limit ends as incomplete, with the reason, and an event of that name."""
    answered, asked = (
        ModelAnswer("resp_1", "m", (Text("a"),), "length", TokenUse(1, 1)),
        IncomingRequest("openai-responses", "generate", b""),
    )
    whole = API_ENCODERS["openai-responses"].encode_answer(asked, answered)
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (
        API_ENCODERS["openai-responses"]
        .encode_stream(asked, answered)
        .events[-1]
        .startswith(b"event: response.incomplete\n")
    )


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses", "anthropic", "gemini"])
@pytest.mark.parametrize("stop", ["end", "tool", "length", "window", "refusal", "compaction"])
def test_each_stop_has_a_word(api, stop):
    """An answer ends with one of the API's own reasons, whole and in events."""
    known = {
        "anthropic": {"end_turn", "tool_use", "max_tokens", "model_context_window_exceeded", "refusal", "compaction"},
        "openai-chat": {"stop", "length", "tool_calls"},
        "openai-responses": {"completed", "incomplete"},
        "gemini": {"STOP", "MAX_TOKENS", "SAFETY"},
    }[api]
    answered, asked = (
        ModelAnswer("x_1", "m", (Text("a"),), stop, TokenUse(1, 1)),
        IncomingRequest(api, "generate", b"{}"),
    )
    whole = API_ENCODERS[api].encode_answer(asked, answered)
    inner = (whole.get("choices") or whole.get("candidates") or [whole])[0]
    words = {inner.get(key) for key in ("stop_reason", "finish_reason", "status", "finishReason")} - {None}
    assert words <= known
    assert len(words) == 1
    assert (
        words.pop().encode()
        in API_ENCODERS[api]
        .encode_stream(asked, answered)
        .events[-API_ENCODERS[api].encode_stream(asked, answered).closing_events]
    )


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("api", "path"), ADDRESSES.items())
def test_a_refusal(parrot, client, api, path):
    """A refusal has its status, the judge's word and message in the API's shape, and the request's id in a header."""
    parrot.refusal = RefusalReply(400, "some_code", "no and no", details={"param": "input"})
    answer = client.post(path, json={})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["message"] == "no and no"
    assert "some_code" in error.values()
    assert answer.headers["request-id" if api == "anthropic" else "x-request-id"].startswith("req_")
    if api == "anthropic":
        assert answer.json()["request_id"] == answer.headers["request-id"]


def test_a_refusal_of_a_server_that_only_resembles(parrot, client):
    """A refusal with a body of its own is that body, and its kind is told from it."""
    for body, mime in (
        (b'{"a":1}', "application/json"),
        (b"<html>", "text/html"),
        (b"no", "text/plain; charset=utf-8"),
    ):
        parrot.refusal = RefusalReply(400, "", "", body=body)
        answer = client.post("/v1/chat/completions", json={})
        assert (answer.content, answer.headers["content-type"]) == (body, mime)


@pytest.mark.parametrize(("api", "path"), ADDRESSES.items())
def test_a_refusal_inside_a_stream(parrot, client, api, path):
    """A refusal can come as an event after HTTP 200; a client that wants no events gets the status."""
    parrot.refusal = RefusalReply(400, "some_code", "too long", in_stream=True)
    path = path.replace("generateContent", "streamGenerateContent?alt=sse")
    answer = client.post(path, json={"stream": True})
    assert answer.status_code == 200
    last = events(answer)[-1]
    error = last["response"]["error"] if api == "openai-responses" else last["error"]
    assert error["message"] == "too long"
    if api == "openai-responses":
        assert [event["type"] for event in events(answer)] == [
            "response.created",
            "response.in_progress",
            "response.failed",
        ]
    if api != "gemini":
        assert client.post(path, json={}).status_code == 400


# -- onlookers ---------------------------------------------------------------------------------------------------------


def test_an_onlooker_is_told_of_each_request():
    """Each request is told with its API, tokens and what became of it, models and lost addresses too."""
    told: list[RequestReport] = []
    body = {"model": "claude-opus-5", "max_tokens": 10, "messages": [{"role": "user", "content": "hello"}]}
    with (
        serve_provider(Provider(ProviderSettings(window=1_000)), on_request=told.append) as url,
        httpx2.Client(base_url=url) as client,
    ):
        client.post("/v1/messages", json=body)
        client.post("/v1/messages", json=body | {"messages": [{"role": "user", "content": "kelp " * 3_000}]})
        client.post("/v1/messages/count_tokens", json=body)
        client.get("/v1/models")
        client.get("/v1/nothing")
    assert [(one.method, one.status) for one in told] == [
        ("POST", 200),
        ("POST", 400),
        ("POST", 200),
        ("GET", 200),
        ("GET", 404),
    ]
    assert (told[0].verdict, told[0].cached, told[2].verdict) == ("end", 0, "counted")
    assert told[1].tokens > 1_000 > told[0].tokens > 0
    assert (told[1].verdict, told[3].tokens) == ("invalid_request_error", None)
    assert [one.verdict for one in told[3:]] == ["ok", "refused"]
