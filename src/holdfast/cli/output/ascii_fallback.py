"""ASCII replacements for our symbols, for terminals and pipes whose encoding lacks them."""

from __future__ import annotations

import codecs

ASCII_FALLBACK = "holdfast-plainly"
"""The name of the error handler."""
_ASCII_SIGNS = str.maketrans("…·•●○→←↺⟱✂✗×−–—━╸╺│█▇▆▅▄▃▂▁", ".-**o><^v/xx------|###++--_")
"""Replacements have one character each, so that columns stay aligned."""
UNKNOWN_SIGN = "?"
"""Replaces any other symbol."""


def replace_with_ascii(error: UnicodeError) -> tuple[str, int]:
    """Return the ASCII text for characters that cannot be encoded, and the position to continue at."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_ASCII_SIGNS)
    signs = [sign if sign.isascii() else UNKNOWN_SIGN for sign in text]
    return "".join(signs), error.end


codecs.register_error(ASCII_FALLBACK, replace_with_ascii)
