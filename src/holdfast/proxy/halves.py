r"""Halves of characters in a body, which no provider can read: each gives way to U+FFFD, and the rest is as it was.

Clients cut long outputs between the two halves of an emoji, write the one that is left as ``\ud83d``, and send it in
every request from then on. Anthropic, DeepSeek and llama.cpp refuse such a body as no JSON, and the session is over.
"""

from __future__ import annotations

import re

_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""An escape: a whole character in two halves, one half, or any other."""
_BYTES = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
"""A half as its own three bytes, which no UTF-8 has."""


def whole(body: bytes) -> bytes:
    """Return ``body`` without halves of characters, as long as before; the same object where it has none."""
    found = _ESCAPE.sub(_mended, body) if re.search(rb"\\u[dD][89a-fA-F]", body) else body
    found = _BYTES.sub(b"\xef\xbf\xbd", found)
    return body if found == body else found


def _mended(escape: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if escape["half"] else escape[0]
