"""Salience: which references the agent will need again, guessed from how it used them so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from msgspec import Struct

from holdfast.model.slots import Slot
from holdfast.view.references import Reference, background, of_piece, words

LONGEST_LINE = 240
"""A longer line is cut into pieces of this many characters (no evidence window is wider)."""


class Line(Struct, frozen=True):
    """A line that holds references, as it may be quoted."""

    text: str
    refs: tuple[Reference, ...]


class Trace(Struct):
    """How often and where a reference stood. Positions are estimator tokens from the start of the head."""

    messages: int = 0
    used: int = 0
    """In how many messages of the agent or the user it stood."""
    last: int = 0
    last_used: int = -1


@lru_cache(maxsize=1 << 14)
def lines(text: str) -> tuple[Line, ...]:
    """Return the lines of ``text`` that hold references, trimmed, in order, each once."""
    known = background()
    found: dict[str, Line] = {}
    for whole in text.split("\n"):
        if not whole or whole.isspace():
            continue
        for line in _pieces(whole.strip()):
            if line in found:
                continue
            refs = {ref: None for piece in line.split() for ref in of_piece(piece) if ref[1] not in known}
            if refs:
                found[line] = Line(line, tuple(refs))
    return tuple(found.values())


def _pieces(line: str) -> list[str]:
    if len(line) <= LONGEST_LINE:
        return [line]
    out: list[str] = []
    start = 0
    while start < len(line):
        stop = start + LONGEST_LINE
        if stop < len(line):
            space = line.rfind(" ", start + LONGEST_LINE // 2, stop)
            stop = space + 1 if space > 0 else stop
        out.append(line[start:stop].strip())
        start = stop
    return [piece for piece in out if piece]


@lru_cache(maxsize=1 << 14)
def text_refs(text: str) -> frozenset[Reference]:
    """Return the references of ``text`` that are not background."""
    known = background()
    return frozenset({ref for piece in text.split() for ref in of_piece(piece) if ref[1] not in known})


def message_refs(slot: Slot) -> set[Reference]:
    """Return the references of a message."""
    found: set[Reference] = set()
    for text in words(slot.message):
        found |= text_refs(text)
    return found


def traces(slots: Sequence[Slot]) -> dict[Reference, Trace]:
    """Return how each reference occurred in ``slots``."""
    found: dict[Reference, Trace] = {}
    position = 0
    for slot in slots:
        position += slot.size
        spoken = slot.message.role in {"assistant", "user"}
        for ref in message_refs(slot):
            trace = found.get(ref)
            if trace is None:
                trace = found[ref] = Trace()
            trace.messages += 1
            trace.last = position
            if spoken:
                trace.used += 1
                trace.last_used = position
    return found


def weigh(trace: Trace, length: int) -> float:
    """Return how much a reference is worth keeping; ``length`` is the size of the head in tokens."""
    if trace.messages == 1 and trace.used == 0:
        base = 0.15
    else:
        base = math.log1p(trace.messages) + 2 * math.log1p(trace.used)
    return base * (1 + trace.last / max(1, length))
