"""What takes the place of a conversation when a plugin compacts it: by our policy, and by two rivals without a model.

A *context* is the conversation as the host holds it. A policy gets it and returns the one that takes its place. Each is
called as its own plugin or proxy calls it, without the host around it:

- *holdfast*: what ``holdfast compact --stdin`` does with the transcript;
- *lcc* (``local-context-compiler``): its tool ``compact_transcript``, with the arguments of its Claude Code plugin. The
  plugin keeps the host's own summary where less than a quarter of the characters would go (``is_used``);
- *cliff* (``cliffcompaction``): the function that its proxy calls, with the proxy's default settings.

Rivals that are not installed are left out; ``uv run --group rivals`` installs them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from msgspec import Struct
from planner_caches import clear_planner_caches

from holdfast.hosts.compact_transcript import compact_transcript
from holdfast.hosts.transcript import read_transcript
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Part, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.references import decode_call_arguments
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.sized_message import SizedMessage

OURS = "holdfast"
LCC_PACKAGE, CLIFF_PACKAGE = "local-context-compiler", "cliffcompaction"
LCC_GOAL_PROMPTS, LCC_GOAL_CHARS = 3, 500
"""What lcc's plugin gives as the goal: the newest prompts of the user, cut to this many characters."""
LCC_MIN_REDUCTION = 0.25
"""Share of the characters below which lcc's plugin hands over to the host's own summary: its default."""


class CompactedContext(Struct, frozen=True):
    """What a policy made of a context."""

    messages: tuple[SizedMessage, ...]
    is_used: bool = True
    """Whether the plugin takes this, and does not leave the context as it was or hand over to the host's summary."""


class HostPolicy(Struct, frozen=True):
    """One way to compact a context. It is split so that only what keeps the user waiting is timed."""

    name: str
    encode: Callable[[Sequence[SizedMessage], int | None], bytes]
    """Writes a context and the window as the JSON that the policy's process gets."""
    run: Callable[[bytes], bytes]
    """Compacts: JSON in, JSON out. This is timed."""
    decode: Callable[[Sequence[SizedMessage], bytes], CompactedContext]
    """Reads the answer; messages that it keeps are those of the context."""

    def compact(self, context: Sequence[SizedMessage], window: int | None = None) -> CompactedContext:
        """Return what replaces ``context``."""
        return self.decode(context, self.run(self.encode(context, window)))


def list_policies() -> list[HostPolicy]:
    """Return the policies whose packages are installed, ours first."""
    policies = [HostPolicy(OURS, encode_for_holdfast, run_holdfast, decode_from_holdfast)]
    lcc_version, cliff_version = find_version(LCC_PACKAGE), find_version(CLIFF_PACKAGE)
    if lcc_version:
        for title, options in LCC_OPTIONS.items():
            run = _make_lcc_run(options)
            policies.append(HostPolicy(f"lcc {lcc_version}, {title}", encode_for_lcc, run, decode_from_lcc))
    if cliff_version:
        policies.append(HostPolicy(f"cliff {cliff_version}", encode_for_cliff, run_cliff, decode_from_cliff))
    return policies


def find_version(package: str) -> str:
    """Return the version of an installed package, or an empty text."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


# -- the transcript that a plugin gets ---------------------------------------------------------------------------------


def build_transcript(context: Sequence[SizedMessage], **fields: Any) -> dict[str, Any]:
    """Return a context as Claude Code hands it to a plugin; each message has its index as its handle."""
    messages = [_build_host_message(sized.message) | {"handle": str(index)} for index, sized in enumerate(context)]
    return {"messages": messages, **fields}


def _build_host_message(message: Message) -> dict[str, Any]:
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, Text):
            texts.append(part.text)
        elif isinstance(part, ToolCall):
            calls.append({"tool_use_id": part.id, "tool": part.name, "input": decode_call_arguments(part)})
        elif isinstance(part, ToolResult):
            text = get_result_text(part)
            results.append({"tool_use_id": part.call_id, "text": text, "isError": part.is_error})
    role = "assistant" if message.role == "assistant" else "user"
    host_message: dict[str, Any] = {"role": role, "text": "\n".join(texts)}
    if calls:
        host_message["toolUses"] = calls
    if results:
        host_message["toolResults"] = results
    return host_message


def build_message(host_message: dict[str, Any]) -> SizedMessage:
    """Return a message that a plugin wrote anew."""
    parts: list[Part] = []
    results = host_message.get("toolResults", [])
    for result in results:
        parts.append(ToolResult(result["tool_use_id"], "", (Text(result["text"]),), bool(result.get("is_error"))))
    if host_message.get("text"):
        parts.append(Text(host_message["text"]))
    for call in host_message.get("toolUses", []):
        parts.append(ToolCall(call["tool_use_id"], call["tool"], json.dumps(call["input"], ensure_ascii=False)))
    if host_message["role"] == "assistant":
        return build_sized_message(Message("assistant", tuple(parts)))
    is_tool_message = bool(results) and not host_message.get("text")
    return build_sized_message(Message("tool" if is_tool_message else "user", tuple(parts)))


# -- holdfast ----------------------------------------------------------------------------------------------------------


def encode_for_holdfast(context: Sequence[SizedMessage], window: int | None) -> bytes:
    """Return the input of ``holdfast compact --stdin``."""
    return json.dumps(build_transcript(context, window=window)).encode()


def run_holdfast(data: bytes) -> bytes:
    """Do what ``holdfast compact --stdin`` does, as a process does it that has seen none of the messages before."""
    clear_planner_caches()
    return msgspec.json.encode(compact_transcript(read_transcript(data)))


def decode_from_holdfast(context: Sequence[SizedMessage], answer: bytes) -> CompactedContext:
    """Return the extract and the kept messages."""
    compacted = json.loads(answer)
    messages = []
    for host_message in compacted["messages"]:
        handle = host_message.get("handle")
        messages.append(build_message(host_message) if handle is None else context[int(handle)])
    return CompactedContext(tuple(messages), not compacted.get("why"))


# -- lcc ---------------------------------------------------------------------------------------------------------------

LCC_OPTIONS = {
    "rules stashed": {"provider": "rules", "rules_mode": "stashed"},
    "specialist-v3": {"provider": "auto"},
}
"""The setting that lcc's README installs its plugin with, and its default ranker."""


