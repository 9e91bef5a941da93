"""Our signs where the encoding of a terminal or pipe has none of them: each has one that every encoding has."""

from __future__ import annotations

import codecs

PLAINLY = "holdfast-plainly"
"""The name by which a stream asks for it."""
_PLAIN = str.maketrans("…·•●○→←↺⟱✂✗×−–—━╸╺│█▇▆▅▄▃▂▁", ".-**o><^v/xx------|###++--_")
"""One sign for one sign, so that columns stay where they are."""
OTHER = "?"
"""What stands for any other sign."""


def plainly(error: UnicodeError) -> tuple[str, int]:
    """Return what is written in place of that which cannot be, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_PLAIN)
    return "".join(sign if sign.isascii() else OTHER for sign in text), error.end


codecs.register_error(PLAINLY, plainly)
