"""A message as a request holds it, measured once."""

from __future__ import annotations

from hashlib import blake2b

from msgspec import Raw, Struct

from holdfast.messages.message import Message, count_message_chars

EMPTY_HASHER = blake2b(digest_size=16)
"""A fresh hasher to be copied, which is faster than making one."""


class SizedMessage(Struct, frozen=True, gc=False, rename={"tokens": "size", "base_raw": "base"}):
    """One message of the log with its estimated size, its digest and its wire bytes."""

    message: Message
    tokens: int = 0
    """Uncalibrated estimate, including the overhead of a message."""
    digest: bytes = b""
    """Digest of the message's canonical content; the same for the same content on any API."""
    api: str = ""
    """The API in whose format ``raw`` is; empty if there is no ``raw``."""
    raw: Raw | None = None
    """The message as received, byte for byte; None if it was built from values or edited.

    If it came as several elements of its API's list (items of Responses, an answer in pieces), this is all of them and
    the bytes between.
    """
    base_raw: Raw | None = None
    """The wire message that an edited message was made from; fields that no edit touched are taken from it."""


def bound_message_chars(sized_message: SizedMessage) -> int:
    """Return an upper bound of ``count_message_chars`` that is cheap for messages with wire bytes.

    Each character takes at least one byte there.
    """
    if sized_message.raw is not None:
        return len(sized_message.raw)
    return count_message_chars(sized_message.message)