def encode_for_lcc(context: Sequence[SizedMessage], window: int | None) -> bytes:  # noqa: ARG001 - lcc takes no window
    """Return the arguments of lcc's tool as its plugin makes them."""
    messages = build_transcript(context)["messages"]
    for host_message in messages:
        del host_message["handle"]
        for result in host_message.get("toolResults", []):
            if result.pop("isError"):
                result["is_error"] = True
    prompts = [message["text"].strip() for message in messages if message["role"] == "user" and message["text"].strip()]
    question = "\n".join(prompts[-LCC_GOAL_PROMPTS:])[:LCC_GOAL_CHARS]
    return json.dumps({"messages": messages, "question": question or "go on", "ref_blocks": False}).encode()


def _make_lcc_run(options: dict[str, str]) -> Callable[[bytes], bytes]:
    def run_lcc(data: bytes) -> bytes:
        """Do what lcc's server does with a call of its tool; what it removes goes to a folder of this call."""
        from lcc.mcp_server import _tool_compact_transcript

        with TemporaryDirectory() as folder:
            os.environ["LCC_STASH_DIR"] = folder
            result = _tool_compact_transcript({**json.loads(data), **options})
        return json.dumps(result).encode()

    return run_lcc


def decode_from_lcc(context: Sequence[SizedMessage], answer: bytes) -> CompactedContext:
    """Return lcc's messages: those of the context where lcc did not touch them, else those that it wrote."""
    result = json.loads(answer)
    originals = [_drop_host_fields(_build_host_message(sized.message)) for sized in context]
    messages = []
    position = 0
    for host_message in result["messages"]:
        wanted = _drop_host_fields(host_message)
        found = next((i for i in range(position, len(originals)) if originals[i] == wanted), None)
        if found is None:
            messages.append(build_message(host_message))
        else:
            messages.append(context[found])
            position = found + 1
    report = result["report"]
    return CompactedContext(tuple(messages), not report["degraded"] and report["reduction_ratio"] >= LCC_MIN_REDUCTION)


def _drop_host_fields(host_message: dict[str, Any]) -> tuple[Any, ...]:
    """Return what is compared of a message: role, text, calls and results."""
    calls = [(call["tool_use_id"], call["tool"], call["input"]) for call in host_message.get("toolUses", [])]
    results = [(result["tool_use_id"], result["text"]) for result in host_message.get("toolResults", [])]
    return host_message["role"], host_message.get("text", ""), calls, results


# -- cliff -------------------------------------------------------------------------------------------------------------


def encode_for_cliff(context: Sequence[SizedMessage], window: int | None) -> bytes:  # noqa: ARG001 - as above
    """Return the request body that cliff's proxy gets; thinking is in it, other than in a plugin's transcript."""
    messages = []
    for index, sized_message in enumerate(context):
        blocks = [block for part in sized_message.message.parts if (block := _build_block(part)) is not None]
        role = "assistant" if sized_message.message.role == "assistant" else "user"
        messages.append({"role": role, "content": blocks, "index": index})
    return json.dumps({"messages": messages}).encode()


def _build_block(part: Part) -> dict[str, Any] | None:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Thinking):
        return {"type": "thinking", "thinking": part.text}
    if isinstance(part, ToolCall):
        return {"type": "tool_use", "id": part.id, "name": part.name, "input": decode_call_arguments(part)}
    if isinstance(part, ToolResult):
        text = get_result_text(part)
        return {"type": "tool_result", "tool_use_id": part.call_id, "content": text, "is_error": part.is_error}
    return None


def run_cliff(data: bytes) -> bytes:
    """Do what cliff's proxy does with a request over its threshold."""
    from cliffcompaction.cliff import compact
    from cliffcompaction.config import Config
    from cliffcompaction.dialects.anthropic import DIALECT

    body = json.loads(data)
    result = compact(body["messages"], DIALECT, Config())
    if result is not None:
        body["messages"] = result.messages
    return json.dumps(body).encode()


def decode_from_cliff(context: Sequence[SizedMessage], answer: bytes) -> CompactedContext:
    """Return the head, cliff's summary and the kept turns."""
    messages = []
    has_summary = False
    for host_message in json.loads(answer)["messages"]:
        if "index" in host_message:
            messages.append(context[host_message["index"]])
        else:
            has_summary = True
            messages.append(build_sized_message(Message.from_text("user", host_message["content"])))
    return CompactedContext(tuple(messages), has_summary)
