"""Weighted characters: a measure of texts that is about four times their tokens, and fast enough to cut texts by.

OpenClaw, whose limits are in characters, counts four characters for a token. That is far too little for Chinese,
Japanese and Korean, where a character is about a token, and for base64 with its 1.6 characters a token; these weigh
more here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.text.memo import cache_by_text

CHARS_PER_TOKEN = 4
"""Characters of plain text for one token (OpenClaw's number)."""
IMAGE_CHARS = 8_000
"""Weight of an image (OpenClaw's number)."""
WEIGHT_CACHE_BYTES = 64 << 20
"""Bytes of texts whose weights are cached: large results are looked at again at each request. Chosen by judgement."""
_UNITS_PER_CHAR = 2
"""Weights are computed in halves of a plain character, to stay with whole numbers."""
_WIDE_UNITS, _BASE64_UNITS = 8, 5
"""Halves that a Chinese, Japanese or Korean character weighs, and one of base64 (measured: 2.5 times plain text)."""
_HEAVY_RUN = re.compile(
    "(?P<wide>[\\u1100-\\u11ff\\u2e80-\\ua4cf\\uac00-\\ud7af\\uf900-\\ufaff\\U00020000-\\U0002fa1f]+)"
    "|(?<![A-Za-z0-9+/])(?=[A-Za-z0-9+/]*[a-z])(?=[A-Za-z0-9+/]*[A-Z])(?=[A-Za-z0-9+/]*[0-9])"
    "[A-Za-z0-9+/]{64,}"
)
"""Runs that weigh more than plain text: wide characters, and 64 or more characters that look like base64."""


class _WeightRun(NamedTuple):
    """A run of characters of the same weight."""

    length: int
    units: int
    """Weight of each character."""


@cache_by_text(lambda _: 0, WEIGHT_CACHE_BYTES)
def weigh_text(text: str) -> int:
    """Return the weighted characters of ``text``, which are at least its characters."""
    units = sum(run.length * run.units for run in _iter_weight_runs(text))
    return math.ceil(units / _UNITS_PER_CHAR)


def count_start_chars(text: str, max_weight: int) -> int:
    """Return how many characters from the start of ``text`` weigh at most ``max_weight`` together."""
    return _count_chars_within(_iter_weight_runs(text), max_weight)


def count_end_chars(text: str, max_weight: int) -> int:
    """Return how many characters from the end of ``text`` weigh at most ``max_weight`` together."""
    return _count_chars_within(reversed(list(_iter_weight_runs(text))), max_weight)


def _iter_weight_runs(text: str) -> Iterator[_WeightRun]:
    position = 0
    for match in _HEAVY_RUN.finditer(text):
        yield _WeightRun(match.start() - position, _UNITS_PER_CHAR)
        yield _WeightRun(match.end() - match.start(), _WIDE_UNITS if match["wide"] else _BASE64_UNITS)
        position = match.end()
    yield _WeightRun(len(text) - position, _UNITS_PER_CHAR)


def _count_chars_within(runs: Iterable[_WeightRun], max_weight: int) -> int:
    char_count, remaining_units = 0, max(0, max_weight) * _UNITS_PER_CHAR
    for run in runs:
        fitting_chars = min(run.length, remaining_units // run.units)
        char_count += fitting_chars
        remaining_units -= fitting_chars * run.units
        if fitting_chars < run.length:
            break
    return char_count


def weigh_message(message: Message, result_factor: int = 1) -> int:
    """Return the weighted characters of ``message``; the text of results counts ``result_factor`` times."""
    return sum(weigh_part(part, result_factor) for part in message.parts)


def weigh_part(part: Part, result_factor: int = 1) -> int:
    """Return the weighted characters of a part; the text of a result counts ``result_factor`` times."""
    if isinstance(part, Text | Thinking):
        return weigh_text(part.text)
    if isinstance(part, ToolCall):
        return weigh_text(part.name) + weigh_text(part.arguments)
    if isinstance(part, ToolResult):
        weight = 0
        for inner in part.content:
            if isinstance(inner, Text):
                weight += result_factor * weigh_text(inner.text)
            else:
                weight += weigh_part(inner)
        return weight
    if isinstance(part, Media):
        return IMAGE_CHARS
    return len(msgspec.json.encode(part))
