"""Parts: a conversation divided so that the writer of a summary can read each; nothing is left out of all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from msgspec import Struct

from holdfast.errors import CompactionFailed
from holdfast.messages.cut_points import find_cut_points
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.summary.grapheme_cuts import take_both_grapheme_ends
from holdfast.planning.summary.rendering import TranscriptStyle, render_transcript

_SEPARATOR_TOKENS = 2
"""Tokens that the empty line between two blocks costs at most, with what rounding hides."""
MIN_CHUNK_TOKENS = 500
"""Tokens under which a part holds too little to be worth a request. [H]"""
ESTIMATE_SAFETY_FACTOR = 1.2
"""What the model is to read counts for this much more: another model's tokens are estimated less surely. [O]"""
INSTRUCTION_OVERHEAD_TOKENS = 4_096
"""Tokens of the model's window left to what stands around the text, [O] but at most an eighth of the window. [H]"""
_MIN_TEXT_CHARS = 40
"""Characters that every text keeps while there is another way to make a part fit."""


class HistoryChunk(Struct, frozen=True):
    """Messages ``start`` to ``stop`` of a head, as text."""

    start: int
    stop: int
    text: str
    tokens: int
    """Of the estimator."""


def compute_chunk_budget(window: int, output: int, instruction_tokens: int, token_ratio: float) -> int:
    """Return the estimator tokens that one part may have in a ``window``, beside ``output`` and ``instruction_tokens``
    ones.

    ``token_ratio`` real tokens are one of the estimator. Raises ``CompactionFailed`` where no useful part would fit.
    """
    overhead = min(INSTRUCTION_OVERHEAD_TOKENS, window // 8)
    remaining = int((window - output - overhead) / ESTIMATE_SAFETY_FACTOR / token_ratio) - instruction_tokens
    if remaining < MIN_CHUNK_TOKENS:
        raise CompactionFailed(
            f"a window of {window:,} tokens leaves {max(0, remaining):,} for what is to be summarised, beside "
            f"{output:,} of"
            f" output and {instruction_tokens:,} of instructions; let a model with a larger window write summaries"
        )
    return remaining


def split_into_chunks(
    head: Sequence[Message], size: int, style: TranscriptStyle = TranscriptStyle()
) -> tuple[HistoryChunk, ...]:
    """Return ``head`` in parts of about equal size, each of at most ``size`` estimator tokens, every message in one.

    A call and its results are in the same part. What is longer than ``size`` alone is told shorter.
    """
    atoms = [_build_chunk(head, start, stop, size, style) for start, stop in pairwise(_find_chunk_boundaries(head))]
    return tuple([_merge_chunks(group) for group in pack_chunks(atoms, size)])


def pack_chunks(atoms: Sequence[HistoryChunk], size: int) -> Iterator[list[HistoryChunk]]:
    """Yield neighbours together, each group within ``size`` and about as large as the others."""
    costs = [part.tokens + _SEPARATOR_TOKENS for part in atoms]
    share = sum(costs) / max(1, math.ceil(sum(costs) / max(1, size)))
    group: list[HistoryChunk] = []
    tokens = 0
    for part, cost in zip(atoms, costs, strict=True):
        if group and (tokens + cost > size + _SEPARATOR_TOKENS or tokens >= share):
            yield group
            group, tokens = [], 0
        group.append(part)
        tokens += cost
    if group:
        yield group


def _find_chunk_boundaries(head: Sequence[Message]) -> list[int]:
    return sorted({0, len(head), *find_cut_points(head)})


def _build_chunk(head: Sequence[Message], start: int, stop: int, size: int, style: TranscriptStyle) -> HistoryChunk:
    text = render_messages_to_tokens(head[start:stop], size, style)
    return HistoryChunk(start, stop, text, estimate_text_tokens(text))


def _merge_chunks(group: Sequence[HistoryChunk]) -> HistoryChunk:
    text = "\n\n".join([part.text for part in group if part.text])
    return HistoryChunk(group[0].start, group[-1].stop, text, estimate_text_tokens(text))


# -- what is too long --------------------------------------------------------------------------------------------------


def render_messages_to_tokens(
    messages: Iterable[Message], size: int, style: TranscriptStyle = TranscriptStyle()
) -> str:
    """Return ``messages`` as text of at most ``size`` tokens: every text of theirs is cut shorter until all fit."""
    message_list = list(messages)
    text = render_transcript(message_list, style)
    max_chars = len(text)
    while estimate_text_tokens(text) > size and max_chars > _MIN_TEXT_CHARS:
        max_chars //= 2
        text = render_transcript(message_list, style.cap_lengths(max(_MIN_TEXT_CHARS, max_chars)))
    return clip_text_middle(text, size)


def clip_text_middle(text: str, size: int) -> str:
    """Return ``text`` in at most ``size`` tokens: its start, and its end."""
    excerpt, max_chars = text, len(text)
    while (tokens := estimate_text_tokens(excerpt)) > size:
        max_chars = min(max_chars * 3 // 4, max_chars * max(0, size) // tokens)
        head, end = take_both_grapheme_ends(text, max_chars, 0.5)
        excerpt = f"{head}\n[...]\n{end}" if max_chars > _MIN_TEXT_CHARS else head
    return excerpt
