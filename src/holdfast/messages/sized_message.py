"""Slots: the messages of a request to be, measured once."""

from __future__ import annotations

from hashlib import blake2b

from msgspec import Raw, Struct

from holdfast.messages.message import Message, count_message_chars

EMPTY_HASHER = blake2b(digest_size=16)


class SizedMessage(Struct, frozen=True, gc=False, rename={"tokens": "size", "base_raw": "base"}):
    """One message of the log as a request would hold it: its value, its size, its digest and its wire bytes."""

    message: Message
    tokens: int = 0
    """Estimator tokens, uncalibrated, with the overhead of a message."""
    digest: bytes = b""
    """Digest of the message's canonical content; the same for the same words on any API."""
    api: str = ""
    """The API whose form ``raw`` has, or empty."""
    raw: Raw | None = None
    """The message as it came, byte for byte; nothing when it was made from values or edited.

    Where it came as several elements of its API's list (items of Responses, an answer in pieces), all of them, with
    what stood between.
    """
    base_raw: Raw | None = None
    """The wire message an edited slot was made from: fields that no edit touched are taken from it."""


def bound_message_chars(sized_message: SizedMessage) -> int:
    """Return a number that ``count_message_chars`` of a slot is not above: in its bytes each character takes one at
    least.
    """
    return count_message_chars(sized_message.message) if sized_message.raw is None else len(sized_message.raw)
