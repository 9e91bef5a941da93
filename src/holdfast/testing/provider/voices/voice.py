"""What it takes to speak an API: the shape of its answers, its events, its errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.providers.common.json.raw_json import write
from holdfast.testing.provider.calls import Answered, Asked, Compacted, Refusal

EPOCH = 1_780_000_000
"""The time that every answer tells (2026-05-28): the provider has no clock, so equal requests have equal answers."""
PIECE, PIECES = 4, 64
"""Characters in one delta, and the most deltas of one text: a long text comes in larger ones."""
EVENT_STREAM, JSON = "text/event-stream; charset=utf-8", "application/json"


class Stream(Struct, frozen=True):
    """An answer in events."""

    events: tuple[bytes, ...]
    closing: int
    """How many of the last events end the answer; all words were said before them."""


class Voice(Struct, frozen=True):
    """How one API says things. What the functions return is JSON, or events as bytes."""

    whole: Callable[[Asked, Answered], Any]
    """The answer in one document."""
    stream: Callable[[Asked, Answered], Stream]
    """The answer in events."""
    refused: Callable[[Refusal, str], Any]
    """The body of an error; the text is the request's id."""
    late: Callable[[Asked, Refusal, str, int], tuple[bytes, ...]]
    """The events that tell an error after HTTP 200; the number is how many events came before."""
    counted: Callable[[int], Any]
    """The answer to a count of tokens."""
    compacted: Callable[[Compacted], Any]
    """The answer to a compaction, where it has an endpoint of its own."""
    waiting: Callable[[Refusal], dict[str, str]]
    """The headers that tell when to come again."""
    ticket: str
    """The header that tells the request's id."""


def sse(value: Any, name: str = "") -> bytes:
    """Return a server-sent event that carries ``value`` as JSON, with ``name`` where the API names its events."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + write(value) + b"\n\n"


def named(values: Iterable[dict[str, Any]]) -> tuple[bytes, ...]:
    """Return events that are called as their ``type`` says."""
    return tuple([sse(value, value["type"]) for value in values])


def pieces(text: str) -> list[str]:
    """Return ``text`` cut into deltas; joined they are the text."""
    size = max(PIECE, ceil(len(text) / PIECES))
    return [text[start : start + size] for start in range(0, len(text), size)]


def wishes(asked: Asked) -> dict[str, Any]:
    """Return the fields of the request; nothing for a body that is no JSON object."""
    try:
        found = msgspec.json.decode(asked.body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def nothing(_: object) -> dict[str, Any]:
    """Return no fields: what an API has nothing to say to."""
    return {}
