"""OpenAI Chat Completions, and the servers that speak it: parse a body or the chunks of a stream as an answer.

The message of an answer is not quite one that a request may contain: empty fields and annotations are dropped, and of
audio only the id is kept. Of several choices, the first is the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
"""Stop reasons by ``finish_reason`` in lower case: OpenAI's five (SDK 3.54), then those of compatible servers (TGI,
Mistral, Zhipu, DeepSeek, vLLM, SGLang, OpenRouter, gateways to Anthropic and Gemini)."""

_EMPTY_JSON = frozenset({b"null", b"[]", b"{}", b'""'})
_EMPTY_VALUES: tuple[object, ...] = (None, "", [], {})
"""The same values, decoded."""
_ANSWER_ONLY_FIELDS = frozenset({"annotations", "parsed"})
"""Fields of an answer's message that a request must not contain."""


def parse_usage(fields: Mapping[str, Raw]) -> Usage:
    """Parse the tokens of a ``usage`` object.

    ``prompt_tokens`` includes the tokens read from and written to the cache, and ``completion_tokens`` those of
    reasoning, at OpenAI. Servers that count differently are recognized by their numbers.
    """
    input_details = read_json_fields(fields.get("prompt_tokens_details"))
    output_details = read_json_fields(fields.get("completion_tokens_details"))
    input_tokens = read_json_count(fields.get("prompt_tokens"))
    output_tokens = read_json_count(fields.get("completion_tokens"))
    total_tokens = read_json_count(fields.get("total_tokens"))
    reasoning_tokens = read_json_count(output_details.get("reasoning_tokens"))
    # xAI counts reasoning beside the completion: there, only the sum of all three is the total.
    if reasoning_tokens and total_tokens == input_tokens + output_tokens + reasoning_tokens:
        output_tokens += reasoning_tokens
    cache_counts = (
        input_details.get("cached_tokens"),
        fields.get("prompt_cache_hit_tokens"),
        fields.get("cached_tokens"),
    )
    cached_tokens = max(map(read_json_count, cache_counts))
    # More cached than there are: this server does not count cached tokens as prompt tokens.
    if cached_tokens > input_tokens:
        input_tokens += cached_tokens
    cache_write_tokens = read_json_count(input_details.get("cache_write_tokens"))
    return Usage(
        input_tokens,
        output_tokens,
        cached_tokens,
        cache_write_tokens,
        reasoning_tokens,
    )


def iter_event_text(payload: dict[str, Any]) -> Iterator[str]:
    """Yield the text of the answer in one decoded chunk."""
    yield get_text_at(get_first_object(payload.get("choices")), "delta", "content")


def parse_answer_body(fields: Mapping[str, Raw]) -> ParsedAnswer:
    """Parse the answer in the fields of a body."""
    choice = _get_first_choice(fields)
    finish_reason = read_json_text(choice.get("finish_reason"))
    message_fields = read_json_fields(choice.get("message"))
    element = b""
    message = EMPTY_ANSWER
    if message_fields:
        element = _encode_message_element(message_fields)
        message = decode_message_or_empty(openai_chat.decode_message, element)
    # Some servers end an answer with calls by ``stop``; the calls count.
    stop_reason = adjust_stop_for_calls(map_stop_reason(STOP_REASONS, finish_reason), message)
    if stop_reason == "end" and read_json_text(message_fields.get("refusal")):
        stop_reason = "refusal"
    all_fields = dict(fields)
    error = drop_null_fields(choice).get("error")
    if error is not None:  # OpenRouter reports an upstream error inside the choice
        all_fields["error"] = error
    return build_parsed_answer(
        openai_chat.API_NAME,
        all_fields,
        _drop_empty_text(message),
        (element,),
        (stop_reason, finish_reason),
        parse_usage,
    )


def _get_first_choice(fields: Mapping[str, Raw]) -> dict[str, Raw]:
    # A request may ask for several answers; the first one is the answer.
    choices = [read_json_fields(raw) for raw in read_json_items(fields.get("choices"))]
    filled_choices = [choice for choice in choices if choice]
    return min(
        filled_choices,
        key=lambda choice: read_json_count(choice.get("index")),
        default={},
    )


