"""Clients with one process for a whole conversation: the libraries and aider."""

from __future__ import annotations

import json
import os
import re
import selectors
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from command_line_clients import PATIENCE, Answer, ClientPlace
from conversation_script import Turn

LIBRARIES = Path(__file__).with_name("library_conversation.py")


class Process:
    """A program that reads lines, and whose answer to each has a recognizable end."""

    def __init__(self, arguments: list[str], place: ClientPlace, variables: Mapping[str, str]) -> None:
        own = {"PATH": os.environ["PATH"], "HOME": str(place.home), "PYTHONUNBUFFERED": "1", **variables}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self._running = subprocess.Popen(arguments, cwd=place.work, env=own, **pipes)
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._running.stdout, selectors.EVENT_READ)

    def write(self, line: str) -> None:
        """Write a line to the program."""
        self._running.stdin.write(f"{line}\n".encode())
        self._running.stdin.flush()

    def read(self, is_whole: Callable[[bytes], object]) -> str:
        """Return the program's output once ``is_whole`` accepts it, the program ends, or ``PATIENCE`` runs out."""
        output, deadline = b"", time.monotonic() + PATIENCE
        while not is_whole(output) and self._ready.select(max(0.0, deadline - time.monotonic())):
            piece = os.read(self._running.stdout.fileno(), 65_536)
            if not piece:
                break
            output += piece
        return output.decode(errors="replace")

    def close(self) -> None:
        """End the program."""
        self._ready.close()
        self._running.kill()
        self._running.communicate()


class LibraryConversation:
    """A conversation through a library of ``library_conversation.py``."""

    compact = staticmethod(Answer)

    def __init__(self, name: str, environment: str, place: ClientPlace) -> None:
        python = place.clients_folder / environment / "bin" / "python"
        variables = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false"}
        self._process = Process([str(python), str(LIBRARIES), name, place.url], place, variables)
        self.close = self._process.close

    def say(self, turn: Turn) -> Answer:
        """Return the library's answer."""
        try:
            self._process.write(json.dumps(turn.text))
        except BrokenPipeError:
            return Answer(error="the library's process ended")
        output = self._process.read(re.compile(rb'(?m)^\{"text": .*\n').search)
        lines = [line for line in output.splitlines() if line.startswith('{"text": ')]
        return Answer(**json.loads(lines[-1])) if lines else Answer(error=output[-300:] or "no answer")


FLAGS = (
    "--yes-always --no-analytics --no-check-update --no-show-model-warnings --no-show-release-notes --no-auto-commits"
    " --no-git --no-pretty --no-fancy-input --map-tokens 0 --model openai/fake-1"
)
PROMPT = b"\n> "
AIDER_FAILS = re.compile(r"(litellm\.\w*|\w+Error\b|token limit|Retrying in).*")
ENDLESS = 1_000_000
"""Tokens of history before aider summarises by itself."""


class AiderConversation:
    """A conversation with aider at its prompt."""

    compact = staticmethod(Answer)

    def __init__(self, place: ClientPlace) -> None:
        prices = place.home / ".aider" / "caches" / "model_prices_and_context_window.json"
        prices.parent.mkdir(parents=True)
        prices.write_text('{"none": {}}')  # so that it downloads no prices
        program = str(place.clients_folder / "venv-aider" / "bin" / "aider")
        history = ["--max-chat-history-tokens", str(place.compacts_at or ENDLESS)]
        variables = {"OPENAI_API_BASE": f"{place.url}/v1", "OPENAI_API_KEY": "k"}
        self._process = Process([program, *FLAGS.split(), *history], place, variables)
        self._process.read(_is_prompt)
        self.close = self._process.close

    def say(self, turn: Turn) -> Answer:
        """Return aider's output until its next prompt."""
        try:
            self._process.write(turn.text)
        except BrokenPipeError:
            return Answer(error="aider ended")
        output = self._process.read(_is_prompt)
        failed = AIDER_FAILS.search(output)
        return Answer(output, failed[0][:300] if failed else "")


def _is_prompt(output: bytes) -> bool:
    return output.endswith(PROMPT)
