"""Coding sessions past the window of each server, through the real proxy, against the strict provider in its role.

Usage: python tests/e2e/providers_past_window.py [--kind keeps|drops|switches] [--windows 2.5] [SERVER ...]

Prints a table: for each server the requests, the windows that the client's history fills, compactions, overflows that
the proxy recovered from, other refusals, and failures: refusals that reached the client, and lost words or reasoning.
``test_providers_past_window.py`` runs the same sessions.
"""

from __future__ import annotations

import argparse
import base64
import json
import struct
import sys
import zlib
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import anyio
import httpx2
from msgspec import Struct, field

from holdfast.providers.common.sse import SseReader
from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.report import ErrorReport
from holdfast.proxy.server import open_proxy
from holdfast.proxy.settings import Settings
from holdfast.state.entries import CompactionEntry
from holdfast.store.memory import MemoryStore
from holdfast.testing.provider import Provider, ProviderSettings, RefusalReply, ScriptedAnswer
from holdfast.testing.provider.checks.token_counter import count_word_pieces
from holdfast.testing.provider.server.app import make_provider_app

WINDOW = 16_000
"""Tokens: about three turns."""
WINDOWS = 2.5
"""Windows that the history of a client fills before its session ends."""
MAX_OUTPUT = 1_500
MAX_TURNS = 60
ClientKind: TypeAlias = Literal["keeps", "drops", "switches"]
"""Whether a client sends reasoning back, drops it, or comes with a history of other servers."""
RESULT_LINES = (12, 150, 40)
"""Lines of results, in turn."""
IMAGE_EVERY = 3
"""Turns from one image to the next."""


class ServerClient(Struct, frozen=True):
    """A client that is written for one server: its address, model and options."""

    server: str
    url: str
    """The address of the API, as the page of the server says."""
    model: str
    options: dict[str, Any] = {}
    reasoning: tuple[str, ...] = ()
    """Fields of an answer in which the server has reasoning, all of which the client sends back."""
    takes_images: bool = True
    api: str = "openai-chat"
    output_field: str = "max_tokens"


SERVER_CLIENTS = (
    ServerClient("mistral", "https://api.mistral.ai/v1", "mistral-medium-3-5", {"reasoning_effort": "high"}),
    ServerClient("deepseek", "https://api.deepseek.com/v1", "deepseek-flash", {}, ("reasoning_content",)),
    ServerClient("kimi", "https://api.moonshot.ai/v1", "kimi-k2.6", {}, ("reasoning_content",)),
    ServerClient("glm", "https://api.z.ai/api/paas/v4", "glm-5.2", {}, ("reasoning_content",), takes_images=False),
    ServerClient(
        "qwen",
        "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
        "qwen3.8-max",
        {"enable_thinking": True, "preserve_thinking": True},
        ("reasoning_content",),
    ),
    ServerClient(
        "minimax",
        "https://api.minimax.io/v1",
        "MiniMax-M3",
        {"reasoning_split": True},
        ("reasoning_details", "reasoning_content"),
        output_field="max_completion_tokens",
    ),
    ServerClient("xai", "https://api.x.ai/v1", "grok-4.6", {"reasoning_effort": "high"}, ("reasoning_content",)),
    ServerClient(
        "groq", "https://api.groq.com/openai/v1", "openai/gpt-oss-120b", {}, ("reasoning",), takes_images=False
    ),
    ServerClient("cerebras", "https://api.cerebras.ai/v1", "gpt-oss-120b", {}, ("reasoning",), takes_images=False),
    ServerClient(
        "openrouter",
        "https://openrouter.ai/api/v1",
        "z-ai/glm-5",
        {"reasoning": {"effort": "high"}},
        ("reasoning_details",),
    ),
    ServerClient(
        "bedrock",
        "https://bedrock-mantle.us-east-1.api.aws/anthropic",
        "anthropic.claude-opus-4-8",
        {"thinking": {"type": "adaptive"}},
        api="anthropic",
    ),
    ServerClient(
        "vertex",
        "https://us-central1-aiplatform.googleapis.com",
        "gemini-3.1-pro-preview",
        {"generationConfig": {"thinkingConfig": {"includeThoughts": True}}},
        api="gemini",
    ),
    ServerClient(
        "azure",
        "https://house.openai.azure.com/openai/v1",
        "house-deployment",
        output_field="max_completion_tokens",
    ),
    ServerClient(
        "vllm",
        "http://127.0.0.1:8000/v1",
        "Qwen/Qwen3-32B",
        {"chat_template_kwargs": {"enable_thinking": True}},
        ("reasoning",),
    ),
    ServerClient(
        "sglang",
        "http://127.0.0.1:30000/v1",
        "zai-org/GLM-5",
        {"chat_template_kwargs": {"enable_thinking": True}},
        ("reasoning_content",),
    ),
    ServerClient(
        "llamacpp",
        "http://127.0.0.1:8080/v1",
        "qwen3-32b-q4_k_m.gguf",
        {"chat_template_kwargs": {"enable_thinking": True}},
        ("reasoning_content",),
    ),
    ServerClient("ollama", "http://127.0.0.1:11434/v1", "qwen3:32b", {}, ("reasoning",)),
    ServerClient("lmstudio", "http://127.0.0.1:1234/v1", "gpt-oss-20b", {}, ("reasoning",), takes_images=False),
)
"""One client for each server."""
WANTS_REASONING_BACK = ("deepseek", "kimi")
"""Servers that refuse calls without their reasoning, so that it is sent from the log if a client drops it."""
CLIENTS_BY_SERVER = {client.server: client for client in SERVER_CLIENTS}


