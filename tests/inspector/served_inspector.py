"""An inspector on a port, and sessions to show in it."""

from __future__ import annotations

import http.client
from contextlib import contextmanager
from threading import Thread
from urllib.parse import urlsplit

import uvicorn

from holdfast.inspector.app import make_inspector_app
from holdfast.inspector.server import open_listener
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import (
    AnswerEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    FailureEntry,
    MessageEntry,
    RequestEntry,
    Usage,
)
from holdfast.store.base import SessionInfo

MODEL = "claude-sonnet-4-6"
RULE = "Never restart the server in the daytime."


def say(role, *parts):
    """Return the body of a message."""
    return MessageEntry(build_sized_message(Message(role, parts)))


def write_session(store, key, bodies, **info):
    """Write a session of ``bodies`` into ``store``."""
    store.create_session(key, SessionInfo(key, model=MODEL, **info))
    parent = None
    entries = []
    for index, body in enumerate(bodies):
        entries.append(Entry(f"{index:08x}-{key}", parent, body, time_ms=1_780_000_000_000 + 60_000 * index))
        parent = entries[-1].id
    store.append_entries(key, entries)
    return entries


def make_long_session(steps=60):
    """Return the bodies of a session with a rule, logs that tools printed, a refusal, a shortened log, a compaction."""
    bodies = [say("user", Text(f"Find out why it is slow.\n{RULE}"))]
    tokens = 0
    for step in range(steps):
        log = "\n".join(f"step {step}, line {line}: {line * step % 97} ms" for line in range(20))
        if step == steps // 2:
            bodies.append(FailureEntry("overflow", "prompt is too long: 21000 tokens > 20000 maximum"))
            edit = Edit(
                Span(2, 3), (Message("tool", (ToolResult("c0", "read", (Text("[shortened]"),)),)),), "prune", "old"
            )
            bodies.append(DecisionEntry((edit,)))
        if step == steps - 5:
            summary = Message("user", (Text(f"Summary of older messages.\n{RULE}\nIt is slow since Tuesday."),))
            bodies.append(CompactionEntry(2 * step - 10, summary, 40, (), 18_000, 4_000))
            tokens = 3_000
        tokens += 300
        bodies += [
            RequestEntry(f"digest-{step}", 2 * step + 1, MODEL, 20_000),
            AnswerEntry(f"digest-{step}", Usage(tokens, 20, tokens - 300, 300), "tool_use"),
            say("assistant", Text("I look."), ToolCall(f"c{step}", "read", f'{{"step": {step}}}')),
            say("tool", ToolResult(f"c{step}", "read", (Text(log),))),
        ]
    return bodies


def make_recorded_session(steps=30):
    """Return the bodies of a session as the engine records it: a request, its answer, the usage, a result."""
    bodies = [say("user", Text("Find out why orders_service.py is slow."))]
    for step in range(steps):
        log = "\n".join(f"orders_service.py line {line}: step_{step}_timer {line * step % 97} ms" for line in range(40))
        call = ToolCall(f"c{step}", "read", f'{{"file": "logs/step_{max(0, step - 3)}_timer.log"}}')
        bodies += [
            RequestEntry(f"digest-{step}", 2 * step + 1, MODEL, 20_000),
            say("assistant", Text("I look."), call),
            AnswerEntry(f"digest-{step}", Usage(1_000 * (step + 1), 20), "tool_use"),
            say("tool", ToolResult(f"c{step}", "read", (Text(log),))),
        ]
    return bodies


class Answer:
    """An answer of the inspector."""

    def __init__(self, status, headers, body):
        self.status = status
        self.headers = headers
        self.text = body.decode("utf-8")


class ServedInspector:
    """An inspector on a port of this machine."""

    def __init__(self, url, source):
        self.url = url
        self.source = source

    def request(self, path, *, method="GET", body=None, **headers):
        """Send one request and return the answer."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=30)
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        answer = Answer(response.status, dict(response.getheaders()), response.read())
        connection.close()
        return answer

    def get(self, page, /, **parameters):
        """Return a page, which must be there."""
        from holdfast.inspector.rendering import PageWriter

        answer = self.request(PageWriter().make_url(page, **parameters))
        assert answer.status == 200, answer.text
        return answer.text


@contextmanager
def serve(source):
    """Serve ``source`` in a thread."""
    listener = open_listener(0)
    config = uvicorn.Config(make_inspector_app(source), log_level="error", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield ServedInspector(f"http://127.0.0.1:{listener.getsockname()[1]}", source)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
        source.comparisons.close()
