"""The real OpenClaw in a folder of its own, with the strict provider as its only model."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.testing.provider.calls import ModelAnswer, ScriptedAnswer
from holdfast.testing.provider.provider import JudgedRequest

MODEL = "claude-sonnet-4-5"
WINDOW = 64_000
INTERNAL_CONTEXT = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>"
"""Begins a message that OpenClaw adds at the end of each request and leaves out of the next one."""


class OpenClaw:
    """OpenClaw with a home and a configuration of its own."""

    def __init__(self, command: Sequence[str], home: Path, provider_url: str, window: int = WINDOW) -> None:
        self._command = list(command)
        self._home = home
        self._config_path = home / ".openclaw" / "openclaw.json"
        self._config_path.parent.mkdir(parents=True)
        (home / "work").mkdir()
        self._variables: dict[str, str] = {}
        no_cost = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
        model = {"id": MODEL, "name": "Claude", "reasoning": False, "input": ["text", "image"], "cost": no_cost}
        model |= {"contextWindow": window, "maxTokens": 8_192}
        provider = {"baseUrl": provider_url, "apiKey": "sk-test", "api": "anthropic-messages", "models": [model]}
        # The strict provider's summaries say "ok 1", which OpenClaw's own check of them would refuse; and its reminder
        # to save notes before a compaction is a turn of its own.
        compaction = {"mode": "safeguard", "qualityGuard": {"enabled": False}, "memoryFlush": {"enabled": False}}
        defaults = {"workspace": str(home / "work"), "model": {"primary": f"strict/{MODEL}"}, "compaction": compaction}
        self._write_config(
            {"agents": {"defaults": defaults}, "models": {"mode": "merge", "providers": {"strict": provider}}}
        )

    def install(self, plugin: Path, holdfast_url: str) -> None:
        """Install the plugin as the page says, and let it ask ``holdfast_url``."""
        self._variables["HOLDFAST_URL"] = holdfast_url
        self.run("plugins", "install", "--link", str(plugin), "--force", "--accept-capabilities")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one command, which must succeed, and return the finished process."""
        command = [*self._command, *arguments]
        environment = self._make_environment()
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
        assert ran.returncode == 0, ran.stdout[-4_000:] + ran.stderr[-4_000:]
        return ran

    @contextmanager
    def run_gateway(self) -> Iterator[None]:
        """Run the Gateway, the process that serves every client but ``--local``, until the block ends."""
        with socket.socket() as free_socket:
            free_socket.bind(("127.0.0.1", 0))
            port = free_socket.getsockname()[1]
        config = json.loads(self._config_path.read_text("utf-8"))
        token = "a-token-for-this-test-alone"
        config["gateway"] = {"mode": "local", "port": port, "auth": {"mode": "token", "token": token}}
        self._write_config(config)
        self._variables["OPENCLAW_GATEWAY_TOKEN"] = token
        log_path = self._home / "gateway.log"
        with log_path.open("w") as log:
            command = [*self._command, "gateway", "run", "--port", str(port)]
            process = subprocess.Popen(command, env=self._make_environment(), stdout=log, stderr=log)
            try:
                self._wait_for_gateway(process, log_path)
                yield
            finally:
                # It would wait minutes for whatever still runs.
                process.kill()
                process.wait()

    def _wait_for_gateway(self, process: subprocess.Popen[bytes], log_path: Path) -> None:
        for _ in range(120):
            time.sleep(1)
            command = [*self._command, "gateway", "health"]
            assert process.poll() is None, log_path.read_text("utf-8")[-4_000:]
            ran = subprocess.run(command, env=self._make_environment(), capture_output=True, check=False, timeout=60)
            if ran.returncode == 0:
                return
        raise AssertionError(log_path.read_text("utf-8")[-4_000:])

    def _make_environment(self) -> dict[str, str]:
        return {
            "HOME": str(self._home),
            "OPENCLAW_STATE_DIR": str(self._config_path.parent),
            "OPENCLAW_CONFIG_PATH": str(self._config_path),
            "PATH": os.pathsep.join([str(Path(self._command[0]).parent), os.environ.get("PATH", os.defpath)]),
            "NO_COLOR": "1",
            **self._variables,
        }

    def ask(self, text: str, session: str = "one") -> str:
        """Run one turn, and return what OpenClaw logs."""
        ran = self.run("agent", "--local", "--session-id", session, "--message", text, "--json")
        return ran.stderr

    def _write_config(self, config: Mapping[str, Any]) -> None:
        self._config_path.write_text(json.dumps(config), "utf-8")


@contextmanager
def serve_holdfast(folder: Path) -> Iterator[str]:
    """Run ``holdfast serve`` with a store in ``folder``; yield its address."""
    command = [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--json", "--store", str(folder / "store.db")]
    environment = {**os.environ, "HOME": str(folder), "HOLDFAST_TOKEN": ""}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
        process.terminate()
        process.communicate(timeout=30)


def make_turns(turns: int, steps: int) -> list[ScriptedAnswer]:
    """Return the model's answers of some turns: in each, commands whose output takes some 5,000 tokens, and a word."""
    script: list[ScriptedAnswer] = []
    number = 0
    for turn in range(turns):
        for _ in range(steps):
            number += 1
            command = f"seq {number}000 {number}999 | sed 's/^/line of the log number /'"
            script.append(ScriptedAnswer("I run it.", calls=(("exec", {"command": command}),)))
        script.append(ScriptedAnswer(f"Turn {turn} is done."))
    return script


def list_messages(request: JudgedRequest) -> list[Any]:
    """Return the messages of a request, without the marks of the cache and without what each request has anew."""
    messages = json.loads(request.incoming.body)["messages"]
    return [message for message in map(_strip_message, messages) if not _is_internal_context(message)]


def _strip_message(message: dict[str, Any]) -> tuple[str, Any]:
    content = message["content"]
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    return message["role"], [{k: v for k, v in block.items() if k != "cache_control"} for block in content]


def _is_internal_context(message: tuple[str, Any]) -> bool:
    return str(message[1][0].get("text", "")).startswith(INTERNAL_CONTEXT)


def is_answered(request: JudgedRequest) -> bool:
    """Whether the provider accepted a request."""
    return isinstance(request.reply, ModelAnswer)
