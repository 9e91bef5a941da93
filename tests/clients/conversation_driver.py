"""A long conversation of a real client with the strict provider, with Holdfast between them or without."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

from command_line_clients import TERMINALS, Answer, ClientPlace, TerminalConversation
from conversation_script import LINES, Model, Turn, make_turn
from long_running_clients import AiderConversation, LibraryConversation
from msgspec import Struct
from msgspec.structs import replace

from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.provider.provider import JudgedRequest
from holdfast.testing.provider.server.local_server import serve_provider

TOOL_TURN_WORDS, TEXT_TURN_WORDS = 120, 420
"""Words of a turn with a tool's output and of one without: about 3,000 tokens in both cases."""
TURNS_A_COMPACTION = 5
"""A user who compacts does so every so many turns."""
UNKNOWN = 0
"""The value of --window if Holdfast is not to know the window."""
PROGRAM = (sys.executable, "-m", "holdfast")


class Client(Struct, frozen=True):
    """A client, the tool it offers and the window of its model."""

    name: str
    begin: Callable[[ClientPlace], Conversation]
    window: int
    tool: str = ""
    """Empty if it has none: its conversation then grows by text only."""
    argument: str = "command"
    lines: int = LINES
    """Of each output: more in a larger window."""
    rewrites: bool = False
    """Whether it changes earlier messages, even the first: what follows is then another conversation."""
    compacts_at: int = 0
    """Tokens at which it is configured to compact by itself, if a scenario asks for that; 0 = it is not."""


class Conversation(Protocol):
    """A client in the middle of a conversation."""

    def compact(self) -> Answer:
        """Let the client compact, if it has a command for it."""

    def say(self, turn: Turn) -> Answer:
        """Return the client's answer."""

    def close(self) -> None:
        """End all processes of the client."""


class Scenario(Struct, frozen=True):
    """How the provider behaves, and what the client and Holdfast know about it."""

    name: str
    description: str
    overflow: str = "native"
    is_known: bool = False
    """Whether Holdfast knows the window; otherwise it has the catalog's, and learns from refusals."""
    compacts_by_itself: bool = False
    """Whether the client compacts by itself too."""


class TurnRecord(Struct, frozen=True):
    """One turn of a run: the question, the answer, and the requests that reached the provider."""

    turn: Turn
    answer: Answer
    requests: tuple[JudgedRequest, ...]
    seconds: float


class Run(Struct, frozen=True):
    """A whole run."""

    client: Client
    scenario: Scenario
    is_with_holdfast: bool
    """Whether Holdfast was between client and provider."""
    turns: tuple[TurnRecord, ...]
    home: Path
    """The client's home folder."""
    route: Route


def _terminal(name: str, window: int, tool: str = "", **more: Any) -> Client:
    return Client(name, lambda place: TerminalConversation(TERMINALS[name], place), window, tool, **more)


def _library(name: str, environment: str = "venv") -> Client:
    return Client(name, lambda place: LibraryConversation(name, environment, place), 16_000, "run")


_CODEX = {"tool": "exec_command", "argument": "cmd", "lines": 200, "compacts_at": 40_000}
_PI = {"tool": "bash", "lines": 400, "compacts_at": 50_000}
"""Codex keeps 20,000 tokens of text when it compacts, plus a prompt of 8,000, and pi keeps 20,000 in all: with
less than this, and a turn, it compacts for ever."""
CLIENTS = (
    _terminal("claude", 64_000, "Bash", lines=400),
    _terminal("codex", 56_000, **_CODEX),
    _terminal("codex-openai", 56_000, **_CODEX),
    _terminal("opencode", 28_000, "bash", compacts_at=24_000),
    _terminal("pi-chat", 64_000, **_PI),
    _terminal("pi-anthropic", 64_000, **_PI),
    _terminal("pi-responses", 64_000, **_PI),
    _terminal("pi-claude", 64_000, "bash", lines=400),
    _terminal("gemini", 28_000),
    _terminal("gemini-tools", 28_000, "run_shell_command", rewrites=True),
    _terminal("llm", 16_000),
    Client("aider", AiderConversation, 16_000, compacts_at=4_000),
    _library("anthropic"),
    _library("openai-chat"),
    _library("openai-responses"),
    _library("google-genai"),
    _library("litellm-openai", "venv-litellm"),
    _library("litellm-anthropic", "venv-litellm"),
    _library("litellm-gemini", "venv-litellm"),
    _library("langchain-openai"),
    _library("langchain-anthropic"),
)
"""Every client; each window leaves about five turns besides the client's own prompt."""

