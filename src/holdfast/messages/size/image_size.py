"""Width and height of an image from the first bytes of its base64 data."""

from __future__ import annotations

import binascii
import struct

from holdfast.messages.parts import Media

_PROBE_LENGTHS = (64, 4_096, 65_536)
"""Characters of base64 that are looked at, one after the other: a JPEG's size may stand behind its metadata."""

_JPEG_MAGIC = b"\xff\xd8"


def is_oversized_image(media: Media, max_pixels: int) -> bool:
    """Return whether an image is more than ``max_pixels`` pixels wide or high; one that does not tell is not."""
    size = read_image_size(media.source) if media.kind == "image" else None
    return size is not None and max(size) > max_pixels


def read_image_size(data: str) -> tuple[int, int] | None:
    """Return width and height of a PNG, GIF, JPEG or WebP, or nothing when they cannot be told."""
    for look in _PROBE_LENGTHS:
        head = data[:look]
        try:
            raw = binascii.a2b_base64(head[: len(head) // 4 * 4])
            dimensions = _parse_image_size(raw)
        except (binascii.Error, struct.error, ValueError, IndexError):
            return None
        if dimensions is not None or not raw.startswith(_JPEG_MAGIC):
            return dimensions
    return None


def _parse_image_size(raw: bytes) -> tuple[int, int] | None:
    if raw.startswith(b"\x89PNG"):
        return struct.unpack(">II", raw[16:24])
    if raw.startswith(b"GIF8"):
        return struct.unpack("<HH", raw[6:10])
    if raw.startswith(b"RIFF") and raw[8:12] == b"WEBP":
        return _parse_webp_size(raw)
    return _parse_jpeg_size(raw) if raw.startswith(_JPEG_MAGIC) else None


def _parse_webp_size(raw: bytes) -> tuple[int, int] | None:
    kind = raw[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(raw[24:27], "little"), 1 + int.from_bytes(raw[27:30], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(raw[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        width, height = struct.unpack("<HH", raw[26:30])
        return width & 0x3FFF, height & 0x3FFF
    return None


def _parse_jpeg_size(raw: bytes) -> tuple[int, int] | None:
    """Return the size in the first frame header; segments before it are stepped over."""
    position = 2
    while position + 9 < len(raw) and raw[position] == 0xFF:
        marker = raw[position + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", raw[position + 5 : position + 9])
            return width, height
        position += 2 + int.from_bytes(raw[position + 2 : position + 4], "big")
    return None