def _encode_message_element(message: Mapping[str, Raw]) -> bytes:
    """Encode the message of an answer as a request takes it back."""
    fields: dict[str, Any] = {}
    for key, raw in message.items():
        is_kept = key not in _ANSWER_ONLY_FIELDS and key not in ("role", "content", "audio")
        if is_kept and bytes(raw) not in _EMPTY_JSON:
            fields[key] = raw
    audio = read_json_fields(message.get("audio"))
    if "id" in audio:  # a request refers to audio by id, and refuses its data
        fields["audio"] = {"id": audio["id"]}
    if "tool_calls" in fields:
        fields["tool_calls"] = _add_call_types(fields["tool_calls"])
    content: Any = message.get("content", Raw(b"null"))
    if bytes(content) in _EMPTY_JSON:
        content = None if fields else ""  # null is only valid beside calls or the like
    return encode_json({"role": "assistant", "content": content} | fields)


def _add_call_types(calls: Raw) -> Raw | list[Any]:
    """Return ``calls`` with a type each: some servers leave it out, and requests need it."""
    call_list = [read_json_fields(raw) for raw in read_json_items(calls)]
    if all("type" in call for call in call_list):
        return calls
    typed_calls = []
    for call in call_list:
        default_type = "custom" if "custom" in call else "function"
        typed_calls.append({**call, "type": call.get("type", default_type)})
    return typed_calls


def _drop_empty_text(message: Message) -> Message:
    """Return an empty answer for a message that is one empty text."""
    if len(message.parts) != 1 or message.text:
        return message
    if message.parts[0].raw is not None:
        return message
    return EMPTY_ANSWER


def _get_delta(choice: Mapping[str, Raw]) -> dict[str, Raw]:
    """Return the fields that a chunk adds; some gateways send a whole ``message`` in place of a ``delta``."""
    return read_json_fields(choice.get("delta")) or read_json_fields(choice.get("message"))


# -- chunks ------------------------------------------------------------------------------------------------------------


class _SimpleChoice(Struct, forbid_unknown_fields=True):
    delta: dict[str, Any]
    index: ListIndex = 0
    finish_reason: None = None
    logprobs: None = None


class _SimpleChunk(Struct, forbid_unknown_fields=True):
    """The usual chunk: one choice and no fields but the common ones, decoded in one step."""

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
"""Fields of a chunk that a body does not have; ``obfuscation`` is padding that differs in every chunk."""


class _GrowingText:
    """A string that grows in time linear in its length."""

    __slots__ = ("pieces",)

    def __init__(self, text: str) -> None:
        self.pieces = [text]


_REPEATED_FIELDS = frozenset({"id", "type", "role", "index", "format", "signature", "expires_at"})
"""String fields that are sent once, or repeated unchanged; all other strings come in pieces."""


def _merge_delta(key: str, old: Any, new: Any) -> Any:
    """Return ``old`` with ``new`` merged in: strings grow, objects and lists are merged, anything else is replaced."""
    if new is None:
        return old
    if isinstance(new, str) and key not in _REPEATED_FIELDS:
        return _append_text(key, old, new)
    if isinstance(new, dict):
        merged_fields = old if isinstance(old, dict) else {}
        for name, value in new.items():
            merged_fields[name] = _merge_delta(name, merged_fields.get(name), value)
        return merged_fields
    if isinstance(new, list):
        merged_list = old if isinstance(old, list) else []
        for value in new:
            _merge_list_element(key, merged_list, value)
        return merged_list
    # An id that is repeated as an empty string does not erase the one sent before.
    return old if new == "" and old else new


def _append_text(key: str, old: Any, new: str) -> _GrowingText:
    if not isinstance(old, _GrowingText):
        return _GrowingText(new)
    # A function's name may come in pieces, or whole in every chunk.
    if key != "name" or "".join(old.pieces) != new:
        old.pieces.append(new)
    return old


def _merge_list_element(key: str, elements: list[Any], value: Any) -> None:
    """Merge an element of a list into the one it continues, or append it.

    It continues the newest with the same ``index``, or without an index the last. But a call with another id is a new
    one in any case: some servers give every call the index 0, or none.
    """
    if not isinstance(value, dict):
        elements.append(value)
        return
    index = value.get("index")
    if index is None and key not in ("tool_calls", "reasoning_details"):
        elements.append(_merge_delta(key, None, value))  # elements of other lists come whole
        return
    continued = _find_continued_element(elements, index)
    identity = value.get("id")
    is_other_call = continued is not None and identity and continued.get("id") not in (None, "", identity)
    if continued is None or is_other_call:
        elements.append(_merge_delta(key, None, value))
    else:
        _merge_delta(key, continued, value)


def _find_continued_element(elements: Sequence[Any], index: Any) -> dict[str, Any] | None:
    """Return the last object with this ``index``, or just the last object if ``index`` is None."""
    for element in reversed(elements):
        if isinstance(element, dict) and (index is None or element.get("index") == index):
            return element
    return None


