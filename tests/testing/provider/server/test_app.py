"""The strict provider over HTTP: paths, shapes of answers and errors, headers, streams and reports."""

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

PATHS = {
    "anthropic": "/v1/messages",
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "gemini": "/v1beta/models/m:generateContent",
}


def decode_events(answer: httpx2.Response) -> list[dict]:
    """Return the data of all events except ``[DONE]``."""
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(data) for data in lines if data != "[DONE]"]


# -- paths -------------------------------------------------------------------------------------------------------------


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
def test_server_maps_each_path_to_an_api_and_endpoint(parrot, client, path, api, endpoint):
    """Every path works with and without the version in front."""
    assert client.post(path, json={"x": 1}).status_code == 200
    [request] = parrot.received
    assert (request.api, request.endpoint, request.body) == (api, endpoint, b'{"x":1}')
    assert request.model == ("g-1" if api == "gemini" else "")


@pytest.mark.parametrize(("api", "path"), PATHS.items())
def test_server_streams_when_the_request_asks_for_it(parrot, client, api, path):
    """The body decides, for Gemini the path; an invalid body does not ask for a stream."""
    if api == "gemini":
        client.post(path)
        client.post("/v1beta/models/m:streamGenerateContent")
    else:
        for body in (b'{"stream":false}', b'{"stream":true}', b'{"stream":"true"}', b"[", b"[true]", b""):
            client.post(path, content=body)
    assert [request.stream for request in parrot.received][:2] == [False, True]
    assert not any(request.stream for request in parrot.received[2:])


def test_server_hides_keys_in_recorded_headers(parrot, client):
    """Headers are recorded in lower case, those with keys without their values."""
    client.post("/v1/messages", headers={"X-API-Key": "sk-1", "Authorization": "Bearer b", "Anthropic-Beta": "c-1"})
    headers = parrot.received[0].headers
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
def test_server_answers_an_unknown_path_with_a_404_of_the_likely_api(client, headers, path, error):
    """The shape of the error is that of the API that the path or the headers suggest."""
    answer = client.post(path, headers=headers)
    assert answer.status_code == 404
    assert error.items() <= answer.json()["error"].items()
    assert path in answer.json()["error"]["message"]


def test_server_answers_a_wrong_method_with_405(client):
    """The error has the API's shape, and the allow header names the methods."""
    answer = client.delete("/v1/messages")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_server_answers_a_websocket_upgrade_with_426(client, capfd, caplog):
    """The client is told to use HTTP, and nothing is logged."""
    caplog.set_level(logging.INFO)
    headers = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    answer = client.get("/v1/responses", headers=headers)
    assert answer.status_code == 426
    assert answer.json()["error"]["code"] == "upgrade_required"
    assert client.get("/v1/responses").status_code == 405
    assert [record for record in caplog.records if record.name.startswith("uvicorn")] == []
    assert capfd.readouterr().err == ""


def test_server_answers_get_and_head_of_the_root(client):
    """Some clients check the root before anything else."""
    assert client.head("/").status_code == 200
    assert client.get("/").json()["apis"] == list(PATHS)


@pytest.mark.parametrize(
    ("headers", "base", "fields"),
    [
        ({"anthropic-version": "1"}, "/v1", {"type": "model", "id": "m/1", "max_input_tokens": 32_000}),
        ({"authorization": "Bearer k"}, "/v1", {"object": "model", "id": "m/1"}),
        ({}, "/v1beta", {"name": "models/m/1", "inputTokenLimit": 32_000, "outputTokenLimit": 4_000}),
        ({"x-goog-api-key": "k"}, "", {"name": "models/m/1"}),
    ],
)
def test_models_endpoint_speaks_the_api_of_the_client(client, headers, base, fields):
    """The models are listed and described in the client's API, with the window where the API has it."""
    assert fields.items() <= client.get(f"{base}/models/m/1", headers=headers).json().items()
    listed = client.get(f"{base}/models", headers=headers).json()
    assert len(listed.get("data", listed.get("models"))) > 1


def test_models_endpoint_knows_only_the_models_of_the_settings():
    """Where the settings name models, these are listed and any other is not found."""
    provider = Provider(ProviderSettings(models=("only-1",)))
    with serve_provider(provider) as url, httpx2.Client(base_url=url) as client:
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["only-1"]
        assert client.get("/v1/models/only-1").status_code == 200
        assert client.get("/v1/models/other").json()["error"]["code"] == "model_not_found"


