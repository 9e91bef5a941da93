"""Faults: their names and stages, the steps of a faulty answer, and what a client sees on the wire."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import suppress
from math import inf

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.messages.parts import Text, ToolCall
from holdfast.testing.provider.calls import ModelAnswer, TokenCountReply, TokenUse
from holdfast.testing.provider.faults.faults import (
    FAULT_KINDS,
    FAULT_STAGES,
    Fault,
    complete_fault,
    find_due_fault,
    parse_fault,
)
from holdfast.testing.provider.server.answer_steps import (
    DRIP_BYTES,
    GARBAGE_BYTES,
    INVALID_UTF8,
    TLS_ALERT,
    CloseStep,
    HeadStep,
    OutgoingResponse,
    WaitStep,
    plan_server_steps,
)
from holdfast.testing.provider.server.local_server import serve_provider
from holdfast.testing.provider.settings import ProviderSettings

PATHS = {
    "anthropic": "/v1/messages",
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "gemini": "/v1beta/models/m:streamGenerateContent?alt=sse",
}
END_MARKS = {
    "anthropic": b"message_stop",
    "openai-chat": b"[DONE]",
    "openai-responses": b"response.completed",
    "gemini": b"finishReason",
}
WORDS = "Tides move the kelp; the holdfast stays. 海藻 äöü"


class FixedProvider:
    """A provider that always gives the same text and one call."""

    settings, requests = ProviderSettings(), ()

    def answer(self, request):
        if request.endpoint == "count":
            return TokenCountReply(7)
        parts = (Text(WORDS), ToolCall("call_1", "read", '{"path":"a.txt"}'))
        return ModelAnswer("msg_1", "m", parts, "tool", TokenUse(10, 5))


@pytest.fixture(scope="module")
def client():
    """Return one client for all tests, because making one costs more than a request."""
    with httpx2.Client(timeout=60) as http_client:
        yield http_client


@pytest.fixture
def post(client):
    """Return a function that asks for a streamed answer."""

    def ask(url: str, api: str, **more) -> httpx2.Response:
        return client.post(f"{url}{PATHS[api]}", json={"model": "m", "stream": True}, **more)

    return ask


# -- names and stages --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("reset", Fault("reset", "middle", 1)),
        ("cut:end", Fault("cut", "end", 1)),
        ("429:head:3:7", Fault("429", "head", 3, 7)),
        ("429", Fault("429", "head", 1, 1)),
        ("429-tokens", Fault("429-tokens", "head", 1)),
        ("drip::0", Fault("drip", "first", 0, 0.01)),
        ("stall:first::2.5", Fault("stall", "first", 1, 2.5)),
        ("stall", Fault("stall", "middle", 1, inf)),
    ],
)
def test_parse_fault_reads_kind_stage_number_and_seconds(text, fault):
    """A fault is ``kind[:stage][:at][:seconds]``; omitted parts have the kind's defaults."""
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rest", "no fault is called 'rest'; give one of reset"),
        ("reset:soon", "no stage is called 'soon'; give one of body, head"),
        ("reset:middle:x", "no fault; give kind"),
        ("429:middle", "cannot strike at 'middle': a status is told before the answer begins"),
        ("garbage:head", "it can at middle, first, end"),
        ("", "no fault"),
        ("stall:middle:1:2:3", "no fault"),
    ],
)
def test_parse_fault_rejects_unknown_and_impossible_faults(text, message):
    """The error names the possible values."""
    with pytest.raises(ConfigError, match=message):
        parse_fault(text)


@pytest.mark.parametrize(
    ("trouble", "text"),
    [
        ("reset while the request is sent", "reset:body"),
        ("reset in mid stream", "reset:middle"),
        ("broken protocol", "protocol"),
        ("no byte until the client gives up", "stall:head"),
        ("a stall in mid stream", "stall:middle"),
        ("a stream cut without its end", "cut:end"),
        ("a stream that ends politely without its end", "unfinished:end"),
        ("an overflow in foreign words", "400-foreign"),
        ("a key that was rotated", "401"),
        ("an address that is away", "404"),
        ("413 in HTML", "413-html"),
        ("413 without a body", "413-empty"),
        ("429 with retry-after", "429:head:1:30"),
        ("429 without, about tokens", "429-tokens"),
        ("429 that no waiting helps", "429-overflow"),
        ("502 in HTML", "502-html"),
        ("overloaded", "529"),
        ("an error event after 200", "error"),
        ("an empty answer", "empty"),
        ("an unknown block and stop reason", "unknown"),
        ("garbage in the stream", "garbage"),
        ("broken UTF-8 in the stream", "utf8"),
        ("a slow drip", "drip"),
        ("408, 409 and 422", "408 409 422"),
    ],
)
def test_fault_kinds_cover_the_reported_troubles(trouble, text):
    """Every trouble that clients of real providers report has a fault."""
    assert all(parse_fault(name).kind in FAULT_KINDS for name in text.split()), trouble


