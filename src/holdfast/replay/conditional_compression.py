"""Conditional compression: how much better the future can be compressed with a context at hand.

``z_gain`` = (C(F|O) - C(F|O + context)) / (C(F|O) - C(F|O + full history)), where C is the size in bytes after zstd
with a raw dictionary, F the text that the assistant wrote next, and O the text it was shown meanwhile. No extractor of
ours is part of this figure, so it shows when a context wins the other figures with mere lists of names.
"""

from __future__ import annotations

from collections.abc import Sequence

import zstandard
from msgspec import Struct

from holdfast.messages.message import Message
from holdfast.messages.references import iter_reference_texts
from holdfast.replay.recall import iter_used_texts

ZSTD_LEVEL = 12
"""Compression level (docs/metrics.md, ``z_gain``)."""
FUTURE_STEPS = 12
"""Answers of the assistant that make up the future (docs/metrics.md, ``z_gain``)."""
MIN_TABLE_BITS, MAX_TABLE_BITS = 17, 25
"""Bits of zstd's match tables and window. 2**25 bytes are some 8M tokens, more than any session we replay."""


class FutureText(Struct, frozen=True):
    """The text after a cut, and its compressed sizes in bytes."""

    written_text: bytes
    shown_text: bytes
    alone: int
    """Size without any context."""
    informed_size: int
    """Size with the whole history as dictionary."""

    @property
    def max_saved(self) -> int:
        """Bytes that the whole history saves, the most that any context can."""
        return self.alone - self.informed_size

    def count_saved_bytes(self, context: bytes) -> int:
        """Return how many bytes ``context`` saves."""
        return self.alone - measure_compressed_size(self.written_text, context + self.shown_text)


def make_future(history: Sequence[Message], later_messages: Sequence[Message]) -> FutureText | None:
    """Return the next ``FUTURE_STEPS`` steps after a cut, or None if there are no steps."""
    written_text, shown_text = _collect_future(later_messages)
    if not written_text:
        return None
    return FutureText(
        written_text=written_text,
        shown_text=shown_text,
        alone=measure_compressed_size(written_text, shown_text),
        informed_size=measure_compressed_size(written_text, join_messages(history) + shown_text),
    )


def _collect_future(later_messages: Sequence[Message]) -> tuple[bytes, bytes]:
    """Return the text that the assistant wrote in the next steps, and the text it was shown between them."""
    written_texts: list[str] = []
    shown_texts: list[str] = []
    pending: list[str] = []
    steps = 0
    for message in later_messages:
        if message.role != "assistant":
            # Only what is shown before an answer counts; after the last one it has no use any more.
            pending.extend(iter_reference_texts(message))
            continue
        if steps == FUTURE_STEPS:
            break
        steps += 1
        written_texts.extend(iter_used_texts(message))
        shown_texts.extend(pending)
        pending = []
    return join_texts(written_texts), join_texts(shown_texts)


def join_messages(messages: Sequence[Message]) -> bytes:
    """Return all texts of ``messages`` as bytes."""
    texts: list[str] = []
    for message in messages:
        texts += iter_reference_texts(message)
    return join_texts(texts)


def join_texts(texts: Sequence[str]) -> bytes:
    """Return ``texts`` as UTF-8 with a line break after each; lone surrogates are kept."""
    return "".join(f"{text}\n" for text in texts).encode("utf-8", "surrogatepass")


def measure_compressed_size(data: bytes, dictionary: bytes) -> int:
    """Return the compressed size of ``data`` in bytes, with all of ``dictionary`` within reach."""
    bits = min(MAX_TABLE_BITS, max(MIN_TABLE_BITS, (len(data) + len(dictionary)).bit_length()))
    params = zstandard.ZstdCompressionParameters.from_level(
        ZSTD_LEVEL,
        source_size=len(data),
        dict_size=len(dictionary),
        window_log=bits,
        hash_log=bits,
        chain_log=bits,
    )
    if not dictionary:
        return len(zstandard.ZstdCompressor(compression_params=params).compress(data))
    raw = zstandard.ZstdCompressionDict(dictionary, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    return len(zstandard.ZstdCompressor(dict_data=raw, compression_params=params).compress(data))
