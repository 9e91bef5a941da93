"""The estimator: tokens of any text without a vocabulary; state/calibration corrects it by what providers report.

Every byte weighs a share of a token by its kind and the kind of the byte before it (``token_weights``). The weights are
a least-squares fit against o200k over fifteen classes of content (``bench/estimator.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any, TypeAlias, TypeVar, cast

from msgspec import Struct

from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.token_weights import (
    BLOCK_BYTES,
    UNITS_PER_TOKEN,
    count_token_units,
    count_token_units_by_text,
)
from holdfast.messages.sized_message import EMPTY_HASHER, SizedMessage
from holdfast.messages.text.text_cuts import encode_in_pieces

T = TypeVar("T")

MESSAGE_OVERHEAD = 8
"""Tokens of a message beside its content: role and delimiters (measured on recorded sessions, docs/estimator.md)."""
IMAGE_TOKENS = 1_500
"""Tokens of an image whose dimensions are unknown (opencode's number; Anthropic's largest is about 1,600)."""
DOCUMENT_TOKENS = 2_000
"""Tokens of a document whose number of pages is unknown (opencode's number)."""

# -- texts -------------------------------------------------------------------------------------------------------------


def estimate_byte_tokens(data: bytes) -> int:
    """Return the estimated o200k tokens of UTF-8 ``data``; 0 only for empty data."""
    return _units_to_tokens(count_token_units([data])) if data else 0


def _units_to_tokens(units: int) -> int:
    """Return a weight as whole tokens, at least one."""
    return round(units / UNITS_PER_TOKEN) or 1


def estimate_text_tokens(text: str) -> int:
    """Return the estimated o200k tokens of ``text``; 0 only for an empty text. Longer texts never have fewer."""
    chunk = _make_text_chunk(text)
    if isinstance(chunk, bytes):
        return estimate_byte_tokens(chunk)
    return _units_to_tokens(count_token_units(chunk.iter_pieces()))


MAX_CACHED_LINE_CHARS = 400
"""Length up to which the size of a line is remembered. Longer ones are whole messages, which hardly come twice."""


def estimate_line_tokens(line: str) -> int:
    """Return ``estimate_text_tokens(line)``, remembered for short lines.

    Each extract sizes the lines and sentences of the conversation again, and most of them stood in the one before.
    """
    return estimate_text_tokens(line) if len(line) > MAX_CACHED_LINE_CHARS else _estimate_short_line(line)


@lru_cache(1 << 14)
def _estimate_short_line(line: str) -> int:
    return estimate_text_tokens(line)


def estimate_tokens_by_text(texts: Iterable[str]) -> list[int]:
    """Return ``estimate_text_tokens`` of each of ``texts``, which are short: they are weighed together.

    A weighing has a fixed cost, which is larger than that of a line.
    """
    tokens: list[int] = []
    encoded_texts = [text.encode("utf-8", "surrogatepass") for text in texts]
    for group in _group_by_block(encoded_texts, len):
        for text, units in zip(group, count_token_units_by_text(group), strict=True):
            tokens.append(_units_to_tokens(units) if text else 0)
    return tokens


_LONG_TEXT_CHARS = 1 << 20
"""Length from which a text is always encoded piece by piece, so that it is never held twice in memory."""


class _LongText:
    """A long text that has the length of its UTF-8 bytes and yields them in pieces."""

    def __init__(self, text: str) -> None:
        self._text = text
        if text.isascii():
            self._length = len(text)
        else:
            self._length = sum(map(len, encode_in_pieces(text)))

    def __len__(self) -> int:
        return self._length

    def iter_pieces(self) -> Iterator[bytes]:
        """Yield the bytes of the text."""
        return encode_in_pieces(self._text)


def _make_text_chunk(text: str) -> bytes | _LongText:
    """Return the bytes of ``text``, or an object that yields them if there are many."""
    if len(text) > _LONG_TEXT_CHARS:
        return _LongText(text)
    return text.encode("utf-8", "surrogatepass")


def _join_chunks(chunks: Iterable[bytes | _LongText], separator: bytes) -> Iterator[bytes]:
    """Yield the bytes of ``separator.join(chunks)`` in pieces."""
    for number, chunk in enumerate(chunks):
        if number:
            yield separator
        if isinstance(chunk, bytes):
            yield chunk
        else:
            yield from chunk.iter_pieces()


def estimate_media_tokens(media: Media) -> int:
    """Return the tokens of an image or a document. A document that is plain text has at least those of its text."""
    if media.kind != "document":
        return IMAGE_TOKENS
    if media.form != "text":
        return DOCUMENT_TOKENS
    return max(DOCUMENT_TOKENS, estimate_text_tokens(media.source))


# -- messages ----------------------------------------------------------------------------------------------------------

_TextChunks: TypeAlias = list[bytes | _LongText]


class _PartialMeasure(Struct, frozen=True, gc=False):
    """A message whose text is still to be weighed, together with that of other messages."""

    unweighed_text: bytes
    weighed_tokens: int
    """Tokens of everything else in it."""
    digest: bytes


def build_sized_message(message: Message) -> SizedMessage:
    """Measure ``message``: return it with its estimated tokens and its digest."""
    [measures] = measure_messages([message])
    return SizedMessage(message, *measures)


def measure_messages(messages: Iterable[Message]) -> Iterator[tuple[int, bytes]]:
    """Yield the estimated tokens and the digest of each of ``messages``.

    Short messages are weighed together: weighing has a fixed cost that is larger than that of a short text.
    """
    for group in _group_by_block(map(_measure_partially, messages), lambda measure: len(measure.unweighed_text)):
        units_by_text = count_token_units_by_text([measure.unweighed_text for measure in group])
        for measure, units in zip(group, units_by_text, strict=True):
            text_tokens = _units_to_tokens(units) if measure.unweighed_text else 0
            yield measure.weighed_tokens + text_tokens, measure.digest


def _group_by_block(items: Iterable[T], measure_bytes: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield ``items`` in groups whose texts, joined by line ends, fit into one block."""
    group: list[T] = []
    length = 0
    for item in items:
        item_length = measure_bytes(item) + 1
        length += item_length
        if length > BLOCK_BYTES:
            yield group
            group, length = [], item_length
        group.append(item)
    yield group


def _measure_partially(message: Message) -> _PartialMeasure:
    """Measure ``message`` except its text, which is left to be weighed with others unless it is longer than a block."""
    texts: _TextChunks = []
    hashed: _TextChunks = [message.role.encode()]
    tokens = MESSAGE_OVERHEAD
    for part in message.parts:
        tokens += _COLLECTORS[type(part)](part, texts, hashed)
    hasher = EMPTY_HASHER.copy()
    if sum(map(len, texts)) + len(texts) > BLOCK_BYTES:
        for piece in _join_chunks(hashed, b"\x00"):
            hasher.update(piece)
        text_tokens = _units_to_tokens(count_token_units(_join_chunks(texts, b"\n")))
        return _PartialMeasure(b"", tokens + text_tokens, hasher.digest())
    # All chunks are bytes here: a _LongText alone is longer than a block.
    hasher.update(b"\x00".join(cast("list[bytes]", hashed)))
    return _PartialMeasure(
        b"\n".join(cast("list[bytes]", texts)),
        tokens,
        hasher.digest(),
    )


# -- parts -------------------------------------------------------------------------------------------------------------
#
# Each collector appends the part's text to ``texts``, all that identifies the part to ``hashed``, and returns the
# tokens of content that is no text.


def _collect_text(part: Text | Thinking, texts: _TextChunks, hashed: _TextChunks) -> int:
    chunk = _make_text_chunk(part.text)
    signature_data = "" if part.signature is None else part.signature.data
    header = f"{type(part).__name__} {len(chunk)} {signature_data}"
    texts.append(chunk)
    hashed += (header.encode("utf-8", "surrogatepass"), chunk)
    return 0


def _collect_call(part: ToolCall, texts: _TextChunks, hashed: _TextChunks) -> int:
    chunk = _make_text_chunk(f"{part.name} {part.arguments}")
    texts.append(chunk)
    hashed += (f"call {len(chunk)} {part.id}".encode("utf-8", "surrogatepass"), chunk)
    return 0


def _collect_result(part: ToolResult, texts: _TextChunks, hashed: _TextChunks) -> int:
    header = f"result {len(part.content)} {part.is_error} {part.call_id}"
    hashed.append(header.encode("utf-8", "surrogatepass"))
    tokens = 0
    for inner in part.content:
        tokens += _COLLECTORS[type(inner)](inner, texts, hashed)
    return tokens


def _collect_media(part: Media, _texts: _TextChunks, hashed: _TextChunks) -> int:
    # The source may have megabytes, so the message's digest covers only a digest of it.
    source_digest = blake2b(part.source.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    hashed += (f"{part.kind} {part.mime} {part.name}".encode("utf-8", "surrogatepass"), source_digest)
    return estimate_media_tokens(part)


def _collect_opaque(part: Opaque, texts: _TextChunks, hashed: _TextChunks) -> int:
    raw = bytes(part.raw) if part.raw is not None else b""
    texts.append(raw)
    hashed += (f"opaque {len(raw)} {part.kind}".encode("utf-8", "surrogatepass"), raw)
    return 0


_COLLECTORS: Mapping[type, Callable[[Any, _TextChunks, _TextChunks], int]] = {
    Text: _collect_text,
    Thinking: _collect_text,
    ToolCall: _collect_call,
    ToolResult: _collect_result,
    Media: _collect_media,
    Opaque: _collect_opaque,
}