# -- the model and its work --------------------------------------------------------------------------------------------


class WorkingModel:
    """Two calls, one call, and a text, again and again, with a thought each time."""

    def __init__(self, name: str) -> None:
        self.name, self.number = name, 0
        self.thoughts: list[str] = []

    def choose_next_answer(self, _request: Any, _blocks: Any) -> ScriptedAnswer:
        """Return the next answer."""
        self.number += 1
        self.thoughts.append(f"{self.name} weighs place {self.number} of the wall. ")
        thinking = self.thoughts[-1] * 3
        read = ("read_file", {"path": f"src/part_{self.number}.py", "limit": 200})
        search = ("search", {"pattern": f"kelp_{self.number}"})
        if self.number % 3 == 1:
            return ScriptedAnswer("", (read, search), thinking)
        if self.number % 3 == 2:
            return ScriptedAnswer(f"One more look, {self.number}.", (read,), thinking)
        return ScriptedAnswer(f"Part {self.number} is mended: the value is read once.", (), thinking)


def make_result(number: int) -> str:
    lines = [
        f"{line:>4}  part_{line * 31 % 97} = compute({line * 7_919 % 9_973})"
        for line in range(RESULT_LINES[number % len(RESULT_LINES)])
    ]
    return "\n".join((f"result {number}", *lines))


def make_png() -> str:
    """Return the base64 of a whole image of 16 by 16 grey points."""

    def make_chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress((b"\0" + b"\x80" * 16) * 16)
    head = struct.pack(">IIBBBBB", 16, 16, 8, 0, 0, 0, 0)
    chunks = make_chunk(b"IHDR", head) + make_chunk(b"IDAT", rows) + make_chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + chunks).decode()


PNG = make_png()
SYSTEM = "You are the agent of a yard that mends sea walls. Read before you write. " * 8
TOOLS = (
    ("read_file", "Read lines of a file.", {"path": {"type": "string"}, "limit": {"type": "integer"}}, ["path"]),
    ("search", "Search the files.", {"pattern": {"type": "string"}}, ["pattern"]),
)


# -- the forms of the APIs ---------------------------------------------------------------------------------------------


