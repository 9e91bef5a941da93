"""Halves of characters in a body, which nothing can be read of before they are mended."""

from __future__ import annotations

from holdfast.wire.halves import first, whole
from holdfast.wire.mending.work import Mend


def readable(body: bytes) -> tuple[bytes, tuple[Mend, ...]]:
    """Return the body with U+FFFD for halves of characters, and what is told of it; the same object without any."""
    clean = whole(body)
    if clean is body:
        return body, ()
    return clean, (Mend("characters", "half of a character is no text: U+FFFD stands in its place", first(body)),)
