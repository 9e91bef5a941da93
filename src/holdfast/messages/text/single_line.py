"""Show a text that somebody else wrote on one line, without what could steer a terminal or turn its direction."""

from __future__ import annotations

import re

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
"""Line ends, escape sequences and marks that change the text direction: recorded text could steer the terminal."""
_HALF_SURROGATE = re.compile(r"[\ud800-\udfff]")


def clean_single_line(text: str, max_length: int = 0) -> str:
    """Return ``text`` on one line without control characters, cut to ``max_length`` characters (0: not cut)."""
    if max_length:
        # Cut early: the text may have megabytes. Four times the length leaves enough after blanks are merged.
        text = text[: 4 * max_length]
    line = " ".join(_CONTROL_CHARACTERS.sub(" ", text).split())
    line = _HALF_SURROGATE.sub("\ufffd", line)
    if max_length and len(line) > max_length:
        return f"{line[: max_length - 1]}…"
    return line
