"""Texts in so many tokens, and never without a line that says how much of them is left out."""

from __future__ import annotations

from holdfast.messages.size.tokens import count
from holdfast.messages.text.cutting import clip


def clipped(text: str, tokens: int, name: str) -> str:
    """Return ``text``, or as much of it as about ``tokens`` tokens hold, with a line that says what is left out.

    ``name`` is what the text is called there. The line comes on top of the tokens.
    """
    whole, most = count(text), max(0, tokens)
    if whole <= most:
        return text
    held = clip(text, len(text) * most // whole)
    return f"{held}\n[{len(text) - len(held):,} characters of {name} are left out here]"
