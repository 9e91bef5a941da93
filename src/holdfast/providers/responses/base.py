"""What the four APIs have in common: how an answer is put together from what was read, and what a fold is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Raw

from holdfast.errors import FormatError
from holdfast.messages.message import Message
from holdfast.providers.common.json.lenient_json import text_of
from holdfast.providers.responses.errors import fault_of
from holdfast.providers.responses.usage import counted
from holdfast.providers.responses.values import Answer, Stop

NOTHING = Message("assistant")


class Folding(Protocol):
    """The events of one API, put together to the body that the same answer has when it is not streamed."""

    complete: bool
    """Whether the API's last word came."""

    def add(self, name: str, found: Mapping[str, Raw]) -> bool:
        """Take the fields of one event; return whether it holds something the model said."""

    def go_on(self, data: bytes) -> bool | None:
        """Take an event by which words go on, as by most, at once; return whether it has any.

        Nothing where it is any other, or is not sure to be one: it is not taken then, and is for ``add``.
        """

    def body(self) -> dict[str, Any]:
        """Return the fields of the body so far."""


def decoded(decode: Callable[[bytes], Message], element: bytes) -> Message:
    """Return an element of the history as values; nothing said when it does not decode."""
    try:
        return decode(element)
    except FormatError:
        return NOTHING


def said(
    api: str,
    found: Mapping[str, Raw],
    message: Message,
    history: Sequence[bytes],
    stop: tuple[Stop, str],
    names: tuple[str, str, str] = ("usage", "model", "id"),
) -> Answer:
    """Return the answer in a body: ``stop`` as we and as the API says it, ``names`` of the fields that say the rest."""
    fault = fault_of(found, api)
    counts, model, identity = map(found.get, names)
    last, paid = counted(api, counts)
    return Answer(
        message,
        tuple(history) if message.parts else (),
        "error" if fault is not None else stop[0],
        stop[1],
        last,
        paid,
        text_of(model),
        text_of(identity),
        fault,
        fault is None,
    )


def with_calls(stop: Stop, message: Message) -> Stop:
    """Return ``tool`` for a normal end with calls in it: an API or server that has no word of its own for that."""
    return "tool" if stop == "end" and message.calls else stop


def lookup(table: Mapping[str, Stop], native: str) -> Stop:
    """Return our word for the API's; ``unknown`` for a word of tomorrow and for none."""
    return table.get(native.lower(), "unknown")
