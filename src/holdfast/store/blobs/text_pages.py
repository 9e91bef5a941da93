"""Texts read by characters: one pass over the bytes finds where characters stand, then a page costs a page.

Lone surrogates are three bytes each and come back. In a text that has bytes which are no UTF-8, those are U+FFFD.
"""

from __future__ import annotations

import codecs
from bisect import bisect_right
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Literal, NamedTuple, TypeAlias

PIECE = 1 << 16
"""Bytes read at once, and the distance between two places of an index."""

Read: TypeAlias = Callable[[int], Iterator[bytes]]
"""Yields the pieces of a text from a byte on."""
_Way: TypeAlias = Literal["surrogatepass", "replace"]


class Index(NamedTuple):
    """What one pass over a text told: its hash, its length in characters, and where characters stand."""

    hash: str
    characters: int
    starts: tuple[int, ...]
    """For each place the number of characters before it."""
    offsets: tuple[int, ...]
    """For each place the number of bytes before it; a character begins there."""
    way: _Way
    """How its bytes become characters."""


def index(read: Read) -> Index:
    """Return the index of a text, holding one piece of it at a time."""
    try:
        return _index(read, "surrogatepass")
    except UnicodeDecodeError:
        return _index(read, "replace")


def page(read: Read, where: Index, start: int, stop: int | None) -> str:
    """Return characters ``start`` to ``stop``."""
    start = max(0, start)
    end = where.characters if stop is None else min(stop, where.characters)
    if start >= end:
        return ""
    nearest = bisect_right(where.starts, start) - 1
    at, decoder, out = where.starts[nearest], _decoder(where.way), []
    for piece in read(where.offsets[nearest]):
        text = decoder.decode(piece)
        out.append(text[max(0, start - at) : end - at])
        at += len(text)
        if at >= end:
            break
    else:
        out.append(decoder.decode(b"", final=True)[max(0, start - at) : end - at])
    return "".join(out)


def encoded(content: str | bytes) -> Iterator[bytes]:
    """Yield the bytes of ``content`` in pieces, without a second copy of the whole."""
    for at in range(0, len(content), PIECE):
        piece = content[at : at + PIECE]
        yield piece.encode("utf-8", "surrogatepass") if isinstance(piece, str) else bytes(piece)


def _index(read: Read, way: _Way) -> Index:
    digest, decoder = sha256(), _decoder(way)
    size = characters = 0
    starts, offsets = [0], [0]
    for piece in read(0):
        digest.update(piece)
        size += len(piece)
        characters += _length(decoder, piece)
        starts.append(characters)
        offsets.append(size - len(decoder.getstate()[0]))
    characters += len(decoder.decode(b"", final=True))
    return Index(digest.hexdigest(), characters, tuple(starts), tuple(offsets), way)


def _length(decoder: codecs.IncrementalDecoder, piece: bytes) -> int:
    """Return how many characters ``piece`` completes."""
    if piece.isascii() and not decoder.getstate()[0]:
        return len(piece)
    return len(decoder.decode(piece))


def _decoder(way: _Way) -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")(way)
