"""Weighted characters: a text as long as four times its tokens, without a vocabulary.

[O] counts four characters a token. That is far too little for Chinese, Japanese and Korean, where a character is about
a token, and for base64 with its 1.6 characters a token: those weigh as much as they cost.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

import msgspec

from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.text.memo import cache_by_text

CHARS_PER_TOKEN = 4
"""[O] Characters of plain text that count as a token."""
IMAGE_CHARS = 8_000
"""[O] Weighted characters of an image."""
WEIGHT_CACHE_BYTES = 64 << 20
"""Bytes of the texts whose weights are remembered between requests. [H]"""
_UNITS_PER_CHAR = 2
"""Weights are told in halves of a plain character's."""
_WIDE_UNITS, _BASE64_UNITS = 8, 5
"""Halves that a character of Chinese, Japanese or Korean weighs, and one of base64 (measured: 2.5 x plain text)."""
_HEAVY_RUN = re.compile(
    "(?P<wide>[\\u1100-\\u11ff\\u2e80-\\ua4cf\\uac00-\\ud7af\\uf900-\\ufaff\\U00020000-\\U0002fa1f]+)"
    "|(?<![A-Za-z0-9+/])(?=[A-Za-z0-9+/]*[a-z])(?=[A-Za-z0-9+/]*[A-Z])(?=[A-Za-z0-9+/]*[0-9])"
    "[A-Za-z0-9+/]{64,}"
)
"""Runs that weigh more than plain text: wide characters, and what has the looks of base64."""


@cache_by_text(lambda _: 0, WEIGHT_CACHE_BYTES)
def weigh_text(text: str) -> int:
    """Return the weighted characters of ``text``: never fewer than its characters."""
    return math.ceil(sum((stop - start) * heavy for start, stop, heavy in _iter_weight_runs(text)) / _UNITS_PER_CHAR)


def count_start_chars(text: str, max_weight: int) -> int:
    """Return how many characters from the start of ``text`` weigh no more than ``max_weight``."""
    return _count_chars_within(((stop - start, heavy) for start, stop, heavy in _iter_weight_runs(text)), max_weight)


def count_end_chars(text: str, max_weight: int) -> int:
    """Return how many characters from the end of ``text`` weigh no more than ``max_weight``."""
    return _count_chars_within(
        ((stop - start, heavy) for start, stop, heavy in reversed(list(_iter_weight_runs(text)))), max_weight
    )


def _iter_weight_runs(text: str) -> Iterator[tuple[int, int, int]]:
    """Yield the runs of ``text``: where each starts and stops, and the halves that its characters weigh."""
    at = 0
    for match in _HEAVY_RUN.finditer(text):
        yield at, match.start(), _UNITS_PER_CHAR
        yield match.start(), match.end(), _WIDE_UNITS if match["wide"] else _BASE64_UNITS
        at = match.end()
    yield at, len(text), _UNITS_PER_CHAR


def _count_chars_within(runs: Iterable[tuple[int, int]], max_weight: int) -> int:
    char_count, remaining = 0, max(0, max_weight) * _UNITS_PER_CHAR
    for length, heavy in runs:
        fits = min(length, remaining // heavy)
        char_count += fits
        remaining -= fits * heavy
        if fits < length:
            break
    return char_count


def weigh_message(message: Message, result_factor: int = 1) -> int:
    """Return the weighted characters of ``message``; those of results count ``result_factor`` times."""
    return sum(weigh_part(part, result_factor) for part in message.parts)


def weigh_part(part: Part, result_factor: int = 1) -> int:
    """Return the weighted characters of one part: its words, an image's size, a result's ``result_factor`` times."""
    if isinstance(part, Text | Thinking):
        return weigh_text(part.text)
    if isinstance(part, ToolCall):
        return weigh_text(part.name) + weigh_text(part.arguments)
    if isinstance(part, ToolResult):
        return sum(
            result_factor * weigh_text(inner.text) if isinstance(inner, Text) else weigh_part(inner)
            for inner in part.content
        )
    return IMAGE_CHARS if isinstance(part, Media) else len(msgspec.json.encode(part))