def test_models_endpoint_pages_as_each_api_does():
    """Anthropic and Gemini return the requested number and a token for the next page; OpenAI returns all."""
    names = ("a", "b", "c")
    with serve_provider(Provider(ProviderSettings(models=names))) as url, httpx2.Client(base_url=url) as client:
        client.headers["anthropic-version"] = "1"
        first = client.get("/v1/models?limit=2").json()
        assert ([model["id"] for model in first["data"]], first["has_more"]) == (["a", "b"], True)
        last = client.get("/v1/models", params={"limit": 2, "after_id": first["last_id"]}).json()
        assert ([model["id"] for model in last["data"]], last["has_more"]) == (["c"], False)
        assert len(client.get("/v1/models?limit=x&after_id=z").json()["data"]) == 3
        page = client.get("/v1beta/models?pageSize=2").json()
        rest = client.get("/v1beta/models", params={"pageSize": 2, "pageToken": page["nextPageToken"]}).json()
        assert [model["name"] for model in rest["models"]] == ["models/c"]
        assert "nextPageToken" not in rest
    with serve_provider(Provider(ProviderSettings(models=names))) as url:
        assert len(httpx2.get(f"{url}/v1/models?limit=1").json()["data"]) == 3


def test_server_answers_non_http_bytes_with_400(capfd, caplog):
    """Nothing is printed or logged."""
    with serve_provider(Provider()) as url:
        host_and_port = url.removeprefix("http://").split(":")
        with socket.create_connection((host_and_port[0], int(host_and_port[1]))) as connection:
            connection.sendall(b"GARBAGE\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 400")
    assert (capfd.readouterr(), caplog.records) == (("", ""), [])


# -- answers -----------------------------------------------------------------------------------------------------------


def test_usage_has_the_fields_of_each_api(client):
    """Anthropic counts cached tokens beside the input tokens, the other three inside them."""
    bodies = {api: client.post(path, json={}).json() for api, path in PATHS.items()}
    usage = bodies["anthropic"]["usage"]
    assert usage | {"service_tier": "standard"} == {
        "input_tokens": 100,
        "cache_creation_input_tokens": 20,
        "cache_read_input_tokens": 30,
        "cache_creation": {"ephemeral_5m_input_tokens": 15, "ephemeral_1h_input_tokens": 5},
        "output_tokens": 50,
        "output_tokens_details": {"thinking_tokens": 7},
        "service_tier": "standard",
    }
    chat = bodies["openai-chat"]["usage"]
    assert (chat["prompt_tokens"], chat["total_tokens"]) == (150, 200)
    assert chat["prompt_tokens_details"] == {"cached_tokens": 30, "cache_write_tokens": 20}
    responses = bodies["openai-responses"]["usage"]
    assert (responses["input_tokens"], responses["input_tokens_details"]["cached_tokens"]) == (150, 30)
    assert responses["output_tokens_details"] == {"reasoning_tokens": 7}
    assert bodies["gemini"]["usageMetadata"] == {
        "promptTokenCount": 150,
        "cachedContentTokenCount": 30,
        "candidatesTokenCount": 43,
        "thoughtsTokenCount": 7,
        "totalTokenCount": 200,
    }


def test_anthropic_stream_has_the_documented_events(parrot, client):
    """A stream has start, blocks with deltas, stop reason with all usage, and stop; each event has its name."""
    answer = client.post("/v1/messages", json={"stream": True})
    events = decode_events(answer)
    assert [line[7:] for line in answer.text.splitlines() if line.startswith("event: ")] == [
        event["type"] for event in events
    ]
    kinds = [event["type"] for event in events if event["type"] not in ("content_block_delta", "ping")]
    assert kinds == [
        "message_start",
        *["content_block_start", "content_block_stop"] * 3,
        "message_delta",
        "message_stop",
    ]
    assert events[0]["message"]["usage"]["cache_read_input_tokens"] == 30
    assert events[-2]["usage"]["output_tokens"] == 50
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta.get("text", "") for delta in deltas) == parrot.text
    assert json.loads("".join(delta.get("partial_json", "") for delta in deltas)) == {"path": "a.txt", "n": [1, 2]}
    assert [delta["signature"] for delta in deltas if delta["type"] == "signature_delta"] == ["c2VhbA=="]


@pytest.mark.parametrize(
    ("options", "has_usage"), [({"include_usage": True}, True), ({"include_usage": False}, False), (None, False)]
)
def test_chat_stream_has_usage_only_with_include_usage(client, options, has_usage):
    """The usage chunk is the last one and has no choices."""
    body = {"stream": True, "stream_options": options}
    answer = client.post("/v1/chat/completions", json=body)
    events = decode_events(answer)
    assert answer.text.endswith("data: [DONE]\n\n")
    assert [chunk["choices"][0]["finish_reason"] for chunk in events if chunk["choices"]][-1] == "tool_calls"
    assert (events[-1].get("usage") or {}).get("prompt_tokens") == (150 if has_usage else None)
    assert (events[-1]["choices"] == []) == has_usage


