"""Texts in so many tokens, and never without a line that says how much of them is left out."""

from __future__ import annotations

from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.messages.text.text_cuts import take_text_start


def clip_text_with_notice(text: str, tokens: int, name: str) -> str:
    """Return ``text``, or as much of it as about ``tokens`` tokens hold, with a line that says what is left out.

    ``name`` is what the text is called there. The line comes on top of the tokens.
    """
    whole, max_tokens = estimate_text_tokens(text), max(0, tokens)
    if whole <= max_tokens:
        return text
    excerpt = take_text_start(text, len(text) * max_tokens // whole)
    return f"{excerpt}\n[{len(text) - len(excerpt):,} characters of {name} are left out here]"
