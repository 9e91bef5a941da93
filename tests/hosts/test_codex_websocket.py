"""The real Codex behind the proxy: its WebSocket is refused, and it goes on over HTTP at once."""

from __future__ import annotations

import re
import socket
import socketserver
import threading
import time
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import pytest
from codex_client import CodexHome, list_requests, start_server

MAX_GAP = 2.0
"""Seconds from the refusal to the request over HTTP. Measured: 0.04 to 0.16; Codex waits 6.6 after a 404."""


class RequestTap(socketserver.ThreadingTCPServer):
    """Forwards connections to a server, and keeps the time of each request's first line and of each status."""

    def __init__(self, address):
        super().__init__(("127.0.0.1", 0), ForwardConnection)
        self.target = (urlsplit(address).hostname, urlsplit(address).port)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.seen = []


class ForwardConnection(socketserver.BaseRequestHandler):
    """One connection through a tap."""

    def handle(self):
        with socket.create_connection(self.server.target) as upstream:
            answers = threading.Thread(target=self._forward, args=(upstream, self.request))
            answers.start()
            self._forward(self.request, upstream)
            answers.join()

    def _forward(self, source, sink):
        with suppress(OSError):
            while data := source.recv(65_536):
                for line in re.findall(rb"(?m)^(?:GET|POST) \S+|^HTTP/1\.1 \d+", data):
                    self.server.seen.append((time.monotonic(), line.decode()))
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


@contextmanager
def start_tapped_proxy(codex, tmp_path):
    """Yield a home for Codex, a tap before a proxy, and the process of the strict provider behind it."""
    home = CodexHome(codex, tmp_path)
    with (
        start_server("provider", "--window", "272000") as (provider, process),
        start_server(
            "serve", "--port", "0", "--upstream-openai", f"{provider}/v1", "--store", str(home.store)
        ) as served,
        RequestTap(served[0]) as tap,
    ):
        threading.Thread(target=tap.serve_forever, daemon=True).start()
        yield home, tap, process
        tap.shutdown()


@pytest.mark.long
def test_codex_asks_once_a_thread_and_goes_on_at_once(codex, tmp_path):
    """One WebSocket is refused at the start of each thread; turns do not ask again, and none waits or is sent twice."""
    with start_tapped_proxy(codex, tmp_path) as (home, tap, process):
        with home.open_app_server(tap.url) as server:
            for turns in (3, 2):
                thread = server.start_thread()
                for number in range(turns):
                    server.take_turn(thread, f"turn {number}")
        requests = list_requests(process)
    lines = [line for _, line in tap.seen if line.startswith(("GET", "POST"))]
    probe, post = "GET /v1/responses", "POST /v1/responses"
    assert lines == [probe, post, post, post, probe, post, post]
    assert [request["status"] for request in requests] == [200] * 5
    for index, (refused_at, line) in enumerate(tap.seen):
        if line == "HTTP/1.1 426":
            posted_at = next(at for at, later in tap.seen[index:] if later == post)
            assert posted_at - refused_at < MAX_GAP


@pytest.mark.long
def test_codex_exec_says_one_line_about_the_websocket(codex, tmp_path):
    """``codex exec`` answers and ends with 0; the refusal is one line of its log."""
    with start_tapped_proxy(codex, tmp_path) as (home, tap, _):
        ran = home.ask("hello", tap.url)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "ok 1"
    assert len(re.findall(r"(?i)^.*websocket.*$", ran.stderr, re.MULTILINE)) == 1


@pytest.mark.long
def test_a_provider_of_the_users_own_does_not_ask(codex, tmp_path):
    """Codex asks only its built-in provider, unless the user's own says that it has WebSockets."""
    with start_tapped_proxy(codex, tmp_path) as (home, tap, _):
        own = f'model_providers.own={{name="Own",base_url="{tap.url}/v1",wire_api="responses"}}'
        ran = home.ask("hello", tap.url, "-c", 'model_provider="own"', "-c", own)
    assert ran.returncode == 0, ran.stderr
    assert [line for _, line in tap.seen] == ["POST /v1/responses", "HTTP/1.1 200"]
