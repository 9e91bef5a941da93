"""Cutting text between characters as a reader sees them, never inside one: halves, marks, joined signs, flags."""

from __future__ import annotations

from unicodedata import category

_MAX_GRAPHEME_CHARS = 64
"""Code points that are looked through for a place; what is longer is no character but noise, and is cut anywhere."""
_ZERO_WIDTH_JOINER, _TAG_RANGE, _SKIN_TONE_RANGE = "\u200d", ("\U000e0020", "\U000e007f"), ("\U0001f3fb", "\U0001f3ff")
_FLAG_LETTER_RANGE = ("\U0001f1e6", "\U0001f1ff")
_HANGUL_RANGE = ("\u1160", "\u11ff")
"""Vowels and finals, which go with the consonant before them."""


def find_grapheme_cut_before(text: str, at: int) -> int:
    """Return the last place up to ``at`` where ``text`` may be divided."""
    at = max(0, min(at, len(text)))
    return next(
        (place for place in range(at, max(-1, at - _MAX_GRAPHEME_CHARS), -1) if not _is_inside_grapheme(text, place)),
        at,
    )


def find_grapheme_cut_after(text: str, at: int) -> int:
    """Return the first place from ``at`` on where ``text`` may be divided."""
    at = max(0, min(at, len(text)))
    return next(
        (
            place
            for place in range(at, min(len(text) + 1, at + _MAX_GRAPHEME_CHARS))
            if not _is_inside_grapheme(text, place)
        ),
        at,
    )


def take_both_grapheme_ends(text: str, max_chars: int, tail_share: float) -> tuple[str, str]:
    """Return a head and a tail of ``text``, together at most ``max_chars`` characters; all of it and nothing if it
    fits.
    """
    if len(text) <= max_chars:
        return text, ""
    end = int(max_chars * tail_share)
    start = find_grapheme_cut_after(text, len(text) - end) if end > 0 else len(text)
    return text[: find_grapheme_cut_before(text, max(0, max_chars - end))], text[start:]


def _is_inside_grapheme(text: str, place: int) -> bool:
    """Return whether ``place`` lies inside what a reader sees as one character."""
    if not 0 < place < len(text):
        return False
    left, right = text[place - 1], text[place]
    if right.isascii():
        return left + right == "\r\n"
    return (
        _is_grapheme_extension(right)
        or left == _ZERO_WIDTH_JOINER
        or _is_surrogate_pair(left, right)
        or _is_inside_flag(text, place)
    )


def _is_grapheme_extension(char: str) -> bool:
    """Return whether ``char`` belongs to the one before it."""
    ranges = (_SKIN_TONE_RANGE, _TAG_RANGE, _HANGUL_RANGE)
    return (
        char == _ZERO_WIDTH_JOINER or category(char).startswith("M") or any(low <= char <= high for low, high in ranges)
    )


def _is_surrogate_pair(left: str, right: str) -> bool:
    return "\ud800" <= left <= "\udbff" and "\udc00" <= right <= "\udfff"


def _is_inside_flag(text: str, place: int) -> bool:
    """Return whether the two letters of a flag stand on either side: an odd number of them ends before ``place``."""
    low, high = _FLAG_LETTER_RANGE
    if not low <= text[place] <= high:
        return False
    start = place
    while start and place - start < _MAX_GRAPHEME_CHARS and low <= text[start - 1] <= high:
        start -= 1
    return (place - start) % 2 == 1
