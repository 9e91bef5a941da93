"""Read the width and height of an image from the first bytes of its base64 data."""

from __future__ import annotations

import binascii
import struct

from holdfast.messages.parts import Media

_PROBE_LENGTHS = (64, 4_096, 65_536)
"""How many characters of base64 to decode, one attempt after the other.

64 are enough for all formats but JPEG, where the size follows the metadata; 65,536 reach past a camera's thumbnail.
"""

_JPEG_MAGIC = b"\xff\xd8"


def is_oversized_image(media: Media, max_pixels: int) -> bool:
    """Return whether an image is more than ``max_pixels`` wide or high; False if its size cannot be read."""
    size = read_image_size(media.source) if media.kind == "image" else None
    return size is not None and max(size) > max_pixels


def read_image_size(data: str) -> tuple[int, int] | None:
    """Return width and height of a PNG, GIF, JPEG or WebP, or None if they cannot be read."""
    for length in _PROBE_LENGTHS:
        head = data[:length]
        try:
            raw = binascii.a2b_base64(head[: len(head) // 4 * 4])
            dimensions = _parse_image_size(raw)
        except (binascii.Error, struct.error, ValueError, IndexError):
            return None
        # Only a JPEG's size may lie further on.
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
        # Two numbers of three bytes, each one less than the size.
        width_minus_one = int.from_bytes(raw[24:27], "little")
        height_minus_one = int.from_bytes(raw[27:30], "little")
        return width_minus_one + 1, height_minus_one + 1
    if kind == b"VP8L":
        # Two numbers of 14 bits, each one less than the size.
        bits = int.from_bytes(raw[21:25], "little")
        width_minus_one = bits & 0x3FFF
        height_minus_one = bits >> 14 & 0x3FFF
        return width_minus_one + 1, height_minus_one + 1
    if kind == b"VP8 ":
        # The two bits above a size's 14 are a scaling factor for display.
        width, height = struct.unpack("<HH", raw[26:30])
        return width & 0x3FFF, height & 0x3FFF
    return None


def _parse_jpeg_size(raw: bytes) -> tuple[int, int] | None:
    """Return the size in the first frame header, or None if it is not in ``raw``."""
    position = 2
    while position + 9 < len(raw) and raw[position] == 0xFF:
        marker = raw[position + 1]
        # C0 to CF are frame headers, except C4 (Huffman tables), C8 (reserved) and CC (arithmetic coding).
        is_frame_header = 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC)
        if is_frame_header:
            size_bytes = raw[position + 5 : position + 9]
            height, width = struct.unpack(">HH", size_bytes)
            return width, height
        length_bytes = raw[position + 2 : position + 4]
        position += 2 + int.from_bytes(length_bytes, "big")
    return None