class Call(Struct, frozen=True):
    """A call of an answer."""

    id: str
    name: str


class ChatForm:
    """Messages of Chat Completions, as a client keeps them that was written for one server."""

    def __init__(self, client: ServerClient, kind: ClientKind) -> None:
        self.client, self.kind = client, kind
        self.messages: list[dict[str, Any]] = []

    path = "/chat/completions"

    def add_user(self, text: str, image: str) -> None:
        content: Any = text
        if image:
            url = {"url": f"data:image/png;base64,{image}"}
            content = [{"type": "text", "text": text}, {"type": "image_url", "image_url": url}]
        self.messages.append({"role": "user", "content": content})

    def add_results(self, results: list[tuple[Call, str]]) -> None:
        for call, text in results:
            self.messages.append({"role": "tool", "tool_call_id": call.id, "content": text})

    def body(self, *, stream: bool) -> dict[str, Any]:
        tools = []
        for name, description, properties, required in TOOLS:
            schema = {"type": "object", "properties": properties, "required": required}
            function = {"name": name, "description": description, "parameters": schema}
            tools.append({"type": "function", "function": function})
        body = {"model": self.client.model, "messages": [{"role": "system", "content": SYSTEM}, *self.messages]}
        body |= {"tools": tools, self.client.output_field: MAX_OUTPUT, **self.client.options}
        return body | ({"stream": True} if stream else {})

    def add_answer(self, data: bytes, *, stream: bool) -> list[Call]:
        """Append the answer and return its calls."""
        message = join_chunks(data) if stream else json.loads(data)["choices"][0]["message"]
        self.messages.append(message if self.kind == "switches" else self._choose_fields(message))
        return [Call(call["id"], call["function"]["name"]) for call in message.get("tool_calls") or ()]

    def _choose_fields(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return what the client keeps of an answer; without reasoning if it drops that."""
        kept = {"role": "assistant", "content": message.get("content")}
        if message.get("tool_calls"):
            kept["tool_calls"] = message["tool_calls"]
        if self.kind == "drops":
            kept["content"] = drop_thinking_chunks(kept["content"])
            return kept
        return kept | {name: message[name] for name in self.client.reasoning if message.get(name)}


def drop_thinking_chunks(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    texts = [chunk["text"] for chunk in content if chunk["type"] == "text"]
    return "".join(texts)


def join_chunks(data: bytes) -> dict[str, Any]:
    """Join the deltas of a stream into a message."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    calls: dict[int, dict[str, Any]] = {}
    for delta in iter_deltas(data):
        for name, value in delta.items():
            if name == "tool_calls":
                for piece in value:
                    function = piece.get("function", {})
                    call = calls.setdefault(
                        piece["index"], {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
                    )
                    call["id"] = call["id"] or piece.get("id") or ""
                    call["function"]["name"] += function.get("name") or ""
                    call["function"]["arguments"] += function.get("arguments") or ""
            elif name == "reasoning_details":
                message[name] = join_details([*message.get(name, ()), *value])
            elif name != "role" and value:
                message[name] = join_content(message.get(name), value)
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return message


def iter_deltas(data: bytes) -> Iterator[dict[str, Any]]:
    reader = SseReader()
    for event in [*reader.feed(data), *reader.close()]:
        if event.data.startswith(b"{" if isinstance(event.data, bytes) else "{"):
            for choice in json.loads(event.data).get("choices", ()):
                yield choice.get("delta", {})


def join_content(before: Any, piece: Any) -> Any:
    """Join two pieces of content: texts, or lists of chunks."""
    if before is None:
        return piece
    if isinstance(before, str) and isinstance(piece, str):
        return before + piece
    chunks = list(before) if isinstance(before, list) else [{"type": "text", "text": before}]
    for chunk in piece if isinstance(piece, list) else [{"type": "text", "text": piece}]:
        last = chunks[-1]
        if last["type"] != chunk["type"]:
            chunks.append(chunk)
        elif chunk["type"] == "text":
            chunks[-1] = {**last, "text": last["text"] + chunk["text"]}
        else:
            text = last["thinking"][0]["text"] + chunk["thinking"][0]["text"]
            chunks[-1] = {**last, "thinking": [{"type": "text", "text": text}]}
    return chunks


def join_details(details: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join the texts of reasoning details with the same index."""
    joined: list[dict[str, Any]] = []
    for detail in details:
        if joined and joined[-1].get("index") == detail.get("index"):
            joined[-1] = joined[-1] | {"text": joined[-1].get("text", "") + detail.get("text", "")}
        else:
            joined.append(detail)
    return joined


class MessagesForm:
    """The conversation by the Messages API."""

    path = "/v1/messages"

    def __init__(self, client: ServerClient, kind: ClientKind) -> None:
        self.client, self.kind = client, kind
        self.messages: list[dict[str, Any]] = []

    def add_user(self, text: str, image: str) -> None:
        blocks: list[dict[str, Any]] = [{"type": "text", "text": text}]
        if image:
            blocks.append({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": image}})
        self.messages.append({"role": "user", "content": blocks})

    def add_results(self, results: list[tuple[Call, str]]) -> None:
        blocks = [{"type": "tool_result", "tool_use_id": call.id, "content": text} for call, text in results]
        self.messages.append({"role": "user", "content": blocks})

    def body(self, *, stream: bool) -> dict[str, Any]:
        tools = []
        for name, description, properties, required in TOOLS:
            schema = {"type": "object", "properties": properties, "required": required}
            tools.append({"name": name, "description": description, "input_schema": schema})
        body = {"model": self.client.model, "system": SYSTEM, "messages": self.messages, "tools": tools}
        del stream  # Only Chat Completions is streamed here.
        return body | {"max_tokens": MAX_OUTPUT, **self.client.options}

    def add_answer(self, data: bytes, *, stream: bool) -> list[Call]:
        del stream
        blocks = json.loads(data)["content"]
        kept = [block for block in blocks if self.kind != "drops" or block["type"] != "thinking"]
        self.messages.append({"role": "assistant", "content": kept})
        return [Call(block["id"], block["name"]) for block in blocks if block["type"] == "tool_use"]


class ContentsForm:
    """The conversation by the Gemini API."""

    def __init__(self, client: ServerClient, kind: ClientKind) -> None:
        self.client, self.kind = client, kind
        self.messages: list[dict[str, Any]] = []
        self.path = f"/v1beta/models/{client.model}:generateContent"

    def add_user(self, text: str, image: str) -> None:
        shown = [{"inlineData": {"mimeType": "image/png", "data": image}}] if image else []
        self.messages.append({"role": "user", "parts": [{"text": text}, *shown]})

    def add_results(self, results: list[tuple[Call, str]]) -> None:
        parts = []
        for call, text in results:
            response = {"name": call.name, "response": {"output": text}}
            parts.append({"functionResponse": response | ({"id": call.id} if call.id else {})})
        self.messages.append({"role": "user", "parts": parts})

    def body(self, *, stream: bool) -> dict[str, Any]:
        del stream
        declarations = []
        for name, description, properties, required in TOOLS:
            schema = {"type": "object", "properties": properties, "required": required}
            declarations.append({"name": name, "description": description, "parameters": schema})
        config = {"maxOutputTokens": MAX_OUTPUT, **self.client.options.get("generationConfig", {})}
        return {
            "systemInstruction": {"parts": [{"text": SYSTEM}]},
            "contents": self.messages,
            "tools": [{"functionDeclarations": declarations}],
            "generationConfig": config,
        }

    def add_answer(self, data: bytes, *, stream: bool) -> list[Call]:
        del stream
        content = json.loads(data)["candidates"][0]["content"]
        calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
        if self.kind == "drops":
            parts = [part for part in content["parts"] if not part.get("thought")]
            content = content | {"parts": parts}
        self.messages.append(content)
        return [Call(call.get("id", ""), call["name"]) for call in calls]


FORMS = {"openai-chat": ChatForm, "anthropic": MessagesForm, "gemini": ContentsForm}


# -- servers by their address ------------------------------------------------------------------------------------------


class _OnePieceStream(httpx2.AsyncByteStream):
    def __init__(self, data: bytes) -> None:
        self._data = data

    async def __aiter__(self):
        yield self._data


class ServerNetwork(httpx2.AsyncBaseTransport):
    """A network in which the strict provider has the address of each server; keeps what was sent to them."""

    def __init__(self, servers: tuple[str, ...], window: int) -> None:
        self.models: dict[str, WorkingModel] = {}
        self.providers: dict[str, Provider] = {}
        self.bodies: list[bytes] = []
        """Bodies of the requests for answers, from the first on."""
        self._apps = {}
        for server in servers:
            client = CLIENTS_BY_SERVER[server]
            self.models[server] = WorkingModel(server)
            self.providers[server] = Provider(ProviderSettings(server=server, window=window), self.models[server])
            self._apps[httpx2.URL(client.url).netloc] = httpx2.ASGITransport(make_provider_app(self.providers[server]))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Answer as the server at the address does."""
        body = await request.aread()
        if request.method == "POST" and b'"tools"' in body:
            self.bodies.append(body)
        reply = await self._apps[request.url.netloc].handle_async_request(request)
        return httpx2.Response(reply.status_code, headers=reply.headers, stream=_OnePieceStream(await reply.aread()))


class SessionReport(Struct):
    """What a session found."""

    server: str
    turns: int = 0
    requests: int = 0
    """Requests of the client."""
    tokens: int = 0
    """Tokens of the history that the client keeps."""
    windows: float = 0.0
    compactions: int = 0
    overflows: int = 0
    """Requests that were too large, and that the proxy made smaller."""
    refusals: list[str] = field(default_factory=list)
    """Refusals for another reason than the size."""
    failures: list[str] = field(default_factory=list)
    """What went wrong: answers that are none, lost words, lost reasoning."""


class CodingSession:
    """One session of a client through the proxy."""

    def __init__(self, web: httpx2.AsyncClient, network: ServerNetwork, client: ServerClient, kind: ClientKind) -> None:
        self.web, self.network, self.client, self.kind = web, network, client, kind
        self.form = FORMS[client.api](client, kind)
        self.report = SessionReport(client.server)
        self.result_count = 0
        self.own_thoughts = 0
        """Thoughts of the model before this turn."""

    def count_tokens(self) -> int:
        """Count the tokens of the client's history, without its images."""
        return count_word_pieces(json.dumps(self.form.messages).replace(PNG, ""))

    async def run_turn(self) -> bool:
        """Send words of the user, and results until the model calls no more tools; return whether all went well."""
        self.report.turns += 1
        turn = self.report.turns
        words = f"Turn {turn}: mend wall {turn * 7_919 % 9_973}, and leave stone {turn * 31 % 997} where it is."
        has_image = self.client.takes_images and turn % IMAGE_EVERY == 0
        self.form.add_user(words, PNG if has_image else "")
        model = self.network.models[self.client.server]
        self.own_thoughts = len(model.thoughts)
        while True:
            calls = await self._send(words)
            if calls is None:
                return False
            if not calls:
                return True
            results = []
            for call in calls:
                self.result_count += 1
                results.append((call, make_result(self.result_count)))
            self.form.add_results(results)

    async def _send(self, words: str) -> list[Call] | None:
        stream = self.report.requests % 2 == 1 and self.client.api == "openai-chat"
        sent_before = len(self.network.bodies)
        self.report.requests += 1
        url = f"/u/{self.client.url}{self.form.path}"
        reply = await self.web.post(url, json=self.form.body(stream=stream), headers={"authorization": "Bearer k"})
        if reply.status_code != 200:
            self.report.failures.append(f"{reply.status_code} {reply.text[:300]}")
            return None
        last_body = self.network.bodies[-1].decode() if len(self.network.bodies) > sent_before else ""
        if words not in last_body:
            self.report.failures.append(f"lost words: {words}")
        # OpenAI's own models show no reasoning in Chat Completions.
        gets_reasoning = self.kind == "keeps" and self.client.server != "azure"
        if gets_reasoning or (self.kind == "drops" and self.client.server in WANTS_REASONING_BACK):
            self._check_reasoning(last_body)
        return self.form.add_answer(reply.content, stream=stream)

    def _check_reasoning(self, body: str) -> None:
        """Note each answer of this turn that the server got back without the thought that led to it."""
        fields = json.loads(body)
        messages = fields.get("messages") or fields["contents"]
        answers = json.dumps([message for message in messages if message["role"] in ("assistant", "model")])
        model = self.network.models[self.client.server]
        for number in range(self.own_thoughts + 1, len(model.thoughts)):
            # An answer that a compaction has replaced needs no reasoning any more.
            if f"part_{number}.py" in answers and model.thoughts[number - 1] not in answers:
                self.report.failures.append(f"lost reasoning: {model.thoughts[number - 1]}")


def collect_report(session: CodingSession, network: ServerNetwork, store: MemoryStore, window: int) -> SessionReport:
    report = session.report
    report.tokens = session.count_tokens()
    report.windows = report.tokens / window
    for info in store.list_sessions():
        report.compactions += sum(isinstance(entry.body, CompactionEntry) for entry in store.read_entries(info.key))
    for server, provider in network.providers.items():
        for request in provider.requests:
            reply = request.reply
            if not isinstance(reply, RefusalReply):
                continue
            error = ErrorReport("", reply.status, reply.code, reply.message, reply.body)
            if request.tokens and classify_error(error).is_overflow:
                report.overflows += 1
            else:
                report.refusals.append(f"{server} {request.rule}: {reply.message}")
    return report


async def run_session(
    server: str, kind: ClientKind, *, windows: float = WINDOWS, window: int = WINDOW, states_window: bool = True
) -> SessionReport:
    """Run a session until the client's history fills ``windows`` windows, or something goes wrong.

    Without ``states_window`` nobody tells the proxy of the window: it asks a local server, or learns from a refusal.
    """
    client = CLIENTS_BY_SERVER[server]
    earlier = [other for other in EARLIER_SERVERS if other != server] if kind == "switches" else []
    if client.api != "openai-chat":
        earlier = []
    network, store = ServerNetwork((server, *earlier), window), MemoryStore()
    settings = Settings(window=window if states_window else 0)
    async with (
        open_proxy(settings, store, transport=network) as proxy,
        httpx2.AsyncClient(transport=httpx2.ASGITransport(proxy), base_url="http://127.0.0.1:8642") as web,
    ):
        session = CodingSession(web, network, client, kind)
        if kind == "switches":
            session.form.messages += make_foreign_history(client.api)
        for other in earlier:
            session.client = session.form.client = CLIENTS_BY_SERVER[other]
            if not await session.run_turn():
                break
            session.client = session.form.client = client
        while session.count_tokens() < windows * window and session.report.turns < MAX_TURNS:
            if session.report.failures or not await session.run_turn():
                break
        return collect_report(session, network, store, window)


EARLIER_SERVERS = ("deepseek", "mistral", "openrouter", "groq")
"""Servers with four forms of reasoning, which a client asked before."""


def make_foreign_history(api: str) -> list[dict[str, Any]]:
    """Return a history as libraries dump it: answers of OpenAI, of Claude and of Gemini."""
    if api == "anthropic":
        thinking = {"type": "thinking", "thinking": "The tide first.", "signature": ""}
        call = {"type": "tool_use", "id": "toolu_01AbCdEf", "name": "search", "input": {"pattern": "tide"}}
        return [
            {"role": "user", "content": "Earlier: find the tide tables."},
            {"role": "assistant", "content": [thinking, {"type": "text", "text": "I search."}, call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_01AbCdEf", "content": "none"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "There are none."}]},
        ]
    if api == "gemini":
        call = {"functionCall": {"name": "search", "args": {"pattern": "tide"}}}
        return [
            {"role": "user", "parts": [{"text": "Earlier: find the tide tables."}]},
            {"role": "model", "parts": [call]},
            {"role": "user", "parts": [{"functionResponse": {"name": "search", "response": {"output": "none"}}}]},
            {"role": "model", "parts": [{"text": "There are none."}]},
        ]
    dumped = {"refusal": None, "annotations": [], "audio": None, "function_call": None}
    signed_block = {"type": "thinking", "thinking": "The tide first.", "signature": "ErUB" + "abcd" * 40}
    arguments = '{"pattern": "tide"}'
    claude_call = {"id": "toolu_01AbCdEf", "type": "function", "function": {"name": "search", "arguments": arguments}}
    gemini_call = {
        "id": "call_gem_1",
        "type": "function",
        "function": {"name": "search", "arguments": arguments},
        "extra_content": {"google": {"thought_signature": "EuUB" + "abcd" * 40}},
    }
    openai_call = claude_call | {"id": "call_Zx81kqT0aaBBccDDeeFF0011"}
    return [
        {"role": "user", "content": "Earlier: find the tide tables."},
        {"role": "assistant", "content": None, "tool_calls": [openai_call], **dumped},
        {"role": "tool", "tool_call_id": openai_call["id"], "content": "none"},
        {
            "role": "assistant",
            "content": "I look elsewhere.",
            "tool_calls": [claude_call],
            "thinking_blocks": [signed_block],
            "reasoning_content": "The tide first.",
            "provider_specific_fields": {"stop": "tool_use"},
        },
        {"role": "tool", "tool_call_id": "toolu_01AbCdEf", "name": "search", "content": "none"},
        {"role": "assistant", "content": None, "tool_calls": [gemini_call], "reasoning_content": None},
        {"role": "tool", "tool_call_id": "call_gem_1", "content": "none"},
        {"role": "assistant", "content": "There are none.", **dumped},
    ]


def main() -> int:
    """Run the sessions and print the table; return 1 if anything went wrong."""
    parser = argparse.ArgumentParser(prog="python tests/e2e/providers_past_window.py", description=__doc__)
    parser.add_argument("servers", nargs="*", metavar="SERVER", help="default: all")
    parser.add_argument("--kind", action="append", choices=("keeps", "drops", "switches"))
    parser.add_argument("--windows", type=float, default=WINDOWS)
    parser.add_argument("--unstated", action="store_true", help="do not tell the proxy of the window")
    args = parser.parse_args()
    sys.stdout.write(
        "| server | client | requests | windows | compactions | overflows recovered | other refusals | failures |\n"
    )
    sys.stdout.write("|---|---|---|---|---|---|---|---|\n")
    has_failed = False
    for server in args.servers or CLIENTS_BY_SERVER:
        for kind in args.kind or ("keeps", "drops", "switches"):

            async def run(server: str = server, kind: ClientKind = kind) -> SessionReport:
                return await run_session(server, kind, windows=args.windows, states_window=not args.unstated)

            report = anyio.run(run)
            sys.stdout.write(
                f"| {server} | {kind} | {report.requests} | {report.windows:.1f} | {report.compactions} |"
                f" {report.overflows} | {len(report.refusals)} | {len(report.failures)} |\n"
            )
            for problem in (*report.refusals[:3], *report.failures[:3]):
                sys.stderr.write(f"    {problem}\n")
            has_failed = has_failed or bool(report.refusals or report.failures or not report.compactions)
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
