"""Parts that the answer readers of all APIs share: the protocol of accumulators, and building a parsed answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Raw

from holdfast.errors import FormatError
from holdfast.messages.message import Message
from holdfast.providers.answers.answer_errors import parse_error_report
from holdfast.providers.answers.parsed_answer import ParsedAnswer, StopReason
from holdfast.providers.answers.usage_pair import UsageParser, read_usage_pair
from holdfast.providers.common.json.lenient_json import read_json_fields, read_json_items, read_json_text

EMPTY_ANSWER = Message("assistant")


class StreamAccumulator(Protocol):
    """Accumulates the events of one API to the body that the same answer has when it is not streamed."""

    is_complete: bool
    """Whether the final event of the API has arrived."""

    def add_event(self, name: str, fields: Mapping[str, Raw]) -> bool:
        """Add the fields of one event; return whether it holds output of the model."""

    def add_text_delta(self, data: bytes) -> bool | None:
        """Add an event that only continues a text, without decoding it in full.

        Most events of a stream are such, so they take a short cut. Returns whether the event holds any text, or None
        if it may be of another kind: it is not added then, and ``add_event`` has to be called with it.
        """

    def build_body(self) -> dict[str, Any]:
        """Return the fields of the body, as far as events have arrived."""


def decode_message_or_empty(decode: Callable[[bytes], Message], element: bytes) -> Message:
    """Decode an element of the history, or return an empty message if it is malformed.

    An answer must be recorded whatever is in it; its bytes are kept as the element of the history.
    """
    try:
        return decode(element)
    except FormatError:
        return EMPTY_ANSWER


def build_parsed_answer(
    api: str,
    fields: Mapping[str, Raw],
    message: Message,
    history: Sequence[bytes],
    stop: tuple[StopReason, str],
    parse_usage: UsageParser,
    field_names: tuple[str, str, str] = ("usage", "model", "id"),
) -> ParsedAnswer:
    """Build the answer that the fields of a body hold.

    ``stop`` is our stop reason and the API's own, ``parse_usage`` reads the usage as the API reports it, and
    ``field_names`` are those of the usage, the model and the id.
    """
    error = parse_error_report(fields, api)
    usage_name, model_name, id_name = field_names
    usages = read_usage_pair(fields.get(usage_name), parse_usage)
    stop_reason, native_stop_reason = stop
    return ParsedAnswer(
        message=message,
        history_elements=tuple(history) if message.parts else (),
        stop_reason="error" if error is not None else stop_reason,
        native_stop_reason=native_stop_reason,
        usage=usages.window,
        billed_usage=usages.billed,
        model=read_json_text(fields.get(model_name)),
        id=read_json_text(fields.get(id_name)),
        error=error,
        is_complete=error is None,
        dropped_thinking=_read_dropped_thinking(fields.get("input_transformations")),
    )


# Reasoning of earlier turns is not shown to the model in any case.
_HARMLESS_DROP_REASONS = frozenset({"turn_boundary"})


def _read_dropped_thinking(raw: Raw | None) -> tuple[str, ...]:
    """Read why the provider kept thinking of the request from the model, once for each piece.

    Responses lists such reasoning (SDK 3.57 types, ``Response.input_transformations``) and Messages such thinking
    blocks (page on preserved thinking) in a field of the same name.
    """
    reasons = []
    for raw_entry in read_json_items(raw):
        reason = read_json_text(read_json_fields(raw_entry).get("reason"))
        if reason and reason not in _HARMLESS_DROP_REASONS:
            reasons.append(reason)
    return tuple(reasons)


def adjust_stop_for_calls(stop: StopReason, message: Message) -> StopReason:
    """Return ``tool`` instead of ``end`` if the message has calls.

    Gemini and Responses have no stop reason for calls, and some servers of Chat say ``stop`` for them.
    """
    return "tool" if stop == "end" and message.calls else stop


def map_stop_reason(table: Mapping[str, StopReason], native: str) -> StopReason:
    """Map an API's stop reason to ours, ``unknown`` if it is missing or not in the table."""
    return table.get(native.lower(), "unknown")
