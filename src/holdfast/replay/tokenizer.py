"""Tokens as the judge of a replay counts them: by a tokenizer that the policy does not use.

The policy plans with our estimator; if it were judged by the same one, an error of the estimator would never show.
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
"""Tokens of a text, as some tokenizer or estimator counts them."""
MAX_USAGE_DELTA = 60_000
"""Tokens between two answers above which something else than the messages moved the usage (METRICS, "Tokens")."""


class UsageReading(Struct, frozen=True):
    """What one answer's usage said, beside our own count of the same request, both without the frame or both with."""

    recorded_tokens: int
    """Input tokens of the request as the provider reported them, cached or not."""
    counted_tokens: int
    """Tokens of all messages before the answer, by the tokenizer of the replay."""
    restart: bool = False
    """Whether the recording tool compacted since the reading before."""


@cache
def get_tokenizer() -> tuple[str, TextCounter]:
    """Return the name of the best tokenizer at hand and its counter: o200k from a wheel, else our estimator."""
    try:
        with catch_warnings():
            simplefilter("ignore", DeprecationWarning)  # the package reads its data in an older way
            from bpe_openai import get_encoding
    except ImportError:
        return "estimate", estimate_text_tokens
    encode = get_encoding("o200k_base").encode_ordinary

    def o200k(text: str) -> int:
        whole = _replace_surrogates(text)
        if len(whole) <= MAX_PIECE:
            return len(encode(whole))
        return sum(len(encode(whole[start : start + MAX_PIECE])) for start in range(0, len(whole), MAX_PIECE))

    return "o200k", o200k


MAX_PIECE = 50_000
"""Characters counted at once: the tokenizer refuses more than 200,000 tokens, and a character has four at most."""


def _replace_surrogates(text: str) -> str:
    """Return ``text`` with lone surrogates replaced, as no tokenizer takes them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def count_message_tokens(message: Message, counter: TextCounter) -> int:
    """Return the tokens of ``message`` as sent: words, arguments and names by ``counter``, media by rule, overhead."""
    return MESSAGE_OVERHEAD + sum(count_part_tokens(part, counter) for part in message.parts)


def count_part_tokens(part: Part, counter: TextCounter) -> int:
    """Return the tokens of one part, without the overhead of its message. Ids are not counted."""
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
    """Return real tokens for one counted token, from the growth between consecutive readings; 1.0 without evidence.

    Growth over 60,000 tokens on either side, and growth across a recorded compaction, is left out.
    """
    recorded_tokens = counted_tokens = 0
    for before, after in pairwise(readings):
        true, own = after.recorded_tokens - before.recorded_tokens, after.counted_tokens - before.counted_tokens
        if after.restart or own <= 0 or max(abs(true), own) > MAX_USAGE_DELTA:
            continue
        recorded_tokens += true
        counted_tokens += own
    return recorded_tokens / counted_tokens if recorded_tokens > 0 and counted_tokens > 0 else 1.0
