"""The form of a text in object storage: zstd frames of bounded size that can be read one by one.

::

    header          zstd skippable frame: the mark "HFB1", the text's length in bytes, 8 random bytes
    for each piece
      length        zstd skippable frame: the length in bytes of the frame that follows
      piece         zstd frame of at most ``MAX_PIECE_BYTES`` bytes of text

Skippable frames are ignored by every decoder of zstd, so ``zstd -d`` makes the text of such an object.

The random bytes make each writing of a text an object of its own: a server gives it another ETag, by which a collector
of garbage recognizes that a text was stored again.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable, Iterable, Iterator

import zstandard
from msgspec import Struct

PIECE_BYTES = 1 << 18
"""Bytes of text in a frame, about. Chosen by judgement: a page of a text takes few frames, and measured over logs and
code a frame of this size is compressed within 3 % of one four times as large.
"""
MAX_PIECE_BYTES = 1 << 20
"""Bytes of text that a reader accepts in a frame, so that a planted one cannot fill the memory."""
HEADER_BYTES = 28
_SKIPPABLE = 0x184D2A5F
"""First number of a skippable frame. zstd has sixteen of them; ours is the last, which few others use."""
_MARK = b"HFB1"
_HEADER = struct.Struct("<II4sQ8s")
_HEADER_CONTENT_BYTES = 20
_LENGTH = struct.Struct("<III")
_LENGTH_CONTENT_BYTES = 4
_MAX_FRAME_BYTES = MAX_PIECE_BYTES + (MAX_PIECE_BYTES >> 8) + 64
"""The most bytes that a frame of ``MAX_PIECE_BYTES`` takes, if its text cannot be compressed."""


class DamagedObject(Exception):
    """The bytes are not those of a stored text."""


class TextFrame(Struct, frozen=True):
    """A piece of a text, and where it begins in the text and in the object, in bytes."""

    text: bytes
    text_start: int
    object_start: int


def compress_text(pieces: Iterable[bytes], length: int) -> Iterator[bytes]:
    """Yield the object of a text of ``length`` bytes, frame by frame."""
    yield _HEADER.pack(_SKIPPABLE, _HEADER_CONTENT_BYTES, _MARK, length, secrets.token_bytes(8))
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    for piece in join_pieces(pieces):
        frame = compressor.compress(piece)
        yield _LENGTH.pack(_SKIPPABLE, _LENGTH_CONTENT_BYTES, len(frame)) + frame


def join_pieces(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in pieces of at least ``PIECE_BYTES``, but for the last, and at most ``MAX_PIECE_BYTES``."""
    waiting = bytearray()
    for piece in pieces:
        waiting += piece
        if len(waiting) >= PIECE_BYTES:
            yield bytes(waiting)
            waiting.clear()
    if waiting:
        yield bytes(waiting)


def read_text_length(header: bytes) -> int:
    """Return the length in bytes of the text whose object begins with ``header``; raises ``DamagedObject``."""
    if len(header) < HEADER_BYTES:
        raise DamagedObject("it ends in its header")
    magic, size, mark, length, _ = _HEADER.unpack_from(header)
    if (magic, size, mark) != (_SKIPPABLE, _HEADER_CONTENT_BYTES, _MARK):
        raise DamagedObject("it does not begin as one")
    return int(length)


def iter_text_frames(chunks: Iterable[bytes], text_start: int = 0, object_start: int = 0) -> Iterator[TextFrame]:
    """Yield the pieces of a text from the bytes of its object, with one frame in memory at a time.

    ``chunks`` are the object's bytes from ``object_start`` on, where a frame begins that has the text from
    ``text_start`` on; an ``object_start`` of 0 is the header. Raises ``DamagedObject`` for bytes that no writer made,
    also if they end inside a frame.
    """
    take = _make_taker(chunks)
    if object_start == 0:
        read_text_length(take(HEADER_BYTES))
        object_start = HEADER_BYTES
    decompressor = zstandard.ZstdDecompressor()
    while length_bytes := take(_LENGTH.size):
        frame = take(_read_frame_length(length_bytes))
        text = _decompress(decompressor, frame)
        yield TextFrame(text, text_start, object_start)
        text_start += len(text)
        object_start += _LENGTH.size + len(frame)


def _read_frame_length(length_bytes: bytes) -> int:
    if len(length_bytes) < _LENGTH.size:
        raise DamagedObject("it ends between two frames")
    magic, size, length = _LENGTH.unpack(length_bytes)
    if (magic, size) != (_SKIPPABLE, _LENGTH_CONTENT_BYTES) or not 0 < length <= _MAX_FRAME_BYTES:
        raise DamagedObject("a frame has no length")
    return int(length)


def _decompress(decompressor: zstandard.ZstdDecompressor, frame: bytes) -> bytes:
    """Return the text of a frame, whose length its own header states: zstd allocates as much as that says."""
    try:
        stated_bytes = zstandard.frame_content_size(frame)
        if not 0 < stated_bytes <= MAX_PIECE_BYTES:
            raise DamagedObject(f"a frame states {stated_bytes:,} bytes")
        return bytes(decompressor.decompress(frame, read_across_frames=False, allow_extra_data=False))
    except zstandard.ZstdError as error:
        raise DamagedObject("a frame cannot be decompressed") from error


def _make_taker(chunks: Iterable[bytes]) -> Callable[[int], bytes]:
    """Return a function that takes the next bytes of ``chunks``: as many as it is told, or fewer at their end."""
    iterator = iter(chunks)
    waiting = bytearray()

    def take(count: int) -> bytes:
        while len(waiting) < count:
            chunk = next(iterator, None)
            if chunk is None:
                break
            waiting.extend(chunk)
        taken = bytes(waiting[:count])
        del waiting[:count]
        return taken

    return take
