"""Scale an image down, if Pillow is installed (the extra ``images``).

A function of bytes alone. Pillow's versions may encode differently, so callers record the result in the log and send
the recorded one from then on: an image that is scaled anew for each request could change the cached prefix.
"""

from __future__ import annotations

import binascii
import importlib.util
from base64 import b64encode
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING, NamedTuple

from holdfast.messages.size.image_size import read_image_size

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

_OUTPUT_TYPES = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp"}
"""Formats that are kept. Others become PNG: of an animation only its first picture can be shown in a smaller size."""
_JPEG_QUALITY = 85
"""Screens full of text stay readable at 85, at about a third of the bytes of 95."""
_MAX_PIXELS = 80_000_000
"""Pixels of the largest image that is decoded, 240 MB in memory. A small file can claim to be far larger, and from
about 89 million on Pillow warns."""


class ScaledImage(NamedTuple):
    """An image after scaling, as base64."""

    mime: str
    data: str


@lru_cache(maxsize=1)
def can_scale_images() -> bool:
    """Return whether Pillow is installed."""
    return importlib.util.find_spec("PIL") is not None


def scale_down_image(data: str, max_pixels: int) -> ScaledImage | None:
    """Scale an image so that no side exceeds ``max_pixels``; an image that is small enough is only encoded anew.

    Return None if Pillow is missing, and for data that it cannot read.
    """
    size = read_image_size(data)
    if not can_scale_images() or size is None or size[0] * size[1] > _MAX_PIXELS:
        return None
    from PIL import Image

    try:
        content = binascii.a2b_base64(data)
        with Image.open(BytesIO(content)) as image:
            image_format = image.format or ""
            image.thumbnail((max_pixels, max_pixels))
            return _encode_image(image, image_format)
    except (OSError, ValueError, SyntaxError, MemoryError, ArithmeticError, Image.DecompressionBombError):
        # Pillow raises these for files that are cut off or damaged.
        return None


def _encode_image(image: PillowImage, image_format: str) -> ScaledImage:
    output = BytesIO()
    if image_format == "JPEG":
        image.save(output, "JPEG", quality=_JPEG_QUALITY)
    elif image_format == "WEBP":
        image.save(output, "WEBP", quality=_JPEG_QUALITY)
    else:
        image_format = "PNG"
        image.save(output, "PNG")
    return ScaledImage(_OUTPUT_TYPES[image_format], b64encode(output.getvalue()).decode())
