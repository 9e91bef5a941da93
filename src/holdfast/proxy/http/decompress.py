"""Decompress a request body piece by piece, within a limit.

zlib and zstandard do the work. This module bounds how much comes out, which neither does for nested codings: a few
kilobytes can expand to gigabytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

import zstandard

from holdfast.errors import FormatError

READABLE_CODINGS = ("gzip", "deflate", "zstd")
"""Codings that a body may have."""
MAX_CODINGS = 3
"""How often a body may be compressed. No known client compresses one twice; the limit stops bodies made to do harm."""
MAX_ZSTD_WINDOW = 8 << 20
"""Bytes that zstd may look back, as RFC 9659 allows over HTTP."""
_MAX_EXPANSION = 32_768
"""Most bytes that one byte can expand to: 4 bytes of zstd make a block of 128 KiB (RFC 8878)."""
_MIN_PIECE_BYTES = 64
"""Bytes that are decompressed at once, at least; they become 2 MiB at most. It keeps a body of empty blocks cheap."""


class BadBody(FormatError):
    """A body that cannot be read. ``status`` is the HTTP status for it: 400, 408, 413 or 415."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class BodyTooLarge(BadBody):
    """A body that is larger than allowed."""

    def __init__(self, max_bytes: int) -> None:
        message = f"the uncompressed body has more than {max_bytes:,} bytes"
        super().__init__(f"{message}; send less, or raise body_bytes in [proxy] of holdfast.toml", 413)


class _Decompressor(Protocol):
    """A compressed stream that is being read."""

    @property
    def eof(self) -> bool:
        """Whether the stream has ended."""

    @property
    def unused_data(self) -> bytes:
        """Bytes that were given after the stream's end."""

    def decompress(self, data: bytes, /) -> bytes:
        """Return the decompressed bytes of ``data``."""


def decompress_request_body(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """Return ``body`` without the codings that the header ``Content-Encoding`` lists.

    Raises ``BadBody`` if it is damaged or cut off, has an unknown coding, or is larger than ``max_bytes``;
    decompressing stops as soon as that is seen.
    """
    names = [item.strip().lower() for item in encoding.split(",")]
    codings = [name for name in names if name not in {"", "identity"}]
    if len(codings) > MAX_CODINGS:
        message = f"the body is compressed {len(codings)} times, and at most {MAX_CODINGS} are allowed"
        raise BadBody(f"{message}; compress it once", 415)
    # The header lists the codings in the order in which they were applied.
    for coding in reversed(codings):
        body = _decompress_body(body, coding, max_bytes)
    if len(body) > max_bytes:
        raise BodyTooLarge(max_bytes)
    return body


def _decompress_body(body: bytes, coding: str, max_bytes: int) -> bytes:
    """Return ``body`` without one coding. An empty body is empty in any coding."""
    try:
        return b"".join(_iter_decompressed(body, _get_decompressor_factory(coding, body), max_bytes))
    except (zlib.error, EOFError, zstandard.ZstdError) as error:
        raise BadBody(f"the body cannot be decompressed as {coding} ({error}); send it again", 400) from None


def _iter_decompressed(body: bytes, start: Callable[[], _Decompressor], max_bytes: int) -> Iterator[bytes]:
    """Yield the decompressed streams of ``body``, one after the other, at most ``max_bytes``.

    Raises ``EOFError`` if the last one is cut off.
    """
    remaining_bytes = max_bytes
    position = 0
    decompressor = start()
    is_open = False
    while position < len(body):
        # So few bytes at a time that not even the worst of them can exceed the limit by much before it is checked.
        chunk = body[position : position + max(_MIN_PIECE_BYTES, remaining_bytes // _MAX_EXPANSION)]
        position += len(chunk)
        while chunk:
            piece = decompressor.decompress(chunk)
            remaining_bytes -= len(piece)
            if remaining_bytes < 0:
                raise BodyTooLarge(max_bytes)
            yield piece
            is_open = not decompressor.eof
            chunk = decompressor.unused_data
            if not is_open:
                decompressor = start()
    if is_open:
        raise EOFError(f"it is incomplete: {len(body):,} bytes came")


def _get_decompressor_factory(coding: str, body: bytes) -> Callable[[], _Decompressor]:
    """Return a function that begins a stream of ``coding``; deflate may come with zlib's two-byte header or without."""
    if coding in {"gzip", "x-gzip"}:
        return lambda: zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    if coding == "deflate":
        # zlib's header names the method in its first four bits and is divisible by 31 (RFC 1950, 2.2).
        is_zlib = len(body) > 1 and body[0] & 15 == zlib.DEFLATED and int.from_bytes(body[:2]) % 31 == 0
        window_bits = zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS
        return lambda: zlib.decompressobj(wbits=window_bits)
    if coding == "zstd":
        return zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW).decompressobj
    codings = ", ".join(READABLE_CODINGS)
    raise BadBody(f"content-encoding {coding[:40]!r} is not supported; use {codings}, or none", 415)
