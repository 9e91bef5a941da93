"""Drive the real Codex: a home of its own, one command, or several turns over its app server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

MODEL = "gpt-5.1-codex"
"""A model that Codex gives each tool by itself. Its newest ones get a single tool that runs JavaScript."""
TIMEOUT = 60


class CodexHome:
    """A home folder, a project and a store that belong to one test."""

    def __init__(self, program: str, folder: Path) -> None:
        self.program = program
        self.home = folder / "home"
        self.project = folder / "project"
        self.store = folder / "store.db"
        (self.home / ".codex").mkdir(parents=True)
        self.project.mkdir()
        self.environment = {
            "HOME": str(self.home),
            "SHELL": "/bin/sh",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
            "CODEX_API_KEY": "sk-test",
            "OPENAI_API_KEY": "sk-test",
            "HOLDFAST_STORE": str(self.store),
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Codex to its end."""
        return subprocess.run(
            [self.program, *arguments],
            cwd=self.project,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT,
        )

    def ask(self, prompt: str, provider: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Run one prompt with ``codex exec`` at the provider or proxy with the address ``provider``."""
        return self.run("exec", "--skip-git-repo-check", *make_options(provider), *options, prompt)

    @contextmanager
    def open_app_server(self, provider: str, *options: str) -> Iterator[AppServer]:
        """Start the server through which editors use Codex."""
        command = [self.program, "app-server", *make_options(provider), *options]
        with subprocess.Popen(
            command,
            cwd=self.project,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            try:
                yield AppServer(process, self.project)
            finally:
                assert process.stdin is not None
                process.stdin.close()
                process.wait(TIMEOUT)


def make_options(provider: str) -> list[str]:
    """Return the options that point Codex at a provider."""
    settings = [f'openai_base_url="{provider}/v1"', f'model="{MODEL}"', "analytics.enabled=false"]
    return [option for setting in settings for option in ("-c", setting)]


def trust_hooks(home: CodexHome, provider: str) -> list[dict[str, Any]]:
    """Trust every hook as the user does with "Trust all and continue", and return them."""
    with home.open_app_server(provider) as server:
        (listed,) = server.call("hooks/list", {"cwds": [str(home.project)]})["data"]
    lines = []
    for hook in listed["hooks"]:
        definition, content = hook["currentHash"].split("/")
        lines += ["", f'[hooks.state."{hook["key"]}"]']
        lines += [f'trusted_hash = "{definition}"', f'trusted_content_hash = "{content}"']
    with (home.home / ".codex" / "config.toml").open("a") as config:
        config.write("\n".join(lines) + "\n")
    return listed["hooks"]  # type: ignore[no-any-return]


class AppServer:
    """The app server of Codex: requests, and the notifications that came so far."""

    def __init__(self, process: subprocess.Popen[str], project: Path) -> None:
        self._process = process
        self._project = project
        self._last_id = 0
        self.notifications: list[dict[str, Any]] = []
        self.call("initialize", {"clientInfo": {"name": "test", "version": "1"}})

    def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Make a call and return its result."""
        self._last_id += 1
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": self._last_id, "method": method, "params": params}) + "\n")
        self._process.stdin.flush()
        for message in self._read():
            if message.get("id") == self._last_id:
                assert "result" in message, message
                return message["result"]  # type: ignore[no-any-return]
        raise AssertionError(f"no answer to {method}")

    def start_thread(self) -> str:
        """Start a conversation and return its id."""
        return self.call("thread/start", {"cwd": str(self._project)})["thread"]["id"]  # type: ignore[no-any-return]

    def wait_for_tools(self, name: str) -> None:
        """Wait until a server of the Model Context Protocol offers its tools: turns begin without a slow one's."""
        for message in chain(list(self.notifications), self._read()):
            if message.get("method") == "mcpServer/startupStatus/updated":
                status = message["params"]
                if status["name"] == name and status["status"] != "starting":
                    assert status["status"] == "ready", status
                    return
        raise AssertionError(f"{name} did not start")

    def take_turn(self, thread: str, prompt: str) -> None:
        """Send a prompt and wait until it is answered."""
        self.call("turn/start", {"threadId": thread, "input": [{"type": "text", "text": prompt}]})
        self._wait_for_end(thread)

    def compact(self, thread: str) -> None:
        """Compact as the user does with ``/compact``."""
        self.call("thread/compact/start", {"threadId": thread})
        self._wait_for_end(thread)

    def list_hook_runs(self) -> list[dict[str, Any]]:
        """Return the hooks that ran so far, each with its event, status and what it said."""
        completed = [message for message in self.notifications if message.get("method") == "hook/completed"]
        return [message["params"]["run"] for message in completed]

    def _wait_for_end(self, thread: str) -> None:
        for message in self._read():
            if message.get("method") == "turn/completed" and message["params"]["threadId"] == thread:
                assert message["params"]["turn"]["status"] == "completed", message
                return
        raise AssertionError("the turn did not end")

    def _read(self) -> Iterator[dict[str, Any]]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            self.notifications.append(message)
            yield message


@contextmanager
def start_server(
    *arguments: str, environment: dict[str, str] | None = None
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run ``holdfast`` with ``arguments`` and yield its address and its process."""
    command = [sys.executable, "-m", "holdfast", *arguments, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"], process
        finally:
            process.terminate()
            process.stdout.read()


def list_requests(process: subprocess.Popen[str], path: str = "/v1/responses") -> Sequence[dict[str, Any]]:
    """Stop a strict provider and return the requests that it answered at ``path``."""
    process.terminate()
    assert process.stdout is not None
    # The line with its address was read at the start.
    lines = [json.loads(line) for line in process.stdout]
    return [line for line in lines if line["path"] == path and line["method"] == "POST"]
