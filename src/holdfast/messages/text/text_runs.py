"""What a message says, part by part, whatever pieces it came in."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

from holdfast.messages.message import Message
from holdfast.messages.parts import Part, Text


def merge_adjacent_texts(message: Message) -> Sequence[Part]:
    """Return the parts of ``message``; what a model says in texts one behind the other is one, as in its ``text``."""
    parts = message.parts
    if message.role != "assistant" or not any(type(first) is type(second) is Text for first, second in pairwise(parts)):
        return parts
    out: list[Part] = []
    for kind, run in groupby(parts, type):
        run_parts = list(run)
        out += [Text("".join([part.text for part in run_parts if type(part) is Text]))] if kind is Text else run_parts
    return out
