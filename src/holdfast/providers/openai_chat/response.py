"""OpenAI Chat Completions, and the servers that speak it: a body or its chunks as an answer.

A message of an answer is not quite one of a request: fields that say nothing go, so do annotations, and of audio the
id stays. Of several choices the first is the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any, Literal

from msgspec import Raw, Struct
from msgspec.json import Decoder

from holdfast.messages.message import Message
from holdfast.providers.answers.accumulator import (
    EMPTY_ANSWER,
    adjust_stop_for_calls,
    build_parsed_answer,
    decode_message_or_empty,
    map_stop_reason,
)
from holdfast.providers.answers.parsed_answer import ParsedAnswer, StopReason
from holdfast.providers.api_spec import AnswerFormat
from holdfast.providers.common.event_text import get_first_object, get_text_at
from holdfast.providers.common.json.lenient_json import (
    ListIndex,
    drop_null_fields,
    read_json_count,
    read_json_fields,
    read_json_items,
    read_json_text,
    read_json_value,
    try_decode_json,
)
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.providers.openai_chat import messages as openai_chat
from holdfast.state.entries import Usage

STOP_REASONS: dict[str, StopReason] = {
    "stop": "end",
    "length": "length",
    "tool_calls": "tool",
    "function_call": "tool",
    "content_filter": "content_filter",
    "eos": "end",
    "eos_token": "end",
    "end_turn": "end",
    "max_tokens": "length",
    "stop_sequence": "stop_sequence",
    "tool_use": "tool",
    "refusal": "refusal",
    "model_length": "window",
    "model_context_window_exceeded": "window",
    "sensitive": "content_filter",
    "safety": "content_filter",
    "recitation": "content_filter",
    "error": "error",
    "abort": "error",
    "network_error": "error",
    "insufficient_system_resource": "error",
}
"""``finish_reason``: OpenAI's five (SDK 3.54), then what compatible servers say (TGI, Mistral, Zhipu, DeepSeek, vLLM,
SGLang, OpenRouter, gateways to Anthropic and Gemini). Case does not matter."""

_EMPTY_JSON = frozenset({b"null", b"[]", b"{}", b'""'})
_EMPTY_VALUES: tuple[object, ...] = (None, "", [], {})
"""The same, decoded."""
_ANSWER_ONLY_FIELDS = frozenset({"annotations", "parsed"})
"""Fields of an answer's message that a request has no place for."""


def parse_usage(fields: Mapping[str, Raw]) -> Usage:
    """Return the tokens of a ``usage``.

    ``prompt_tokens`` includes cached and written tokens; where more are cached than there are, they are added.
    ``completion_tokens`` includes reasoning tokens at OpenAI; where ``total_tokens`` shows it does not (xAI), they are
    added.
    """
    prompt, answer = (
        read_json_fields(fields.get("prompt_tokens_details")),
        read_json_fields(fields.get("completion_tokens_details")),
    )
    input_, output = read_json_count(fields.get("prompt_tokens")), read_json_count(fields.get("completion_tokens"))
    reasoning = read_json_count(answer.get("reasoning_tokens"))
    if reasoning and read_json_count(fields.get("total_tokens")) == input_ + output + reasoning:
        output += reasoning
    cache_counts = (prompt.get("cached_tokens"), fields.get("prompt_cache_hit_tokens"), fields.get("cached_tokens"))
    cached = max(map(read_json_count, cache_counts))
    input_ += cached if cached > input_ else 0
    return Usage(input_, output, cached, read_json_count(prompt.get("cache_write_tokens")), reasoning)


def iter_event_text(payload: dict[str, Any]) -> Iterator[str]:
    """Yield the words of the answer in one chunk of a stream."""
    yield get_text_at(get_first_object(payload.get("choices")), "delta", "content")


def parse_answer_body(fields: Mapping[str, Raw]) -> ParsedAnswer:
    """Return the answer in the fields of a body."""
    choice = _get_first_choice(fields)
    native = read_json_text(choice.get("finish_reason"))
    message_fields = read_json_fields(choice.get("message"))
    element = _encode_message_element(message_fields) if message_fields else b""
    message = decode_message_or_empty(openai_chat.decode_message, element) if message_fields else EMPTY_ANSWER
    stop = adjust_stop_for_calls(map_stop_reason(STOP_REASONS, native), message)
    if stop == "end" and read_json_text(message_fields.get("refusal")):
        stop = "refusal"
    broken = {key: raw for key, raw in drop_null_fields(choice).items() if key == "error"}
    return build_parsed_answer(
        openai_chat.API_NAME, dict(fields) | broken, _drop_empty_text(message), (element,), (stop, native), parse_usage
    )