def test_responses_stream_numbers_its_events_and_ends_with_the_response(client):
    """Events are numbered from 0 without a gap, and the last one holds the complete response."""
    events = decode_events(client.post("/v1/responses", json={"stream": True}))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    response = events[-1]["response"]
    assert (events[-1]["type"], response["status"], len(response["output"])) == ("response.completed", "completed", 3)
    done_items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done_items == response["output"]
    plain = client.post("/v1/responses", json={}).json()
    assert plain == response


def test_gemini_stream_is_a_json_array_unless_alt_is_sse(parrot, client):
    """With ``alt=sse`` the same chunks come as events."""
    path = "/v1beta/models/m:streamGenerateContent"
    answer = client.post(path, json={})
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.json() == decode_events(client.post(f"{path}?alt=sse", json={}))
    parts = [part for chunk in answer.json() for part in chunk["candidates"][0]["content"]["parts"]]
    assert "".join(part.get("text", "") for part in parts if not part.get("thought")) == parrot.text
    assert ["thoughtSignature" in part for part in parts if part.get("thought")] == [False, False, True]
    assert parts[-1]["functionCall"] == {"id": "call_1", "name": "read", "args": {"path": "a.txt", "n": [1, 2]}}
    finish_reasons = [chunk["candidates"][0].get("finishReason") for chunk in answer.json()]
    assert finish_reasons == [*[None] * (len(finish_reasons) - 1), "STOP"]


def test_count_and_compact_endpoints_have_the_shape_of_their_api(client):
    """Each API has its own shape of a count, and a compaction is a ``response.compaction``."""
    assert client.post("/v1/messages/count_tokens").json() == {"input_tokens": 42}
    assert client.post("/v1/responses/input_tokens").json() == {"object": "response.input_tokens", "input_tokens": 42}
    assert client.post("/v1beta/models/m:countTokens").json() == {"totalTokens": 42}
    compacted = client.post("/v1/responses/compact").json()
    assert (compacted["object"], compacted["output"][0]["type"]) == ("response.compaction", "compaction")
    assert compacted["usage"]["input_tokens"] == 12


def test_encode_answer_keeps_the_raw_bytes_of_a_part():
    """A part with raw bytes is sent with them, also where a stream sends it in one piece."""
    block = Raw(b'{"type":"compaction", "content":"S","encrypted_content":"E"}')
    model_answer = ModelAnswer(
        "msg_1", "m", (Opaque("compaction", block),), "compaction", TokenUse(0, 0), TokenUse(50, 9)
    )
    request = IncomingRequest("anthropic", "generate", b"{}")
    body = API_ENCODERS["anthropic"].encode_answer(request, model_answer)
    assert body["content"] == [block]
    assert body["usage"]["iterations"][0]["output_tokens"] == 9
    stream = b"".join(API_ENCODERS["anthropic"].encode_stream(request, model_answer).events)
    assert b'"delta":{"type":"compaction_delta","content":"S","encrypted_content":"E"}' in stream


def test_encode_answer_lists_dropped_thinking():
    """Thinking that the model does not read is listed in each API's fields."""
    model_answer = ModelAnswer(
        "x_1", "m", (Text("a"),), "end", TokenUse(1, 1), dropped_blocks=(("messages.1.content.0", "prefix_mismatch"),)
    )
    bodies = {
        api: API_ENCODERS[api].encode_answer(IncomingRequest(api, "generate", b"{}"), model_answer)
        for api in ("anthropic", "openai-responses")
    }
    assert bodies["anthropic"]["input_transformations"][0]["reason"] == "prefix_binding_mismatch"
    assert bodies["openai-responses"]["input_transformations"][0]["reason"] == "prefix_mismatch"


