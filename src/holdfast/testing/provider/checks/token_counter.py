"""Count tokens for the strict provider, independently of the estimator that it is a check on."""

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

# Chat templates put a few tokens around each message (role, start and end marks); three is what OpenAI documented for
# its own.
BLOCK_OVERHEAD = 3
"""Tokens around each block of a request."""
_MAX_TOKENIZER_TEXT = 40_000
"""Characters that are given to the tokenizer at once; it refuses texts of more than 200,000 tokens."""
# Chosen by judgement: more blocks than any test has, at some 100 bytes each.
_MAX_REMEMBERED = 200_000
"""Texts with a remembered count, so that the blocks of a growing conversation are counted once."""


def get_token_counter(name: Literal["auto", "o200k", "words"] = "auto") -> Callable[[str], int]:
    """Return a function that counts the tokens of a text.

    Raises ``ConfigError`` if ``o200k`` is asked for and not installed.
    """
    exact = _load_o200k() if name != "words" else None
    if exact is None and name == "o200k":
        raise ConfigError("the tokenizer o200k is not installed; install holdfast[exact], or ask for 'words'")
    return exact or count_word_pieces


@cache
def _load_o200k() -> Callable[[str], int] | None:
    """Return the counting function of a real tokenizer, or None if its package is not installed."""
    try:
        with catch_warnings():
            # The package opens its data in a deprecated way.
            simplefilter("ignore", DeprecationWarning)
            from bpe_openai import get_encoding
    except ImportError:
        return None
    encode = get_encoding("o200k_base").encode_ordinary

    def count(text: str) -> int:
        clean_text = text.encode("utf-8", "replace").decode()
        tokens = 0
        for start in range(0, len(clean_text), _MAX_TOKENIZER_TEXT):
            tokens += len(encode(clean_text[start : start + _MAX_TOKENIZER_TEXT]))
        return tokens

    return count


_WORD_PIECES = re.compile(r"[^\W\d_]+|\d+|\n+[ \t]*|[ \t]{2,}|[^\w\s]+|_")
_LETTERS_PER_TOKEN, _DIGITS_PER_TOKEN, _SIGNS_PER_TOKEN = 6, 3, 2
"""Characters of a word, a number and a run of signs that are about one token: English with o200k, rounded down."""


def count_word_pieces(text: str) -> int:
    """Count the word pieces of ``text``, an approximation that is some tenths above a tokenizer on prose and code."""
    return sum(_count_piece(match[0]) for match in _WORD_PIECES.finditer(text))


def _count_piece(piece: str) -> int:
    first = piece[0]
    # Three bytes of UTF-8 are one Chinese or Japanese character, which is about a token.
    if not first.isascii():
        return ceil(len(piece.encode("utf-8", "replace")) / 3)
    if first.isalpha():
        return ceil(len(piece.encode("utf-8", "replace")) / _LETTERS_PER_TOKEN)
    if first.isdigit():
        return ceil(len(piece) / _DIGITS_PER_TOKEN)
    if first.isspace():
        return 1
    return ceil(len(piece) / _SIGNS_PER_TOKEN)


class RequestCounter:
    """Counts the blocks of requests, and remembers the counts of texts it has seen."""

    def __init__(self, count: Callable[[str], int], factor: float) -> None:
        """Count with ``count`` and multiply the result by ``factor``."""
        self._count = count
        self._factor = factor
        self._counts_by_digest: dict[bytes, int] = {}

    def count_text(self, text: str) -> int:
        """Return the tokens of one text."""
        return ceil(self._count_unscaled(text) * self._factor)

    def sum_blocks(self, blocks: Iterable[PromptBlock]) -> list[int]:
        """Return the tokens of the first 0, 1, … blocks; the last number is that of the whole request.

        The sums are rounded and not the blocks, or a long conversation would gain half a token with each block.
        """
        total = 0
        sums = [0]
        for block in blocks:
            total += BLOCK_OVERHEAD + self._count_unscaled(block.rendering.text) + block.rendering.media
            sums.append(ceil(total * self._factor))
        return sums

    def _count_unscaled(self, text: str) -> int:
        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if digest not in self._counts_by_digest:
            if len(self._counts_by_digest) >= _MAX_REMEMBERED:
                self._counts_by_digest.clear()
            self._counts_by_digest[digest] = self._count(text)
        return self._counts_by_digest[digest]
