"""OpenAI Responses: a body or its events as an answer. Every item of ``output`` is an element of the next ``input``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.json import Decoder
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque
from holdfast.providers.answers.accumulator import EMPTY_ANSWER, adjust_stop_for_calls, build_parsed_answer
from holdfast.providers.answers.parsed_answer import ParsedAnswer, StopReason
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
from holdfast.providers.openai_responses import messages as openai_responses
from holdfast.providers.openai_responses.items import decode_items
from holdfast.state.entries import Usage

_STOP_BY_STATUS: dict[str, StopReason] = {"completed": "end", "failed": "error", "cancelled": "error"}
_UNFINISHED_STATUSES = frozenset({"queued", "in_progress", "failed", "cancelled"})
_STOP_BY_INCOMPLETE_REASON: dict[str, StopReason] = {
    "max_output_tokens": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
    "max_messages": "pause",
    "steered": "pause",
}
"""``incomplete_details.reason`` (SDK 3.54); after ``max_messages`` and ``steered`` the answer can be gone on with."""


def parse_usage(fields: Mapping[str, Raw]) -> Usage:
    """Return the tokens of a ``usage``: the input includes cached and written tokens, the output reasoning."""
    prompt, answer = (
        read_json_fields(fields.get("input_tokens_details")),
        read_json_fields(fields.get("output_tokens_details")),
    )
    return Usage(
        read_json_count(fields.get("input_tokens")),
        read_json_count(fields.get("output_tokens")),
        read_json_count(prompt.get("cached_tokens")),
        read_json_count(prompt.get("cache_write_tokens")),
        read_json_count(answer.get("reasoning_tokens")),
    )


def iter_event_text(payload: dict[str, Any]) -> Iterator[str]:
    """Yield the words of the answer in one event of a stream."""
    if payload.get("type") == "response.output_text.delta":
        yield get_text_at(payload, "delta")


def parse_answer_body(fields: Mapping[str, Raw]) -> ParsedAnswer:
    """Return the answer in the fields of a body, of ``/responses`` or of ``/responses/compact``."""
    items = [raw for raw in read_json_items(fields.get("output")) if bytes(raw).startswith(b"{")]
    message = _decode_output_message(items)
    native = read_json_text(read_json_fields(fields.get("incomplete_details")).get("reason")) or read_json_text(
        fields.get("status")
    )
    stop = adjust_stop_for_calls(_find_stop_reason(fields, native, message), message)
    history = [bytes(raw) for raw in items]
    answer = build_parsed_answer(openai_responses.API_NAME, fields, message, history, (stop, native), parse_usage)
    return (
        replace(answer, is_complete=False) if read_json_text(fields.get("status")) in _UNFINISHED_STATUSES else answer
    )


def _decode_output_message(items: list[Raw]) -> Message:
    """Return what the model made, and what the server's tools gave it, as one message."""
    try:
        groups = decode_items(items)
    except FormatError:
        return EMPTY_ANSWER
    own = (message for message in groups if message.role in ("assistant", "tool"))
    return Message("assistant", tuple([part for message in own for part in message.parts]))


def _find_stop_reason(fields: Mapping[str, Raw], native: str, message: Message) -> StopReason:
    status = read_json_text(fields.get("status"))
    if status == "incomplete":
        return _STOP_BY_INCOMPLETE_REASON.get(native, "unknown")
    stop = _STOP_BY_STATUS.get(status, "unknown")
    if read_json_text(fields.get("object")) == "response.compaction" or (
        stop == "end" and _is_only_compaction(message)
    ):
        return "compaction"
    return "refusal" if stop == "end" and _is_only_refusal(fields) else stop


def _is_only_compaction(message: Message) -> bool:
    """Return whether a compaction is all that was made."""
    return bool(message.parts) and all(isinstance(part, Opaque) and part.kind == "compaction" for part in message.parts)


def _is_only_refusal(fields: Mapping[str, Raw]) -> bool:
    """Return whether what was said is a refusal and nothing else."""
    items = map(read_json_fields, read_json_items(fields.get("output")))
    pieces = [read_json_fields(raw) for item in items for raw in read_json_items(item.get("content")) if "role" in item]
    return bool(pieces) and all(read_json_text(piece.get("type")) == "refusal" for piece in pieces)


def _is_content_event(kind: str, fields: Mapping[str, Raw]) -> bool:
    """Return whether an event shows something the model made: an item, a piece, or words."""
    return kind.startswith(("response.output_item.", "response.content_part.")) or (
        kind.endswith(".delta") and bytes(fields.get("delta", b'""')) not in (b'""', b"null")
    )


# -- events ------------------------------------------------------------------------------------------------------------

