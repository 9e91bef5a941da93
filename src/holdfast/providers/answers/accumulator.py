"""What the four APIs have in common: how an answer is put together from what was read, and what a fold is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Raw

from holdfast.errors import FormatError
from holdfast.messages.message import Message
from holdfast.providers.answers.answer_errors import parse_error_report
from holdfast.providers.answers.parsed_answer import ParsedAnswer, StopReason
from holdfast.providers.answers.usage_pair import UsageParser, read_usage_pair
from holdfast.providers.common.json.lenient_json import read_json_text

EMPTY_ANSWER = Message("assistant")


class StreamAccumulator(Protocol):
    """The events of one API, put together to the body that the same answer has when it is not streamed."""

    is_complete: bool
    """Whether the API's last word came."""

    def add_event(self, name: str, fields: Mapping[str, Raw]) -> bool:
        """Take the fields of one event; return whether it holds something the model said."""

    def add_text_delta(self, data: bytes) -> bool | None:
        """Take an event by which words go on, as by most, at once; return whether it has any.

        Nothing where it is any other, or is not sure to be one: it is not taken then, and is for ``add_event``.
        """

    def build_body(self) -> dict[str, Any]:
        """Return the fields of the body so far."""


def decode_message_or_empty(decode: Callable[[bytes], Message], element: bytes) -> Message:
    """Return an element of the history as values; nothing said when it does not decode."""
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
    """Return the answer in a body: ``stop`` as we and as the API says it, ``parse_usage`` for its tokens,
    ``field_names`` of the fields that say the rest.
    """
    fault = parse_error_report(fields, api)
    counts, model, identity = map(fields.get, field_names)
    last, paid = read_usage_pair(counts, parse_usage)
    return ParsedAnswer(
        message,
        tuple(history) if message.parts else (),
        "error" if fault is not None else stop[0],
        stop[1],
        last,
        paid,
        read_json_text(model),
        read_json_text(identity),
        fault,
        fault is None,
    )


def adjust_stop_for_calls(stop: StopReason, message: Message) -> StopReason:
    """Return ``tool`` for a normal end with calls in it: an API or server that has no word of its own for that."""
    return "tool" if stop == "end" and message.calls else stop


def map_stop_reason(table: Mapping[str, StopReason], native: str) -> StopReason:
    """Return our word for the API's; ``unknown`` for a word of tomorrow and for none."""
    return table.get(native.lower(), "unknown")
