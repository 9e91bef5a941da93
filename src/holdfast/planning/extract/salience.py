"""Salience: which references the agent will need again, guessed from how it used them so far."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from itertools import chain

from msgspec import Struct

from holdfast.messages.references import (
    Reference,
    extract_word_references,
    iter_reference_texts,
    load_common_references,
)
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.messages.sized_message import SizedMessage
from holdfast.messages.text.memo import cache_by_text
from holdfast.planning.extract.constants import (
    AGE_DECAY_EXPONENT,
    IDLE_DECAY_EXPONENT,
    LIST_ITEM_WEIGHT,
    MAX_QUOTED_LINE_CHARS,
    REFERENCE_KIND_WEIGHTS,
    SINGLE_USE_WEIGHT,
    UNUSED_IDLE_KTOKENS,
)

_LINE_NUMBER = re.compile(r"^\s*\d+(?:→|\t|: ?)")
_LIST_ITEM = re.compile(r"^\s*(?:[-*•○●] |\d+[.)] |\[[ x]\])")
"""A point of a list: plans, to-dos and requirements are written so."""


class ReferenceLine(Struct, frozen=True):
    """A line that holds references, as it may be quoted."""

    text: str
    refs: tuple[Reference, ...]
    cost: int
    """Estimator tokens."""
    is_list_item: bool = False
    """Whether it is, or belongs to, a point of a list."""


class ReferenceUse(Struct):
    """How often and where a reference stood. Positions are estimator tokens from the start of the head."""

    message_count: int = 0
    use_count: int = 0
    """In how many messages of the agent or the user it stood."""
    last_position: int = 0
    last_used_position: int = -1
    in_list_item: bool = False
    """Whether it stood in a point of a list."""


REFERENCE_BYTES = LINE_BYTES = 128
"""Bytes that a reference takes, and a line beside its text and references. [M]"""


def estimate_line_memory(found_lines: tuple[ReferenceLine, ...]) -> int:
    """Return about how many bytes ``found_lines`` takes."""
    return sum([LINE_BYTES + len(line.text) + REFERENCE_BYTES * len(line.refs) for line in found_lines])


def estimate_reference_memory(found_references: Collection[Reference]) -> int:
    """Return about how many bytes ``found_references`` takes."""
    return REFERENCE_BYTES * len(found_references)


@cache_by_text(estimate_line_memory)
def find_reference_lines(text: str) -> tuple[ReferenceLine, ...]:
    """Return the lines of ``text`` that hold references, trimmed, in order, each once."""
    background_names = load_common_references()
    lines_by_text: dict[str, ReferenceLine] = {}
    for whole in text.split("\n"):
        if not whole or whole.isspace():
            continue
        point = _LIST_ITEM.match(whole) is not None
        for line in _split_quotable_line(_LINE_NUMBER.sub("", whole, count=1).strip()):
            if line in lines_by_text:
                continue
            refs = {
                ref: None
                for piece in line.split()
                for ref in extract_word_references(piece)
                if ref[1] not in background_names
            }
            if refs:
                lines_by_text[line] = ReferenceLine(line, tuple(refs), estimate_text_tokens(line), point)
    return tuple(lines_by_text.values())


def _split_quotable_line(line: str) -> list[str]:
    if len(line) <= MAX_QUOTED_LINE_CHARS:
        return [line]
    out: list[str] = []
    start = 0
    while start < len(line):
        stop = start + MAX_QUOTED_LINE_CHARS
        if stop < len(line):
            space = line.rfind(" ", start + MAX_QUOTED_LINE_CHARS // 2, stop)
            stop = space + 1 if space > 0 else stop
        out.append(line[start:stop].strip())
        start = stop
    return [piece for piece in out if piece]


@cache_by_text(estimate_reference_memory)
def find_distinctive_references(text: str) -> tuple[Reference, ...]:
    """Return the references of ``text`` that are not background, each once, in order of their first appearance."""
    background_names = load_common_references()
    return tuple(
        {
            ref: None
            for piece in text.split()
            for ref in extract_word_references(piece)
            if ref[1] not in background_names
        }
    )


def find_message_references(sized_message: SizedMessage) -> dict[Reference, None]:
    """Return the references of a message as keys, in order of their first appearance."""
    return dict.fromkeys(
        chain.from_iterable(map(find_distinctive_references, iter_reference_texts(sized_message.message)))
    )


@cache_by_text(estimate_reference_memory)
def find_list_references(text: str) -> frozenset[Reference]:
    """Return the references that stand in points of lists in ``text``."""
    return frozenset(ref for line in find_reference_lines(text) if line.is_list_item for ref in line.refs)


def find_message_list_references(sized_message: SizedMessage) -> frozenset[Reference]:
    """Return the references that stand in points of lists in a message."""
    return frozenset().union(*[find_list_references(text) for text in iter_reference_texts(sized_message.message)])


def trace_references(sized_messages: Sequence[SizedMessage]) -> dict[Reference, ReferenceUse]:
    """Return how each reference occurred in ``sized_messages``."""
    traces_by_ref: dict[Reference, ReferenceUse] = {}
    position = 0
    for sized_message in sized_messages:
        position += sized_message.tokens
        points = find_message_list_references(sized_message)
        is_dialogue = sized_message.message.role in {"assistant", "user"}
        for ref in find_message_references(sized_message):
            trace = traces_by_ref.get(ref)
            if trace is None:
                trace = traces_by_ref[ref] = ReferenceUse()
            trace.message_count += 1
            trace.in_list_item = trace.in_list_item or ref in points
            trace.last_position = position
            if is_dialogue:
                trace.use_count += 1
                trace.last_used_position = position
    return traces_by_ref


def weigh_reference(ref: Reference, trace: ReferenceUse, length: int) -> float:
    """Return how likely a reference is needed again, up to a factor; ``length`` is the size of the head in tokens.

    Likelier the more often the agent used it, and the more recently it stood anywhere and was used.
    """
    age = (length - trace.last_position) / 1000
    idle = (length - trace.last_used_position) / 1000 if trace.use_count else UNUSED_IDLE_KTOKENS
    often = (1 + trace.use_count) * (SINGLE_USE_WEIGHT if trace.message_count == 1 and trace.use_count else 1.0)
    plan_factor = LIST_ITEM_WEIGHT if trace.in_list_item else 1.0
    return (
        REFERENCE_KIND_WEIGHTS.get(ref[0], 1.0)
        * plan_factor
        * often
        / (math.pow(1 + age, AGE_DECAY_EXPONENT) * math.pow(1 + idle, IDLE_DECAY_EXPONENT))
    )
