"""Cut text between characters as a reader sees them, never inside one.

That keeps surrogate pairs, combining marks, joined emoji and flags whole. It is an approximation of Unicode's grapheme
clusters without their tables.
"""

from __future__ import annotations

from unicodedata import category

# Code points searched for a place to cut. A longer run of marks is noise, and is cut anywhere.
_MAX_GRAPHEME_CHARS = 64
_ZERO_WIDTH_JOINER, _TAG_RANGE, _SKIN_TONE_RANGE = "\u200d", ("\U000e0020", "\U000e007f"), ("\U0001f3fb", "\U0001f3ff")
_FLAG_LETTER_RANGE = ("\U0001f1e6", "\U0001f1ff")
# Korean vowels and final consonants, which belong to the consonant before them.
_HANGUL_RANGE = ("\u1160", "\u11ff")


def find_grapheme_cut_before(text: str, index: int) -> int:
    """Return the last index up to ``index`` where ``text`` may be cut."""
    index = max(0, min(index, len(text)))
    for candidate in range(index, max(-1, index - _MAX_GRAPHEME_CHARS), -1):
        if not _is_inside_grapheme(text, candidate):
            return candidate
    return index


def find_grapheme_cut_after(text: str, index: int) -> int:
    """Return the first index from ``index`` on where ``text`` may be cut."""
    index = max(0, min(index, len(text)))
    for candidate in range(index, min(len(text) + 1, index + _MAX_GRAPHEME_CHARS)):
        if not _is_inside_grapheme(text, candidate):
            return candidate
    return index


def take_both_grapheme_ends(text: str, max_chars: int, tail_share: float) -> tuple[str, str]:
    """Return a head and a tail of ``text``, together at most ``max_chars`` characters.

    ``tail_share`` of them are the tail's. A text that fits is all head.
    """
    if len(text) <= max_chars:
        return text, ""
    tail_chars = int(max_chars * tail_share)
    if tail_chars > 0:
        tail_start = find_grapheme_cut_after(text, len(text) - tail_chars)
    else:
        tail_start = len(text)
    head_stop = find_grapheme_cut_before(text, max(0, max_chars - tail_chars))
    return text[:head_stop], text[tail_start:]


def _is_inside_grapheme(text: str, index: int) -> bool:
    """Return whether a cut at ``index`` would divide a character as a reader sees it."""
    if not 0 < index < len(text):
        return False
    left, right = text[index - 1], text[index]
    if right.isascii():
        return left + right == "\r\n"
    if _is_grapheme_extension(right) or left == _ZERO_WIDTH_JOINER:
        return True
    return _is_surrogate_pair(left, right) or _is_inside_flag(text, index)


def _is_grapheme_extension(char: str) -> bool:
    """Return whether ``char`` belongs to the character before it."""
    if char == _ZERO_WIDTH_JOINER or category(char).startswith("M"):
        return True
    extension_ranges = (_SKIN_TONE_RANGE, _TAG_RANGE, _HANGUL_RANGE)
    return any(low <= char <= high for low, high in extension_ranges)


def _is_surrogate_pair(left: str, right: str) -> bool:
    return "\ud800" <= left <= "\udbff" and "\udc00" <= right <= "\udfff"


def _is_inside_flag(text: str, index: int) -> bool:
    """Return whether the two letters of a flag stand on either side of ``index``.

    Flags follow each other without a mark between, so letters are counted: an odd number before ``index`` ends in the
    first letter of a flag.
    """
    low, high = _FLAG_LETTER_RANGE
    if not low <= text[index] <= high:
        return False
    start = index
    while start and index - start < _MAX_GRAPHEME_CHARS and low <= text[start - 1] <= high:
        start -= 1
    return (index - start) % 2 == 1
