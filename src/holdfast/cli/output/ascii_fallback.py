"""Our signs where the encoding of a terminal or pipe has none of them: each has one that every encoding has."""

from __future__ import annotations

import codecs

ASCII_FALLBACK = "holdfast-plainly"
"""The name by which a stream asks for it."""
_ASCII_SIGNS = str.maketrans("…·•●○→←↺⟱✂✗×−–—━╸╺│█▇▆▅▄▃▂▁", ".-**o><^v/xx------|###++--_")
"""One sign for one sign, so that columns stay where they are."""
UNKNOWN_SIGN = "?"
"""What stands for any other sign."""


def replace_with_ascii(error: UnicodeError) -> tuple[str, int]:
    """Return what is written in place of that which cannot be, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_ASCII_SIGNS)
    return "".join(sign if sign.isascii() else UNKNOWN_SIGN for sign in text), error.end


codecs.register_error(ASCII_FALLBACK, replace_with_ascii)
