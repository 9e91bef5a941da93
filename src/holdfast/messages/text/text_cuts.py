"""Cut texts: on line boundaries where possible, never inside a character."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

ENCODE_PIECE_CHARS = 1 << 16
"""Characters that are encoded at a time, so that a long text is never held twice in memory."""


def encode_in_pieces(text: str) -> Iterator[bytes]:
    """Yield the UTF-8 bytes of ``text`` in pieces; a lone surrogate becomes three bytes, like a character there."""
    for start in range(0, len(text), ENCODE_PIECE_CHARS):
        yield text[start : start + ENCODE_PIECE_CHARS].encode("utf-8", "surrogatepass")


def hash_text(text: str) -> str:
    """Return the SHA-256 of the bytes of ``text`` in hexadecimal digits; it is the name of the text's blob."""
    hasher = sha256()
    for piece in encode_in_pieces(text):
        hasher.update(piece)
    return hasher.hexdigest()


def replace_surrogates_in_text(text: str) -> str:
    """Return ``text`` with every lone surrogate replaced, since no provider accepts one."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def take_text_start(text: str, limit: int) -> str:
    """Return the first ``limit`` characters of ``text`` or fewer, cut at a newline if the last fifth has one."""
    if len(text) <= limit:
        return text
    edge = text.rfind("\n", int(limit * 0.8), limit)
    return text[: edge if edge > 0 else limit]


def take_text_end(text: str, limit: int) -> str:
    """Return the last ``limit`` characters of ``text`` or fewer, begun at a line if one starts in the first fifth."""
    if len(text) <= limit:
        return text
    start = len(text) - limit
    edge = text.find("\n", start, start + max(1, limit // 5))
    return text[edge + 1 if edge >= 0 else start :]


def take_both_text_ends(text: str, limit: int, tail_share: float) -> tuple[str, str]:
    """Return the start and the end of ``text``, together at most ``limit`` characters and never overlapping.

    ``tail_share`` of the limit goes to the end.
    """
    tail = take_text_end(text, int(limit * tail_share)) if tail_share > 0 else ""
    remaining = limit - len(tail)
    # One character more than remains, so that ``take_text_start`` can tell whether it must cut.
    head = take_text_start(text[: min(len(text) - len(tail), remaining + 1)], remaining)
    return head, tail


_LOOKAHEAD_FACTOR = 8
"""Factor by which ``flatten_to_line`` reads ahead of its limit, and again if that was all white space.

Flattening megabytes to show a line would take long; after the first characters nothing can show.
"""


def flatten_to_line(text: str, limit: int) -> str:
    """Return ``text`` on one line of at most ``limit`` characters, with an ellipsis if it was cut."""
    reach = _LOOKAHEAD_FACTOR * (limit + 1)
    line = " ".join(text[:reach].split())
    while len(line) <= limit and reach < len(text):
        reach *= _LOOKAHEAD_FACTOR
        line = " ".join(text[:reach].split())
    if len(line) <= limit:
        return line
    return line[: max(0, limit - 1)] + "…"
