"""Encode an answer as signed blocks, items or parts of an API, with ids.

Ids are digests of the history and the position, so that equal conversations get equal ids and no two calls of a
conversation share one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Raw, Struct

from holdfast.messages.parts import Opaque, ProviderSignature, Text, Thinking, ToolCall
from holdfast.testing.provider.calls import ScriptedAnswer, StopReason
from holdfast.testing.provider.dialects.adapt_answer import REASONING_FIELD
from holdfast.testing.provider.dialects.server_dialect import ReasoningForm, make_openai_call_id
from holdfast.testing.provider.parse_request import ProviderRequest
from holdfast.testing.provider.signatures.anthropic_thinking import sign_thinking
from holdfast.testing.provider.signatures.gemini_thoughts import sign_gemini_part
from holdfast.testing.provider.signatures.opaque_texts import digest_pieces
from holdfast.testing.provider.signatures.response_history import encrypt_reasoning

SignedPart = Text | Thinking | ToolCall | Opaque


class AnswerSettings(Struct, frozen=True):
    """The request and the history that an answer is encoded and signed for."""

    api: str
    model: str
    prefix: str
    """Digest of the history before the answer."""
    number: int
    """Number of the answer among all of this provider."""
    sends_encrypted: bool = True
    """Whether reasoning is sent with its encrypted content (Responses)."""
    omits_thinking: bool = False
    """Whether thinking is sent without its text, as a signature alone (Anthropic)."""
    reasoning_form: ReasoningForm = ""
    """Where an answer of Chat Completions has its reasoning; empty for nowhere, as at OpenAI."""
    make_call_id: Callable[[str, str, int], str] = make_openai_call_id
    """Makes the id of a call of Chat Completions (``AnswerForm.make_call_id``)."""

    def make_id(self, prefix: str, position: int = 0) -> str:
        """Return an id that no other answer and no other position has."""
        return prefix + self.make_digest(position)

    def make_digest(self, position: int) -> str:
        """Return 24 hexadecimal digits that no other answer and no other position has."""
        return digest_pieces(self.prefix.encode(), str(self.number).encode(), str(position).encode())[:24]


def make_answer_settings(request: ProviderRequest, prefix: str, number: int) -> AnswerSettings:
    """Return the settings of an answer to ``request``, by the request's options about reasoning."""
    include = request.body.get("include")
    includes_encrypted = isinstance(include, list) and "reasoning.encrypted_content" in include
    return AnswerSettings(
        request.api,
        request.model,
        prefix,
        number,
        # A request that is not stored gets the content in any case: it has no other way to continue.
        sends_encrypted=includes_encrypted or request.body.get("store") is False,
        omits_thinking=request.get_option("thinking", "display") == "omitted",
    )


def sign_answer(answer: ScriptedAnswer, setting: AnswerSettings) -> tuple[SignedPart, ...]:
    """Encode an answer as signed parts, each with its raw JSON."""
    return tuple(_SIGNERS[setting.api](answer, setting))


def _encode_raw(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))


def _encode_json_string(value: object) -> str:
    return msgspec.json.encode(value).decode()


# -- the four APIs -----------------------------------------------------------------------------------------------------


def _sign_anthropic_parts(answer: ScriptedAnswer, setting: AnswerSettings) -> Iterator[SignedPart]:
    if answer.thinking:
        thinking_text = "" if setting.omits_thinking else answer.thinking
        signature = sign_thinking(setting.prefix, setting.model, thinking_text)
        block = {"type": "thinking", "thinking": thinking_text, "signature": signature}
        yield Thinking(thinking_text, ProviderSignature("anthropic", setting.model, signature), _encode_raw(block))
    if answer.text:
        yield Text(answer.text, raw=_encode_raw({"type": "text", "text": answer.text}))
    for index, (name, arguments) in enumerate(answer.calls):
        id_ = setting.make_id("toolu_", index)
        raw = _encode_raw({"type": "tool_use", "id": id_, "name": name, "input": dict(arguments)})
        yield ToolCall(id_, name, _encode_json_string(arguments), raw=raw)


def _sign_chat_parts(answer: ScriptedAnswer, setting: AnswerSettings) -> Iterator[SignedPart]:
    text = answer.text
    if answer.thinking and setting.reasoning_form == "think-tags":
        text = f"<think>\n{answer.thinking}\n</think>\n\n{text}"
    elif answer.thinking and setting.reasoning_form:
        # The data of the signature is the name of the field; ``adapt_answer`` moves it to the server's own.
        yield Thinking(answer.thinking, ProviderSignature("openai-chat", setting.model, REASONING_FIELD))
    if text:
        yield Text(text)
    for index, (name, arguments) in enumerate(answer.calls):
        id_ = setting.make_call_id(setting.make_digest(index), name, index)
        arguments_text = _encode_json_string(arguments)
        call = {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments_text}}
        yield ToolCall(id_, name, arguments_text, raw=_encode_raw(call))


