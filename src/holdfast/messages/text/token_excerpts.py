"""Cut texts to a number of tokens, always with a line that says how much was left out."""

from __future__ import annotations

from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.messages.text.text_cuts import take_text_start


def clip_text_with_notice(text: str, tokens: int, name: str) -> str:
    """Return ``text`` if it has at most ``tokens`` estimated tokens, else its start and a line about the rest.

    ``name`` is what that line calls the text. The line comes on top of ``tokens``.
    """
    text_tokens, max_tokens = estimate_text_tokens(text), max(0, tokens)
    if text_tokens <= max_tokens:
        return text
    excerpt = take_text_start(text, len(text) * max_tokens // text_tokens)
    return f"{excerpt}\n[{len(text) - len(excerpt):,} characters of {name} are left out here]"
