"""Tokens as the strict provider counts them, apart from the estimator that it judges."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from hashlib import blake2b
from math import ceil
from typing import Literal
from warnings import catch_warnings, simplefilter

from holdfast.errors import ConfigError
from holdfast.testing.provider.request_pieces import PromptBlock

BLOCK_OVERHEAD = 3
"""Tokens around each piece of a request: what tells roles and borders apart in chat templates."""
_MAX_TOKENIZER_TEXT = 40_000
"""Characters given to the tokenizer at once; it refuses texts of more than 200,000 tokens."""
_MAX_REMEMBERED = 200_000
"""Texts whose count is kept, so that a growing conversation is counted once."""


def get_token_counter(name: Literal["auto", "o200k", "words"] = "auto") -> Callable[[str], int]:
    """Return what counts the tokens of a text. Raises ``ConfigError`` when it was named and is not installed."""
    exact = _load_o200k() if name != "words" else None
    if exact is None and name == "o200k":
        raise ConfigError("the tokenizer o200k is not installed; install holdfast[exact], or ask for 'words'")
    return exact or count_word_pieces


@cache
def _load_o200k() -> Callable[[str], int] | None:
    """Return the count of a real tokenizer, or nothing where the wheel is not installed."""
    try:
        with catch_warnings():
            simplefilter("ignore", DeprecationWarning)  # the wheel opens its data in an older way
            from bpe_openai import get_encoding
    except ImportError:
        return None
    encode = get_encoding("o200k_base").encode_ordinary

    def count(text: str) -> int:
        clean = text.encode("utf-8", "replace").decode()
        return sum(
            len(encode(clean[at : at + _MAX_TOKENIZER_TEXT])) for at in range(0, len(clean), _MAX_TOKENIZER_TEXT)
        )

    return count


_WORD_PIECES = re.compile(r"[^\W\d_]+|\d+|\n+[ \t]*|[ \t]{2,}|[^\w\s]+|_")
_LETTERS_PER_TOKEN, _DIGITS_PER_TOKEN, _SIGNS_PER_TOKEN = 6, 3, 2
"""Characters of a word, a number, a run of signs that make a token, about: English words of o200k, rounded down."""


def count_word_pieces(text: str) -> int:
    """Return the word pieces of ``text``: what a tokenizer would make of it, some tenths more on prose and code."""
    return sum(_count_piece(match[0]) for match in _WORD_PIECES.finditer(text))


def _count_piece(piece: str) -> int:
    first = piece[0]
    if not first.isascii():
        return ceil(len(piece.encode("utf-8", "replace")) / 3)
    if first.isalpha():
        return ceil(len(piece.encode("utf-8", "replace")) / _LETTERS_PER_TOKEN)
    return (
        ceil(len(piece) / _DIGITS_PER_TOKEN)
        if first.isdigit()
        else 1
        if first.isspace()
        else ceil(len(piece) / _SIGNS_PER_TOKEN)
    )


class RequestCounter:
    """Weighs pieces of requests; it remembers the weight of those it has seen."""

    def __init__(self, count: Callable[[str], int], factor: float) -> None:
        """Make a scale of a tokenizer and what its tokens are worth."""
        self._count, self._factor = count, factor
        self._known: dict[bytes, int] = {}

    def count_text(self, text: str) -> int:
        """Return the tokens of one text."""
        return ceil(self._count_unscaled(text) * self._factor)

    def sum_blocks(self, blocks: Iterable[PromptBlock]) -> list[int]:
        """Return the tokens up to and with each piece: the last number is the whole request, rounded once."""
        total, out = 0, [0]
        for block in blocks:
            total += BLOCK_OVERHEAD + self._count_unscaled(block.rendering.text) + block.rendering.media
            out.append(ceil(total * self._factor))
        return out

    def _count_unscaled(self, text: str) -> int:
        name = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if name not in self._known:
            if len(self._known) >= _MAX_REMEMBERED:
                self._known.clear()
            self._known[name] = self._count(text)
        return self._known[name]
