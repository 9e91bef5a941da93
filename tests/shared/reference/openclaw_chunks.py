"""How OpenClaw divides what it summarises, and drops what is older than its share of the window."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from msgspec import Struct

from holdfast.model.messages import Message
from holdfast.policy.measures import estimate_tokens
from holdfast.view.boundaries import legal_cuts

RATIO, LEAST_RATIO = 0.4, 0.15
"""[O] Share of the window that one chunk may have, and the least it comes down to where messages are long."""
SAFETY = 1.2
"""[O] What is counted counts for this much more."""
LONG = 0.1
"""[O] Share of the window from which on the messages are long, on average."""
HISTORY_SHARE, PARTS = 0.5, 2
"""[O] Share of the window for history; parts it is dropped in."""


def chunk_ratio(sizes: Sequence[int], window: int) -> float:
    """Return the share of ``window`` for one chunk of messages of these ``sizes``: less where they are long."""
    if not sizes:
        return RATIO
    long = sum(sizes) / len(sizes) * SAFETY / window
    return RATIO if long <= LONG else max(LEAST_RATIO, RATIO - min(2 * long, RATIO - LEAST_RATIO))


def by_share(messages: Sequence[Message], parts: int = PARTS) -> list[list[Message]]:
    """Return ``messages`` in up to ``parts`` chunks of about as many tokens; calls and results stay together."""
    target = _size(messages) / max(1, parts)
    chunks: list[list[Message]] = []
    held, tokens = list[Message](), 0
    for group in _groups(messages):
        size = _size(group)
        if held and len(chunks) < parts - 1 and tokens + size > target:
            chunks.append(held)
            held, tokens = [], 0
        held, tokens = held + group, tokens + size
    return [*chunks, held] if held else chunks


def _groups(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Yield messages with what must stay with them: a call with its results."""
    places = sorted({0, len(messages), *legal_cuts(messages)})
    yield from (list(messages[start:stop]) for start, stop in pairwise(places))


def _size(messages: Sequence[Message]) -> int:
    return sum(map(estimate_tokens, messages))


class Pruned(Struct, frozen=True):
    """History that was dropped, oldest part first, until the rest was within ``budget`` tokens."""

    kept: tuple[Message, ...]
    dropped: tuple[Message, ...]
    chunks: int
    """Parts that were dropped."""
    budget: int


def within_share(messages: Sequence[Message], window: int, share: float = HISTORY_SHARE) -> Pruned:
    """Return ``messages`` without their oldest parts, so that the rest takes at most ``share`` of ``window``."""
    budget = max(1, math.floor(window * share))
    kept, dropped, times = list(messages), list[Message](), 0
    while _size(kept) > budget:
        first, *rest = by_share(kept)
        if not rest:
            break
        dropped += first
        kept, times = [message for chunk in rest for message in chunk], times + 1
    return Pruned(tuple(kept), tuple(dropped), times, budget)
