"""OpenAI Responses: parse a body or the events of a stream as an answer.

Every item of ``output`` is also an element of the next ``input``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.json import Decoder
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, Part
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
# An answer in one of these is cut short even if its body came whole.
_UNFINISHED_STATUSES = frozenset({"queued", "in_progress", "failed", "cancelled"})
_STOP_BY_INCOMPLETE_REASON: dict[str, StopReason] = {
    "max_output_tokens": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
    "max_messages": "pause",
    "steered": "pause",
}
"""Stop reasons by ``incomplete_details.reason`` (SDK 3.54). After ``max_messages`` and ``steered`` the answer can be
continued."""


def parse_usage(fields: Mapping[str, Raw]) -> Usage:
    """Parse the tokens of a ``usage`` object: the input includes cached and written tokens, the output reasoning."""
    input_details = read_json_fields(fields.get("input_tokens_details"))
    output_details = read_json_fields(fields.get("output_tokens_details"))
    return Usage(
        read_json_count(fields.get("input_tokens")),
        read_json_count(fields.get("output_tokens")),
        read_json_count(input_details.get("cached_tokens")),
        read_json_count(input_details.get("cache_write_tokens")),
        read_json_count(output_details.get("reasoning_tokens")),
    )


def iter_event_text(payload: dict[str, Any]) -> Iterator[str]:
    """Yield the text of the answer in one decoded event."""
    if payload.get("type") == "response.output_text.delta":
        yield get_text_at(payload, "delta")


def parse_answer_body(fields: Mapping[str, Raw]) -> ParsedAnswer:
    """Parse the answer in the fields of a body of ``/responses`` or ``/responses/compact``."""
    items = []
    for raw in read_json_items(fields.get("output")):
        if bytes(raw).startswith(b"{"):
            items.append(raw)
    message = _decode_output_message(items)
    # The reason of an incomplete answer says more than its status.
    status = read_json_text(fields.get("status"))
    incomplete_reason = read_json_text(read_json_fields(fields.get("incomplete_details")).get("reason"))
    native_reason = incomplete_reason or status
    stop_reason = adjust_stop_for_calls(_find_stop_reason(fields, native_reason, message), message)
    elements = [bytes(raw) for raw in items]
    stop = (stop_reason, native_reason)
    answer = build_parsed_answer(
        openai_responses.API_NAME,
        fields,
        message,
        elements,
        stop,
        parse_usage,
    )
    if status in _UNFINISHED_STATUSES:
        return replace(answer, is_complete=False)
    return answer


def _decode_output_message(items: list[Raw]) -> Message:
    """Decode the items that the model and the server's tools made into one message."""
    try:
        messages = decode_items(items)
    except FormatError:
        return EMPTY_ANSWER
    parts: list[Part] = []
    for message in messages:
        # ``/responses/compact`` returns the user's messages too; they are not part of the answer.
        if message.role in ("assistant", "tool"):
            parts += message.parts
    return Message("assistant", tuple(parts))


def _find_stop_reason(fields: Mapping[str, Raw], native_reason: str, message: Message) -> StopReason:
    # The status ``completed`` stands for answers, compactions and refusals alike; the content tells which.
    status = read_json_text(fields.get("status"))
    if status == "incomplete":
        return _STOP_BY_INCOMPLETE_REASON.get(native_reason, "unknown")
    if read_json_text(fields.get("object")) == "response.compaction":
        return "compaction"
    stop_reason = _STOP_BY_STATUS.get(status, "unknown")
    if stop_reason == "end" and _is_only_compaction(message):
        return "compaction"
    if stop_reason == "end" and _is_only_refusal(fields):
        return "refusal"
    return stop_reason


def _is_only_compaction(message: Message) -> bool:
    """Return whether a compaction is all that the message contains."""
    return bool(message.parts) and all(isinstance(part, Opaque) and part.kind == "compaction" for part in message.parts)


def _is_only_refusal(fields: Mapping[str, Raw]) -> bool:
    """Return whether the messages in the output consist of refusals and nothing else."""
    parts = []
    for raw_item in read_json_items(fields.get("output")):
        item = read_json_fields(raw_item)
        if "role" in item:
            for raw_part in read_json_items(item.get("content")):
                parts.append(read_json_fields(raw_part))
    part_types = {read_json_text(part.get("type")) for part in parts}
    return part_types == {"refusal"}


def _is_content_event(kind: str, fields: Mapping[str, Raw]) -> bool:
    """Return whether an event shows something that the model made: an item, a content part, or text."""
    if kind.startswith(("response.output_item.", "response.content_part.")):
        return True
    return kind.endswith(".delta") and bytes(fields.get("delta", b'""')) not in (b'""', b"null")


# -- events ------------------------------------------------------------------------------------------------------------

# Without one of these the stream was cut.
_END_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})


class _DeltaTarget(NamedTuple):
    """The string of an item that a delta is appended to."""

    field: str
    list_field: str = ""
    """The list of the item with the element that has the field; empty for a field of the item itself."""
    part_type: str = ""
    """The type of that element."""