def test_parse_fault_accepts_the_stages_of_each_kind_only():
    """Every stage belongs to some kind."""
    for kind, fault_kind in FAULT_KINDS.items():
        for stage in FAULT_STAGES:
            if stage in fault_kind.stages:
                assert parse_fault(f"{kind}:{stage}").stage == stage
            else:
                with pytest.raises(ConfigError, match="cannot strike"):
                    parse_fault(f"{kind}:{stage}")
    assert {stage for fault_kind in FAULT_KINDS.values() for stage in fault_kind.stages} == set(FAULT_STAGES)


def test_find_due_fault_selects_by_request_number():
    """Number 0 means every request, and the first fault that fits is used."""
    faults = [Fault("cut", at=2), Fault("reset", at=0)]
    assert [find_due_fault(faults, number).kind for number in (1, 2, 3)] == ["reset", "cut", "reset"]
    assert find_due_fault([], 1) is None


# -- steps -------------------------------------------------------------------------------------------------------------

answers = st.lists(st.binary(min_size=1, max_size=30), max_size=8).flatmap(
    lambda pieces: st.builds(
        OutgoingResponse,
        st.just(200),
        st.just({}),
        st.just(tuple(pieces)),
        st.integers(1, 3),
        is_stream=st.booleans(),
    )
)
kinds_and_stages = st.sampled_from(
    [(kind, stage) for kind, fault_kind in FAULT_KINDS.items() for stage in fault_kind.stages if stage != "body"]
)


def join_bytes(steps) -> bytes:
    return b"".join(step for step in steps if isinstance(step, bytes))


@given(answers)
def test_plan_server_steps_without_a_fault_sends_the_whole_answer(response):
    """The steps are the head and all pieces."""
    length = {} if response.is_stream else {"content-length": str(len(b"".join(response.pieces)))}
    assert plan_server_steps(response) == [HeadStep(200, length), *response.pieces]


@given(answers, kinds_and_stages)
def test_plan_server_steps_sends_the_answer_up_to_the_fault(response, kind_and_stage):
    """Up to the fault a client gets the answer's own bytes, and waiting changes none of them."""
    kind, stage = kind_and_stage
    full_body, steps = (
        join_bytes(plan_server_steps(response)),
        plan_server_steps(response, complete_fault(Fault(kind, stage)), lambda _: (b"late",)),
    )
    if FAULT_KINDS[kind].group == "status" or kind in ("stall", "drip", "empty", "unknown"):
        assert join_bytes(steps) == full_body
    elif kind in ("garbage", "utf8"):
        mark = GARBAGE_BYTES if kind == "garbage" else INVALID_UTF8
        assert len(join_bytes(steps)) == len(full_body) + len(mark)
        assert mark in join_bytes(steps)
    else:
        assert full_body.startswith(join_bytes(steps).removesuffix(b"late"))


@given(answers, st.sampled_from(["first", "middle", "end"]))
def test_plan_server_steps_sends_the_closing_events_after_every_stage(response, stage):
    """At each stage the closing events are still to come, and the stages follow each other."""
    sent = {
        name: len(join_bytes(plan_server_steps(response, complete_fault(Fault("cut", name)))))
        for name in ("first", "middle", "end")
    }
    closing = sum(map(len, response.pieces[-response.closing :]))
    assert sent["first"] == 0
    assert sent["end"] == max(0, len(b"".join(response.pieces)) - closing)
    assert sent[stage] <= max(sent["middle"], sent["end"])


def test_plan_server_steps_of_a_drip_sends_small_pieces_with_pauses():
    """Each piece is smaller than an event."""
    response = OutgoingResponse(200, {}, (b"data: 0123456789\n\n",), is_stream=True)
    steps = plan_server_steps(response, complete_fault(Fault("drip", seconds=3)))
    assert steps[1:3] == [b"data: 0", WaitStep(3)]
    assert max(len(step) for step in steps if isinstance(step, bytes)) == DRIP_BYTES


