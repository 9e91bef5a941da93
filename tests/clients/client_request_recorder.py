"""Write what each client sends in a short conversation, to ``tests/proxy/shapes``: the tests run where no client is.

Usage: python tests/clients/client_request_recorder.py INSTALLED [NAME]…

A line is one request: ``method``, ``path``, ``headers`` and ``body``, ``spaced`` where that came with white space.
Texts of more than ``KEPT`` characters are cut there, with their length behind them: most are others' words. Keys are
kept out, and of the tools three are kept.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from command_line_clients import Place
from conversation_driver import CLIENTS, Client
from conversation_script import Model, turn

from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.provider.calls import IncomingRequest, ProviderReply
from holdfast.testing.provider.server.app import RequestReport
from holdfast.testing.provider.server.local_server import serve_provider

SHAPES = Path(__file__).parents[1] / "proxy" / "shapes"
CALLS = Path(__file__).with_name("library_calls.py")
TURNS, WORDS, LINES = 3, 12, 2
KEPT = 40
WHOLE = frozenset({"user_id", "arguments", "command", "cmd", "encrypted_content", "signature", "thoughtSignature"})
"""Fields that are kept whole, beside ids: what the model of the tests said, and who the client says it is."""
MOST_TOOLS = 3
_HEAD = 40
"""Bytes in which a body shows whether it has white space between names and values."""
PASSING = ("host", "connection", "content-length", "accept-encoding")
"""Headers of this machine's network alone."""
QUERIES = {"streamGenerateContent": "?alt=sse"}
"""What stands behind an address, by what it asks for; the provider tells of the address alone."""
LIBRARIES = {"sdk-anthropic": "venv", "sdk-openai": "venv", "sdk-google-genai": "venv"}
"""Names of the recordings of every call of a library (``library_calls.py``), with the environment that has it."""


class Recorder:
    """A provider that keeps each request as it came."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self.settings, self.requests = provider.settings, provider.requests
        self.asked: list[IncomingRequest] = []
        self.told: list[RequestReport] = []

    def answer(self, asked: IncomingRequest) -> ProviderReply:
        """Answer as the provider does."""
        self.asked.append(asked)
        return self._provider.answer(asked)

    def lines(self, tool: str, places: Sequence[Path]) -> Iterator[str]:
        """Yield the requests in their order, without the names of ``places``."""
        bodies = iter(self.asked)
        for told in self.told:
            asked = next(bodies) if told.api else None
            line = {"method": told.method, "path": told.path + QUERIES.get(told.path.rpartition(":")[2], "")}
            if asked is not None:
                body = _without(asked.body.decode(), places)
                line |= {"headers": _headers(asked.headers), "body": shortened(_body(body, tool))}
                line |= {"spaced": True} if b'": ' in asked.body[:_HEAD] else {}
            yield _without(json.dumps(line, ensure_ascii=False), places)


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in PASSING}


def _body(data: str, tool: str) -> Any:
    """Return the body with few of its tools."""
    body = json.loads(data)
    tools = body.get("tools") if isinstance(body, dict) else None
    if isinstance(tools, list):
        ours = [one for one in tools if tool and f'"{tool}"' in json.dumps(one)]
        others = [one for one in tools if one not in ours]
        body["tools"] = [_of_few(one, tool) for one in (others + ours)[-MOST_TOOLS:]]
    return body


def _of_few(tool: Any, name: str) -> Any:
    """Return a tool of Gemini's with few of its functions, any other as it is."""
    functions = tool.get("functionDeclarations") if isinstance(tool, dict) else None
    if not functions:
        return tool
    ours = sorted(functions, key=lambda one: one.get("name") == name)
    return {**tool, "functionDeclarations": ours[-MOST_TOOLS:]}


def shortened(value: Any, key: str = "") -> Any:
    """Return a JSON value with its texts cut."""
    if isinstance(value, dict):
        return {name: shortened(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [shortened(one, key) for one in value]
    if not isinstance(value, str) or len(value) <= KEPT or key in WHOLE or re.search(r"(?i)(\A|_)ids?\Z", key):
        return value
    return f"{value[:KEPT]}… ({len(value)} characters)"


def _without(line: str, places: Sequence[Path]) -> str:
    for place in places:
        line = line.replace(str(place), "/home/user")
    return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:8000", line)


def recorded(client: Client, folder: Path, installed: Path) -> list[str]:
    """Return the requests of a short conversation."""
    model = Model(client.tool, client.argument)
    recorder = Recorder(Provider(ProviderSettings(), model))
    home, work = folder / "home", folder / "work"
    for place in (home, work):
        place.mkdir(parents=True)
    with (
        serve_provider(recorder, on_request=recorder.told.append) as url,
        closing(client.begin(Place(installed, home, work, url))) as conversation,
    ):
        for number in range(1, TURNS + 1):
            model.turn = turn(number, WORDS, LINES)
            answer = conversation.say(model.turn)
            sys.stdout.write(f"{client.name} {number}: {answer.error or 'answered'}\n")
    return list(recorder.lines(client.tool, (work, home, folder, installed)))


def called(library: str, environment: str, installed: Path) -> list[str]:
    """Return the requests of every call of a library that a proxy may see."""
    recorder = Recorder(Provider())
    python = installed / environment / "bin" / "python"
    with serve_provider(recorder, on_request=recorder.told.append) as url:
        subprocess.run([str(python), str(CALLS), library, url], check=True)
    return list(recorder.lines("", (installed,)))


def main(installed: Path, names: Sequence[str]) -> None:
    """Write a file for each client."""
    SHAPES.mkdir(parents=True, exist_ok=True)
    for client in CLIENTS:
        if not names or client.name in names:
            with TemporaryDirectory(prefix="record-") as folder:
                _write(client.name, recorded(client, Path(folder), installed))
    for name, environment in LIBRARIES.items():
        if not names or name in names:
            _write(name, called(name.removeprefix("sdk-"), environment, installed))


def _write(name: str, lines: Sequence[str]) -> None:
    (SHAPES / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
