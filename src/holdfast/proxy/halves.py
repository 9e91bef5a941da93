r"""Halves of characters in a body, which no provider can read: each gives way to U+FFFD, and the rest is as it was.

Clients cut long outputs between the two halves of an emoji, write the one that is left as ``\ud83d``, and send it in
every request from then on. Anthropic, DeepSeek and llama.cpp refuse such a body as no JSON, and the session is over.
"""

from __future__ import annotations

import re

_HALF = re.compile(rb"\\u[dD](?:([89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|[89a-fA-F][0-9a-fA-F]{2})")
"""An escape that is a whole character in two halves, or one half."""
_STROKE = b"\\"[0]
_BYTES = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
"""A half as its own three bytes, which no UTF-8 has."""


def whole(body: bytes) -> bytes:
    """Return ``body`` without halves of characters, as long as before; the same object where it has none."""
    pieces, done, at = list[bytes](), 0, 0
    while (found := _HALF.search(body, at)) is not None:
        start, at = found.span()
        if _strokes_before(body, start) % 2:  # the stroke is said itself, and begins nothing
            at = start + 1
        elif found[1] is None:
            pieces += [body[done:start], rb"\ufffd"]
            done = at
    mended = b"".join([*pieces, body[done:]]) if pieces else body
    return _BYTES.sub(b"\xef\xbf\xbd", mended) if _BYTES.search(mended) else mended


def _strokes_before(body: bytes, at: int) -> int:
    """Return how many strokes stand right before ``at``."""
    first = at
    while first and body[first - 1] == _STROKE:
        first -= 1
    return at - first
