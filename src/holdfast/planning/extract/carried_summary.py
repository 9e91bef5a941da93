"""An earlier summary, carried on by an extract: whole where it fits, else section by section, constraints first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

from holdfast.messages.size.tokens import count
from holdfast.planning.extract.previous_summary import CARRIED, LEFT_OUT
from holdfast.planning.extract.user_words import GAP, excerpts

SHARE = 0.5
"""[H] Of the budget of an extract, for the summary that it carries on: nothing else is left of what that tells."""
LEAST = 400
"""[H] Estimator tokens for it, as far as the budget goes, however small that share is."""
_LINE = 30
"""Estimator tokens of the lines around it."""
LONGEST = 4
"""[H] Characters of a section that is cut as one, for each token of the budget."""
_SECTION = re.compile(r"^(?=#{1,6} |\d{1,2}\. \S|<\w+>[ \t]*$|\*\*[^*\n]+\*\*:?[ \t]*$)", re.MULTILINE)
"""Where a section begins: a heading, a number, a tag or a bold line at the start of a line."""
_LAWS = re.compile(r"constraint|preference|requirement|instruction|rule|user message|important", re.IGNORECASE)
_STATE = re.compile(
    r"pending|current|next|in progress|active|blocked|goal|objective|intent|request|task", re.IGNORECASE
)
"""What the heading of a section says that lays something down, and of one that says what is to be done."""


def carried(summary: str, budget: int) -> str:
    """Return ``summary`` under a line of ours, in at most about ``budget`` tokens, or nothing where there is no room.

    What is cut is marked where it stood, and told of at the end.
    """
    room = budget - _LINE
    if not summary.strip() or room <= 0:
        return ""
    if count(summary) <= room:
        return CARRIED + summary
    return f"{CARRIED}{_within(summary, room)}\n{LEFT_OUT}"


def _within(summary: str, budget: int) -> str:
    """Return what the sections of ``summary`` say in so many tokens: each has its share, in the order of their rank."""
    sections = [text for text in _sections(summary, LONGEST * budget) if text.strip()]
    ranked = sorted(range(len(sections)), key=lambda at: _rank(sections[at]))
    laws = sum(_rank(text) == 0 for text in sections)
    told = excerpts([sections[at] for at in ranked], budget, each=1 / len(sections), laws=range(laws))
    held = [text for _, text in sorted(zip(ranked, told, strict=True))]
    return "\n".join([one for is_there, run in groupby(held, bool) for one in (run if is_there else (GAP,))])


def _sections(summary: str, longest: int) -> Iterator[str]:
    """Yield the sections of ``summary``; one that is longer than so many characters in pieces of whole lines."""
    pieces = re.compile(rf".{{1,{longest}}}(?:\n|\Z)|.{{1,{longest}}}", re.DOTALL)
    for section in _SECTION.split(summary):
        yield from pieces.findall(section)


def _rank(section: str) -> int:
    """Return 0 for what lays something down, 1 for what is to be done, else 2."""
    heading = section.partition("\n")[0][:80]
    return 0 if _LAWS.search(heading) else 1 if _STATE.search(heading) else 2