def test_plan_server_steps_of_a_reset_or_cut_ends_with_a_close():
    """Nothing is sent after the connection is closed."""
    response = OutgoingResponse(200, {}, (b"a", b"b"), is_stream=True)
    assert plan_server_steps(response, complete_fault(Fault("reset")))[-1] == CloseStep(reset=True)
    assert plan_server_steps(response, complete_fault(Fault("cut", "head"))) == [CloseStep()]


# -- on the wire: statuses ---------------------------------------------------------------------------------------------

STATUSES = [kind for kind, fault_kind in FAULT_KINDS.items() if fault_kind.group == "status"]


@pytest.mark.parametrize("api", PATHS)
def test_status_fault_has_its_number_and_the_shape_of_its_api(post, api):
    """A status comes in the API's shape, or as a proxy in between sends it."""
    faults = [Fault(kind, at=number) for number, kind in enumerate(STATUSES, 1)]
    with serve_provider(FixedProvider(), faults) as url:
        answers_by_kind = {kind: post(url, api) for kind in STATUSES}
        assert post(url, api).status_code == 200
    for kind, answer in answers_by_kind.items():
        expected = 503 if kind == "529" and api != "anthropic" else int(kind[:3])
        assert answer.status_code == expected, kind
        if kind.endswith("-html"):
            assert answer.text.startswith("<html>"), kind
            assert answer.headers["content-type"] == "text/html"
        elif kind == "413-empty":
            assert answer.content == b""
        else:
            assert answer.json()["error"]["message"], kind
    assert "exceed_context_size_error" in answers_by_kind["400-foreign"].text
    assert (
        "too long" in answers_by_kind["400-overflow"].text
        or "exceeds" in answers_by_kind["400-overflow"].text
        or api[:6] == "openai"
    )


def test_429_fault_gives_the_retry_delay_as_its_api_does(post):
    """``429-tokens`` gives no delay."""
    faults = [Fault("429", at=1, seconds=1.5), Fault("429", at=2, seconds=1.5), Fault("429", at=3, seconds=1.5)]
    with serve_provider(FixedProvider(), [*faults, Fault("429-tokens", at=4)]) as url:
        first, second, third, fourth = (
            post(url, api) for api in ("anthropic", "openai-chat", "gemini", "openai-responses")
        )
    assert (first.headers["retry-after"], first.headers["x-should-retry"]) == ("2", "true")
    assert (second.headers["retry-after"], second.headers["retry-after-ms"]) == ("2", "1500")
    assert third.json()["error"]["details"][0]["retryDelay"] == "1.5s"
    assert "retry-after" not in fourth.headers
    assert fourth.json()["error"]["type"] == "tokens"


# -- on the wire: connections ------------------------------------------------------------------------------------------


