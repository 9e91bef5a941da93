"""An answer as it stands on the wire: what is said becomes blocks, items or parts, signed and with ids.

Ids are digests of the history and the place, so equal conversations get equal ids and no two calls of one get the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Raw, Struct

from holdfast.messages.parts import Opaque, Seal, Text, Thinking, ToolCall
from holdfast.testing.provider.calls import Said, Stop
from holdfast.testing.provider.reading import Request
from holdfast.testing.provider.seals.sealing import digest
from holdfast.testing.provider.seals.shelf import encrypt
from holdfast.testing.provider.seals.signing import sign
from holdfast.testing.provider.seals.thoughts import sign_part

Spoken = Text | Thinking | ToolCall | Opaque


class Setting(Struct, frozen=True):
    """Where an answer is given: to which request, behind which history."""

    api: str
    model: str
    prefix: str
    """The state of the chain behind the history."""
    number: int
    """Counts the answers of this provider."""
    encrypted: bool = True
    """Responses: whether reasoning goes out with its encrypted content."""
    omitted: bool = False
    """Anthropic: whether thinking goes out without its words, as a signature alone."""

    def id(self, prefix: str, place: int = 0) -> str:
        """Return an id that no other answer or place has."""
        return prefix + digest(self.prefix.encode(), str(self.number).encode(), str(place).encode())[:24]


def place(request: Request, prefix: str, number: int) -> Setting:
    """Return the setting of an answer to ``request``, with its wishes about what the client may see."""
    include = request.body.get("include")
    asked = isinstance(include, list) and "reasoning.encrypted_content" in include
    encrypted = asked or request.body.get("store") is False
    omitted = request.option("thinking", "display") == "omitted"
    return Setting(request.api, request.model, prefix, number, encrypted, omitted)


def speak(said: Said, setting: Setting) -> tuple[Spoken, ...]:
    """Return what is said as signed parts, each with its bytes."""
    return tuple(_SPEAKERS[setting.api](said, setting))


def _raw(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


# -- the four APIs -----------------------------------------------------------------------------------------------------


def _anthropic(said: Said, setting: Setting) -> Iterator[Spoken]:
    if said.thinking:
        words = "" if setting.omitted else said.thinking
        signature = sign(setting.prefix, setting.model, words)
        block = {"type": "thinking", "thinking": words, "signature": signature}
        yield Thinking(words, Seal("anthropic", setting.model, signature), _raw(block))
    if said.text:
        yield Text(said.text, raw=_raw({"type": "text", "text": said.text}))
    for at, (name, arguments) in enumerate(said.calls):
        id_ = setting.id("toolu_", at)
        raw = _raw({"type": "tool_use", "id": id_, "name": name, "input": dict(arguments)})
        yield ToolCall(id_, name, _json(arguments), raw=raw)


def _chat(said: Said, setting: Setting) -> Iterator[Spoken]:
    if said.text:
        yield Text(said.text)
    for at, (name, arguments) in enumerate(said.calls):
        id_, text = setting.id("call_", at), _json(arguments)
        call = {"id": id_, "type": "function", "function": {"name": name, "arguments": text}}
        yield ToolCall(id_, name, text, raw=_raw(call))


def _responses(said: Said, setting: Setting) -> Iterator[Spoken]:
    if said.thinking:
        yield _reasoning(said.thinking, setting)
    if said.text:
        content = [{"type": "output_text", "text": said.text, "annotations": [], "logprobs": []}]
        item = {"type": "message", "id": setting.id("msg_"), "status": "completed", "role": "assistant"}
        yield Text(said.text, raw=_raw(item | {"content": content}))
    for at, (name, arguments) in enumerate(said.calls):
        id_, text = setting.id("call_", at), _json(arguments)
        call = {"type": "function_call", "id": setting.id("fc_", at), "call_id": id_, "name": name, "arguments": text}
        yield ToolCall(id_, name, text, raw=_raw(call | {"status": "completed"}))


def _reasoning(words: str, setting: Setting) -> Thinking:
    id_ = setting.id("rs_")
    item: dict[str, Any] = {"type": "reasoning", "id": id_, "summary": [{"type": "summary_text", "text": words}]}
    if setting.encrypted:
        item["encrypted_content"] = encrypt(setting.prefix, setting.model, words)
    data = item.get("encrypted_content", id_)
    return Thinking(words, Seal("openai-responses", setting.model, data), _raw(item))


def _gemini(said: Said, setting: Setting) -> Iterator[Spoken]:
    if said.thinking:
        yield Thinking(said.thinking, raw=_raw({"text": said.thinking, "thought": True}))
    if said.text:
        part: dict[str, Any] = {"text": said.text}
        seal = None if said.calls else Seal("gemini", setting.model, sign_part(part, setting.model))
        signed = part | ({"thoughtSignature": seal.data} if seal is not None else {})
        yield Text(said.text, seal, _raw(signed))
    for at, (name, arguments) in enumerate(said.calls):
        part = {"functionCall": {"name": name, "args": dict(arguments)}}
        seal = Seal("gemini", setting.model, sign_part(part, setting.model)) if not at else None
        signed = part | ({"thoughtSignature": seal.data} if seal is not None else {})
        yield ToolCall(f"{name}#{at}", name, _json(arguments), seal, _raw(signed))


_SPEAKERS: dict[str, Callable[[Said, Setting], Iterator[Spoken]]] = {
    "anthropic": _anthropic,
    "openai-chat": _chat,
    "openai-responses": _responses,
    "gemini": _gemini,
}


# -- limits ------------------------------------------------------------------------------------------------------------


class Fitted(Struct, frozen=True):
    """What could be said within a limit, and how many tokens that took."""

    said: Said
    stop: Stop
    output: int
    reasoning: int


def fit(said: Said, limit: int | None, count: Callable[[str], int]) -> Fitted:
    """Return as much of an answer as fits in ``limit`` tokens: thinking, then words, then whole calls."""
    room = float("inf") if limit is None else float(limit)
    thinking, text, calls = _cut(said.thinking, room, count), "", list[tuple[str, Any]]()
    reasoning = used = count(thinking)
    if thinking == said.thinking:
        text = _cut(said.text, room - used, count)
        used += count(text)
    for name, arguments in said.calls if text == said.text else ():
        cost = count(name) + count(_json(arguments))
        if used + cost > room:
            break
        calls.append((name, arguments))
        used += cost
    whole = (thinking, text, tuple(calls)) == (said.thinking, said.text, tuple(said.calls))
    stop: Stop = said.stop or ("tool" if said.calls else "end")
    left = Said(text, tuple(calls), thinking, said.stop)
    return Fitted(left, stop if whole else "length", used, reasoning)


def _cut(text: str, room: float, count: Callable[[str], int]) -> str:
    """Return the longest beginning of ``text``, in halves of halves, that fits in ``room`` tokens."""
    if count(text) <= room:
        return text
    low, high = 0, len(text)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(text[:middle]) <= room else (low, middle)
    return text[:low]
