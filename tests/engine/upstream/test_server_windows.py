"""Local servers are asked for their window beside the first request; no request waits for the answer or fails by it."""

from __future__ import annotations

import json
import time

import anyio
import httpx2
import pytest
from sample_entries import SAMPLE_KEY

from holdfast import events
from holdfast.config import get_target
from holdfast.engine.engine import Engine
from holdfast.engine.upstream.server_windows import ASK_TIMEOUT, is_local_url
from holdfast.engine.upstream.upstream import HttpUpstream
from holdfast.errors import ContextOverflow
from holdfast.store.memory import MemoryStore

MODEL = "house-7b"


class LocalServer(httpx2.AsyncBaseTransport):
    """A Chat Completions server with the addresses of one kind of local server; it refuses questions with a key."""

    def __init__(self, answers, *, delay=0.0, window=1_000_000):
        self.answers, self.delay, self.window = answers, delay, window
        self.asked, self.chats = [], 0

    async def handle_async_request(self, request):
        body = await request.aread()
        path = request.url.path
        if path == "/v1/chat/completions":
            self.chats += 1
            return self._chat(body)
        self.asked.append((request.method, path))
        assert "authorization" not in request.headers
        assert "cookie" not in request.headers
        await anyio.sleep(self.delay)
        answer = self.answers.get(path)
        if callable(answer):
            answer = answer(body)
        if answer is None:
            return httpx2.Response(404, json={"error": "not found"})
        return httpx2.Response(200, content=answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    def _chat(self, body):
        tokens = len(body) // 4
        if tokens > self.window:
            message = f"request ({tokens} tokens) exceeds the available context size ({self.window} tokens)"
            error = {"code": 400, "message": message, "type": "exceed_context_size_error"}
            return httpx2.Response(400, json={"error": error})
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "fine"}}
        usage = {"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1}
        return httpx2.Response(200, json={"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage})


def run_session(server, *texts, url="http://127.0.0.1:8080/v1", target=None, pause=0.05):
    """Ask ``texts`` of ``server`` with a pause after each; return the windows they were planned for, and the events."""
    seen = []

    async def scenario():
        async with (
            HttpUpstream(url, "openai-chat", {"authorization": "Bearer sk-x"}, transport=server) as upstream,
            Engine.open(
                MemoryStore(),
                upstream=upstream,
                target=target or get_target("openai-chat", MODEL),
                listen=seen.append,
            ) as engine,
        ):
            session = await engine.session(SAMPLE_KEY)
            for text in texts:
                async with session.run(text, stream=False) as run:
                    async for _ in run:
                        pass
                await anyio.sleep(pause)

    anyio.run(scenario)
    windows = [event.window for event in seen if isinstance(event, events.RequestStarted)]
    notices = [event.why for event in seen if isinstance(event, events.NoticeGiven) and event.rule == "window"]
    return windows, notices


LLAMA = {"/props": {"default_generation_settings": {"n_ctx": 32_768}}}
OLLAMA = {"/api/ps": {"models": [{"name": MODEL, "context_length": 32_768}]}}
SHOWN = {"/api/ps": {"models": []}, "/api/show": {"parameters": "num_ctx 32768"}}
STUDIO = {"models": [{"key": MODEL, "loaded_instances": [{"id": MODEL, "config": {"context_length": 32_768}}]}]}
VLLM = {"/v1/models": {"object": "list", "data": [{"id": MODEL, "max_model_len": 32_768}]}}


@pytest.mark.parametrize(
    "answers",
    [LLAMA, OLLAMA, SHOWN, {"/api/v1/models": STUDIO}, VLLM],
    ids=["llama.cpp", "ollama", "ollama not loaded", "lm studio", "vllm"],
)
def test_stated_window_is_used_from_the_next_request_on(answers):
    """The first request goes out without waiting; the ones after it are planned for what the server said, told once."""
    server = LocalServer(answers)
    windows, notices = run_session(server, "hi", "and", "now")
    assert windows == [200_000, 32_768, 32_768]
    (notice,) = notices
    assert "32,768" in notice
    assert server.chats == 3
    assert len(server.asked) == len(set(server.asked))


def test_slow_server_delays_no_request():
    """A server that does not answer the question is asked in the background, and the requests go on."""
    server = LocalServer(LLAMA, delay=60)
    started = time.monotonic()
    windows, notices = run_session(server, "hi", "and", pause=0)
    assert (windows, notices) == ([200_000] * 2, [])
    assert time.monotonic() - started < ASK_TIMEOUT


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b'"x"', b"\xff", b"{", b'{"default_generation_settings":3}'])
def test_strange_answers_teach_nothing(answer):
    """Whatever comes back, requests are planned as without it."""
    server = LocalServer(dict.fromkeys(["/props", "/api/ps", "/v1/models", "/api/v1/models", "/api/show"], answer))
    assert run_session(server, "hi", "and") == ([200_000] * 2, [])


def test_model_loaded_by_the_first_request_is_asked_about_again():
    """A server that knew nothing before the first answer is asked once more after it, and then no more."""
    server = LocalServer({})
    server.answers["/api/ps"] = lambda _: OLLAMA["/api/ps"] if server.chats else {"models": []}
    windows, notices = run_session(server, "hi", "and", "now")
    assert windows == [200_000, 32_768, 32_768]
    assert len(notices) == 1
    empty = LocalServer({})
    run_session(empty, "hi", "and", "now", "then")
    assert empty.asked.count(("GET", "/api/ps")) == 2


def test_upper_bound_lowers_the_window_and_is_no_news():
    """A trained length is not the window, but nothing larger can be."""
    shown = {"model_info": {"general.architecture": "q", "q.context_length": 40_960}}
    assert run_session(LocalServer({"/api/show": shown}), "hi", "and") == ([200_000, 40_960], [])


def test_configured_window_is_kept():
    """Who set a window knows better, also if the server has a larger or a smaller one."""
    target = get_target("openai-chat", MODEL, window=20_000)
    assert run_session(LocalServer(LLAMA), "hi", "and", target=target)[0] == [20_000] * 2


def test_overflow_that_disagrees_asks_again():
    """A refusal with another number than the stated one makes the server asked again; the learned limit counts."""
    server = LocalServer(LLAMA, window=9_000)
    words = " ".join(f"word{number}" for number in range(1_200))
    windows, notices = run_session(server, "hi", words, words, words, words, words)
    assert windows[:2] == [200_000, 32_768]
    assert windows[-1] == 9_000
    assert server.asked.count(("GET", "/props")) == 2
    assert len(notices) == 1


@pytest.mark.parametrize(
    ("url", "is_local"),
    [
        *((url, True) for url in ("http://localhost:1", "http://127.0.0.1", "http://[::1]:8", "http://192.168.0.7")),
        *((url, True) for url in ("http://10.1.2.3:11434/v1", "http://host.docker.internal", "http://a.localhost")),
        *((url, False) for url in ("https://api.openai.com", "http://8.8.8.8", "http://house", "", "http://[x")),
    ],
)
def test_is_local_url_knows_this_machine_and_private_networks(url, is_local):
    """Only these are asked: a public server would be asked for what it never offered."""
    assert is_local_url(url) is is_local


def test_public_server_is_never_asked():
    """A provider is not asked, whatever it might answer."""
    server = LocalServer(LLAMA)
    assert run_session(server, "hi", "and", url="http://93.184.216.34/v1")[0] == [200_000] * 2
    assert server.asked == []


def test_overflow_error_is_not_hidden_by_the_question():
    """The session ends as without the question if nothing fits."""
    server = LocalServer(LLAMA, window=10)
    with pytest.raises(ContextOverflow):
        run_session(server, "hi " * 400)
