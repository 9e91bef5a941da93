"""OpenAI Chat Completions, and the servers that speak it: a body or its chunks as an answer.

A message of an answer is not quite one of a request: fields that say nothing go, so do annotations, and of audio the
id stays. Of several choices the first is the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Literal

from msgspec import Raw, Struct
from msgspec.json import Decoder

from holdfast.messages.message import Message
from holdfast.providers.common.json.lenient_json import (
    Place,
    count_of,
    fields_of,
    given,
    items_of,
    text_of,
    usual,
    value_of,
)
from holdfast.providers.common.json.raw_json import write
from holdfast.providers.openai_chat import messages as openai_chat
from holdfast.providers.responses.base import NOTHING, decoded, lookup, said, with_calls
from holdfast.providers.responses.values import Answer, Stop

STOPS: dict[str, Stop] = {
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

_EMPTY = frozenset({b"null", b"[]", b"{}", b'""'})
_NOTHING: tuple[object, ...] = (None, "", [], {})
"""The same, decoded."""
_RESPONSE_ONLY = frozenset({"annotations", "parsed"})
"""Fields of an answer's message that a request has no place for."""


def read(found: Mapping[str, Raw]) -> Answer:
    """Return the answer in the fields of a body."""
    choice = _first(found)
    native = text_of(choice.get("finish_reason"))
    told = fields_of(choice.get("message"))
    element = _element(told) if told else b""
    message = decoded(openai_chat.decode, element) if told else NOTHING
    stop = with_calls(lookup(STOPS, native), message)
    if stop == "end" and text_of(told.get("refusal")):
        stop = "refusal"
    broken = {key: raw for key, raw in given(choice).items() if key == "error"}
    return said(openai_chat.API, dict(found) | broken, _spoken(message), (element,), (stop, native))


def _first(found: Mapping[str, Raw]) -> dict[str, Raw]:
    choices = [choice for raw in items_of(found.get("choices")) if (choice := fields_of(raw))]
    return min(choices, key=lambda choice: count_of(choice.get("index")), default={})


def _element(told: Mapping[str, Raw]) -> bytes:
    """Return the message as a request takes it back."""
    kept: dict[str, Any] = {key: raw for key, raw in told.items() if bytes(raw) not in _EMPTY}
    audio = fields_of(kept.pop("audio", None))
    kept = {key: raw for key, raw in kept.items() if key not in _RESPONSE_ONLY and key not in ("role", "content")}
    kept |= {"audio": {"id": audio["id"]}} if "id" in audio else {}
    kept |= {"tool_calls": _typed(kept["tool_calls"])} if "tool_calls" in kept else {}
    content = told.get("content", Raw(b"null"))
    bare = bytes(content) in _EMPTY
    return write({"role": "assistant", "content": (None if kept else "") if bare else content} | kept)


def _typed(calls: Raw) -> Raw | list[Any]:
    """Return calls that all have a type: some servers leave it out, and requests need it."""
    listed = [fields_of(raw) for raw in items_of(calls)]
    if all("type" in call for call in listed):
        return calls
    return [{**call, "type": call.get("type", "custom" if "custom" in call else "function")} for call in listed]


def _spoken(message: Message) -> Message:
    """Return nothing for a message that is one empty text."""
    return NOTHING if len(message.parts) == 1 and message.text == "" and message.parts[0].raw is None else message


def _delta(choice: Mapping[str, Raw]) -> dict[str, Raw]:
    """Return what a chunk adds; some gateways send a whole ``message`` in its place."""
    return fields_of(choice.get("delta")) or fields_of(choice.get("message"))


# -- chunks ------------------------------------------------------------------------------------------------------------


class _Choice(Struct, forbid_unknown_fields=True):
    delta: dict[str, Any]
    index: Place = 0
    finish_reason: None = None
    logprobs: None = None


class _Chunk(Struct, forbid_unknown_fields=True):
    """The chunk that most are."""

    choices: tuple[_Choice]
    id: str | None = None
    object: Literal["chat.completion.chunk"] | None = None
    created: int | None = None
    model: str | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None
    usage: None = None
    obfuscation: str | None = None


_CHUNK = Decoder(_Chunk)
_HEAD = ("id", "created", "model", "system_fingerprint", "service_tier")
_head_of = attrgetter(*_HEAD)
_NO_HEAD = frozenset({"choices", "error", "obfuscation"})
"""Fields of a chunk that are no fields of the body: padding is for each chunk alone."""


class _Words:
    """A string that grows, in time linear in its length."""

    __slots__ = ("pieces",)

    def __init__(self, text: str) -> None:
        self.pieces = [text]


_FIXED = frozenset({"id", "type", "role", "index", "format", "signature", "expires_at"})
"""Fields that are told once, or again and the same; strings elsewhere are told in pieces."""


