r"""Replace halves of surrogate pairs in a body by U+FFFD, keeping the rest byte for byte.

Clients cut long outputs between the two halves of an emoji, write the half that is left as ``\ud83d``, and send it with
every request from then on. Anthropic, DeepSeek and llama.cpp refuse such a body as invalid JSON, and the session is
over.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

_SURROGATE_ESCAPE = re.compile(
    rb"\\u[dD](?:([89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|[89a-fA-F][0-9a-fA-F]{2})"
)
"""An escaped surrogate pair, for which group 1 is set, or an escaped single half."""
_BACKSLASH = b"\\"[0]
_SURROGATE_BYTES = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
"""A surrogate encoded as three bytes of its own (CESU-8), which is invalid UTF-8."""


def replace_surrogates_in_bytes(body: bytes, replacement: str = "\ufffd") -> bytes:
    """Return ``body`` with lone surrogates replaced, at the same length; the same object if it has no such."""
    pieces = list[bytes]()
    copied_end = 0
    at = 0
    while (match := _SURROGATE_ESCAPE.search(body, at)) is not None:
        start, at = match.span()
        if _count_backslashes_before(body, start) % 2:  # the backslash is itself escaped and begins no escape
            at = start + 1
        elif match[1] is None:
            pieces += [body[copied_end:start], b"\\u%04x" % ord(replacement)]
            copied_end = at
    new_body = b"".join([*pieces, body[copied_end:]]) if pieces else body
    # Some writers encode a half as three bytes of its own, in place of an escape.
    if _SURROGATE_BYTES.search(new_body) is None:
        return new_body
    return _SURROGATE_BYTES.sub(replacement.encode(), new_body)


def find_lone_surrogate_path(body: bytes) -> str:
    """Return the JSON path of the first text with a lone surrogate; empty without one, or if ``body`` is not JSON.

    Decoded text cannot show the half that was replaced. So the halves are replaced by two different characters, and the
    path is where the two results differ; for a key, it is the path of its object.
    """
    clean = replace_surrogates_in_bytes(body)
    if clean is body:
        return ""
    other = replace_surrogates_in_bytes(body, "\ufffe")  # a code point that no text contains
    try:
        return _find_first_difference(msgspec.json.decode(clean), msgspec.json.decode(other))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def _find_first_difference(first: Any, second: Any) -> str:
    """Return the path of the first difference between two JSON values, which must differ."""
    path = "$"
    while True:
        step: Any
        if isinstance(first, dict) and first.keys() == second.keys():
            step = next(key for key, value in first.items() if value != second[key])
            path += f".{step}"
        elif isinstance(first, list):
            step = next(index for index in range(len(first)) if first[index] != second[index])
            path += f"[{step}]"
        else:
            return path
        first, second = first[step], second[step]


def _count_backslashes_before(body: bytes, at: int) -> int:
    """Count the backslashes right before ``at``."""
    begin = at
    while begin and body[begin - 1] == _BACKSLASH:
        begin -= 1
    return at - begin
