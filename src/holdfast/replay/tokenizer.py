"""Count tokens as the judge of a replay does: with a tokenizer that the policy does not use.

The policy plans with our estimator. If it were judged by the same one, errors of the estimator would never show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from itertools import pairwise
from typing import TypeAlias
from warnings import catch_warnings, simplefilter

from msgspec import Struct

from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, Part, Text, Thinking, ToolCall
from holdfast.messages.size.tokens import MESSAGE_OVERHEAD, estimate_media_tokens, estimate_text_tokens

TextCounter: TypeAlias = Callable[[str], int]
"""Counts the tokens of a text."""
MAX_USAGE_DELTA = 60_000
"""Growth between two answers above which something else than messages changed the usage (docs/metrics.md)."""


class UsageReading(Struct, frozen=True):
    """The usage of one answer beside our own count of the same request, both with or both without the setup."""

    recorded_tokens: int
    """Input tokens of the request as the provider reported them, cached or not."""
    counted_tokens: int
    """Tokens of all messages before the answer, counted by the tokenizer of the replay."""
    restart: bool = False
    """Whether the recording tool compacted since the previous reading."""


@cache
def get_tokenizer() -> tuple[str, TextCounter]:
    """Return name and counter of the best installed tokenizer: o200k from a wheel, else our own estimator."""
    try:
        with catch_warnings():
            # The package loads its data in a deprecated way.
            simplefilter("ignore", DeprecationWarning)
            from bpe_openai import get_encoding
    except ImportError:
        return "estimate", estimate_text_tokens
    encode = get_encoding("o200k_base").encode_ordinary

    def o200k(text: str) -> int:
        clean_text = _replace_surrogates(text)
        tokens = 0
        for start in range(0, len(clean_text), MAX_PIECE):
            tokens += len(encode(clean_text[start : start + MAX_PIECE]))
        return tokens

    return "o200k", o200k


MAX_PIECE = 50_000
"""Characters counted at once. The tokenizer refuses more than 200,000 tokens, and a character has at most four."""


def _replace_surrogates(text: str) -> str:
    """Return ``text`` with lone surrogates replaced, since no tokenizer accepts them."""
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode("utf-8")


def count_message_tokens(message: Message, counter: TextCounter) -> int:
    """Return the tokens of ``message`` as sent: texts, arguments and names by ``counter``, media by rule, overhead."""
    return MESSAGE_OVERHEAD + sum(count_part_tokens(part, counter) for part in message.parts)


def count_part_tokens(part: Part, counter: TextCounter) -> int:
    """Return the tokens of one part, without the overhead of its message; ids are not counted."""
    if isinstance(part, Text | Thinking):
        return counter(part.text)
    if isinstance(part, ToolCall):
        return counter(part.name) + counter(part.arguments)
    if isinstance(part, Media):
        return estimate_media_tokens(part)
    if isinstance(part, Opaque):
        return 0 if part.raw is None else counter(bytes(part.raw).decode("utf-8", "replace"))
    return sum(count_part_tokens(inner, counter) for inner in part.content)


def compute_usage_ratio(readings: Iterable[UsageReading]) -> float:
    """Return the real tokens for one counted token, from the growth between consecutive readings.

    Left out are growth across a recorded compaction and growth over ``MAX_USAGE_DELTA``. Return 1.0 without evidence.
    """
    recorded_tokens = counted_tokens = 0
    for before, after in pairwise(readings):
        recorded_growth = after.recorded_tokens - before.recorded_tokens
        counted_growth = after.counted_tokens - before.counted_tokens
        # A compaction replaces messages, so the growth is not that of the texts we counted.
        if after.restart or counted_growth <= 0:
            continue
        if max(abs(recorded_growth), counted_growth) > MAX_USAGE_DELTA:
            continue
        recorded_tokens += recorded_growth
        counted_tokens += counted_growth
    if recorded_tokens <= 0 or counted_tokens <= 0:
        return 1.0
    return recorded_tokens / counted_tokens
