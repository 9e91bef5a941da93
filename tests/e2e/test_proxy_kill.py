"""kill -9 of the proxy in the middle of a session: a new one sends what the old one would have sent."""

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
WORDS = "kelp on the rock, and the tide comes in. " * 110


class Recording(Provider):
    """A provider that keeps the bodies it was sent."""

    def __init__(self) -> None:
        super().__init__(ProviderSettings(window=WINDOW), [ScriptedAnswer("The tide is low.")] * (TURNS + 2 * KILLS))
        self.bodies: list[bytes] = []

    def answer(self, asked):
        """Answer as ever."""
        self.bodies.append(asked.body)
        return super().answer(asked)


@contextmanager
def proxy(store, url):
    """Yield a proxy in a process of its own, and its address."""
    command = [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--store", str(store), "--window", str(WINDOW)]
    upstream = ["--upstream-anthropic", url, "--upstream-openai", f"{url}/v1", "--json"]
    child = subprocess.Popen([*command, *upstream], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        yield child, json.loads(child.stdout.readline())["url"]
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def post(address, api, said, *, most=None):
    """Return the answer to a conversation, or its first bytes."""
    path = "/v1/messages" if api == "anthropic" else "/v1/chat/completions"
    body = {"model": STRICTEST_MODELS[api], "messages": said, "max_tokens": 400, "stream": most is not None}
    headers = {"content-type": "application/json"}
    asked = urllib.request.Request(address + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked, timeout=60) as reply:
        return reply.read() if most is None else reply.read(most)


def heard(api, answer):
    """Return an answer as the message that a client sends back."""
    told = json.loads(answer)
    content = told["content"] if api == "anthropic" else told["choices"][0]["message"]["content"]
    return {"role": "assistant", "content": content}


def talked(tmp_path, api, kills):
    """Return the bodies that went up for a conversation; before the turns in ``kills`` the proxy is killed."""
    provider, said = Recording(), []
    sent: list[bytes] = []
    store = tmp_path / f"{len(kills)}.db"
    with serve_provider(provider) as url:
        turn = 0
        while turn < TURNS:
            with proxy(store, url) as (child, address):
                while turn < TURNS:
                    said.append({"role": "user", "content": f"Note {turn}: {WORDS}"})
                    if turn in kills:
                        kills = kills - {turn}
                        post(address, api, said, most=64)  # it is on its way
                        os.kill(child.pid, signal.SIGKILL)
                        said.pop()
                        break
                    before = len(provider.bodies)
                    said.append(heard(api, post(address, api, said)))
                    sent += provider.bodies[before:]
                    turn += 1
    return sent


@pytest.mark.long
@pytest.mark.counts
@pytest.mark.parametrize("api", ["anthropic", pytest.param("openai-chat", marks=pytest.mark.long)])
def test_a_proxy_that_was_killed_goes_on_with_the_same_bytes(api, tmp_path):
    """same-after-restart over processes: while an answer was on its way too, and behind a compaction."""
    dice = Random(15_10)
    whole = talked(tmp_path, api, frozenset())
    kills = frozenset(dice.sample(range(1, TURNS), KILLS))
    cut = talked(tmp_path, api, kills)
    numbers = re.compile(rb'"(?:signature|id)":\s*"[^"]*"')
    assert [numbers.sub(b"", body) for body in cut] == [numbers.sub(b"", body) for body in whole]
    assert len(whole) == TURNS
