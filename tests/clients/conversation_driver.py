"""A whole conversation of a real client with the strict provider, with Holdfast between them or without."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

from command_line_clients import TERMINALS, Answer, Place, Started
from conversation_script import LINES, Model, Turn, turn
from long_running_clients import Aider, Library
from msgspec import Struct
from msgspec.structs import replace

from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.provider.provider import JudgedRequest
from holdfast.testing.provider.server.local_server import serve_provider

WORDS, WORDS_ALONE = 120, 420
"""Words of a turn with a tool's output and of one without: about 3,000 tokens either way."""
TURNS_A_COMPACTION = 5
"""After so many turns a user who compacts does so again."""
UNKNOWN = 0
"""A window that Holdfast is not told."""
PROGRAM = (sys.executable, "-m", "holdfast")


class Client(Struct, frozen=True):
    """A client, the tool it offers and the window in which it is to live."""

    name: str
    begin: Callable[[Place], Conversation]
    window: int
    tool: str = ""
    """Empty where it has none: its conversation grows in words alone."""
    argument: str = "command"
    lines: int = LINES
    """Of each output: more in a larger window."""
    rewrites: bool = False
    """Whether it changes its own past, the first message too: what follows is another conversation then."""
    compacts_at: int = 0
    """Tokens at which it is told to compact by itself, where a scenario asks for that; 0 = it is not."""


class Conversation(Protocol):
    """A client in the middle of a conversation."""

    def compact(self) -> Answer:
        """Let the client compact, where its user can say so."""

    def say(self, turn: Turn) -> Answer:
        """Return what the client answered."""

    def close(self) -> None:
        """End what still runs."""


class Scenario(Struct, frozen=True):
    """What the provider is like, and what the client and Holdfast are told about it."""

    name: str
    about: str
    overflow: str = "native"
    is_known: bool = False
    """Whether Holdfast is told the window; else it knows the catalogue's, and learns from what it is refused."""
    is_own: bool = False
    """Whether the client compacts by itself too."""


class Said(Struct, frozen=True):
    """One turn of a run: what was asked, what came back, and what reached the provider meanwhile."""

    turn: Turn
    answer: Answer
    requests: tuple[JudgedRequest, ...]
    seconds: float


class Run(Struct, frozen=True):
    """A whole run."""

    client: Client
    scenario: Scenario
    is_held: bool
    """Whether Holdfast was between them."""
    turns: tuple[Said, ...]
    home: Path
    """Where the client kept its own files."""
    held: Held


def _terminal(name: str, window: int, tool: str = "", **more: Any) -> Client:
    return Client(name, lambda place: Started(TERMINALS[name], place), window, tool, **more)


def _library(name: str, environment: str = "venv") -> Client:
    return Client(name, lambda place: Library(name, environment, place), 16_000, "run")


_CODEX = {"tool": "exec_command", "argument": "cmd", "lines": 200, "compacts_at": 40_000}
_PI = {"tool": "bash", "lines": 400, "compacts_at": 50_000}
"""Codex keeps 20,000 tokens of words when it compacts, beside 8,000 that it sends first, and pi 20,000 of all: with
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
    Client("aider", Aider, 16_000, compacts_at=4_000),
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
"""Every client; the windows leave about five turns beside what it sends before the first word."""

SCENARIOS = (
    Scenario("known", "Holdfast knows the window", is_known=True),
    Scenario("native", "the window is smaller than anybody knows"),
    Scenario("llama.cpp", "the same, refused in llama.cpp's words", "llama.cpp"),
    Scenario("tpm", "the same, refused with 429 for tokens a minute", "openai-tpm"),
    Scenario("own", "the client compacts by itself", is_known=True, is_own=True),
)


def converse(
    client: Client,
    scenario: Scenario,
    folder: Path,
    installed: Path,
    turns: int,
    *,
    is_held: bool,
    most_failures: int = 3,
) -> Run:
    """Return a run of so many turns; it ends early once so many in a row have failed."""
    model = Model(client.tool, client.argument)
    provider = Provider(ProviderSettings(window=client.window, overflow=scenario.overflow), model)
    folder = folder.resolve()
    home, work = folder / "home", folder / "work"
    for place in (home, work):
        place.mkdir(parents=True)
    window = client.window if scenario.is_known else UNKNOWN
    with (
        serve_provider(provider) as upstream,
        proxied(upstream, folder, window) if is_held else _bare(upstream) as held,
    ):
        place = Place(installed.resolve(), home, work, held.url, client.compacts_at if scenario.is_own else 0)
        with closing(client.begin(place)) as conversation:
            said = tuple(_talk(conversation, provider, model, client, scenario, turns, most_failures))
    return Run(client, scenario, is_held, said, home, held)


@contextmanager
def _bare(upstream: str) -> Iterator[Held]:
    """Yield the provider itself."""
    yield Held(upstream)


def _talk(
    conversation: Conversation,
    provider: Provider,
    model: Model,
    client: Client,
    scenario: Scenario,
    turns: int,
    most_failures: int,
) -> Iterator[Said]:
    failures = 0
    for number in range(1, turns + 1):
        model.turn = turn(number, WORDS if client.tool else WORDS_ALONE, client.lines)
        before, begun = len(provider.requests), time.monotonic()
        answer = conversation.say(model.turn)
        if scenario.is_own and number % TURNS_A_COMPACTION == 0 and not answer.error:
            answer = replace(answer, error=conversation.compact().error)
        yield Said(model.turn, answer, tuple(provider.requests[before:]), time.monotonic() - begun)
        failures = failures + 1 if answer.error else 0
        if failures == most_failures:
            return


# -- Holdfast ----------------------------------------------------------------------------------------------------------


class Held(Struct):
    """Where requests go, and what Holdfast says of itself."""

    url: str
    sessions: int = 0
    """In its store."""
    told: str = ""
    """On standard error."""
    stats: Mapping[str, Any] = {}
    """What it counted."""


@contextmanager
def proxied(upstream: str, folder: Path, window: int) -> Iterator[Held]:
    """Yield a ``holdfast serve`` of its own process in front of ``upstream``; what it says is there after the block."""
    store, log = folder / "store", folder / "serve.err"
    behind = {"anthropic": "", "openai": "/v1", "gemini": ""}
    upstreams = [f"--upstream-{name}={upstream}{path}" for name, path in behind.items()]
    flags = ["--store", str(store), "--port", "0", "--window", str(window), "--json", *upstreams]
    with log.open("w") as written:
        running = subprocess.Popen(
            [*PROGRAM, "serve", *flags], stdout=subprocess.PIPE, stderr=written, text=True, cwd=folder
        )
        try:
            first = running.stdout.readline()
            assert first, f"holdfast serve did not start: {log.read_text()}"
            held = Held(json.loads(first)["url"])
            yield held
        finally:
            running.terminate()
            last = running.communicate(timeout=30)[0]
    held.sessions, held.told = count_sessions(store), log.read_text()
    held.stats = json.loads(last.splitlines()[-1]) if last.strip() else {}


def count_sessions(store: Path) -> int:
    """Return how many sessions the store has, as the command line tells it."""
    told = subprocess.run([*PROGRAM, "ls", "--json", "--store", str(store)], capture_output=True, check=True)
    return len(json.loads(told.stdout))