_END_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_DELTA_TARGETS: dict[str, tuple[str, str, str]] = {
    "response.output_text.delta": ("content", "output_text", "text"),
    "response.refusal.delta": ("content", "refusal", "refusal"),
    "response.reasoning_text.delta": ("content", "reasoning_text", "text"),
    "response.reasoning_summary_text.delta": ("summary", "summary_text", "text"),
    "response.function_call_arguments.delta": ("", "", "arguments"),
    "response.mcp_call_arguments.delta": ("", "", "arguments"),
    "response.custom_tool_call_input.delta": ("", "", "input"),
    "response.code_interpreter_call_code.delta": ("", "", "code"),
}
"""Where the words of a delta belong: a list of the item, the type of its element, and the field that grows."""


class _SimpleDelta(Struct, forbid_unknown_fields=True):
    """The event that most are."""

    type: str
    output_index: ListIndex
    delta: str
    content_index: ListIndex | UnsetType = UNSET
    summary_index: ListIndex = 0
    item_id: str = ""
    sequence_number: int = 0
    logprobs: list[Any] = []
    obfuscation: str = ""


_DELTA_DECODER = Decoder(_SimpleDelta)


class _GrowingItem:
    """An item that grows: as it was added, what deltas brought, and as it was when it was done, which wins."""

    __slots__ = ("added", "done", "fields", "pieces")

    def __init__(self) -> None:
        self.added: dict[str, Raw] = {}
        self.done: Raw | None = None
        self.fields: dict[str, list[str]] = {}
        self.pieces: dict[str, dict[int, tuple[str, str, list[str]]]] = {}

    def append_text(self, where: tuple[str, str, str], place: int, words: str) -> None:
        """Take the words of a delta."""
        list_key, kind, key = where
        if not list_key:
            self.fields.setdefault(key, []).append(words)
        else:
            self.pieces.setdefault(list_key, {}).setdefault(place, (kind, key, []))[2].append(words)

    def build_item(self) -> Any:
        """Return the item as a body has it."""
        if self.done is not None:
            return self.done
        item: dict[str, Any] = dict(self.added) | {key: "".join(words) for key, words in self.fields.items()}
        for list_key, pieces in self.pieces.items():
            item[list_key] = [_build_part(*pieces[place]) for place in sorted(pieces)]
        return item


def _build_part(kind: str, key: str, words: list[str]) -> dict[str, Any]:
    piece: dict[str, Any] = {"type": kind, key: "".join(words)}
    return piece | ({"annotations": []} if kind == "output_text" else {})


class ResponsesAccumulator:
    """The events of one answer."""

    def __init__(self) -> None:
        self.is_complete = False
        self._head: dict[str, Raw] = {}
        self._items: dict[int, _GrowingItem] = {}

    def add_event(self, name: str, fields: Mapping[str, Raw]) -> bool:
        """Take the fields of one event; kinds nobody knows change nothing."""
        kind = read_json_text(fields.get("type")) or name
        if "response" in fields:
            self._head |= read_json_fields(fields["response"])
        self.is_complete = self.is_complete or kind in _END_EVENTS
        if kind == "response.output_item.added":
            self._get_item(fields).added = read_json_fields(fields.get("item"))
        elif kind == "response.output_item.done" and read_json_fields(fields.get("item")):
            self._get_item(fields).done = fields["item"]
        elif (where := _DELTA_TARGETS.get(kind)) is not None:
            place = fields.get("content_index", fields.get("summary_index"))
            self._get_item(fields).append_text(where, read_json_count(place), read_json_text(fields.get("delta")))
        return _is_content_event(kind, fields)

    def add_text_delta(self, data: bytes) -> bool | None:
        """Take a delta of words; return whether it has any, nothing for what is none."""
        event = try_decode_json(_DELTA_DECODER, data)
        where = None if event is None else _DELTA_TARGETS.get(event.type)
        if event is None or where is None:
            return None
        place = event.summary_index if event.content_index is UNSET else event.content_index
        self._items.setdefault(event.output_index, _GrowingItem()).append_text(where, place, event.delta)
        return bool(event.delta)

    def _get_item(self, fields: Mapping[str, Raw]) -> _GrowingItem:
        """Return the item an event is about; without an index, a new one for an item and the last for a delta."""
        fresh = len(self._items) if "item" in fields else max(len(self._items) - 1, 0)
        index = read_json_count(fields["output_index"]) if "output_index" in fields else fresh
        return self._items.setdefault(index, _GrowingItem())

    def build_body(self) -> dict[str, Any]:
        """Return the fields of the body so far; where the last event does not repeat the output, the items count."""
        final_items = [raw for raw in read_json_items(self._head.get("output")) if read_json_fields(raw)]
        items = [self._items[index].build_item() for index in sorted(self._items)]
        output = final_items if self.is_complete and len(final_items) >= len(items) else items or final_items
        return dict(drop_null_fields(self._head)) | ({"output": output} if self._head or output else {})


ANSWERS = AnswerFormat(
    parse_answer_body,
    ResponsesAccumulator,
    parse_usage,
    iter_event_text,
    keep_alive=b": keep-alive\n\n",
)
