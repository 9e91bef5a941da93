"""Faults: which there are, where they can strike, and what a client meets on the wire."""

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

ADDRESSES = {
    "anthropic": "/v1/messages",
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "gemini": "/v1beta/models/m:streamGenerateContent?alt=sse",
}
ENDS = {
    "anthropic": b"message_stop",
    "openai-chat": b"[DONE]",
    "openai-responses": b"response.completed",
    "gemini": b"finishReason",
}
WORDS = "Tides move the kelp; the holdfast stays. 海藻 äöü"


class Parrot:
    """Always the same words and one call."""

    settings, requests = ProviderSettings(), ()

    def answer(self, asked):
        if asked.endpoint == "count":
            return TokenCountReply(7)
        parts = (Text(WORDS), ToolCall("call_1", "read", '{"path":"a.txt"}'))
        return ModelAnswer("msg_1", "m", parts, "tool", TokenUse(10, 5))


@pytest.fixture(scope="module")
def client():
    """One client for all: making one costs more than a request."""
    with httpx2.Client(timeout=60) as one:
        yield one


@pytest.fixture
def post(client):
    """Ask for an answer in events."""

    def ask(url: str, api: str, **more) -> httpx2.Response:
        return client.post(f"{url}{ADDRESSES[api]}", json={"model": "m", "stream": True}, **more)

    return ask


# -- names and places --------------------------------------------------------------------------------------------------


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
def test_a_fault_is_written_in_a_few_words(text, fault):
    """A fault is ``kind[:stage][:at][:seconds]``; what is left out is what is usual for the kind."""
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
def test_a_fault_that_cannot_be_is_refused(text, message):
    """A word that is no fault is an error that names what there is."""
    with pytest.raises(ConfigError, match=message):
        parse_fault(text)


