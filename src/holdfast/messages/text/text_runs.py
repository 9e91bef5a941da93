"""The parts of a message, independent of the pieces its text arrived in."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

from holdfast.messages.message import Message
from holdfast.messages.parts import Part, Text


def merge_adjacent_texts(message: Message) -> Sequence[Part]:
    """Return the parts of ``message``, with adjacent texts of an answer merged into one as in ``Message.text``."""
    parts = message.parts
    if message.role != "assistant":
        return parts
    has_adjacent_texts = any(type(first) is type(second) is Text for first, second in pairwise(parts))
    if not has_adjacent_texts:
        return parts
    merged: list[Part] = []
    for part_type, run in groupby(parts, type):
        if part_type is Text:
            texts = [part.text for part in run if type(part) is Text]
            merged.append(Text("".join(texts)))
        else:
            merged += run
    return merged
