"""The estimator: tokens of any text without a vocabulary, calibrated by what the provider reports.

Every byte weighs a share of a token by its kind and the kind of the byte before it; the sum is the text's tokens. The
weights are a least-squares fit against o200k over fifteen classes of content (``bench/estimator.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, TypeAlias, cast

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

MESSAGE_OVERHEAD = 8
"""Tokens around a message: role and delimiters (measured on recorded sessions, see docs/estimator.md)."""
IMAGE_TOKENS = 1_500
"""Tokens of an image whose dimensions are unknown (opencode v2; Anthropic's largest is about 1,600)."""
DOCUMENT_TOKENS = 2_000
"""Tokens of a document whose pages are unknown (opencode v2)."""
# -- texts -------------------------------------------------------------------------------------------------------------


def estimate_byte_tokens(data: bytes) -> int:
    """Return the estimated o200k tokens of UTF-8 ``data``; 0 only for nothing."""
    return _units_to_tokens(count_token_units([data])) if data else 0


def _units_to_tokens(units: int) -> int:
    """Return the tokens of a text that weighs so much, one at least."""
    return round(units / UNITS_PER_TOKEN) or 1


def estimate_text_tokens(text: str) -> int:
    """Return the estimated o200k tokens of ``text``; monotone enough to add up, never 0 for words."""
    content = _make_text_chunk(text)
    return (
        estimate_byte_tokens(content)
        if isinstance(content, bytes)
        else _units_to_tokens(count_token_units(content.iter_pieces()))
    )


_LONG_TEXT_CHARS = 1 << 20
"""Characters above which a text is encoded piece by piece, wherever it is looked at, and never held twice."""


class _LongText:
    """A long text: as long as its bytes, which come in pieces."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._length = len(text) if text.isascii() else sum(map(len, encode_in_pieces(text)))

    def __len__(self) -> int:
        return self._length

    def iter_pieces(self) -> Iterator[bytes]:
        """Yield the bytes."""
        return encode_in_pieces(self._text)


def _make_text_chunk(text: str) -> bytes | _LongText:
    """Return the bytes of ``text``, or what gives them."""
    return text.encode("utf-8", "surrogatepass") if len(text) <= _LONG_TEXT_CHARS else _LongText(text)


def _join_chunks(every: Iterable[bytes | _LongText], between: bytes) -> Iterator[bytes]:
    """Yield the bytes of ``between.join(every)``, in pieces."""
    for number, content in enumerate(every):
        if number:
            yield between
        yield from (content,) if isinstance(content, bytes) else content.iter_pieces()


def estimate_media_tokens(media: Media) -> int:
    """Return the tokens of an image or a document, whatever is in it; words that it holds beside others count."""
    if media.kind != "document":
        return IMAGE_TOKENS
    return max(DOCUMENT_TOKENS, estimate_text_tokens(media.source)) if media.form == "text" else DOCUMENT_TOKENS


# -- messages ----------------------------------------------------------------------------------------------------------

_TextChunks: TypeAlias = list[bytes | _LongText]


class _PartialMeasure(Struct, frozen=True, gc=False):
    """A message taken apart: ``uncounted_text`` are still to be counted, ``counted_tokens`` is that of all else in
    it.
    """

    uncounted_text: bytes
    counted_tokens: int
    digest: bytes


def build_sized_message(message: Message) -> SizedMessage:
    """Return ``message`` as a slot with its size and its digest."""
    [measures] = measure_messages([message])
    return SizedMessage(message, *measures)


def measure_messages(messages: Iterable[Message]) -> Iterator[tuple[int, bytes]]:
    """Yield the size and the digest of each of ``messages``; short ones are weighed together."""
    for group in _group_by_block(map(_measure_partially, messages)):
        weights = count_token_units_by_text([item.uncounted_text for item in group])
        for item, units in zip(group, weights, strict=True):
            yield item.counted_tokens + (_units_to_tokens(units) if item.uncounted_text else 0), item.digest


def _group_by_block(every: Iterable[_PartialMeasure]) -> Iterator[list[_PartialMeasure]]:
    """Yield ``every`` in groups whose words, with line ends between them, are a block at most."""
    group: list[_PartialMeasure] = []
    length = 0
    for item in every:
        length += len(item.uncounted_text) + 1
        if length > BLOCK_BYTES:
            yield group
            group, length = [], len(item.uncounted_text) + 1
        group.append(item)
    yield group


def _measure_partially(message: Message) -> _PartialMeasure:
    """Return ``message`` taken apart; the words of a long one are counted."""
    words: _TextChunks = []
    marks: _TextChunks = [message.role.encode()]
    size = MESSAGE_OVERHEAD
    for part in message.parts:
        size += _COLLECTORS[type(part)](part, words, marks)
    digest = EMPTY_HASHER.copy()
    if sum(map(len, words)) + len(words) > BLOCK_BYTES:
        for piece in _join_chunks(marks, b"\x00"):
            digest.update(piece)
        return _PartialMeasure(
            b"", size + _units_to_tokens(count_token_units(_join_chunks(words, b"\n"))), digest.digest()
        )
    digest.update(b"\x00".join(cast("list[bytes]", marks)))
    return _PartialMeasure(b"\n".join(cast("list[bytes]", words)), size, digest.digest())


# -- parts -------------------------------------------------------------------------------------------------------------
#
# Each adds what it says to ``words``, what tells it apart to ``marks``, and returns the tokens that no text shows.


def _collect_text(part: Text | Thinking, words: _TextChunks, marks: _TextChunks) -> int:
    data, signature = _make_text_chunk(part.text), part.signature
    head = f"{type(part).__name__} {len(data)} {'' if signature is None else signature.data}"
    words.append(data)
    marks += (head.encode("utf-8", "surrogatepass"), data)
    return 0


def _collect_call(part: ToolCall, words: _TextChunks, marks: _TextChunks) -> int:
    data = _make_text_chunk(f"{part.name} {part.arguments}")
    words.append(data)
    marks += (f"call {len(data)} {part.id}".encode("utf-8", "surrogatepass"), data)
    return 0


def _collect_result(part: ToolResult, words: _TextChunks, marks: _TextChunks) -> int:
    head = f"result {len(part.content)} {part.is_error} {part.call_id}"
    marks.append(head.encode("utf-8", "surrogatepass"))
    size = 0
    for inner in part.content:
        size += _COLLECTORS[type(inner)](inner, words, marks)
    return size


def _collect_media(part: Media, _words: _TextChunks, marks: _TextChunks) -> int:
    source = blake2b(part.source.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    marks += (f"{part.kind} {part.mime} {part.name}".encode("utf-8", "surrogatepass"), source)
    return estimate_media_tokens(part)


def _collect_opaque(part: Opaque, words: _TextChunks, marks: _TextChunks) -> int:
    raw = bytes(part.raw) if part.raw is not None else b""
    words.append(raw)
    marks += (f"opaque {len(raw)} {part.kind}".encode("utf-8", "surrogatepass"), raw)
    return 0


_COLLECTORS: Mapping[type, Callable[[Any, _TextChunks, _TextChunks], int]] = {
    Text: _collect_text,
    Thinking: _collect_text,
    ToolCall: _collect_call,
    ToolResult: _collect_result,
    Media: _collect_media,
    Opaque: _collect_opaque,
}
