"""Record what each client sends in a short conversation to ``tests/proxy/shapes``, for tests without clients.

Usage: python tests/clients/client_request_recorder.py INSTALLED [NAME]…

A line is one request: ``method``, ``path``, ``headers`` and ``body``, and ``spaced`` if the body had white space. Texts
of more than ``KEPT`` characters are cut with a note of their length: most are the clients' own prompts. Keys are left
out, and three of the tools are kept.
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

from command_line_clients import ClientPlace
from conversation_driver import CLIENTS, Client
from conversation_script import Model, make_turn

from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.provider.calls import IncomingRequest, ProviderReply
from holdfast.testing.provider.server.app import RequestReport
from holdfast.testing.provider.server.local_server import serve_provider

SHAPES = Path(__file__).parents[1] / "proxy" / "shapes"
CALLS = Path(__file__).with_name("library_calls.py")
TURNS, WORDS, LINES = 3, 12, 2
KEPT = 40
WHOLE = frozenset({"user_id", "arguments", "command", "cmd", "encrypted_content", "signature", "thoughtSignature"})
"""Fields that are kept whole besides ids: the test model's own texts, and the client's identity."""
MOST_TOOLS = 3
_HEAD = 40
"""Bytes in which a body shows whether it has white space between names and values."""
LOCAL_HEADERS = ("host", "connection", "content-length", "accept-encoding")
"""Headers that belong to this machine's connection only."""
QUERIES = {"streamGenerateContent": "?alt=sse"}
"""The query of a path by its method; the provider reports the path only."""
LIBRARIES = {"sdk-anthropic": "venv", "sdk-openai": "venv", "sdk-google-genai": "venv"}
"""Names of the recordings of every call of a library (``library_calls.py``), with the environment that has it."""


class Recorder:
    """A provider that keeps each request as it was received."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self.settings, self.requests = provider.settings, provider.requests
        self.incoming: list[IncomingRequest] = []
        self.reports: list[RequestReport] = []

    def answer(self, request: IncomingRequest) -> ProviderReply:
        """Keep the request and answer as the provider does."""
        self.incoming.append(request)
        return self._provider.answer(request)

    def lines(self, tool: str, places: Sequence[Path]) -> Iterator[str]:
        """Yield the requests in order as JSON, with the paths in ``places`` replaced."""
        bodies = iter(self.incoming)
        for report in self.reports:
            request = next(bodies) if report.api else None
            line = {"method": report.method, "path": report.path + QUERIES.get(report.path.rpartition(":")[2], "")}
            if request is not None:
                body = _replace_paths(request.body.decode(), places)
                line |= {
                    "headers": _drop_local_headers(request.headers),
                    "body": shorten_texts(_parse_body(body, tool)),
                }
                line |= {"spaced": True} if b'": ' in request.body[:_HEAD] else {}
            yield _replace_paths(json.dumps(line, ensure_ascii=False), places)


def _drop_local_headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in LOCAL_HEADERS}


def _parse_body(data: str, tool_name: str) -> Any:
    """Return the body with at most ``MOST_TOOLS`` of its tools, the one in use among them."""
    body = json.loads(data)
    tools = body.get("tools") if isinstance(body, dict) else None
    if isinstance(tools, list):
        ours = [tool for tool in tools if tool_name and f'"{tool_name}"' in json.dumps(tool)]
        others = [tool for tool in tools if tool not in ours]
        body["tools"] = [_keep_few_functions(tool, tool_name) for tool in (others + ours)[-MOST_TOOLS:]]
    return body


def _keep_few_functions(tool: Any, name: str) -> Any:
    """Return a Gemini tool with at most ``MOST_TOOLS`` functions, any other tool unchanged."""
    functions = tool.get("functionDeclarations") if isinstance(tool, dict) else None
    if not functions:
        return tool
    ours = sorted(functions, key=lambda function: function.get("name") == name)
    return {**tool, "functionDeclarations": ours[-MOST_TOOLS:]}


def shorten_texts(value: Any, key: str = "") -> Any:
    """Return a JSON value with its long texts cut."""
    if isinstance(value, dict):
        return {name: shorten_texts(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [shorten_texts(item, key) for item in value]
    if not isinstance(value, str) or len(value) <= KEPT or key in WHOLE or re.search(r"(?i)(\A|_)ids?\Z", key):
        return value
    return f"{value[:KEPT]}… ({len(value)} characters)"


def _replace_paths(line: str, places: Sequence[Path]) -> str:
    for path in places:
        line = line.replace(str(path), "/home/user")
    return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:8000", line)


def record_client(client: Client, folder: Path, clients_folder: Path) -> list[str]:
    """Return the requests of a short conversation."""
    model = Model(client.tool, client.argument)
    recorder = Recorder(Provider(ProviderSettings(), model))
    home, work = folder / "home", folder / "work"
    for path in (home, work):
        path.mkdir(parents=True)
    with (
        serve_provider(recorder, on_request=recorder.reports.append) as url,
        closing(client.begin(ClientPlace(clients_folder, home, work, url))) as conversation,
    ):
        for number in range(1, TURNS + 1):
            model.turn = make_turn(number, WORDS, LINES)
            answer = conversation.say(model.turn)
            sys.stdout.write(f"{client.name} {number}: {answer.error or 'answered'}\n")
    return list(recorder.lines(client.tool, (work, home, folder, clients_folder)))


def record_library(library: str, environment: str, clients_folder: Path) -> list[str]:
    """Return the requests of every library call that a proxy may see."""
    recorder = Recorder(Provider())
    python = clients_folder / environment / "bin" / "python"
    with serve_provider(recorder, on_request=recorder.reports.append) as url:
        subprocess.run([str(python), str(CALLS), library, url], check=True)
    return list(recorder.lines("", (clients_folder,)))


def main(clients_folder: Path, names: Sequence[str]) -> None:
    """Write one recording for each client."""
    SHAPES.mkdir(parents=True, exist_ok=True)
    for client in CLIENTS:
        if not names or client.name in names:
            with TemporaryDirectory(prefix="record-") as folder:
                _write(client.name, record_client(client, Path(folder), clients_folder))
    for name, environment in LIBRARIES.items():
        if not names or name in names:
            _write(name, record_library(name.removeprefix("sdk-"), environment, clients_folder))


def _write(name: str, lines: Sequence[str]) -> None:
    (SHAPES / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
