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
from holdfast.messages.text.memo import remembered

CHARS_A_TOKEN = 4
"""[O] Characters of plain text that count as a token."""
IMAGE_CHARS = 8_000
"""[O] Weighted characters of an image."""
KNOWN_BYTES = 64 << 20
"""Bytes of the texts whose weights are remembered between requests. [H]"""
_HALVES = 2
"""Weights are told in halves of a plain character's."""
_WIDE, _DENSE = 8, 5
"""Halves that a character of Chinese, Japanese or Korean weighs, and one of base64 (measured: 2.5 x plain text)."""
_HEAVY = re.compile(
    "(?P<wide>[\\u1100-\\u11ff\\u2e80-\\ua4cf\\uac00-\\ud7af\\uf900-\\ufaff\\U00020000-\\U0002fa1f]+)"
    "|(?<![A-Za-z0-9+/])(?=[A-Za-z0-9+/]*[a-z])(?=[A-Za-z0-9+/]*[A-Z])(?=[A-Za-z0-9+/]*[0-9])"
    "[A-Za-z0-9+/]{64,}"
)
"""Runs that weigh more than plain text: wide characters, and what has the looks of base64."""


@remembered(lambda _: 0, KNOWN_BYTES)
def weight(text: str) -> int:
    """Return the weighted characters of ``text``: never fewer than its characters."""
    return math.ceil(sum((stop - start) * heavy for start, stop, heavy in _runs(text)) / _HALVES)


def head_within(text: str, most: int) -> int:
    """Return how many characters from the start of ``text`` weigh no more than ``most``."""
    return _reach(((stop - start, heavy) for start, stop, heavy in _runs(text)), most)


def tail_within(text: str, most: int) -> int:
    """Return how many characters from the end of ``text`` weigh no more than ``most``."""
    return _reach(((stop - start, heavy) for start, stop, heavy in reversed(list(_runs(text)))), most)


def _runs(text: str) -> Iterator[tuple[int, int, int]]:
    """Yield the runs of ``text``: where each starts and stops, and the halves that its characters weigh."""
    at = 0
    for found in _HEAVY.finditer(text):
        yield at, found.start(), _HALVES
        yield found.start(), found.end(), _WIDE if found["wide"] else _DENSE
        at = found.end()
    yield at, len(text), _HALVES


def _reach(runs: Iterable[tuple[int, int]], most: int) -> int:
    reached, left = 0, max(0, most) * _HALVES
    for length, heavy in runs:
        fits = min(length, left // heavy)
        reached += fits
        left -= fits * heavy
        if fits < length:
            break
    return reached


def weigh(message: Message, tool: int = 1) -> int:
    """Return the weighted characters of ``message``; those of results count ``tool`` times."""
    return sum(weigh_part(part, tool) for part in message.parts)


def weigh_part(part: Part, tool: int = 1) -> int:
    """Return the weighted characters of one part: its words, an image's size, a result's ``tool`` times."""
    if isinstance(part, Text | Thinking):
        return weight(part.text)
    if isinstance(part, ToolCall):
        return weight(part.name) + weight(part.arguments)
    if isinstance(part, ToolResult):
        return sum(tool * weight(one.text) if isinstance(one, Text) else weigh_part(one) for one in part.content)
    return IMAGE_CHARS if isinstance(part, Media) else len(msgspec.json.encode(part))
