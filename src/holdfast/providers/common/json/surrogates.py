r"""Halves of characters in a body, which no provider can read: each gives way to U+FFFD, and the rest is as it was.

Clients cut long outputs between the two halves of an emoji, write the one that is left as ``\ud83d``, and send it in
every request from then on. Anthropic, DeepSeek and llama.cpp refuse such a body as no JSON, and the session is over.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

_HALF = re.compile(rb"\\u[dD](?:([89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|[89a-fA-F][0-9a-fA-F]{2})")
"""An escape that is a whole character in two halves, or one half."""
_STROKE = b"\\"[0]
_BYTES = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
"""A half as its own three bytes, which no UTF-8 has."""


def whole(body: bytes, sign: str = "\ufffd") -> bytes:
    """Return ``body`` with ``sign`` for halves of characters, as long as before; the same object where it has none."""
    pieces, done, at = list[bytes](), 0, 0
    while (found := _HALF.search(body, at)) is not None:
        start, at = found.span()
        if _strokes_before(body, start) % 2:  # the stroke is said itself, and begins nothing
            at = start + 1
        elif found[1] is None:
            pieces += [body[done:start], b"\\u%04x" % ord(sign)]
            done = at
    mended = b"".join([*pieces, body[done:]]) if pieces else body
    return _BYTES.sub(sign.encode(), mended) if _BYTES.search(mended) else mended


def first(body: bytes) -> str:
    """Return the JSON path of the first text with half a character in it; empty where none has one, or it is no JSON.

    It is where two bodies part that have different signs for the halves; for a key, what holds it.
    """
    clean = whole(body)
    if clean is body:
        return ""
    try:
        return _parting(msgspec.json.decode(clean), msgspec.json.decode(whole(body, "\ufffe")))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def _parting(one: Any, other: Any) -> str:
    """Return where two JSON values, which differ, first do."""
    path = "$"
    while True:
        if isinstance(one, dict) and one.keys() == other.keys():
            step = next(key for key in one if one[key] != other[key])
            path += f".{step}"
        elif isinstance(one, list):
            step = next(at for at in range(len(one)) if one[at] != other[at])
            path += f"[{step}]"
        else:
            return path
        one, other = one[step], other[step]


def _strokes_before(body: bytes, at: int) -> int:
    """Return how many strokes stand right before ``at``."""
    begin = at
    while begin and body[begin - 1] == _STROKE:
        begin -= 1
    return at - begin