def _grown(key: str, old: Any, new: Any) -> Any:
    """Return ``old`` with ``new`` added: strings grow, lists by ``index``, the rest is replaced."""
    if new is None:
        return old
    if isinstance(new, str) and key not in _FIXED:
        return _longer(key, old, new)
    if isinstance(new, dict):
        known = old if isinstance(old, dict) else {}
        for name, value in new.items():
            known[name] = _grown(name, known.get(name), value)
        return known
    if isinstance(new, list):
        known_list = old if isinstance(old, list) else []
        for value in new:
            _placed(key, known_list, value)
        return known_list
    return old if new == "" and old else new


def _longer(key: str, old: Any, new: str) -> _Words:
    if not isinstance(old, _Words):
        return _Words(new)
    if key != "name" or "".join(old.pieces) != new:
        old.pieces.append(new)
    return old


def _placed(key: str, known: list[Any], value: Any) -> None:
    """Add an element to the one it continues, or to the end.

    It continues the newest with its ``index``; without an index, the last. A call with another id begins anew all the
    same: some servers give every call the index 0, or none.
    """
    if not isinstance(value, dict):
        known.append(value)
        return
    index, identity = value.get("index"), value.get("id")
    same = [one for one in known if isinstance(one, dict) and (index is None or one.get("index") == index)]
    whole = key not in ("tool_calls", "reasoning_details") and index is None
    if not same or whole or (identity and same[-1].get("id") not in (None, "", identity)):
        known.append(_grown(key, None, value))
    else:
        _grown(key, same[-1], value)


def _settled(value: Any) -> Any:
    """Return a grown value as plain JSON."""
    if isinstance(value, _Words):
        return "".join(value.pieces)
    if isinstance(value, dict):
        return {key: _settled(inner) for key, inner in value.items()}
    return [_settled(inner) for inner in value] if isinstance(value, list) else value


class Folding:
    """The chunks of one answer. It is complete with a ``finish_reason`` or ``[DONE]``: not every server sends both."""

    def __init__(self) -> None:
        self.complete = False
        self._head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._around: tuple[Any, ...] = ()
        """What stood around the words of the last chunk, if that was as most are."""

    def go_on(self, data: bytes) -> bool | None:
        """Take a chunk with a piece of one choice; return whether it says anything, nothing for any other chunk."""
        told = usual(_CHUNK, data)
        if told is None or not told.choices[0].delta:
            return None
        if (around := _head_of(told)) != self._around:
            self._around = around
            self._head |= {key: value for key, value in zip(_HEAD, around, strict=True) if value is not None}
        [choice] = told.choices
        self._say(choice.index, choice.delta)
        return any(value not in _NOTHING for key, value in choice.delta.items() if key != "role")

    def add(self, name: str, found: Mapping[str, Raw]) -> bool:
        """Take the fields of one chunk. One with a role alone, a reason or usage holds nothing the model said."""
        self.complete = self.complete or name == "[DONE]"
        self._around = ()
        self._head |= {key: raw for key, raw in given(found).items() if key not in _NO_HEAD}
        return True in [self._choice(fields_of(raw)) for raw in items_of(found.get("choices"))]

    def _choice(self, found: Mapping[str, Raw]) -> bool:
        delta = _delta(found)
        choice = self._say(count_of(found.get("index")), {key: value_of(raw) for key, raw in delta.items()})
        if text_of(found.get("finish_reason")):
            self.complete = True
        rest = {key: raw for key, raw in given(found).items() if key not in ("index", "delta", "message", "logprobs")}
        choice |= rest
        if "logprobs" in found:
            choice["logprobs"] = _grown("logprobs", choice.get("logprobs"), value_of(found["logprobs"]))
        return any(bytes(raw) not in _EMPTY for key, raw in delta.items() if key != "role")

    def _say(self, index: int, delta: Mapping[str, Any]) -> dict[str, Any]:
        """Let the message of choice ``index`` grow by ``delta``; return the choice."""
        choice = self._choices.setdefault(index, {"index": index, "message": {}})
        message = choice["message"]
        for key, value in delta.items():
            message[key] = _grown(key, message.get(key), value)
        return choice

    def body(self) -> dict[str, Any]:
        """Return the fields of the body so far."""
        if not self._choices:
            return dict(self._head)
        choices = [_body_choice(self._choices[index]) for index in sorted(self._choices)]
        return dict(self._head) | {"object": "chat.completion", "choices": choices}


def _body_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    message = _settled(choice["message"])
    calls = message.get("tool_calls")
    if isinstance(calls, list) and all(isinstance(call, dict) for call in calls):
        message["tool_calls"] = [_without_index(call) for call in _ordered(calls)]
    return dict(choice) | {"message": message, "logprobs": _settled(choice.get("logprobs"))}


def _ordered(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the calls by their ``index``, as they came where not every one has one."""
    if not all(isinstance(call.get("index"), int) for call in calls):
        return calls
    return sorted(calls, key=lambda call: call["index"])


def _without_index(call: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in call.items() if key != "index"}
