"""Cut texts to a number of tokens, always with a line that says how much was left out."""

from __future__ import annotations

from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.messages.text.text_cuts import take_text_start


def clip_text_with_notice(text: str, tokens: int, name: str) -> str:
    """Return ``text``, cut to its start and a line about the omitted rest if it has over ``tokens`` estimated tokens.

    ``name`` describes the text in that line. The line comes on top of ``tokens``.
    """
    text_tokens = estimate_text_tokens(text)
    max_tokens = max(0, tokens)
    if text_tokens <= max_tokens:
        return text
    excerpt = take_text_start(text, len(text) * max_tokens // text_tokens)
    return f"{excerpt}\n[{len(text) - len(excerpt):,} characters of {name} are left out here]"
