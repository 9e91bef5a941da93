"""SIGKILL of the proxy in the middle of a session: a new proxy sends what the old one would have sent."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from random import Random

import example_counts
import pytest

from holdfast.testing.provider import Provider, ProviderSettings, ScriptedAnswer
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.provider.server.local_server import serve_provider

WINDOW = 16_000
TURNS = 24
KILLS = example_counts.choose(quick=2, ci=3, thorough=20)
TEXT = "kelp on the rock, and the tide comes in. " * 110


class RecordingProvider(Provider):
    """A provider that keeps the request bodies."""

    def __init__(self) -> None:
        super().__init__(ProviderSettings(window=WINDOW), [ScriptedAnswer("The tide is low.")] * (TURNS + 2 * KILLS))
        self.bodies: list[bytes] = []

    def answer(self, request):
        """Keep the body and answer as usual."""
        self.bodies.append(request.body)
        return super().answer(request)


@contextmanager
def run_proxy(store, url):
    """Yield a proxy in a separate process, and its address."""
    command = [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--store", str(store), "--window", str(WINDOW)]
    upstream = ["--upstream-anthropic", url, "--upstream-openai", f"{url}/v1", "--json"]
    child = subprocess.Popen([*command, *upstream], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        yield child, json.loads(child.stdout.readline())["url"]
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def post(address, api, messages, *, max_bytes=None):
    """Return the answer to a conversation, or its first bytes."""
    path = "/v1/messages" if api == "anthropic" else "/v1/chat/completions"
    body = {"model": STRICTEST_MODELS[api], "messages": messages, "max_tokens": 400, "stream": max_bytes is not None}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(address + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return reply.read() if max_bytes is None else reply.read(max_bytes)


def parse_answer_message(api, answer):
    """Return an answer as the message that a client sends back."""
    body = json.loads(answer)
    content = body["content"] if api == "anthropic" else body["choices"][0]["message"]["content"]
    return {"role": "assistant", "content": content}


def run_conversation(tmp_path, api, kills):
    """Return the bodies sent upstream for a conversation; the proxy is killed before each turn in ``kills``."""
    provider, messages = RecordingProvider(), []
    sent: list[bytes] = []
    store = tmp_path / f"{len(kills)}.db"
    with serve_provider(provider) as url:
        turn = 0
        while turn < TURNS:
            with run_proxy(store, url) as (child, address):
                while turn < TURNS:
                    messages.append({"role": "user", "content": f"Note {turn}: {TEXT}"})
                    if turn in kills:
                        kills = kills - {turn}
                        post(address, api, messages, max_bytes=64)  # it is on its way
                        os.kill(child.pid, signal.SIGKILL)
                        messages.pop()
                        break
                    bodies_before = len(provider.bodies)
                    messages.append(parse_answer_message(api, post(address, api, messages)))
                    sent += provider.bodies[bodies_before:]
                    turn += 1
    return sent


@pytest.mark.long
@pytest.mark.counts
@pytest.mark.parametrize("api", ["anthropic", pytest.param("openai-chat", marks=pytest.mark.long)])
def test_proxy_sends_the_same_bytes_after_each_kill(api, tmp_path):
    """same-after-restart across processes: also when killed during an answer, and after a compaction."""
    random = Random(15_10)
    undisturbed = run_conversation(tmp_path, api, frozenset())
    kills = frozenset(random.sample(range(1, TURNS), KILLS))
    disturbed = run_conversation(tmp_path, api, kills)
    numbers = re.compile(rb'"(?:signature|id)":\s*"[^"]*"')
    assert [numbers.sub(b"", body) for body in disturbed] == [numbers.sub(b"", body) for body in undisturbed]
    assert len(undisturbed) == TURNS