def _get_first_choice(fields: Mapping[str, Raw]) -> dict[str, Raw]:
    choices = [choice for raw in read_json_items(fields.get("choices")) if (choice := read_json_fields(raw))]
    return min(choices, key=lambda choice: read_json_count(choice.get("index")), default={})


def _encode_message_element(message: Mapping[str, Raw]) -> bytes:
    """Return the message as a request takes it back."""
    fields: dict[str, Any] = {key: raw for key, raw in message.items() if bytes(raw) not in _EMPTY_JSON}
    audio = read_json_fields(fields.pop("audio", None))
    fields = {
        key: raw for key, raw in fields.items() if key not in _ANSWER_ONLY_FIELDS and key not in ("role", "content")
    }
    fields |= {"audio": {"id": audio["id"]}} if "id" in audio else {}
    fields |= {"tool_calls": _add_call_types(fields["tool_calls"])} if "tool_calls" in fields else {}
    content = message.get("content", Raw(b"null"))
    bare = bytes(content) in _EMPTY_JSON
    return encode_json({"role": "assistant", "content": (None if fields else "") if bare else content} | fields)


def _add_call_types(calls: Raw) -> Raw | list[Any]:
    """Return calls that all have a type: some servers leave it out, and requests need it."""
    call_list = [read_json_fields(raw) for raw in read_json_items(calls)]
    if all("type" in call for call in call_list):
        return calls
    return [{**call, "type": call.get("type", "custom" if "custom" in call else "function")} for call in call_list]


def _drop_empty_text(message: Message) -> Message:
    """Return nothing for a message that is one empty text."""
    return EMPTY_ANSWER if len(message.parts) == 1 and message.text == "" and message.parts[0].raw is None else message


def _get_delta(choice: Mapping[str, Raw]) -> dict[str, Raw]:
    """Return what a chunk adds; some gateways send a whole ``message`` in its place."""
    return read_json_fields(choice.get("delta")) or read_json_fields(choice.get("message"))


# -- chunks ------------------------------------------------------------------------------------------------------------


class _SimpleChoice(Struct, forbid_unknown_fields=True):
    delta: dict[str, Any]
    index: ListIndex = 0
    finish_reason: None = None
    logprobs: None = None


class _SimpleChunk(Struct, forbid_unknown_fields=True):
    """The chunk that most are."""

    choices: tuple[_SimpleChoice]
    id: str | None = None
    object: Literal["chat.completion.chunk"] | None = None
    created: int | None = None
    model: str | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None
    usage: None = None
    obfuscation: str | None = None


_CHUNK_DECODER = Decoder(_SimpleChunk)
_HEAD_FIELDS = ("id", "created", "model", "system_fingerprint", "service_tier")
_get_head = attrgetter(*_HEAD_FIELDS)
_CHUNK_ONLY_FIELDS = frozenset({"choices", "error", "obfuscation"})
"""Fields of a chunk that are no fields of the body: padding is for each chunk alone."""


class _GrowingText:
    """A string that grows, in time linear in its length."""

    __slots__ = ("pieces",)

    def __init__(self, text: str) -> None:
        self.pieces = [text]


_REPEATED_FIELDS = frozenset({"id", "type", "role", "index", "format", "signature", "expires_at"})
"""Fields that are told once, or again and the same; strings elsewhere are told in pieces."""


def _merge_delta(key: str, old: Any, new: Any) -> Any:
    """Return ``old`` with ``new`` added: strings grow, lists by ``index``, the rest is replaced."""
    if new is None:
        return old
    if isinstance(new, str) and key not in _REPEATED_FIELDS:
        return _append_text(key, old, new)
    if isinstance(new, dict):
        known_fields = old if isinstance(old, dict) else {}
        for name, value in new.items():
            known_fields[name] = _merge_delta(name, known_fields.get(name), value)
        return known_fields
    if isinstance(new, list):
        known_list = old if isinstance(old, list) else []
        for value in new:
            _merge_list_element(key, known_list, value)
        return known_list
    return old if new == "" and old else new


def _append_text(key: str, old: Any, new: str) -> _GrowingText:
    if not isinstance(old, _GrowingText):
        return _GrowingText(new)
    if key != "name" or "".join(old.pieces) != new:
        old.pieces.append(new)
    return old


