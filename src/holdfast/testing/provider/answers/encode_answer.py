"""An answer as it stands on the wire: what is said becomes blocks, items or parts, signed and with ids.

Ids are digests of the history and the place, so equal conversations get equal ids and no two calls of one get the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Raw, Struct

from holdfast.messages.parts import Opaque, ProviderSignature, Text, Thinking, ToolCall
from holdfast.testing.provider.calls import ScriptedAnswer, StopReason
from holdfast.testing.provider.parse_request import ProviderRequest
from holdfast.testing.provider.signatures.anthropic_thinking import sign_thinking
from holdfast.testing.provider.signatures.gemini_thoughts import sign_gemini_part
from holdfast.testing.provider.signatures.opaque_texts import digest_pieces
from holdfast.testing.provider.signatures.response_history import encrypt_reasoning

SignedPart = Text | Thinking | ToolCall | Opaque


class AnswerSettings(Struct, frozen=True):
    """Where an answer is given: to which request, behind which history."""

    api: str
    model: str
    prefix: str
    """The state of the chain behind the history."""
    number: int
    """Counts the answers of this provider."""
    sends_encrypted: bool = True
    """Responses: whether reasoning goes out with its encrypted content."""
    omits_thinking: bool = False
    """Anthropic: whether thinking goes out without its words, as a signature alone."""

    def make_id(self, prefix: str, position: int = 0) -> str:
        """Return an id that no other answer or place has."""
        return prefix + digest_pieces(self.prefix.encode(), str(self.number).encode(), str(position).encode())[:24]


def make_answer_settings(request: ProviderRequest, prefix: str, number: int) -> AnswerSettings:
    """Return the setting of an answer to ``request``, with its wishes about what the client may see."""
    include = request.body.get("include")
    includes_encrypted = isinstance(include, list) and "reasoning.encrypted_content" in include
    is_encrypted = includes_encrypted or request.body.get("store") is False
    is_omitted = request.get_option("thinking", "display") == "omitted"
    return AnswerSettings(request.api, request.model, prefix, number, is_encrypted, is_omitted)


def sign_answer(answer: ScriptedAnswer, setting: AnswerSettings) -> tuple[SignedPart, ...]:
    """Return what is said as signed parts, each with its bytes."""
    return tuple(_SIGNERS[setting.api](answer, setting))


def _encode_raw(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))


def _encode_json_string(value: object) -> str:
    return msgspec.json.encode(value).decode()


# -- the four APIs -----------------------------------------------------------------------------------------------------


def _sign_anthropic_parts(answer: ScriptedAnswer, setting: AnswerSettings) -> Iterator[SignedPart]:
    if answer.thinking:
        words = "" if setting.omits_thinking else answer.thinking
        signature = sign_thinking(setting.prefix, setting.model, words)
        block = {"type": "thinking", "thinking": words, "signature": signature}
        yield Thinking(words, ProviderSignature("anthropic", setting.model, signature), _encode_raw(block))
    if answer.text:
        yield Text(answer.text, raw=_encode_raw({"type": "text", "text": answer.text}))
    for at, (name, arguments) in enumerate(answer.calls):
        id_ = setting.make_id("toolu_", at)
        raw = _encode_raw({"type": "tool_use", "id": id_, "name": name, "input": dict(arguments)})
        yield ToolCall(id_, name, _encode_json_string(arguments), raw=raw)


def _sign_chat_parts(answer: ScriptedAnswer, setting: AnswerSettings) -> Iterator[SignedPart]:
    if answer.text:
        yield Text(answer.text)
    for at, (name, arguments) in enumerate(answer.calls):
        id_, text = setting.make_id("call_", at), _encode_json_string(arguments)
        call = {"id": id_, "type": "function", "function": {"name": name, "arguments": text}}
        yield ToolCall(id_, name, text, raw=_encode_raw(call))


def _sign_responses_parts(answer: ScriptedAnswer, setting: AnswerSettings) -> Iterator[SignedPart]:
    if answer.thinking:
        yield _make_reasoning_part(answer.thinking, setting)
    if answer.text:
        content = [{"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}]
        item = {"type": "message", "id": setting.make_id("msg_"), "status": "completed", "role": "assistant"}
        yield Text(answer.text, raw=_encode_raw(item | {"content": content}))
    for at, (name, arguments) in enumerate(answer.calls):
        id_, text = setting.make_id("call_", at), _encode_json_string(arguments)
        call = {
            "type": "function_call",
            "id": setting.make_id("fc_", at),
            "call_id": id_,
            "name": name,
            "arguments": text,
        }
        yield ToolCall(id_, name, text, raw=_encode_raw(call | {"status": "completed"}))


def _make_reasoning_part(words: str, setting: AnswerSettings) -> Thinking:
    id_ = setting.make_id("rs_")
    item: dict[str, Any] = {"type": "reasoning", "id": id_, "summary": [{"type": "summary_text", "text": words}]}
    if setting.sends_encrypted:
        item["encrypted_content"] = encrypt_reasoning(setting.prefix, setting.model, words)
    data = item.get("encrypted_content", id_)
    return Thinking(words, ProviderSignature("openai-responses", setting.model, data), _encode_raw(item))


def _sign_gemini_parts(answer: ScriptedAnswer, setting: AnswerSettings) -> Iterator[SignedPart]:
    if answer.thinking:
        yield Thinking(answer.thinking, raw=_encode_raw({"text": answer.thinking, "thought": True}))
    if answer.text:
        part: dict[str, Any] = {"text": answer.text}
        signature = (
            None if answer.calls else ProviderSignature("gemini", setting.model, sign_gemini_part(part, setting.model))
        )
        wire_part = part | ({"thoughtSignature": signature.data} if signature is not None else {})
        yield Text(answer.text, signature, _encode_raw(wire_part))
    for at, (name, arguments) in enumerate(answer.calls):
        part = {"functionCall": {"name": name, "args": dict(arguments)}}
        signature = (
            ProviderSignature("gemini", setting.model, sign_gemini_part(part, setting.model)) if not at else None
        )
        wire_part = part | ({"thoughtSignature": signature.data} if signature is not None else {})
        yield ToolCall(f"{name}#{at}", name, _encode_json_string(arguments), signature, _encode_raw(wire_part))


_SIGNERS: dict[str, Callable[[ScriptedAnswer, AnswerSettings], Iterator[SignedPart]]] = {
    "anthropic": _sign_anthropic_parts,
    "openai-chat": _sign_chat_parts,
    "openai-responses": _sign_responses_parts,
    "gemini": _sign_gemini_parts,
}


# -- limits ------------------------------------------------------------------------------------------------------------


class FittedAnswer(Struct, frozen=True):
    """What could be said within a limit, and how many tokens that took."""

    answer: ScriptedAnswer
    stop: StopReason
    output: int
    reasoning: int


def fit_answer(answer: ScriptedAnswer, limit: int | None, count: Callable[[str], int]) -> FittedAnswer:
    """Return as much of an answer as fits in ``limit`` tokens: thinking, then words, then whole calls."""
    room = float("inf") if limit is None else float(limit)
    thinking, text, calls = _cut_text_to_tokens(answer.thinking, room, count), "", list[tuple[str, Any]]()
    reasoning = used = count(thinking)
    if thinking == answer.thinking:
        text = _cut_text_to_tokens(answer.text, room - used, count)
        used += count(text)
    for name, arguments in answer.calls if text == answer.text else ():
        cost = count(name) + count(_encode_json_string(arguments))
        if used + cost > room:
            break
        calls.append((name, arguments))
        used += cost
    whole = (thinking, text, tuple(calls)) == (answer.thinking, answer.text, tuple(answer.calls))
    stop: StopReason = answer.stop or ("tool" if answer.calls else "end")
    fitted_answer = ScriptedAnswer(text, tuple(calls), thinking, answer.stop)
    return FittedAnswer(fitted_answer, stop if whole else "length", used, reasoning)


def _cut_text_to_tokens(text: str, budget: float, count: Callable[[str], int]) -> str:
    """Return the longest beginning of ``text``, in halves of halves, that fits in ``budget`` tokens."""
    if count(text) <= budget:
        return text
    low, high = 0, len(text)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(text[:middle]) <= budget else (low, middle)
    return text[:low]