_DELTA_TARGETS: dict[str, _DeltaTarget] = {
    "response.output_text.delta": _DeltaTarget("text", "content", "output_text"),
    "response.refusal.delta": _DeltaTarget("refusal", "content", "refusal"),
    "response.reasoning_text.delta": _DeltaTarget("text", "content", "reasoning_text"),
    "response.reasoning_summary_text.delta": _DeltaTarget("text", "summary", "summary_text"),
    "response.function_call_arguments.delta": _DeltaTarget("arguments"),
    "response.mcp_call_arguments.delta": _DeltaTarget("arguments"),
    "response.custom_tool_call_input.delta": _DeltaTarget("input"),
    "response.code_interpreter_call_code.delta": _DeltaTarget("code"),
}


class _SimpleDelta(Struct, forbid_unknown_fields=True):
    """The usual event: a delta of text or arguments, decoded in one step."""

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
    """An item under construction: as it was added, the texts of its deltas, and as it was done, which wins.

    The ``added`` form may be incomplete, so the ``done`` form is preferred. The ``encrypted_content`` of reasoning that
    was never done is left out.
    """

    __slots__ = ("added", "done", "fields", "parts")

    def __init__(self) -> None:
        self.added: dict[str, Raw] = {}
        self.done: Raw | None = None
        self.fields: dict[str, list[str]] = {}
        self.parts: dict[str, dict[int, _GrowingPart]] = {}

    def append_text(self, target: _DeltaTarget, index: int, words: str) -> None:
        """Append the text of a delta; ``index`` is the position in the target's list, if it has one."""
        if not target.list_field:
            self.fields.setdefault(target.field, []).append(words)
            return
        parts = self.parts.setdefault(target.list_field, {})
        if index not in parts:
            parts[index] = _GrowingPart(target.part_type, target.field, [])
        parts[index].words.append(words)

    def build_item(self) -> Any:
        """Build the item as a body has it."""
        if self.done is not None:
            return self.done
        item: dict[str, Any] = dict(self.added)
        # Before reasoning is done this is only a beginning, which the server refuses later (SDK 3.57 types).
        if read_json_text(item.get("type")) == "reasoning":
            item.pop("encrypted_content", None)
        for key, words in self.fields.items():
            item[key] = "".join(words)
        for list_field, parts in self.parts.items():
            item[list_field] = [_build_part(parts[index]) for index in sorted(parts)]
        return item


class _GrowingPart(NamedTuple):
    """An element of a list of an item, with a string field that grows."""

    type: str
    field: str
    words: list[str]


def _build_part(growing_part: _GrowingPart) -> dict[str, Any]:
    part: dict[str, Any] = {"type": growing_part.type, growing_part.field: "".join(growing_part.words)}
    if growing_part.type == "output_text":
        part["annotations"] = []  # required by the SDK's type
    return part


class ResponsesAccumulator:
    """The events of one answer, merged."""

    def __init__(self) -> None:
        self.is_complete = False
        self._head: dict[str, Raw] = {}
        self._items: dict[int, _GrowingItem] = {}

    def add_event(self, name: str, fields: Mapping[str, Raw]) -> bool:
        """Merge the fields of one event, and return whether it has content; unknown kinds are ignored."""
        kind = read_json_text(fields.get("type")) or name
        # The first and the last event hold the whole response; the last one wins, with usage and status.
        if "response" in fields:
            self._head |= read_json_fields(fields["response"])
        self.is_complete = self.is_complete or kind in _END_EVENTS
        target = _DELTA_TARGETS.get(kind)
        if kind == "response.output_item.added":
            self._get_item(fields).added = read_json_fields(fields.get("item"))
        elif kind == "response.output_item.done" and read_json_fields(fields.get("item")):
            self._get_item(fields).done = fields["item"]
        elif target is not None:
            index = read_json_count(fields.get("content_index", fields.get("summary_index")))
            self._get_item(fields).append_text(target, index, read_json_text(fields.get("delta")))
        return _is_content_event(kind, fields)

    def add_text_delta(self, data: bytes) -> bool | None:
        """Merge a simple delta and return whether it has text; return None for any other event."""
        event = try_decode_json(_DELTA_DECODER, data)
        target = None if event is None else _DELTA_TARGETS.get(event.type)
        if event is None or target is None:
            return None
        if event.content_index is UNSET:
            index = event.summary_index
        else:
            index = event.content_index
        self._items.setdefault(event.output_index, _GrowingItem()).append_text(target, index, event.delta)
        return bool(event.delta)

    def _get_item(self, fields: Mapping[str, Raw]) -> _GrowingItem:
        """Return the item that an event is about. Without an index, an item is a new one and a delta is for the
        last.
        """
        if "output_index" in fields:
            index = read_json_count(fields["output_index"])
        elif "item" in fields:
            index = len(self._items)
        else:
            index = max(len(self._items) - 1, 0)
        return self._items.setdefault(index, _GrowingItem())

    def build_body(self) -> dict[str, Any]:
        """Build the fields of the body from the events so far."""
        final_items = []
        for raw in read_json_items(self._head.get("output")):
            if read_json_fields(raw):
                final_items.append(raw)
        items = [self._items[index].build_item() for index in sorted(self._items)]
        # The last event repeats the whole output. Some servers leave it empty or short there; then the items count.
        is_final = self.is_complete and len(final_items) >= len(items)
        output = final_items if is_final or not items else items
        body: dict[str, Any] = dict(drop_null_fields(self._head))
        if self._head or output:
            body["output"] = output
        return body


ANSWERS = AnswerFormat(
    parse_answer_body,
    ResponsesAccumulator,
    parse_usage,
    iter_event_text,
    keep_alive=b": keep-alive\n\n",
)
