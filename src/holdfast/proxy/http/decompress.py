"""A packed body is unpacked, piece by piece, and no further than it may be."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

import zstandard

from holdfast.errors import FormatError

CODINGS = ("gzip", "deflate", "zstd")
"""What a body may be packed with."""
MOST_CODINGS = 3
"""[H] Times that a body may be packed; no client that is known to us packs one twice."""
WINDOW = 8 << 20
"""Bytes that zstd may look back: what RFC 9659 allows over HTTP."""
_RATIO = 32_768
"""Bytes that one byte can become at most: a block of zstd makes 128 KiB of 4 (RFC 8878)."""
_PIECE = 64
"""[H] Bytes that are unpacked at once at least, so that a body of empty blocks is no work: 2 MiB at most come of it."""


class BadBody(FormatError):
    """A body cannot be read. ``status`` is what a server answers then: 400, 413 or 415."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class TooLarge(BadBody):
    """A body has more bytes than it may."""

    def __init__(self, most: int) -> None:
        told = f"the body has more than {most:,} bytes, unpacked"
        super().__init__(f"{told}; send less, or raise body_bytes in [proxy] of holdfast.toml", 413)


class _Coder(Protocol):
    """One packed stream as it is read."""

    @property
    def eof(self) -> bool:
        """Whether the stream has ended."""

    @property
    def unused_data(self) -> bytes:
        """What was given after its end."""

    def decompress(self, packed: bytes, /) -> bytes:
        """Return what the next piece holds."""


def decoded(body: bytes, encoding: str, most: int) -> bytes:
    """Return ``body`` without the codings that header ``Content-Encoding`` lists.

    ``BadBody`` if it is damaged or cut, would have more than ``most`` bytes, or is packed in a way nobody knows here;
    unpacking stops where that is seen.
    """
    codings = [name for one in encoding.split(",") if (name := one.strip().lower()) not in {"", "identity"}]
    if len(codings) > MOST_CODINGS:
        raise BadBody(f"the body is packed {len(codings)} times; {MOST_CODINGS} are read, send it packed once", 415)
    for coding in reversed(codings):
        body = _unpacked(body, coding, most)
    if len(body) > most:
        raise TooLarge(most)
    return body


def _unpacked(body: bytes, coding: str, most: int) -> bytes:
    """Return what ``body`` holds. A body of nothing holds nothing, however it is called."""
    try:
        return b"".join(_pieces(body, _starting(coding, body), most))
    except (zlib.error, EOFError, zstandard.ZstdError) as error:
        raise BadBody(f"the body is not what content-encoding {coding} says ({error}); send it again", 400) from None


def _pieces(body: bytes, start: Callable[[], _Coder], room: int) -> Iterator[bytes]:
    """Yield what the streams of ``body`` hold, one after the other, as far as there is ``room``.

    ``EOFError`` where the last one is cut.
    """
    most, place, coder, is_open = room, 0, start(), False
    while place < len(body):
        packed = body[place : place + max(_PIECE, room // _RATIO)]
        place += len(packed)
        while packed:
            piece = coder.decompress(packed)
            room -= len(piece)
            if room < 0:
                raise TooLarge(most)
            yield piece
            is_open, packed = not coder.eof, coder.unused_data
            coder = coder if is_open else start()
    if is_open:
        raise EOFError(f"it is cut after {len(body):,} bytes")


def _starting(coding: str, body: bytes) -> Callable[[], _Coder]:
    """Return what begins a stream of ``coding``; deflate comes with zlib's two bytes before it, or without."""
    if coding in {"gzip", "x-gzip"}:
        return lambda: zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    if coding == "deflate":
        is_zlib = len(body) > 1 and body[0] & 15 == zlib.DEFLATED and int.from_bytes(body[:2]) % 31 == 0
        return lambda: zlib.decompressobj(wbits=zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)
    if coding == "zstd":
        return zstandard.ZstdDecompressor(max_window_size=WINDOW).decompressobj
    raise BadBody(f"content-encoding {coding[:40]!r} is not read here; send {', '.join(CODINGS)}, or none", 415)
