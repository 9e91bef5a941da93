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
from holdfast.messages.size.tokens import MESSAGE_OVERHEAD, count, media_tokens

Counter: TypeAlias = Callable[[str], int]
"""Tokens of a text, as some tokenizer or estimator counts them."""
LARGEST_DELTA = 60_000
"""Tokens between two answers above which something else than the messages moved the usage (METRICS, "Tokens")."""


class Reading(Struct, frozen=True):
    """What one answer's usage said, beside our own count of the same request, both without the frame or both with."""

    recorded: int
    """Input tokens of the request as the provider reported them, cached or not."""
    counted: int
    """Tokens of all messages before the answer, by the tokenizer of the replay."""
    restart: bool = False
    """Whether the recording tool compacted since the reading before."""


@cache
def tokenizer() -> tuple[str, Counter]:
    """Return the name of the best tokenizer at hand and its counter: o200k from a wheel, else our estimator."""
    try:
        with catch_warnings():
            simplefilter("ignore", DeprecationWarning)  # the package reads its data in an older way
            from bpe_openai import get_encoding
    except ImportError:
        return "estimate", count
    encode = get_encoding("o200k_base").encode_ordinary

    def o200k(text: str) -> int:
        whole = _whole(text)
        if len(whole) <= PIECE:
            return len(encode(whole))
        return sum(len(encode(whole[start : start + PIECE])) for start in range(0, len(whole), PIECE))

    return "o200k", o200k


PIECE = 50_000
"""Characters counted at once: the tokenizer refuses more than 200,000 tokens, and a character has four at most."""


def _whole(text: str) -> str:
    """Return ``text`` with lone surrogates replaced, as no tokenizer takes them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def message_tokens(message: Message, counter: Counter) -> int:
    """Return the tokens of ``message`` as sent: words, arguments and names by ``counter``, media by rule, overhead."""
    return MESSAGE_OVERHEAD + sum(part_tokens(part, counter) for part in message.parts)


def part_tokens(part: Part, counter: Counter) -> int:
    """Return the tokens of one part, without the overhead of its message. Ids are not counted."""
    if isinstance(part, Text | Thinking):
        return counter(part.text)
    if isinstance(part, ToolCall):
        return counter(part.name) + counter(part.arguments)
    if isinstance(part, Media):
        return media_tokens(part)
    if isinstance(part, Opaque):
        return 0 if part.raw is None else counter(bytes(part.raw).decode("utf-8", "replace"))
    return sum(part_tokens(inner, counter) for inner in part.content)


def usage_ratio(readings: Iterable[Reading]) -> float:
    """Return real tokens for one counted token, from the growth between consecutive readings; 1.0 without evidence.

    Growth over 60,000 tokens on either side, and growth across a recorded compaction, is left out.
    """
    recorded = counted = 0
    for before, after in pairwise(readings):
        true, own = after.recorded - before.recorded, after.counted - before.counted
        if after.restart or own <= 0 or max(abs(true), own) > LARGEST_DELTA:
            continue
        recorded += true
        counted += own
    return recorded / counted if recorded > 0 and counted > 0 else 1.0