def _sign_responses_parts(answer: ScriptedAnswer, setting: AnswerSettings) -> Iterator[SignedPart]:
    if answer.thinking:
        yield _make_reasoning_part(answer.thinking, setting)
    if answer.text:
        content = [{"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}]
        item = {"type": "message", "id": setting.make_id("msg_"), "status": "completed", "role": "assistant"}
        yield Text(answer.text, raw=_encode_raw(item | {"content": content}))
    for index, (name, arguments) in enumerate(answer.calls):
        call_id = setting.make_id("call_", index)
        arguments_text = _encode_json_string(arguments)
        # A name of this API has no dot, so the one before the last dot is that of a namespace.
        namespace, _, tool_name = name.rpartition(".")
        call = {
            "type": "function_call",
            "id": setting.make_id("fc_", index),
            "call_id": call_id,
            "name": tool_name,
            "arguments": arguments_text,
            "status": "completed",
        }
        if namespace:
            call["namespace"] = namespace
        yield ToolCall(call_id, tool_name, arguments_text, raw=_encode_raw(call))


def _make_reasoning_part(text: str, setting: AnswerSettings) -> Thinking:
    item_id = setting.make_id("rs_")
    summary = [{"type": "summary_text", "text": text}]
    item: dict[str, Any] = {"type": "reasoning", "id": item_id, "summary": summary}
    if setting.sends_encrypted:
        item["encrypted_content"] = encrypt_reasoning(setting.prefix, setting.model, text)
    data = item.get("encrypted_content", item_id)
    return Thinking(text, ProviderSignature("openai-responses", setting.model, data), _encode_raw(item))


def _sign_gemini_parts(answer: ScriptedAnswer, setting: AnswerSettings) -> Iterator[SignedPart]:
    if answer.thinking:
        yield Thinking(answer.thinking, raw=_encode_raw({"text": answer.thinking, "thought": True}))
    # The signature is on the first call, or on the text if there are no calls; parallel calls have none.
    if answer.text:
        part: dict[str, Any] = {"text": answer.text}
        signature = None if answer.calls else _add_thought_signature(part, setting)
        yield Text(answer.text, signature, _encode_raw(part))
    for index, (name, arguments) in enumerate(answer.calls):
        part = {"functionCall": {"name": name, "args": dict(arguments)}}
        signature = _add_thought_signature(part, setting) if index == 0 else None
        yield ToolCall(
            f"{name}#{index}",
            name,
            _encode_json_string(arguments),
            signature,
            _encode_raw(part),
        )


def _add_thought_signature(part: dict[str, Any], setting: AnswerSettings) -> ProviderSignature:
    """Sign a part of Gemini's in place, and return the signature."""
    signature = ProviderSignature("gemini", setting.model, sign_gemini_part(part, setting.model))
    part["thoughtSignature"] = signature.data
    return signature


_SIGNERS: dict[str, Callable[[ScriptedAnswer, AnswerSettings], Iterator[SignedPart]]] = {
    "anthropic": _sign_anthropic_parts,
    "openai-chat": _sign_chat_parts,
    "openai-responses": _sign_responses_parts,
    "gemini": _sign_gemini_parts,
}


# -- limits ------------------------------------------------------------------------------------------------------------


class FittedAnswer(Struct, frozen=True):
    """The part of an answer that fits in a limit, with its tokens."""

    answer: ScriptedAnswer
    stop: StopReason
    output: int
    """Tokens of the whole answer."""
    reasoning: int
    """Tokens of the thinking."""


def fit_answer(answer: ScriptedAnswer, limit: int | None, count: Callable[[str], int]) -> FittedAnswer:
    """Cut an answer to ``limit`` tokens: thinking comes first, then text, then calls, which are never cut."""
    max_tokens = float("inf") if limit is None else float(limit)
    thinking = _cut_text_to_tokens(answer.thinking, max_tokens, count)
    reasoning_tokens = count(thinking)
    used_tokens = reasoning_tokens
    text = ""
    if thinking == answer.thinking:
        text = _cut_text_to_tokens(answer.text, max_tokens - used_tokens, count)
        used_tokens += count(text)
    calls = []
    # A model that was cut in its text never comes to its calls.
    if text == answer.text:
        for name, arguments in answer.calls:
            call_tokens = count(name) + count(_encode_json_string(arguments))
            # Half a call is not sent at all.
            if used_tokens + call_tokens > max_tokens:
                break
            calls.append((name, arguments))
            used_tokens += call_tokens
    is_complete = (thinking, text, tuple(calls)) == (answer.thinking, answer.text, tuple(answer.calls))
    stop: StopReason = answer.stop or ("tool" if answer.calls else "end")
    if not is_complete:
        stop = "length"
    fitted_answer = ScriptedAnswer(text, tuple(calls), thinking, answer.stop)
    return FittedAnswer(fitted_answer, stop, used_tokens, reasoning_tokens)


def _cut_text_to_tokens(text: str, budget: float, count: Callable[[str], int]) -> str:
    """Return a beginning of ``text`` that fits in ``budget`` tokens, about the longest, by binary search."""
    if count(text) <= budget:
        return text
    low = 0
    high = len(text)
    while high - low > 1:
        middle = (low + high) // 2
        if count(text[:middle]) <= budget:
            low = middle
        else:
            high = middle
    return text[:low]