@pytest.mark.parametrize(
    ("met", "text"),
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
def test_what_clients_meet_can_be_had(met, text):
    """Every trouble that clients of real providers report has a fault."""
    assert all(parse_fault(one).kind in FAULT_KINDS for one in text.split()), met


def test_each_kind_has_its_places():
    """A kind strikes at each of its stages and at no other; all stages are those of some kind."""
    for kind, about in FAULT_KINDS.items():
        for stage in FAULT_STAGES:
            if stage in about.stages:
                assert parse_fault(f"{kind}:{stage}").stage == stage
            else:
                with pytest.raises(ConfigError, match="cannot strike"):
                    parse_fault(f"{kind}:{stage}")
    assert {stage for about in FAULT_KINDS.values() for stage in about.stages} == set(FAULT_STAGES)


def test_a_fault_strikes_its_own_request():
    """A fault strikes the request of its number, number 0 every one, and the first that fits is taken."""
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
strikes = st.sampled_from(
    [(kind, stage) for kind, about in FAULT_KINDS.items() for stage in about.stages if stage != "body"]
)


def body(found) -> bytes:
    return b"".join(step for step in found if isinstance(step, bytes))


@given(answers)
def test_without_a_fault_all_is_sent(spoken):
    """An answer that nothing strikes is its head and all its pieces."""
    length = {} if spoken.is_stream else {"content-length": str(len(b"".join(spoken.pieces)))}
    assert plan_server_steps(spoken) == [HeadStep(200, length), *spoken.pieces]


@given(answers, strikes)
def test_what_is_sent_before_a_fault_is_the_answer(spoken, strike):
    """Up to the place where a fault strikes, a client gets the answer's own bytes; waiting changes none of them."""
    kind, stage = strike
    whole, found = (
        body(plan_server_steps(spoken)),
        plan_server_steps(spoken, complete_fault(Fault(kind, stage)), lambda _: (b"late",)),
    )
    if FAULT_KINDS[kind].group == "status" or kind in ("stall", "drip", "empty", "unknown"):
        assert body(found) == whole
    elif kind in ("garbage", "utf8"):
        mark = GARBAGE_BYTES if kind == "garbage" else INVALID_UTF8
        assert len(body(found)) == len(whole) + len(mark)
        assert mark in body(found)
    else:
        assert whole.startswith(body(found).removesuffix(b"late"))


@given(answers, st.sampled_from(["first", "middle", "end"]))
def test_the_end_is_never_sent_before_the_stage_end(spoken, stage):
    """At every stage inside an answer the events that end it are still to come, and stages come in their order."""
    sent = {
        name: len(body(plan_server_steps(spoken, complete_fault(Fault("cut", name)))))
        for name in ("first", "middle", "end")
    }
    closing = sum(map(len, spoken.pieces[-spoken.closing :]))
    assert sent["first"] == 0
    assert sent["end"] == max(0, len(b"".join(spoken.pieces)) - closing)
    assert sent[stage] <= max(sent["middle"], sent["end"])


def test_a_drip_is_smaller_than_an_event():
    """A dripping answer comes in bites with a pause behind each."""
    spoken = OutgoingResponse(200, {}, (b"data: 0123456789\n\n",), is_stream=True)
    found = plan_server_steps(spoken, complete_fault(Fault("drip", seconds=3)))
    assert found[1:3] == [b"data: 0", WaitStep(3)]
    assert max(len(step) for step in found if isinstance(step, bytes)) == DRIP_BYTES


def test_a_reset_is_a_step_of_its_own():
    """A reset and a cut end the connection; nothing is sent behind them."""
    spoken = OutgoingResponse(200, {}, (b"a", b"b"), is_stream=True)
    assert plan_server_steps(spoken, complete_fault(Fault("reset")))[-1] == CloseStep(reset=True)
    assert plan_server_steps(spoken, complete_fault(Fault("cut", "head"))) == [CloseStep()]


# -- on the wire: statuses ---------------------------------------------------------------------------------------------

STATUSES = [kind for kind, about in FAULT_KINDS.items() if about.group == "status"]


@pytest.mark.parametrize("api", ADDRESSES)
def test_statuses(post, api):
    """Each status is told with its number, in the API's own shape or as the proxy in between tells it."""
    faults = [Fault(kind, at=number) for number, kind in enumerate(STATUSES, 1)]
    with serve_provider(Parrot(), faults) as url:
        found = {kind: post(url, api) for kind in STATUSES}
        assert post(url, api).status_code == 200
    for kind, answer in found.items():
        expected = 503 if kind == "529" and api != "anthropic" else int(kind[:3])
        assert answer.status_code == expected, kind
        if kind.endswith("-html"):
            assert answer.text.startswith("<html>"), kind
            assert answer.headers["content-type"] == "text/html"
        elif kind == "413-empty":
            assert answer.content == b""
        else:
            assert answer.json()["error"]["message"], kind
    assert "exceed_context_size_error" in found["400-foreign"].text
    assert "too long" in found["400-overflow"].text or "exceeds" in found["400-overflow"].text or api[:6] == "openai"


def test_when_to_come_again(post):
    """``429`` tells when to come again as its API does, ``429-tokens`` does not tell it."""
    faults = [Fault("429", at=1, seconds=1.5), Fault("429", at=2, seconds=1.5), Fault("429", at=3, seconds=1.5)]
    with serve_provider(Parrot(), [*faults, Fault("429-tokens", at=4)]) as url:
        first, second, third, fourth = (
            post(url, api) for api in ("anthropic", "openai-chat", "gemini", "openai-responses")
        )
    assert (first.headers["retry-after"], first.headers["x-should-retry"]) == ("2", "true")
    assert (second.headers["retry-after"], second.headers["retry-after-ms"]) == ("2", "1500")
    assert third.json()["error"]["details"][0]["retryDelay"] == "1.5s"
    assert "retry-after" not in fourth.headers
    assert fourth.json()["error"]["type"] == "tokens"


# -- on the wire: connections ------------------------------------------------------------------------------------------


def raw(url: str, path: str = "/v1/messages", body: bytes = b'{"stream":true}') -> bytes:
    """Return all that comes for one request, read from the socket; raises what the socket raises."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as line:
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        line.sendall(head.encode() + body)
        found = bytearray()
        while chunk := line.recv(65536):
            found += chunk
        return bytes(found)


@pytest.mark.parametrize("stage", ["body", "head", "first", "middle", "end"])
def test_a_reset_and_a_cut_end_the_connection(stage):
    """A reset is a reset of the socket and a cut an early end, each at its stage."""
    with serve_provider(Parrot(), [Fault("reset", stage, 1), Fault("cut", stage, 2)]) as url:
        with pytest.raises(ConnectionResetError):
            raw(url)
        try:
            found = raw(url)
        except ConnectionResetError:  # bytes of the request that nobody read turn a close into a reset
            assert stage == "body"
            return
    assert (b"HTTP/1.1 200" in found) == (stage not in ("body", "head"))
    assert (b"message_start" in found) == (stage in ("middle", "end"))
    assert b"message_stop" not in found
    assert b"\r\n0\r\n" not in found


@pytest.mark.parametrize("stage", ["body", "head", "first", "middle", "end"])
def test_a_stall_ends_with_the_client_patience(post, stage):
    """A stall lets a client wait until it gives up; a stall of some seconds goes on behind them."""
    with serve_provider(Parrot(), [Fault("stall", stage, 1), Fault("stall", stage, 2, 0.05)]) as url:
        with pytest.raises(httpx2.ReadTimeout):
            post(url, "anthropic", timeout=httpx2.Timeout(60, read=0.15))
        began = time.monotonic()
        assert b"message_stop" in raw(url)
        assert time.monotonic() - began >= 0.05


def test_a_server_ends_with_answers_that_stall():
    """The end of the block ends the server, its thread and its connections, even those that wait for ever."""
    with serve_provider(Parrot(), [Fault("stall", "middle", 1), Fault("stall", "body", 2)]) as url:
        host, port = url.removeprefix("http://").split(":")
        lines = [socket.create_connection((host, int(port)), timeout=60) for _ in range(3)]
        for line in lines[:2]:
            line.sendall(b'POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 15\r\n\r\n{"stream":true}')
        assert lines[0].recv(1)
    for line in lines:
        line.close()
    assert [thread for thread in threading.enumerate() if thread.name == "holdfast-provider"] == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=60)


def test_a_server_that_is_given_up_before_it_began_ends(monkeypatch):
    """Where it does not start in time that is said, and its thread ends as soon as it has started."""
    monkeypatch.setattr("holdfast.testing.provider.server.local_server.START_TIMEOUT", 0)
    with suppress(OSError), serve_provider(Parrot()):
        pass
    assert [thread for thread in threading.enumerate() if thread.name == "holdfast-provider"] == []


def test_what_is_no_http(post):
    """``protocol`` answers with bytes that are no HTTP."""
    with serve_provider(Parrot(), [Fault("protocol", at=0)]) as url:
        assert raw(url) == TLS_ALERT
        with pytest.raises(httpx2.RemoteProtocolError):
            post(url, "anthropic")


# -- on the wire: contents ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ADDRESSES)
def test_contents(post, api):
    """Faults of the content come under HTTP 200, and each is what its line says."""
    kinds = ["unfinished", "error", "garbage", "utf8", "empty", "blank", "unknown", "drip"]
    with serve_provider(Parrot(), [Fault(kind, at=number, seconds=0) for number, kind in enumerate(kinds, 1)]) as url:
        found = {kind: post(url, api) for kind in kinds}
        whole = post(url, api).content
    assert {answer.status_code for answer in found.values()} == {200}
    held = {kind: answer.content for kind, answer in found.items()}
    assert whole.startswith(held["unfinished"])
    assert ENDS[api] in whole
    assert ENDS[api] not in held["unfinished"] + held["error"]
    assert b"verload" in held["error"]
    assert GARBAGE_BYTES in held["garbage"]
    with pytest.raises(UnicodeDecodeError):
        held["utf8"].decode()
    assert ENDS[api] in held["empty"]
    assert "Tides" not in found["empty"].text
    assert held["blank"] == b""
    assert b"tired" in held["unknown"].lower()
    assert (b"hologram" in held["unknown"]) == (api != "openai-chat")
    assert held["drip"] == whole


@pytest.mark.parametrize("api", ADDRESSES)
def test_faults_strike_documents_too(client, api):
    """An answer in one document can be cut, broken and dripped, and an error can stand in its place."""
    kinds = ["unfinished", "error", "garbage", "utf8", "drip"]
    path = ADDRESSES[api].replace("streamGenerateContent?alt=sse", "generateContent")
    with serve_provider(Parrot(), [Fault(kind, at=number, seconds=0) for number, kind in enumerate(kinds, 1)]) as url:
        found = {kind: client.post(f"{url}{path}", json={}).content for kind in kinds}
        whole = client.post(f"{url}{path}", json={}).content
    assert whole.startswith(found["unfinished"])
    assert len(found["unfinished"]) < len(whole)
    assert json.loads(found["error"])["error"]["message"]
    assert GARBAGE_BYTES in found["garbage"]
    assert INVALID_UTF8 in found["utf8"]
    assert found["drip"] == whole


def test_counts_are_not_numbered(client, post):
    """Only requests for an answer are numbered: counts and lists of models between them move no fault."""
    with serve_provider(Parrot(), [Fault("500", at=2)]) as url:
        found = [post(url, "anthropic").status_code]
        found.append(client.post(f"{url}/v1/messages/count_tokens", json={}).status_code)
        found.append(client.get(f"{url}/v1/models").status_code)
        found += [post(url, "openai-chat").status_code, post(url, "gemini").status_code]
    assert found == [200, 200, 200, 500, 200]
