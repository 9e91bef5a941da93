"""Conditional compression: how much shorter the future gets when one has the context at hand.

``z_gain`` = (C(F|O) - C(F|O + context)) / (C(F|O) - C(F|O + full history)): C are bytes after zstd at level 12 with a
raw dictionary, F is what the assistant wrote next, O what it was shown meanwhile. No rule of ours extracts anything
here, so a list of names gains little.
"""

from __future__ import annotations

from collections.abc import Sequence

import zstandard
from msgspec import Struct

from holdfast.messages.message import Message
from holdfast.messages.references import words
from holdfast.replay.recall import uses

LEVEL = 12
"""Compression level (METRICS, ``z_gain``)."""
STEPS = 12
"""Steps of the assistant that make up the future (METRICS)."""
SMALLEST_TABLE, LARGEST_TABLE = 17, 25
"""Bits of zstd's match tables and window: 2**25 bytes are some 8M tokens, more than any session we replay."""


class Future(Struct, frozen=True):
    """What came after a cut, and its compressed sizes in bytes: alone, and with the whole history as dictionary."""

    written: bytes
    shown: bytes
    alone: int
    informed: int

    @property
    def room(self) -> int:
        """Bytes that the whole history saves: the most a context can."""
        return self.alone - self.informed

    def saved(self, context: bytes) -> int:
        """Return the bytes that ``context`` saves."""
        return self.alone - size(self.written, context + self.shown)


def future(history: Sequence[Message], after: Sequence[Message]) -> Future | None:
    """Return the next 12 steps behind a cut as a ``Future``; nothing without steps."""
    written, shown = _told(after)
    if not written:
        return None
    return Future(written, shown, size(written, shown), size(written, said(history) + shown))


def _told(after: Sequence[Message]) -> tuple[bytes, bytes]:
    """Return what the assistant wrote in the next steps, and what it was shown between them."""
    written: list[str] = []
    shown: list[str] = []
    pending: list[str] = []
    steps = 0
    for message in after:
        if message.role != "assistant":
            pending.extend(words(message))
            continue
        if steps == STEPS:
            break
        steps += 1
        written.extend(uses(message))
        shown.extend(pending)
        pending = []
    return joined(written), joined(shown)


def said(messages: Sequence[Message]) -> bytes:
    """Return all words of ``messages`` as bytes."""
    return joined([text for message in messages for text in words(message)])


def joined(texts: Sequence[str]) -> bytes:
    """Return ``texts``, a line break behind each, as UTF-8; lone surrogates are kept."""
    return "".join(f"{text}\n" for text in texts).encode("utf-8", "surrogatepass")


def size(data: bytes, dictionary: bytes) -> int:
    """Return the bytes of ``data`` compressed with all of ``dictionary`` in reach."""
    bits = min(LARGEST_TABLE, max(SMALLEST_TABLE, (len(data) + len(dictionary)).bit_length()))
    params = zstandard.ZstdCompressionParameters.from_level(
        LEVEL, source_size=len(data), dict_size=len(dictionary), window_log=bits, hash_log=bits, chain_log=bits
    )
    if not dictionary:
        return len(zstandard.ZstdCompressor(compression_params=params).compress(data))
    raw = zstandard.ZstdCompressionDict(dictionary, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    return len(zstandard.ZstdCompressor(dict_data=raw, compression_params=params).compress(data))