SCENARIOS = (
    Scenario("known", "Holdfast knows the window", is_known=True),
    Scenario("native", "the window is smaller than client and Holdfast know"),
    Scenario("llama.cpp", "the same, refused in llama.cpp's words", "llama.cpp"),
    Scenario("tpm", "the same, refused with 429 for tokens a minute", "openai-tpm"),
    Scenario("own", "the client compacts by itself", is_known=True, compacts_by_itself=True),
)


def converse(
    client: Client,
    scenario: Scenario,
    folder: Path,
    clients_folder: Path,
    turns: int,
    *,
    is_with_holdfast: bool,
    most_failures: int = 3,
) -> Run:
    """Return a run of ``turns`` turns; it ends early after ``most_failures`` failed turns in a row."""
    model = Model(client.tool, client.argument)
    provider = Provider(ProviderSettings(window=client.window, overflow=scenario.overflow), model)
    folder = folder.resolve()
    home, work = folder / "home", folder / "work"
    for directory in (home, work):
        directory.mkdir(parents=True)
    window = client.window if scenario.is_known else UNKNOWN
    with (
        serve_provider(provider) as upstream,
        serve_holdfast(upstream, folder, window) if is_with_holdfast else serve_upstream_only(upstream) as route,
    ):
        place = ClientPlace(
            clients_folder.resolve(), home, work, route.url, client.compacts_at if scenario.compacts_by_itself else 0
        )
        with closing(client.begin(place)) as conversation:
            turn_records = tuple(_run_turns(conversation, provider, model, client, scenario, turns, most_failures))
    return Run(client, scenario, is_with_holdfast, turn_records, home, route)


@contextmanager
def serve_upstream_only(upstream: str) -> Iterator[Route]:
    """Yield the route to the provider without Holdfast."""
    yield Route(upstream)


def _run_turns(
    conversation: Conversation,
    provider: Provider,
    model: Model,
    client: Client,
    scenario: Scenario,
    turns: int,
    most_failures: int,
) -> Iterator[TurnRecord]:
    failures = 0
    for number in range(1, turns + 1):
        model.turn = make_turn(number, TOOL_TURN_WORDS if client.tool else TEXT_TURN_WORDS, client.lines)
        requests_before, started_at = len(provider.requests), time.monotonic()
        answer = conversation.say(model.turn)
        if scenario.compacts_by_itself and number % TURNS_A_COMPACTION == 0 and not answer.error:
            answer = replace(answer, error=conversation.compact().error)
        yield TurnRecord(model.turn, answer, tuple(provider.requests[requests_before:]), time.monotonic() - started_at)
        failures = failures + 1 if answer.error else 0
        if failures == most_failures:
            return


# -- Holdfast ----------------------------------------------------------------------------------------------------------


class Route(Struct):
    """The server that the client talks to, and what Holdfast reports at the end."""

    url: str
    sessions: int = 0
    """In Holdfast's store."""
    stderr: str = ""
    """What Holdfast printed on standard error."""
    stats: Mapping[str, Any] = {}
    """Its counts."""


@contextmanager
def serve_holdfast(upstream: str, folder: Path, window: int) -> Iterator[Route]:
    """Yield a ``holdfast serve`` process in front of ``upstream``; its report is complete after the block."""
    store, log = folder / "store", folder / "serve.err"
    path_by_api = {"anthropic": "", "openai": "/v1", "gemini": ""}
    upstreams = [f"--upstream-{name}={upstream}{path}" for name, path in path_by_api.items()]
    flags = ["--store", str(store), "--port", "0", "--window", str(window), "--json", *upstreams]
    with log.open("w") as written:
        running = subprocess.Popen(
            [*PROGRAM, "serve", *flags], stdout=subprocess.PIPE, stderr=written, text=True, cwd=folder
        )
        try:
            first_line = running.stdout.readline()
            assert first_line, f"holdfast serve did not start: {log.read_text()}"
            route = Route(json.loads(first_line)["url"])
            yield route
        finally:
            running.terminate()
            last_output = running.communicate(timeout=30)[0]
    route.sessions, route.stderr = count_sessions(store), log.read_text()
    route.stats = json.loads(last_output.splitlines()[-1]) if last_output.strip() else {}


def count_sessions(store: Path) -> int:
    """Return the number of sessions that ``holdfast ls`` lists."""
    result = subprocess.run([*PROGRAM, "ls", "--json", "--store", str(store)], capture_output=True, check=True)
    return len(json.loads(result.stdout))
