"""Access to a text by characters: one pass over its bytes builds an index, then a page costs only itself.

Lone surrogates are three bytes each and are restored. In a text with bytes that are not UTF-8, those are U+FFFD.
"""

from __future__ import annotations

import codecs
from bisect import bisect_right
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Literal, NamedTuple, TypeAlias

BLOB_PIECE_BYTES = 1 << 16
"""Bytes read at once, and the distance between two entries of an index.

Chosen by judgement: smaller makes the index larger, larger makes a page read more that it does not need.
"""

PieceReader: TypeAlias = Callable[[int], Iterator[bytes]]
"""Yields the pieces of a text from a byte offset on."""
_DecodeErrors: TypeAlias = Literal["surrogatepass", "replace"]


class BlobTextIndex(NamedTuple):
    """The result of one pass over a text: hash, length in characters, and where characters begin."""

    hash: str
    characters: int
    chars_before: tuple[int, ...]
    """For each entry of the index, the number of characters before it."""
    bytes_before: tuple[int, ...]
    """For each entry of the index, the number of bytes before it; a character begins there."""
    decode_errors: _DecodeErrors
    """Error handler with which the bytes are decoded."""


def index_blob_text(read_pieces: PieceReader) -> BlobTextIndex:
    """Build the index of a text, with one piece of it in memory at a time."""
    # Nearly every text is UTF-8, so the second pass is rare.
    try:
        return _build_index_with(read_pieces, "surrogatepass")
    except UnicodeDecodeError:
        return _build_index_with(read_pieces, "replace")


def read_blob_characters(
    read_pieces: PieceReader,
    index: BlobTextIndex,
    start: int,
    stop: int | None,
) -> str:
    """Return characters ``start`` to ``stop``."""
    start = max(0, start)
    end = index.characters if stop is None else min(stop, index.characters)
    if start >= end:
        return ""
    nearest = bisect_right(index.chars_before, start) - 1
    position = index.chars_before[nearest]
    decoder = _make_utf8_decoder(index.decode_errors)
    texts = []
    for piece in read_pieces(index.bytes_before[nearest]):
        text = decoder.decode(piece)
        texts.append(text[max(0, start - position) : end - position])
        position += len(text)
        if position >= end:
            break
    else:
        # The text ends inside a character: flushing the decoder gives its replacement.
        text = decoder.decode(b"", final=True)
        texts.append(text[max(0, start - position) : end - position])
    return "".join(texts)


def iter_content_bytes(content: str | bytes) -> Iterator[bytes]:
    """Yield the bytes of ``content`` in pieces, without a second copy of the whole."""
    for start in range(0, len(content), BLOB_PIECE_BYTES):
        piece = content[start : start + BLOB_PIECE_BYTES]
        if isinstance(piece, str):
            yield piece.encode("utf-8", "surrogatepass")
        else:
            yield bytes(piece)


def _build_index_with(read_pieces: PieceReader, decode_errors: _DecodeErrors) -> BlobTextIndex:
    digest = sha256()
    decoder = _make_utf8_decoder(decode_errors)
    size = 0
    characters = 0
    chars_before = [0]
    bytes_before = [0]
    for piece in read_pieces(0):
        digest.update(piece)
        size += len(piece)
        characters += _count_completed_characters(decoder, piece)
        chars_before.append(characters)
        # The decoder holds the bytes of a character that the piece cut in two: the entry is before them.
        bytes_before.append(size - len(decoder.getstate()[0]))
    characters += len(decoder.decode(b"", final=True))
    return BlobTextIndex(
        digest.hexdigest(),
        characters,
        tuple(chars_before),
        tuple(bytes_before),
        decode_errors,
    )


def _count_completed_characters(decoder: codecs.IncrementalDecoder, piece: bytes) -> int:
    """Return how many characters end in ``piece``."""
    if piece.isascii() and not decoder.getstate()[0]:
        return len(piece)  # most pieces of code and logs: no decoding needed
    return len(decoder.decode(piece))


def _make_utf8_decoder(decode_errors: _DecodeErrors) -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")(decode_errors)
