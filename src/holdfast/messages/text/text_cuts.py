"""Cutting text: on line boundaries where it can be, on code points always, and never without saying what went."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

ENCODE_PIECE_CHARS = 1 << 16
"""Characters that are encoded at a time where a text may be too long to be held twice."""


def encode_in_pieces(text: str) -> Iterator[bytes]:
    """Yield the bytes of ``text`` in pieces; a lone surrogate is three bytes, as it would be if it were a character."""
    for start in range(0, len(text), ENCODE_PIECE_CHARS):
        yield text[start : start + ENCODE_PIECE_CHARS].encode("utf-8", "surrogatepass")


def hash_text(text: str) -> str:
    """Return the SHA-256 of the bytes of ``text``, which names its blob, in hexadecimal digits."""
    hasher = sha256()
    for piece in encode_in_pieces(text):
        hasher.update(piece)
    return hasher.hexdigest()


def replace_surrogates_in_text(text: str) -> str:
    """Return ``text`` with every lone surrogate replaced, since no provider takes one."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def take_text_start(text: str, limit: int) -> str:
    """Return ``text`` in at most ``limit`` characters, cut at a newline if one lies in the last fifth."""
    if len(text) <= limit:
        return text
    edge = text.rfind("\n", int(limit * 0.8), limit)
    return text[: edge if edge > 0 else limit]


def take_text_end(text: str, limit: int) -> str:
    """Return the end of ``text`` in at most ``limit`` characters, begun at a line if one starts in the first fifth."""
    if len(text) <= limit:
        return text
    start = len(text) - limit
    edge = text.find("\n", start, start + max(1, limit // 5))
    return text[edge + 1 if edge >= 0 else start :]


def take_both_text_ends(text: str, limit: int, tail_share: float) -> tuple[str, str]:
    """Return a head and a tail of ``text``, together at most ``limit`` characters and never overlapping."""
    tail = take_text_end(text, int(limit * tail_share)) if tail_share > 0 else ""
    remaining = limit - len(tail)
    head = take_text_start(
        text[: min(len(text) - len(tail), remaining + 1)], remaining
    )  # one more tells that it must be cut
    return head, tail


_LOOKAHEAD_FACTOR = 8
"""How much further than its limit ``flatten_to_line`` looks, in steps: what lies behind cannot show."""


def flatten_to_line(text: str, limit: int) -> str:
    """Return ``text`` on one line of at most ``limit`` characters, with an ellipsis where it was cut."""
    reach = _LOOKAHEAD_FACTOR * (limit + 1)
    while len(flat := " ".join(text[:reach].split())) <= limit and reach < len(text):
        reach *= _LOOKAHEAD_FACTOR
    return flat if len(flat) <= limit else flat[: max(0, limit - 1)] + "…"
