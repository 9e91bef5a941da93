"""Anthropic Messages: a body or its events as an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from msgspec import Raw, Struct, field
from msgspec.json import Decoder
from msgspec.structs import replace

from holdfast.providers.answers.accumulator import (
    EMPTY_ANSWER,
    build_parsed_answer,
    decode_message_or_empty,
    map_stop_reason,
)
from holdfast.providers.answers.parsed_answer import ParsedAnswer, StopReason
from holdfast.providers.anthropic import messages as anthropic
from holdfast.providers.api_spec import AnswerFormat
from holdfast.providers.common.event_text import get_text_at
from holdfast.providers.common.json.lenient_json import (
    ListIndex,
    drop_null_fields,
    read_json_count,
    read_json_fields,
    read_json_items,
    read_json_text,
    try_decode_json,
)
from holdfast.providers.common.json.raw_json import encode_json, wrap_call_arguments
from holdfast.state.entries import Usage

STOP_REASONS: dict[str, StopReason] = {
    "end_turn": "end",
    "tool_use": "tool",
    "max_tokens": "length",
    "model_context_window_exceeded": "window",
    "pause_turn": "pause",
    "compaction": "compaction",
    "refusal": "refusal",
    "stop_sequence": "stop_sequence",
}
"""``stop_reason`` (SDK 2.12)."""


def parse_usage(fields: Mapping[str, Raw]) -> Usage:
    """Return the tokens of a ``usage``.

    ``input_tokens`` alone leaves out what was read from the cache and what was written to it; ``output_tokens``
    includes thinking.
    """
    cache_read, cache_write = (
        read_json_count(fields.get("cache_read_input_tokens")),
        read_json_count(fields.get("cache_creation_input_tokens")),
    )
    thinking = read_json_count(read_json_fields(fields.get("output_tokens_details")).get("thinking_tokens"))
    fresh, output = read_json_count(fields.get("input_tokens")), read_json_count(fields.get("output_tokens"))
    hour = read_json_count(read_json_fields(fields.get("cache_creation")).get("ephemeral_1h_input_tokens"))
    return Usage(
        fresh + cache_read + cache_write,
        output,
        cache_read,
        cache_write,
        thinking,
        cache_write_1h=min(hour, cache_write),
    )


def iter_event_text(payload: dict[str, Any]) -> Iterator[str]:
    """Yield the words of the answer in one event of a stream."""
    if payload.get("type") == "content_block_delta":
        yield get_text_at(payload, "delta", "text")


def parse_answer_body(fields: Mapping[str, Raw]) -> ParsedAnswer:
    """Return the answer in the fields of a body."""
    native = read_json_text(fields.get("stop_reason"))
    element = encode_json({"role": "assistant", "content": fields["content"]}) if "content" in fields else b""
    message = decode_message_or_empty(anthropic.decode_message, element) if element else EMPTY_ANSWER
    answer = build_parsed_answer(
        anthropic.API_NAME, fields, message, (element,), (map_stop_reason(STOP_REASONS, native), native), parse_usage
    )
    context_management = fields.get("context_management")
    return (
        answer
        if context_management is None
        else replace(answer, cleared_tokens=_count_cleared_tokens(read_json_fields(context_management)))
    )


def _count_cleared_tokens(context_management: Mapping[str, Raw]) -> int:
    """Return the tokens that context editing left out of the prompt."""
    edits = map(read_json_fields, read_json_items(context_management.get("applied_edits")))
    return sum(read_json_count(edit.get("cleared_input_tokens")) for edit in edits)


# -- events ------------------------------------------------------------------------------------------------------------


class _TextDelta(Struct, tag="text_delta", forbid_unknown_fields=True):
    key: ClassVar = "text"
    text: str = field(name="text")


class _ThinkingDelta(Struct, tag="thinking_delta", forbid_unknown_fields=True):
    key: ClassVar = "thinking"
    text: str = field(name="thinking")


class _InputDelta(Struct, tag="input_json_delta", forbid_unknown_fields=True):
    key: ClassVar = "partial_json"
    text: str = field(name="partial_json")


class _ContentBlockDelta(Struct, tag="content_block_delta", forbid_unknown_fields=True):
    """The event that most are."""

    index: ListIndex
    delta: _TextDelta | _ThinkingDelta | _InputDelta


_DELTA_DECODER = Decoder(_ContentBlockDelta)


class _GrowingBlock:
    """A block that grows: its fields as it began, and what deltas added to them."""

    __slots__ = ("fields", "grown", "lists")

    def __init__(self, fields: Mapping[str, Raw]) -> None:
        self.fields = dict(fields)
        self.grown: dict[str, list[str]] = {}
        self.lists: dict[str, list[Raw]] = {}

    def add_delta(self, delta: Mapping[str, Raw]) -> None:
        """Take a delta: words are appended, a citation joins its list, all else stands in for what was there."""
        kind = read_json_text(delta.get("type"))
        for key, raw in delta.items():
            if key == "type":
                continue
            if key == "citation":
                self.lists.setdefault("citations", []).append(raw)
            elif kind in _COMPLETE_DELTA_KINDS or not bytes(raw).startswith(b'"'):
                self.fields[key] = raw
            else:
                self.append_text(key, read_json_text(raw))

    def append_text(self, key: str, words: str) -> None:
        """Take words that go on."""
        if key not in self.grown:
            self.grown[key] = [read_json_text(self.fields.get(key))]
        self.grown[key].append(words)

    def build_block(self) -> dict[str, Any]:
        """Return the block as a body has it."""
        block: dict[str, Any] = dict(self.fields) | self.lists
        for key, pieces in self.grown.items():
            words = "".join(pieces)
            if key != "partial_json":
                block[key] = words
            elif words.strip():
                block["input"] = wrap_call_arguments(words)
        return block


_COMPLETE_DELTA_KINDS = frozenset({"signature_delta", "compaction_delta"})
"""Deltas that come once and hold all of it. Every other kind, of tomorrow too, adds words to what was said."""
_TEXT_BLOCK_KINDS = frozenset({"text", "thinking"})
"""Blocks that say nothing before there are words in them."""
_EMPTY_JSON = frozenset({b'""', b"{}", b"[]", b"null"})


class AnthropicAccumulator:
    """The events of one answer."""

    def __init__(self) -> None:
        self.is_complete = False
        self._head: dict[str, Any] = {}
        self._usage: dict[str, Raw] = {}
        self._blocks: dict[int, _GrowingBlock] = {}

    def add_event(self, name: str, fields: Mapping[str, Raw]) -> bool:
        """Take the fields of one event; kinds nobody knows change nothing.

        What the model said is in a delta with content, or in a block that is no text.
        """
        step = self._HANDLERS.get(read_json_text(fields.get("type")) or name)
        return step is not None and step(self, fields)

    def add_text_delta(self, data: bytes) -> bool | None:
        """Take a delta of words for a block that has begun; return whether it has any, nothing for what is none."""
        event = try_decode_json(_DELTA_DECODER, data)
        block = None if event is None else self._blocks.get(event.index)
        if event is None or block is None:
            return None
        block.append_text(event.delta.key, event.delta.text)
        return bool(event.delta.text)

    def build_body(self) -> dict[str, Any]:
        """Return the fields of the body so far."""
        content = [self._blocks[index].build_block() for index in sorted(self._blocks)]
        body = dict(self._head) | ({"content": content} if content or self._head else {})
        return body | ({"usage": self._usage} if self._usage else {})

    def _on_message_start(self, fields: Mapping[str, Raw]) -> bool:
        message = read_json_fields(fields.get("message"))
        self._usage = read_json_fields(message.pop("usage", None))
        self._head = message
        return False

    def _on_block_start(self, fields: Mapping[str, Raw]) -> bool:
        block = read_json_fields(fields.get("content_block"))
        self._blocks[read_json_count(fields.get("index"))] = _GrowingBlock(block)
        kind = read_json_text(block.get("type"))
        if kind == "fallback":
            to = read_json_fields(block.get("to"))
            self._head |= {"model": to["model"]} if "model" in to else {}
        return bool(block) and (kind not in _TEXT_BLOCK_KINDS or bool(read_json_text(block.get("text"))))

    def _on_block_delta(self, fields: Mapping[str, Raw]) -> bool:
        delta, index = read_json_fields(fields.get("delta")), read_json_count(fields.get("index"))
        kind = read_json_text(delta.get("type")).removesuffix("_delta")
        if index not in self._blocks and kind in ("text", "thinking"):
            self._blocks[index] = _GrowingBlock({"type": Raw(encode_json(kind))})
        if index in self._blocks:
            self._blocks[index].add_delta(delta)
        return any(bytes(raw) not in _EMPTY_JSON for key, raw in delta.items() if key != "type")

    def _on_message_delta(self, fields: Mapping[str, Raw]) -> bool:
        """Take what the end of a message corrects: every field that is there counts in place of the first one."""
        fields = drop_null_fields(fields)
        self._usage |= drop_null_fields(read_json_fields(fields.get("usage")))
        self._head |= drop_null_fields(read_json_fields(fields.get("delta")))
        self._head |= {key: raw for key, raw in fields.items() if key not in ("type", "delta", "usage")}
        return False

    def _on_message_stop(self, _fields: Mapping[str, Raw]) -> bool:
        self.is_complete = True
        return False

    _HANDLERS: ClassVar[Mapping[str, Callable[[AnthropicAccumulator, Mapping[str, Raw]], bool]]] = {
        "message_start": _on_message_start,
        "content_block_start": _on_block_start,
        "content_block_delta": _on_block_delta,
        "message_delta": _on_message_delta,
        "message_stop": _on_message_stop,
    }


ANSWERS = AnswerFormat(
    parse_answer_body,
    AnthropicAccumulator,
    parse_usage,
    iter_event_text,
    keep_alive=b'event: ping\ndata: {"type": "ping"}\n\n',
)