def read_raw_response(url: str, path: str = "/v1/messages", body: bytes = b'{"stream":true}') -> bytes:
    """Send one request over a socket and return all bytes received; errors of the socket are raised."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        received = bytearray()
        while chunk := connection.recv(65536):
            received += chunk
        return bytes(received)


@pytest.mark.parametrize("stage", ["body", "head", "first", "middle", "end"])
def test_reset_and_cut_faults_end_the_connection_at_their_stage(stage):
    """A reset resets the socket, and a cut ends the response early."""
    with serve_provider(FixedProvider(), [Fault("reset", stage, 1), Fault("cut", stage, 2)]) as url:
        with pytest.raises(ConnectionResetError):
            read_raw_response(url)
        try:
            received = read_raw_response(url)
        except ConnectionResetError:  # bytes of the request that nobody read turn a close into a reset
            assert stage == "body"
            return
    assert (b"HTTP/1.1 200" in received) == (stage not in ("body", "head"))
    assert (b"message_start" in received) == (stage in ("middle", "end"))
    assert b"message_stop" not in received
    assert b"\r\n0\r\n" not in received


@pytest.mark.parametrize("stage", ["body", "head", "first", "middle", "end"])
def test_stall_fault_lasts_until_the_client_times_out(post, stage):
    """A stall of some seconds continues after them."""
    with serve_provider(FixedProvider(), [Fault("stall", stage, 1), Fault("stall", stage, 2, 0.05)]) as url:
        with pytest.raises(httpx2.ReadTimeout):
            post(url, "anthropic", timeout=httpx2.Timeout(60, read=0.15))
        started_at = time.monotonic()
        assert b"message_stop" in read_raw_response(url)
        assert time.monotonic() - started_at >= 0.05


def test_serve_provider_ends_with_stalled_answers():
    """The end of the block ends the server, its thread and its connections, even endlessly waiting ones."""
    with serve_provider(FixedProvider(), [Fault("stall", "middle", 1), Fault("stall", "body", 2)]) as url:
        host, port = url.removeprefix("http://").split(":")
        connections = [socket.create_connection((host, int(port)), timeout=60) for _ in range(3)]
        for connection in connections[:2]:
            connection.sendall(b'POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 15\r\n\r\n{"stream":true}')
        assert connections[0].recv(1)
    for connection in connections:
        connection.close()
    assert [thread for thread in threading.enumerate() if thread.name == "holdfast-provider"] == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=60)


def test_serve_provider_ends_when_its_start_times_out(monkeypatch):
    """The thread of a server that did not start in time ends as soon as it has started."""
    monkeypatch.setattr("holdfast.testing.provider.server.local_server.START_TIMEOUT", 0)
    with suppress(OSError), serve_provider(FixedProvider()):
        pass
    assert [thread for thread in threading.enumerate() if thread.name == "holdfast-provider"] == []


def test_protocol_fault_answers_with_bytes_that_are_no_http(post):
    """The client gets a TLS alert instead of an HTTP response."""
    with serve_provider(FixedProvider(), [Fault("protocol", at=0)]) as url:
        assert read_raw_response(url) == TLS_ALERT
        with pytest.raises(httpx2.RemoteProtocolError):
            post(url, "anthropic")


# -- on the wire: contents ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", PATHS)
def test_content_faults_come_with_status_200(post, api):
    """Each content fault changes a streamed answer as its description says."""
    kinds = ["unfinished", "error", "garbage", "utf8", "empty", "blank", "unknown", "drip"]
    with serve_provider(
        FixedProvider(), [Fault(kind, at=number, seconds=0) for number, kind in enumerate(kinds, 1)]
    ) as url:
        answers_by_kind = {kind: post(url, api) for kind in kinds}
        full_body = post(url, api).content
    assert {answer.status_code for answer in answers_by_kind.values()} == {200}
    content_by_kind = {kind: answer.content for kind, answer in answers_by_kind.items()}
    assert full_body.startswith(content_by_kind["unfinished"])
    assert END_MARKS[api] in full_body
    assert END_MARKS[api] not in content_by_kind["unfinished"] + content_by_kind["error"]
    assert b"verload" in content_by_kind["error"]
    assert GARBAGE_BYTES in content_by_kind["garbage"]
    with pytest.raises(UnicodeDecodeError):
        content_by_kind["utf8"].decode()
    assert END_MARKS[api] in content_by_kind["empty"]
    assert "Tides" not in answers_by_kind["empty"].text
    assert content_by_kind["blank"] == b""
    assert b"tired" in content_by_kind["unknown"].lower()
    assert (b"hologram" in content_by_kind["unknown"]) == (api != "openai-chat")
    assert content_by_kind["drip"] == full_body


@pytest.mark.parametrize("api", PATHS)
def test_content_faults_apply_to_answers_without_a_stream(client, api):
    """A whole answer can be cut, corrupted or dripped, or be replaced by an error."""
    kinds = ["unfinished", "error", "garbage", "utf8", "drip"]
    path = PATHS[api].replace("streamGenerateContent?alt=sse", "generateContent")
    with serve_provider(
        FixedProvider(), [Fault(kind, at=number, seconds=0) for number, kind in enumerate(kinds, 1)]
    ) as url:
        content_by_kind = {kind: client.post(f"{url}{path}", json={}).content for kind in kinds}
        full_body = client.post(f"{url}{path}", json={}).content
    assert full_body.startswith(content_by_kind["unfinished"])
    assert len(content_by_kind["unfinished"]) < len(full_body)
    assert json.loads(content_by_kind["error"])["error"]["message"]
    assert GARBAGE_BYTES in content_by_kind["garbage"]
    assert INVALID_UTF8 in content_by_kind["utf8"]
    assert content_by_kind["drip"] == full_body


def test_fault_numbers_count_answer_requests_only(client, post):
    """Counts and model lists in between do not shift a fault."""
    with serve_provider(FixedProvider(), [Fault("500", at=2)]) as url:
        statuses = [post(url, "anthropic").status_code]
        statuses.append(client.post(f"{url}/v1/messages/count_tokens", json={}).status_code)
        statuses.append(client.get(f"{url}/v1/models").status_code)
        statuses += [post(url, "openai-chat").status_code, post(url, "gemini").status_code]
    assert statuses == [200, 200, 200, 500, 200]
