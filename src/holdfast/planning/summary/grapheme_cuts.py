"""Cutting text between characters as a reader sees them, never inside one: halves, marks, joined signs, flags."""

from __future__ import annotations

from unicodedata import category

_REACH = 64
"""Code points that are looked through for a place; what is longer is no character but noise, and is cut anywhere."""
_JOINER, _TAGS, _SKIN = "\u200d", ("\U000e0020", "\U000e007f"), ("\U0001f3fb", "\U0001f3ff")
_FLAGS = ("\U0001f1e6", "\U0001f1ff")
_HANGUL = ("\u1160", "\u11ff")
"""Vowels and finals, which go with the consonant before them."""


def before(text: str, at: int) -> int:
    """Return the last place up to ``at`` where ``text`` may be divided."""
    at = max(0, min(at, len(text)))
    return next((place for place in range(at, max(-1, at - _REACH), -1) if not _is_inside(text, place)), at)


def behind(text: str, at: int) -> int:
    """Return the first place from ``at`` on where ``text`` may be divided."""
    at = max(0, min(at, len(text)))
    return next((place for place in range(at, min(len(text) + 1, at + _REACH)) if not _is_inside(text, place)), at)


def ends(text: str, most: int, tail_share: float) -> tuple[str, str]:
    """Return a head and a tail of ``text``, together at most ``most`` characters; all of it and nothing if it fits."""
    if len(text) <= most:
        return text, ""
    end = int(most * tail_share)
    start = behind(text, len(text) - end) if end > 0 else len(text)
    return text[: before(text, max(0, most - end))], text[start:]


def _is_inside(text: str, place: int) -> bool:
    """Return whether ``place`` lies inside what a reader sees as one character."""
    if not 0 < place < len(text):
        return False
    left, right = text[place - 1], text[place]
    if right.isascii():
        return left + right == "\r\n"
    return _goes_on(right) or left == _JOINER or _is_pair(left, right) or _is_flag(text, place)


def _goes_on(char: str) -> bool:
    """Return whether ``char`` belongs to the one before it."""
    ranges = (_SKIN, _TAGS, _HANGUL)
    return char == _JOINER or category(char).startswith("M") or any(low <= char <= high for low, high in ranges)


def _is_pair(left: str, right: str) -> bool:
    return "\ud800" <= left <= "\udbff" and "\udc00" <= right <= "\udfff"


def _is_flag(text: str, place: int) -> bool:
    """Return whether the two letters of a flag stand on either side: an odd number of them ends before ``place``."""
    low, high = _FLAGS
    if not low <= text[place] <= high:
        return False
    start = place
    while start and place - start < _REACH and low <= text[start - 1] <= high:
        start -= 1
    return (place - start) % 2 == 1
