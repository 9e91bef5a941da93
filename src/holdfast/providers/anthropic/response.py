"""Anthropic Messages: parse a body or the events of a stream as an answer."""

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
from holdfast.providers.anthropic.container import read_answer_container
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
"""Stop reasons by ``stop_reason`` (SDK 2.12)."""


def parse_usage(fields: Mapping[str, Raw]) -> Usage:
    """Parse the tokens of a ``usage`` object.

    Unlike other APIs, ``input_tokens`` excludes the tokens read from and written to the cache; ``output_tokens``
    includes thinking.
    """
    fresh_tokens = read_json_count(fields.get("input_tokens"))
    cache_read_tokens = read_json_count(fields.get("cache_read_input_tokens"))
    cache_write_tokens = read_json_count(fields.get("cache_creation_input_tokens"))
    cache_creation = read_json_fields(fields.get("cache_creation"))
    hour_write_tokens = read_json_count(cache_creation.get("ephemeral_1h_input_tokens"))
    output_details = read_json_fields(fields.get("output_tokens_details"))
    return Usage(
        fresh_tokens + cache_read_tokens + cache_write_tokens,
        read_json_count(fields.get("output_tokens")),
        cache_read_tokens,
        cache_write_tokens,
        read_json_count(output_details.get("thinking_tokens")),
        # A part of the tokens written; a server that reports more contradicts itself.
        cache_write_1h=min(hour_write_tokens, cache_write_tokens),
    )


def iter_event_text(payload: dict[str, Any]) -> Iterator[str]:
    """Yield the text of the answer in one decoded event."""
    if payload.get("type") == "content_block_delta":
        yield get_text_at(payload, "delta", "text")


def parse_answer_body(fields: Mapping[str, Raw]) -> ParsedAnswer:
    """Parse the answer in the fields of a body."""
    native_reason = read_json_text(fields.get("stop_reason"))
    element = b""
    message = EMPTY_ANSWER
    if "content" in fields:
        element = encode_json({"role": "assistant", "content": fields["content"]})
        message = decode_message_or_empty(anthropic.decode_message, element)
    stop = (map_stop_reason(STOP_REASONS, native_reason), native_reason)
    answer = build_parsed_answer(
        anthropic.API_NAME,
        fields,
        message,
        (element,),
        stop,
        parse_usage,
    )
    container = read_answer_container(fields)
    if container:
        answer = replace(answer, container=container)
    context_management = fields.get("context_management")
    if context_management is None:
        return answer
    return replace(answer, cleared_tokens=_count_cleared_tokens(read_json_fields(context_management)))


def _count_cleared_tokens(context_management: Mapping[str, Raw]) -> int:
    """Count the tokens that context editing removed from the prompt."""
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
    """The usual event: a delta of text, thinking or arguments, decoded in one step."""

    index: ListIndex
    delta: _TextDelta | _ThinkingDelta | _InputDelta


_DELTA_DECODER = Decoder(_ContentBlockDelta)


class _GrowingBlock:
    """A block under construction: its fields at the start, and the texts and lists that deltas add."""

    __slots__ = ("fields", "grown", "lists")

    def __init__(self, fields: Mapping[str, Raw]) -> None:
        self.fields = dict(fields)
        self.grown: dict[str, list[str]] = {}
        self.lists: dict[str, list[Raw]] = {}

    def add_delta(self, delta: Mapping[str, Raw]) -> None:
        """Merge a delta: strings are appended, a citation joins its list, anything else replaces the field."""
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
        """Append ``words`` to the string field ``key``."""
        if key not in self.grown:
            self.grown[key] = [read_json_text(self.fields.get(key))]  # a block may begin with text in it
        self.grown[key].append(words)

    def build_block(self) -> dict[str, Any]:
        """Build the block as a body has it."""
        block: dict[str, Any] = dict(self.fields) | self.lists
        for key, pieces in self.grown.items():
            words = "".join(pieces)
            if key != "partial_json":
                block[key] = words
            elif words.strip():
                block["input"] = wrap_call_arguments(words)
        return block


_COMPLETE_DELTA_KINDS = frozenset({"signature_delta", "compaction_delta"})
"""Deltas that are sent once and complete. All other kinds, also those that do not exist yet, are taken as pieces to
append."""
_TEXT_BLOCK_KINDS = frozenset({"text", "thinking"})
"""Blocks without content until text arrives."""
_EMPTY_JSON = frozenset({b'""', b"{}", b"[]", b"null"})


class AnthropicAccumulator:
    """The events of one answer, merged."""

    def __init__(self) -> None:
        self.is_complete = False
        self._head: dict[str, Any] = {}
        self._usage: dict[str, Raw] = {}
        self._blocks: dict[int, _GrowingBlock] = {}

    def add_event(self, name: str, fields: Mapping[str, Raw]) -> bool:
        """Merge the fields of one event, and return whether it has content; unknown kinds are ignored.

        Content is a delta that is not empty, or a block that is not text.
        """
        handler = self._HANDLERS.get(read_json_text(fields.get("type")) or name)
        return handler is not None and handler(self, fields)

    def add_text_delta(self, data: bytes) -> bool | None:
        """Merge a simple delta of a block that has begun, and return whether it has text; return None for any other
        event.
        """
        event = try_decode_json(_DELTA_DECODER, data)
        block = None if event is None else self._blocks.get(event.index)
        if event is None or block is None:
            return None
        block.append_text(event.delta.key, event.delta.text)
        return bool(event.delta.text)

    def build_body(self) -> dict[str, Any]:
        """Build the fields of the body from the events so far."""
        content = [self._blocks[index].build_block() for index in sorted(self._blocks)]
        body = dict(self._head)
        if content or self._head:
            body["content"] = content
        if self._usage:
            body["usage"] = self._usage
        return body

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
            # Another model answers from here on. The body of the same answer names that one.
            to = read_json_fields(block.get("to"))
            if "model" in to:
                self._head["model"] = to["model"]
        if not block:
            return False
        return kind not in _TEXT_BLOCK_KINDS or bool(read_json_text(block.get("text")))

    def _on_block_delta(self, fields: Mapping[str, Raw]) -> bool:
        delta = read_json_fields(fields.get("delta"))
        index = read_json_count(fields.get("index"))
        kind = read_json_text(delta.get("type")).removesuffix("_delta")
        if index not in self._blocks and kind in ("text", "thinking"):
            # Compatible servers may send deltas without a start. The type of these two blocks can be told from the
            # delta.
            self._blocks[index] = _GrowingBlock({"type": Raw(encode_json(kind))})
        if index in self._blocks:
            self._blocks[index].add_delta(delta)
        return any(bytes(raw) not in _EMPTY_JSON for key, raw in delta.items() if key != "type")

    def _on_message_delta(self, fields: Mapping[str, Raw]) -> bool:
        """Merge the end of a message, which corrects fields of its start: each field that is set replaces the old
        one.
        """
        fields = drop_null_fields(fields)
        # The usage at the start counts the input alone, this one the whole answer.
        self._usage |= drop_null_fields(read_json_fields(fields.get("usage")))
        self._head |= drop_null_fields(read_json_fields(fields.get("delta")))
        for key, raw in fields.items():
            if key not in ("type", "delta", "usage"):
                self._head[key] = raw
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
