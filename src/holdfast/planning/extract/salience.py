"""Salience: which references the agent will need again, guessed from how it used them so far."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from itertools import chain

from msgspec import Struct

from holdfast.messages.references import Reference, background, of_piece, words
from holdfast.messages.size.tokens import count
from holdfast.messages.sized_message import Slot
from holdfast.messages.text.memo import remembered
from holdfast.planning.settings import AGE_POWER, IDLE_POWER, KINDS, LONGEST_LINE, ONCE, POINT, UNUSED_AGE

_NUMBERED = re.compile(r"^\s*\d+(?:→|\t|: ?)")
_POINT = re.compile(r"^\s*(?:[-*•○●] |\d+[.)] |\[[ x]\])")
"""A point of a list: plans, to-dos and requirements are written so."""


class Line(Struct, frozen=True):
    """A line that holds references, as it may be quoted."""

    text: str
    refs: tuple[Reference, ...]
    cost: int
    """Estimator tokens."""
    point: bool = False
    """Whether it is, or belongs to, a point of a list."""


class Trace(Struct):
    """How often and where a reference stood. Positions are estimator tokens from the start of the head."""

    messages: int = 0
    used: int = 0
    """In how many messages of the agent or the user it stood."""
    last: int = 0
    last_used: int = -1
    point: bool = False
    """Whether it stood in a point of a list."""


REFERENCE_BYTES = LINE_BYTES = 128
"""Bytes that a reference takes, and a line beside its text and references. [M]"""


def lines_bytes(found: tuple[Line, ...]) -> int:
    """Return about how many bytes ``found`` takes."""
    return sum([LINE_BYTES + len(line.text) + REFERENCE_BYTES * len(line.refs) for line in found])


def refs_bytes(found: Collection[Reference]) -> int:
    """Return about how many bytes ``found`` takes."""
    return REFERENCE_BYTES * len(found)


@remembered(lines_bytes)
def lines(text: str) -> tuple[Line, ...]:
    """Return the lines of ``text`` that hold references, trimmed, in order, each once."""
    known = background()
    found: dict[str, Line] = {}
    for whole in text.split("\n"):
        if not whole or whole.isspace():
            continue
        point = _POINT.match(whole) is not None
        for line in _pieces(_NUMBERED.sub("", whole, count=1).strip()):
            if line in found:
                continue
            refs = {ref: None for piece in line.split() for ref in of_piece(piece) if ref[1] not in known}
            if refs:
                found[line] = Line(line, tuple(refs), count(line), point)
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


@remembered(refs_bytes)
def text_refs(text: str) -> tuple[Reference, ...]:
    """Return the references of ``text`` that are not background, each once, in order of their first appearance."""
    known = background()
    return tuple({ref: None for piece in text.split() for ref in of_piece(piece) if ref[1] not in known})


def message_refs(slot: Slot) -> dict[Reference, None]:
    """Return the references of a message as keys, in order of their first appearance."""
    return dict.fromkeys(chain.from_iterable(map(text_refs, words(slot.message))))


@remembered(refs_bytes)
def text_points(text: str) -> frozenset[Reference]:
    """Return the references that stand in points of lists in ``text``."""
    return frozenset(ref for line in lines(text) if line.point for ref in line.refs)


def message_points(slot: Slot) -> frozenset[Reference]:
    """Return the references that stand in points of lists in a message."""
    return frozenset().union(*[text_points(text) for text in words(slot.message)])


def traces(slots: Sequence[Slot]) -> dict[Reference, Trace]:
    """Return how each reference occurred in ``slots``."""
    found: dict[Reference, Trace] = {}
    position = 0
    for slot in slots:
        position += slot.size
        points = message_points(slot)
        spoken = slot.message.role in {"assistant", "user"}
        for ref in message_refs(slot):
            trace = found.get(ref)
            if trace is None:
                trace = found[ref] = Trace()
            trace.messages += 1
            trace.point = trace.point or ref in points
            trace.last = position
            if spoken:
                trace.used += 1
                trace.last_used = position
    return found


def weigh(ref: Reference, trace: Trace, length: int) -> float:
    """Return how likely a reference is needed again, up to a factor; ``length`` is the size of the head in tokens.

    Likelier the more often the agent used it, and the more recently it stood anywhere and was used.
    """
    age = (length - trace.last) / 1000
    idle = (length - trace.last_used) / 1000 if trace.used else UNUSED_AGE
    often = (1 + trace.used) * (ONCE if trace.messages == 1 and trace.used else 1.0)
    planned = POINT if trace.point else 1.0
    return KINDS.get(ref[0], 1.0) * planned * often / (math.pow(1 + age, AGE_POWER) * math.pow(1 + idle, IDLE_POWER))