def _to_plain_value(value: Any) -> Any:
    """Return a merged value as plain JSON, with grown strings joined."""
    if isinstance(value, _GrowingText):
        return "".join(value.pieces)
    if isinstance(value, dict):
        return {key: _to_plain_value(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_to_plain_value(inner) for inner in value]
    return value


class ChatAccumulator:
    """The chunks of one answer, merged. Complete with a ``finish_reason`` or ``[DONE]``: not every server sends
    both.
    """

    def __init__(self) -> None:
        self.is_complete = False
        self._head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._last_head: tuple[Any, ...] = ()
        """The fields beside the choices of the last chunk, if that was a simple one; () if it was not."""

    def add_text_delta(self, data: bytes) -> bool | None:
        """Merge a chunk if it is a simple one, and return whether it has content; return None for any other chunk.

        Most chunks are simple, and decoding one straight into a struct takes a fraction of the general way.
        """
        chunk = try_decode_json(_CHUNK_DECODER, data)
        if chunk is None or not chunk.choices[0].delta:
            return None
        head = _get_head(chunk)
        if head != self._last_head:
            self._last_head = head
            for key, value in zip(_HEAD_FIELDS, head, strict=True):
                if value is not None:
                    self._head[key] = value
        [choice] = chunk.choices
        self._add_delta(choice.index, choice.delta)
        return any(value not in _EMPTY_VALUES for key, value in choice.delta.items() if key != "role")

    def add_event(self, name: str, fields: Mapping[str, Raw]) -> bool:
        """Merge the fields of one chunk, and return whether it has content.

        A chunk with nothing but a role, a finish reason or usage has none.
        """
        self.is_complete = self.is_complete or name == "[DONE]"
        self._last_head = ()
        for key, raw in drop_null_fields(fields).items():
            if key not in _CHUNK_ONLY_FIELDS:
                self._head[key] = raw
        has_content = False
        for raw in read_json_items(fields.get("choices")):
            has_content |= self._add_choice(read_json_fields(raw))
        return has_content

    def _add_choice(self, fields: Mapping[str, Raw]) -> bool:
        raw_delta = _get_delta(fields)
        delta = {key: read_json_value(raw) for key, raw in raw_delta.items()}
        choice = self._add_delta(read_json_count(fields.get("index")), delta)
        if read_json_text(fields.get("finish_reason")):
            self.is_complete = True
        for key, raw in drop_null_fields(fields).items():
            if key not in ("index", "delta", "message", "logprobs"):
                choice[key] = raw
        # Log probabilities come in pieces like the text, while every other field of a choice is sent whole.
        if "logprobs" in fields:
            delta_logprobs = read_json_value(fields["logprobs"])
            choice["logprobs"] = _merge_delta("logprobs", choice.get("logprobs"), delta_logprobs)
        return any(bytes(raw) not in _EMPTY_JSON for key, raw in raw_delta.items() if key != "role")

    def _add_delta(self, index: int, delta: Mapping[str, Any]) -> dict[str, Any]:
        """Merge ``delta`` into the message of choice ``index``, and return the choice."""
        choice = self._choices.setdefault(index, {"index": index, "message": {}})
        message = choice["message"]
        for key, value in delta.items():
            message[key] = _merge_delta(key, message.get(key), value)
        return choice

    def build_body(self) -> dict[str, Any]:
        """Build the fields of the body from the chunks so far."""
        if not self._choices:
            return dict(self._head)
        choices = [_build_choice(self._choices[index]) for index in sorted(self._choices)]
        return dict(self._head) | {"object": "chat.completion", "choices": choices}


def _build_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    message = _to_plain_value(choice["message"])
    calls = message.get("tool_calls")
    if isinstance(calls, list) and all(isinstance(call, dict) for call in calls):
        calls = _sort_calls(calls)
        for call in calls:
            call.pop("index", None)  # a field of chunks alone
        message["tool_calls"] = calls
    return dict(choice) | {"message": message, "logprobs": _to_plain_value(choice.get("logprobs"))}


def _sort_calls(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort the calls by ``index``; keep their order unless every call has one."""
    if not all(isinstance(call.get("index"), int) for call in calls):
        return calls
    return sorted(calls, key=lambda call: call["index"])


ANSWERS = AnswerFormat(
    parse_answer_body,
    ChatAccumulator,
    parse_usage,
    iter_event_text,
    keep_alive=b": keep-alive\n\n",
)
