"""A packed body is unpacked, piece by piece, and no further than it may be.

zlib and zstandard unpack; what is here bounds how much comes of it, which neither does for nested codings.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

import zstandard

from holdfast.errors import FormatError

READABLE_CODINGS = ("gzip", "deflate", "zstd")
"""What a body may be packed with."""
MAX_CODINGS = 3
"""[H] Times that a body may be packed; no client that is known to us packs one twice."""
MAX_ZSTD_WINDOW = 8 << 20
"""Bytes that zstd may look back: what RFC 9659 allows over HTTP."""
_MAX_EXPANSION = 32_768
"""Bytes that one byte can become at most: a block of zstd makes 128 KiB of 4 (RFC 8878)."""
_MIN_PIECE_BYTES = 64
"""[H] Bytes that are unpacked at once at least, so that a body of empty blocks is no work: 2 MiB at most come of it."""


class BadBody(FormatError):
    """A body cannot be read. ``status`` is what a server answers then: 400, 413 or 415."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class BodyTooLarge(BadBody):
    """A body has more bytes than it may."""

    def __init__(self, max_bytes: int) -> None:
        message = f"the body has more than {max_bytes:,} bytes, unpacked"
        super().__init__(f"{message}; send less, or raise body_bytes in [proxy] of holdfast.toml", 413)


class _Decompressor(Protocol):
    """One packed stream as it is read."""

    @property
    def eof(self) -> bool:
        """Whether the stream has ended."""

    @property
    def unused_data(self) -> bytes:
        """What was given after its end."""

    def decompress(self, data: bytes, /) -> bytes:
        """Return what the next piece holds."""


def decompress_request_body(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """Return ``body`` without the codings that header ``Content-Encoding`` lists.

    ``BadBody`` if it is damaged or cut, would have more than ``max_bytes`` bytes, or is packed in a way nobody knows
    here; unpacking stops where that is seen.
    """
    codings = [name for item in encoding.split(",") if (name := item.strip().lower()) not in {"", "identity"}]
    if len(codings) > MAX_CODINGS:
        raise BadBody(f"the body is packed {len(codings)} times; {MAX_CODINGS} are read, send it packed once", 415)
    for coding in reversed(codings):
        body = _decompress_body(body, coding, max_bytes)
    if len(body) > max_bytes:
        raise BodyTooLarge(max_bytes)
    return body


def _decompress_body(body: bytes, coding: str, max_bytes: int) -> bytes:
    """Return what ``body`` holds. A body of nothing holds nothing, however it is called."""
    try:
        return b"".join(_iter_decompressed(body, _get_decompressor_factory(coding, body), max_bytes))
    except (zlib.error, EOFError, zstandard.ZstdError) as error:
        raise BadBody(f"the body is not what content-encoding {coding} says ({error}); send it again", 400) from None


def _iter_decompressed(body: bytes, start: Callable[[], _Decompressor], room: int) -> Iterator[bytes]:
    """Yield what the streams of ``body`` hold, one after the other, as far as there is ``room``.

    ``EOFError`` where the last one is cut.
    """
    max_bytes, place, coder, is_open = room, 0, start(), False
    while place < len(body):
        chunk = body[place : place + max(_MIN_PIECE_BYTES, room // _MAX_EXPANSION)]
        place += len(chunk)
        while chunk:
            piece = coder.decompress(chunk)
            room -= len(piece)
            if room < 0:
                raise BodyTooLarge(max_bytes)
            yield piece
            is_open, chunk = not coder.eof, coder.unused_data
            coder = coder if is_open else start()
    if is_open:
        raise EOFError(f"it is cut after {len(body):,} bytes")


def _get_decompressor_factory(coding: str, body: bytes) -> Callable[[], _Decompressor]:
    """Return what begins a stream of ``coding``; deflate comes with zlib's two bytes before it, or without."""
    if coding in {"gzip", "x-gzip"}:
        return lambda: zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    if coding == "deflate":
        is_zlib = len(body) > 1 and body[0] & 15 == zlib.DEFLATED and int.from_bytes(body[:2]) % 31 == 0
        return lambda: zlib.decompressobj(wbits=zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)
    if coding == "zstd":
        return zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW).decompressobj
    raise BadBody(
        f"content-encoding {coding[:40]!r} is not read here; send {', '.join(READABLE_CODINGS)}, or none", 415
    )
