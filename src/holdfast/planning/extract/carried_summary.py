"""An earlier summary, carried on by an extract: whole where it fits, else section by section, constraints first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.extract.previous_summary import PARTLY_OMITTED_TEXT, PREVIOUS_SUMMARY_OPENING
from holdfast.planning.extract.user_words import OMISSION_MARK, select_excerpts

PREVIOUS_SUMMARY_SHARE = 0.5
"""[H] Of the budget of an extract, for the summary that it carries on: nothing else is left of what that tells."""
MIN_PREVIOUS_SUMMARY_TOKENS = 400
"""[H] Estimator tokens for it, as far as the budget goes, however small that share is."""
_FRAME_LINES_TOKENS = 30
"""Estimator tokens of the lines around it."""
SECTION_CHARS_PER_TOKEN = 4
"""[H] Characters of a section that is cut as one, for each token of the budget."""
_SECTION_START = re.compile(r"^(?=#{1,6} |\d{1,2}\. \S|<\w+>[ \t]*$|\*\*[^*\n]+\*\*:?[ \t]*$)", re.MULTILINE)
"""Where a section begins: a heading, a number, a tag or a bold line at the start of a line."""
_CONSTRAINT_HEADING = re.compile(
    r"constraint|preference|requirement|instruction|rule|user message|important", re.IGNORECASE
)
_STATE_HEADING = re.compile(
    r"pending|current|next|in progress|active|blocked|goal|objective|intent|request|task", re.IGNORECASE
)
"""What the heading of a section says that lays something down, and of one that says what is to be done."""


def render_previous_summary(summary: str, budget: int) -> str:
    """Return ``summary`` under a line of ours, in at most about ``budget`` tokens, or nothing where there is no room.

    What is cut is marked where it stood, and told of at the end.
    """
    room = budget - _FRAME_LINES_TOKENS
    if not summary.strip() or room <= 0:
        return ""
    if estimate_text_tokens(summary) <= room:
        return PREVIOUS_SUMMARY_OPENING + summary
    return f"{PREVIOUS_SUMMARY_OPENING}{_fit_sections(summary, room)}\n{PARTLY_OMITTED_TEXT}"


def _fit_sections(summary: str, budget: int) -> str:
    """Return what the sections of ``summary`` say in so many tokens: each has its share, in the order of their rank."""
    sections = [text for text in _split_into_sections(summary, SECTION_CHARS_PER_TOKEN * budget) if text.strip()]
    order = sorted(range(len(sections)), key=lambda at: _rank_section(sections[at]))
    laws = sum(_rank_section(text) == 0 for text in sections)
    quotes = select_excerpts(
        [sections[at] for at in order], budget, message_share=1 / len(sections), rule_texts=range(laws)
    )
    texts = [text for _, text in sorted(zip(order, quotes, strict=True))]
    return "\n".join(
        [line for is_there, run in groupby(texts, bool) for line in (run if is_there else (OMISSION_MARK,))]
    )


def _split_into_sections(summary: str, longest: int) -> Iterator[str]:
    """Yield the sections of ``summary``; one that is longer than so many characters in pieces of whole lines."""
    pieces = re.compile(rf".{{1,{longest}}}(?:\n|\Z)|.{{1,{longest}}}", re.DOTALL)
    for section in _SECTION_START.split(summary):
        yield from pieces.findall(section)


def _rank_section(section: str) -> int:
    """Return 0 for what lays something down, 1 for what is to be done, else 2."""
    heading = section.partition("\n")[0][:80]
    return 0 if _CONSTRAINT_HEADING.search(heading) else 1 if _STATE_HEADING.search(heading) else 2
