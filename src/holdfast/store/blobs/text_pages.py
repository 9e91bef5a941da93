"""Texts read by characters: one pass over the bytes finds where characters stand, then a page costs a page.

Lone surrogates are three bytes each and come back. In a text that has bytes which are no UTF-8, those are U+FFFD.
"""

from __future__ import annotations

import codecs
from bisect import bisect_right
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Literal, NamedTuple, TypeAlias

BLOB_PIECE_BYTES = 1 << 16
"""Bytes read at once, and the distance between two places of an index."""

PieceReader: TypeAlias = Callable[[int], Iterator[bytes]]
"""Yields the pieces of a text from a byte on."""
_DecodeErrors: TypeAlias = Literal["surrogatepass", "replace"]


class BlobTextIndex(NamedTuple):
    """What one pass over a text told: its hash, its length in characters, and where characters stand."""

    hash: str
    characters: int
    chars_before: tuple[int, ...]
    """For each place the number of characters before it."""
    bytes_before: tuple[int, ...]
    """For each place the number of bytes before it; a character begins there."""
    decode_errors: _DecodeErrors
    """How its bytes become characters."""


def index_blob_text(read_pieces: PieceReader) -> BlobTextIndex:
    """Return the index of a text, holding one piece of it at a time."""
    try:
        return _build_index_with(read_pieces, "surrogatepass")
    except UnicodeDecodeError:
        return _build_index_with(read_pieces, "replace")


def read_blob_characters(read_pieces: PieceReader, index: BlobTextIndex, start: int, stop: int | None) -> str:
    """Return characters ``start`` to ``stop``."""
    start = max(0, start)
    end = index.characters if stop is None else min(stop, index.characters)
    if start >= end:
        return ""
    nearest = bisect_right(index.chars_before, start) - 1
    at, decoder, out = index.chars_before[nearest], _make_utf8_decoder(index.decode_errors), []
    for piece in read_pieces(index.bytes_before[nearest]):
        text = decoder.decode(piece)
        out.append(text[max(0, start - at) : end - at])
        at += len(text)
        if at >= end:
            break
    else:
        out.append(decoder.decode(b"", final=True)[max(0, start - at) : end - at])
    return "".join(out)


def iter_content_bytes(content: str | bytes) -> Iterator[bytes]:
    """Yield the bytes of ``content`` in pieces, without a second copy of the whole."""
    for at in range(0, len(content), BLOB_PIECE_BYTES):
        piece = content[at : at + BLOB_PIECE_BYTES]
        yield piece.encode("utf-8", "surrogatepass") if isinstance(piece, str) else bytes(piece)


def _build_index_with(read_pieces: PieceReader, way: _DecodeErrors) -> BlobTextIndex:
    digest, decoder = sha256(), _make_utf8_decoder(way)
    size = characters = 0
    starts, offsets = [0], [0]
    for piece in read_pieces(0):
        digest.update(piece)
        size += len(piece)
        characters += _count_completed_characters(decoder, piece)
        starts.append(characters)
        offsets.append(size - len(decoder.getstate()[0]))
    characters += len(decoder.decode(b"", final=True))
    return BlobTextIndex(digest.hexdigest(), characters, tuple(starts), tuple(offsets), way)


def _count_completed_characters(decoder: codecs.IncrementalDecoder, piece: bytes) -> int:
    """Return how many characters ``piece`` completes."""
    if piece.isascii() and not decoder.getstate()[0]:
        return len(piece)
    return len(decoder.decode(piece))


def _make_utf8_decoder(way: _DecodeErrors) -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")(way)