def _merge_list_element(key: str, elements: list[Any], value: Any) -> None:
    """Add an element to the one it continues, or to the end.

    It continues the newest with its ``index``; without an index, the last. A call with another id begins anew all the
    same: some servers give every call the index 0, or none.
    """
    if not isinstance(value, dict):
        elements.append(value)
        return
    index, identity = value.get("index"), value.get("id")
    matches = [
        element
        for element in elements
        if isinstance(element, dict) and (index is None or element.get("index") == index)
    ]
    whole = key not in ("tool_calls", "reasoning_details") and index is None
    if not matches or whole or (identity and matches[-1].get("id") not in (None, "", identity)):
        elements.append(_merge_delta(key, None, value))
    else:
        _merge_delta(key, matches[-1], value)


def _to_plain_value(value: Any) -> Any:
    """Return a grown value as plain JSON."""
    if isinstance(value, _GrowingText):
        return "".join(value.pieces)
    if isinstance(value, dict):
        return {key: _to_plain_value(inner) for key, inner in value.items()}
    return [_to_plain_value(inner) for inner in value] if isinstance(value, list) else value


class ChatAccumulator:
    """The chunks of one answer. It is complete with a ``finish_reason`` or ``[DONE]``: not every server sends both."""

    def __init__(self) -> None:
        self.is_complete = False
        self._head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._last_head: tuple[Any, ...] = ()
        """What stood around the words of the last chunk, if that was as most are."""

    def add_text_delta(self, data: bytes) -> bool | None:
        """Take a chunk with a piece of one choice; return whether it says anything, nothing for any other chunk."""
        chunk = try_decode_json(_CHUNK_DECODER, data)
        if chunk is None or not chunk.choices[0].delta:
            return None
        if (around := _get_head(chunk)) != self._last_head:
            self._last_head = around
            self._head |= {key: value for key, value in zip(_HEAD_FIELDS, around, strict=True) if value is not None}
        [choice] = chunk.choices
        self._add_delta(choice.index, choice.delta)
        return any(value not in _EMPTY_VALUES for key, value in choice.delta.items() if key != "role")

    def add_event(self, name: str, fields: Mapping[str, Raw]) -> bool:
        """Take the fields of one chunk. One with a role alone, a reason or usage holds nothing the model said."""
        self.is_complete = self.is_complete or name == "[DONE]"
        self._last_head = ()
        self._head |= {key: raw for key, raw in drop_null_fields(fields).items() if key not in _CHUNK_ONLY_FIELDS}
        return True in [self._add_choice(read_json_fields(raw)) for raw in read_json_items(fields.get("choices"))]

    def _add_choice(self, fields: Mapping[str, Raw]) -> bool:
        delta = _get_delta(fields)
        choice = self._add_delta(
            read_json_count(fields.get("index")), {key: read_json_value(raw) for key, raw in delta.items()}
        )
        if read_json_text(fields.get("finish_reason")):
            self.is_complete = True
        choice_fields = {
            key: raw
            for key, raw in drop_null_fields(fields).items()
            if key not in ("index", "delta", "message", "logprobs")
        }
        choice |= choice_fields
        if "logprobs" in fields:
            choice["logprobs"] = _merge_delta("logprobs", choice.get("logprobs"), read_json_value(fields["logprobs"]))
        return any(bytes(raw) not in _EMPTY_JSON for key, raw in delta.items() if key != "role")

    def _add_delta(self, index: int, delta: Mapping[str, Any]) -> dict[str, Any]:
        """Let the message of choice ``index`` grow by ``delta``; return the choice."""
        choice = self._choices.setdefault(index, {"index": index, "message": {}})
        message = choice["message"]
        for key, value in delta.items():
            message[key] = _merge_delta(key, message.get(key), value)
        return choice

    def build_body(self) -> dict[str, Any]:
        """Return the fields of the body so far."""
        if not self._choices:
            return dict(self._head)
        choices = [_build_choice(self._choices[index]) for index in sorted(self._choices)]
        return dict(self._head) | {"object": "chat.completion", "choices": choices}


def _build_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    message = _to_plain_value(choice["message"])
    calls = message.get("tool_calls")
    if isinstance(calls, list) and all(isinstance(call, dict) for call in calls):
        message["tool_calls"] = [_drop_call_index(call) for call in _sort_calls(calls)]
    return dict(choice) | {"message": message, "logprobs": _to_plain_value(choice.get("logprobs"))}


def _sort_calls(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the calls by their ``index``, as they came where not every one has one."""
    if not all(isinstance(call.get("index"), int) for call in calls):
        return calls
    return sorted(calls, key=lambda call: call["index"])


def _drop_call_index(call: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in call.items() if key != "index"}


ANSWERS = AnswerFormat(
    parse_answer_body,
    ChatAccumulator,
    parse_usage,
    iter_event_text,
    keep_alive=b": keep-alive\n\n",
)