def test_encode_answer_of_a_cut_response_is_incomplete():
    """The response has the reason, and the stream ends with the event ``response.incomplete``."""
    model_answer, request = (
        ModelAnswer("resp_1", "m", (Text("a"),), "length", TokenUse(1, 1)),
        IncomingRequest("openai-responses", "generate", b""),
    )
    body = API_ENCODERS["openai-responses"].encode_answer(request, model_answer)
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (
        API_ENCODERS["openai-responses"]
        .encode_stream(request, model_answer)
        .events[-1]
        .startswith(b"event: response.incomplete\n")
    )


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses", "anthropic", "gemini"])
@pytest.mark.parametrize("stop", ["end", "tool", "length", "window", "refusal", "compaction"])
def test_encode_answer_maps_each_stop_reason_to_the_api(api, stop):
    """An answer and its stream end with one of the API's own reasons."""
    known = {
        "anthropic": {"end_turn", "tool_use", "max_tokens", "model_context_window_exceeded", "refusal", "compaction"},
        "openai-chat": {"stop", "length", "tool_calls"},
        "openai-responses": {"completed", "incomplete"},
        "gemini": {"STOP", "MAX_TOKENS", "SAFETY"},
    }[api]
    model_answer, request = (
        ModelAnswer("x_1", "m", (Text("a"),), stop, TokenUse(1, 1)),
        IncomingRequest(api, "generate", b"{}"),
    )
    body = API_ENCODERS[api].encode_answer(request, model_answer)
    inner = (body.get("choices") or body.get("candidates") or [body])[0]
    reasons = {inner.get(key) for key in ("stop_reason", "finish_reason", "status", "finishReason")} - {None}
    assert reasons <= known
    assert len(reasons) == 1
    assert (
        reasons.pop().encode()
        in API_ENCODERS[api]
        .encode_stream(request, model_answer)
        .events[-API_ENCODERS[api].encode_stream(request, model_answer).closing_events]
    )


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("api", "path"), PATHS.items())
def test_refusal_has_the_status_code_and_shape_of_its_api(parrot, client, api, path):
    """A refusal has the provider's code and message in the API's shape, and a request id in a header."""
    parrot.refusal = RefusalReply(400, "some_code", "no and no", details={"param": "input"})
    answer = client.post(path, json={})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["message"] == "no and no"
    assert "some_code" in error.values()
    assert answer.headers["request-id" if api == "anthropic" else "x-request-id"].startswith("req_")
    if api == "anthropic":
        assert answer.json()["request_id"] == answer.headers["request-id"]


def test_refusal_with_a_body_of_its_own_is_sent_as_it_is(parrot, client):
    """The content type is derived from the body."""
    for body, mime in (
        (b'{"a":1}', "application/json"),
        (b"<html>", "text/html"),
        (b"no", "text/plain; charset=utf-8"),
    ):
        parrot.refusal = RefusalReply(400, "", "", body=body)
        answer = client.post("/v1/chat/completions", json={})
        assert (answer.content, answer.headers["content-type"]) == (body, mime)


@pytest.mark.parametrize(("api", "path"), PATHS.items())
def test_refusal_in_a_stream_is_an_event_after_status_200(parrot, client, api, path):
    """A client that did not ask for a stream gets the status instead."""
    parrot.refusal = RefusalReply(400, "some_code", "too long", in_stream=True)
    path = path.replace("generateContent", "streamGenerateContent?alt=sse")
    answer = client.post(path, json={"stream": True})
    assert answer.status_code == 200
    last = decode_events(answer)[-1]
    error = last["response"]["error"] if api == "openai-responses" else last["error"]
    assert error["message"] == "too long"
    if api == "openai-responses":
        assert [event["type"] for event in decode_events(answer)] == [
            "response.created",
            "response.in_progress",
            "response.failed",
        ]
    if api != "gemini":
        assert client.post(path, json={}).status_code == 400


# -- reports -----------------------------------------------------------------------------------------------------------


def test_server_reports_each_request():
    """A report has the API, the tokens and the outcome, also for model lists and unknown paths."""
    reports: list[RequestReport] = []
    body = {"model": "claude-opus-5", "max_tokens": 10, "messages": [{"role": "user", "content": "hello"}]}
    with (
        serve_provider(Provider(ProviderSettings(window=1_000)), on_request=reports.append) as url,
        httpx2.Client(base_url=url) as client,
    ):
        client.post("/v1/messages", json=body)
        client.post("/v1/messages", json=body | {"messages": [{"role": "user", "content": "kelp " * 3_000}]})
        client.post("/v1/messages/count_tokens", json=body)
        client.get("/v1/models")
        client.get("/v1/nothing")
    assert [(report.method, report.status) for report in reports] == [
        ("POST", 200),
        ("POST", 400),
        ("POST", 200),
        ("GET", 200),
        ("GET", 404),
    ]
    assert (reports[0].verdict, reports[0].cached, reports[2].verdict) == ("end", 0, "counted")
    assert reports[1].tokens > 1_000 > reports[0].tokens > 0
    assert (reports[1].verdict, reports[3].tokens) == ("invalid_request_error", None)
    assert [report.verdict for report in reports[3:]] == ["ok", "refused"]
