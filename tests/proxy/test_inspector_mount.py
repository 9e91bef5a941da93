"""The inspector at ``/inspect`` of a proxy: who gets its pages, and that everything else is the proxy's."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from urllib.parse import urlencode, urlsplit

import pytest

from holdfast.messages.message import Message
from holdfast.messages.parts import Text
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.entries import Entry, MessageEntry
from holdfast.store.base import SessionInfo
from holdfast.store.open_store import open_store

NAVIGATION = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "none"}
"""What a browser sends with an address that a user typed."""


@contextmanager
def serve_proxy_process(store, **environment):
    """Run ``holdfast serve`` over ``store`` and return how to ask it."""
    command = [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--json", "--store", store]
    import os

    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, **environment}
    ) as process:
        address = urlsplit(json.loads(process.stdout.readline())["url"]).netloc

        def ask(path, *, method="GET", body=None, **headers):
            connection = http.client.HTTPConnection(address, timeout=30)
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, names)
            answer = connection.getresponse()
            text = answer.read().decode()
            connection.close()
            return answer, text

        ask.address, ask.process = address, process
        try:
            yield ask
        finally:
            process.terminate()


@pytest.fixture
def store_path(tmp_path):
    """A store with one session."""
    path = str(tmp_path / "s.db")
    with open_store(path) as store:
        store.create_session("one", SessionInfo("one", title="A slow server"))
        said = MessageEntry(build_sized_message(Message("user", (Text("hello"),))))
        store.append_entries("one", [Entry("first", None, said)])
    return path


def test_policies_are_compared_below_the_mount(store_path):
    """The form leads to a page below ``/inspect``, and the process that replays reads the proxy's store."""
    with serve_proxy_process(store_path) as ask:
        page = ask("/inspect/compare?id=one")[1]
        token = re.search(r'name="token" value="([^"]+)"', page)[1]
        body = urlencode({"policy": "holdfast", "window": "64000", "model": "claude-sonnet-4-6", "token": token})
        answer, _ = ask("/inspect/compare?id=one", method="POST", body=body)
        assert answer.status == 303
        address = answer.getheader("location")
        assert address.startswith("/inspect/compare?")
        end = time.monotonic() + 60
        while "<progress" in (page := ask(address)[1]):
            assert time.monotonic() < end
            time.sleep(0.1)
        assert "no model answer is recorded" in page


def test_a_browser_gets_the_pages_and_programs_the_proxy(store_path):
    """Pages and their links are below ``/inspect``; the proxy's own answers are as before, also to browsers."""
    with serve_proxy_process(store_path) as ask:
        answer, text = ask("/inspect/", **NAVIGATION)
        assert answer.status == 200
        assert "A slow server" in text
        links = re.findall(r'(?:href|src|action)="([^"#]+)', text)
        assert links
        assert all(link.startswith("/inspect/") for link in links)
        for link in links:
            assert ask(link.replace("&amp;", "&"))[0].status == 200, link
        assert ask("/inspect")[0].getheader("location") == "/inspect/"
        assert ask("/inspect/nowhere")[0].status == 404
        assert ask("/inspector")[0].status != 200
        assert ask("/", **NAVIGATION)[0].status == 403
        assert ask("/inspect/", Host="evil.example")[0].status == 403


def test_a_session_that_the_proxy_records_is_there(store_path):
    """The pages read what another process wrote since the proxy began."""
    with serve_proxy_process(store_path) as ask:
        assert "A new one" not in ask("/inspect/")[1]
        with open_store(store_path) as store:
            store.create_session("two", SessionInfo("two", title="A new one"))
        assert "A new one" in ask("/inspect/")[1]


def test_a_proxy_with_a_token_asks_for_it_once(store_path):
    """Without it no page; an address with it sets a cookie for these pages alone, which no script can read."""
    with serve_proxy_process(store_path, HOLDFAST_TOKEN="a-token-of-the-proxy") as ask:
        answer, text = ask("/inspect/")
        assert answer.status == 401
        assert "slow server" not in text
        assert ask("/inspect/?token=wrong")[0].status == 401
        assert ask("/inspect/", Cookie="holdfast_token=wrong")[0].status == 401
        answer, _ = ask("/inspect/?token=a-token-of-the-proxy")
        cookie = answer.getheader("set-cookie")
        assert answer.status == 303
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert "Path=/inspect" in cookie
        assert "A slow server" in ask("/inspect/", Cookie=cookie.partition(";")[0])[1]


def test_a_proxy_ends_while_a_page_follows_a_session(store_path):
    """A browser that listens for changes holds up the end no longer than a second: it is no answer of a provider."""
    with serve_proxy_process(store_path) as ask:
        connection = http.client.HTTPConnection(ask.address, timeout=30)
        connection.request("GET", "/inspect/changes?id=one")
        connection.getresponse().readline()
        start = time.monotonic()
        ask.process.terminate()
        ask.process.wait(40)
        assert time.monotonic() - start < 10
        connection.close()
