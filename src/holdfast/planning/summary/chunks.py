"""Divide a conversation into chunks that fit the window of the model that summarizes; every message is in one chunk."""

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

# Estimator tokens of the empty line between two blocks, including rounding of the two estimates.
_SEPARATOR_TOKENS = 2
MIN_CHUNK_TOKENS = 500
"""Tokens under which a chunk is too small to be worth a request. Chosen by judgement."""
ESTIMATE_SAFETY_FACTOR = 1.2
"""Factor on the estimate of a chunk: the tokens of a model that we have no usage of are estimated less surely.
OpenClaw's number."""
INSTRUCTION_OVERHEAD_TOKENS = 4_096
"""Tokens of the model's window reserved for everything around the text. OpenClaw's number; that it is at most an eighth
of the window, so that small windows are usable, was chosen by judgement."""
# Characters that every text keeps as long as there is another way to make a chunk fit.
_MIN_TEXT_CHARS = 40


class HistoryChunk(Struct, frozen=True):
    """Messages ``start`` to ``stop`` of a head, as text; ``tokens`` are the estimator's."""

    start: int
    stop: int
    text: str
    tokens: int


def compute_chunk_budget(
    window: int,
    output: int,
    instruction_tokens: int,
    token_ratio: float,
) -> int:
    """Return the estimator tokens that one chunk may have in a ``window`` of real tokens.

    ``output`` real tokens are reserved for the summary and ``instruction_tokens`` estimator tokens for the prompt.
    ``token_ratio`` is the number of real tokens for one of the estimator. Raise ``CompactionFailed`` if no useful chunk
    would fit.
    """
    overhead = min(INSTRUCTION_OVERHEAD_TOKENS, window // 8)
    remaining = int((window - output - overhead) / ESTIMATE_SAFETY_FACTOR / token_ratio) - instruction_tokens
    if remaining < MIN_CHUNK_TOKENS:
        raise CompactionFailed(
            f"a window of {window:,} tokens leaves {max(0, remaining):,} for the messages to summarize, besides "
            f"{output:,} for the output and {instruction_tokens:,} for instructions; use a summary model with a larger "
            "window"
        )
    return remaining


def split_into_chunks(
    head: Sequence[Message], size: int, style: TranscriptStyle = TranscriptStyle()
) -> tuple[HistoryChunk, ...]:
    """Divide ``head`` into chunks of about equal size, each of at most ``size`` estimator tokens.

    A call and its results are in the same chunk. A message that is longer than ``size`` by itself is shortened.
    """
    smallest_chunks = []
    for start, stop in pairwise(_find_chunk_boundaries(head)):
        smallest_chunks.append(_build_chunk(head, start, stop, size, style))
    return tuple([_merge_chunks(group) for group in pack_chunks(smallest_chunks, size)])


def pack_chunks(chunks: Sequence[HistoryChunk], size: int) -> Iterator[list[HistoryChunk]]:
    """Yield groups of adjacent chunks, each within ``size`` tokens and all about equally large."""
    costs = [chunk.tokens + _SEPARATOR_TOKENS for chunk in chunks]
    group_count = math.ceil(sum(costs) / max(1, size))
    # Filled to the brim, the last group would be a small rest, whose summary weighs as much as the others.
    target_size = sum(costs) / max(1, group_count)
    group: list[HistoryChunk] = []
    group_tokens = 0
    for chunk, cost in zip(chunks, costs, strict=True):
        would_overflow = group_tokens + cost > size + _SEPARATOR_TOKENS
        if group and (would_overflow or group_tokens >= target_size):
            yield group
            group, group_tokens = [], 0
        group.append(chunk)
        group_tokens += cost
    if group:
        yield group


def _find_chunk_boundaries(head: Sequence[Message]) -> list[int]:
    return sorted({0, len(head), *find_cut_points(head)})


def _build_chunk(
    head: Sequence[Message],
    start: int,
    stop: int,
    size: int,
    style: TranscriptStyle,
) -> HistoryChunk:
    text = render_messages_to_tokens(head[start:stop], size, style)
    return HistoryChunk(start, stop, text, estimate_text_tokens(text))


def _merge_chunks(group: Sequence[HistoryChunk]) -> HistoryChunk:
    text = "\n\n".join([chunk.text for chunk in group if chunk.text])
    return HistoryChunk(group[0].start, group[-1].stop, text, estimate_text_tokens(text))


# -- texts that are too long -------------------------------------------------------------------------------------------


def render_messages_to_tokens(
    messages: Iterable[Message], size: int, style: TranscriptStyle = TranscriptStyle()
) -> str:
    """Render ``messages`` in at most ``size`` estimator tokens.

    The limit of every single text is halved until all fit, so that long texts give way before short ones.
    """
    message_list = list(messages)
    text = render_transcript(message_list, style)
    max_chars = len(text)
    while estimate_text_tokens(text) > size and max_chars > _MIN_TEXT_CHARS:
        max_chars //= 2
        text = render_transcript(message_list, style.cap_lengths(max(_MIN_TEXT_CHARS, max_chars)))
    return clip_text_middle(text, size)


def clip_text_middle(text: str, size: int) -> str:
    """Return start and end of ``text``, about half each, in at most ``size`` estimator tokens."""
    excerpt = text
    max_chars = len(text)
    while (tokens := estimate_text_tokens(excerpt)) > size:
        # In proportion to the excess, and by a quarter at least: tokens are not spread evenly over a text.
        proportional_chars = max_chars * max(0, size) // tokens
        max_chars = min(max_chars * 3 // 4, proportional_chars)
        head, end = take_both_grapheme_ends(text, max_chars, 0.5)
        excerpt = f"{head}\n[...]\n{end}" if max_chars > _MIN_TEXT_CHARS else head
    return excerpt
