"""Carry an earlier summary on in an extract: whole where it fits, else section by section, constraints first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.extract.previous_summary import PARTLY_OMITTED_TEXT, PREVIOUS_SUMMARY_OPENING
from holdfast.planning.extract.user_words import OMISSION_MARK, select_excerpts

PREVIOUS_SUMMARY_SHARE = 0.5
"""Share of an extract for the summary that it carries on. Nothing else is left of the turns which that summary covers,
so it may take as much as everything since; the other half keeps the newer work from being crowded out. Chosen by
judgement."""
MIN_PREVIOUS_SUMMARY_TOKENS = 400
"""Estimator tokens for the carried summary however small its share is, as far as the whole budget goes: in a small
window the share alone would leave too little of it to be of use. Chosen by judgement."""
SECTION_CHARS_PER_TOKEN = 4
"""Characters for each token of the budget beyond which a section is cut up before sentences are chosen from it. Four
characters are about one token, so a longer section could never be quoted whole. Chosen by judgement."""

# Estimator tokens of the opening line and of the line about omitted parts.
_FRAME_LINES_TOKENS = 30

# Clients structure their summaries differently: a Markdown heading, a numbered point, an XML-like tag on its own line,
# or a bold line begins a section. The lookahead keeps the heading in the section that it begins.
_SECTION_START = re.compile(r"^(?=#{1,6} |\d{1,2}\. \S|<\w+>[ \t]*$|\*\*[^*\n]+\*\*:?[ \t]*$)", re.MULTILINE)

_CONSTRAINT_HEADING = re.compile(
    r"constraint|preference|requirement|instruction|rule|user message|important", re.IGNORECASE
)
_STATE_HEADING = re.compile(
    r"pending|current|next|in progress|active|blocked|goal|objective|intent|request|task", re.IGNORECASE
)

# Ranks of a section when not all fit. Constraints outlive everything: nothing after them repeats a rule. Then comes the
# state of the work, then history.
_CONSTRAINT_RANK, _STATE_RANK, _OTHER_RANK = 0, 1, 2


def render_previous_summary(summary: str, budget: int) -> str:
    """Return ``summary`` below our opening line, in at most about ``budget`` estimator tokens.

    Each cut is marked where it was made, and a last line says that parts are missing. Return an empty string if the
    summary is blank or the budget has no room beside the opening line.
    """
    section_budget = budget - _FRAME_LINES_TOKENS
    if not summary.strip() or section_budget <= 0:
        return ""
    if estimate_text_tokens(summary) <= section_budget:
        return PREVIOUS_SUMMARY_OPENING + summary
    return f"{PREVIOUS_SUMMARY_OPENING}{_fit_sections(summary, section_budget)}\n{PARTLY_OMITTED_TEXT}"


def _fit_sections(summary: str, budget: int) -> str:
    """Shorten the sections of ``summary`` to ``budget`` tokens together; adjacent omitted ones share one mark."""
    pieces = _split_into_sections(summary, SECTION_CHARS_PER_TOKEN * budget)
    sections = [section for section in pieces if section.strip()]
    excerpts = _select_section_excerpts(sections, budget)

    lines: list[str] = []
    is_after_omission = False
    for excerpt in excerpts:
        if excerpt:
            lines.append(excerpt)
        elif not is_after_omission:
            lines.append(OMISSION_MARK)
        is_after_omission = not excerpt
    return "\n".join(lines)


def _select_section_excerpts(sections: Sequence[str], budget: int) -> list[str]:
    """Return an excerpt of each section, in the order of ``sections``; empty for those that do not fit."""
    ranks = [_rank_section(section) for section in sections]
    # Excerpts are chosen in the order of the ranks and shown in the order of the summary, so the order is kept to undo
    # it. The sort is stable: sections of one rank compete in the order they stood in.
    order_by_rank = sorted(range(len(sections)), key=ranks.__getitem__)
    ranked_excerpts = select_excerpts(
        [sections[index] for index in order_by_rank],
        budget,
        message_share=1 / len(sections),
        rule_texts=range(ranks.count(_CONSTRAINT_RANK)),
    )
    excerpts = [""] * len(sections)
    for index, excerpt in zip(order_by_rank, ranked_excerpts, strict=True):
        excerpts[index] = excerpt
    return excerpts


def _split_into_sections(summary: str, max_chars: int) -> Iterator[str]:
    """Yield the sections of ``summary``; cut those over ``max_chars`` into pieces, at line ends if possible."""
    pieces = re.compile(rf".{{1,{max_chars}}}(?:\n|\Z)|.{{1,{max_chars}}}", re.DOTALL)
    for section in _SECTION_START.split(summary):
        yield from pieces.findall(section)


def _rank_section(section: str) -> int:
    """Return the rank of a section by the words of its heading; a lower rank is quoted first."""
    heading = section.partition("\n")[0][:80]
    if _CONSTRAINT_HEADING.search(heading):
        return _CONSTRAINT_RANK
    if _STATE_HEADING.search(heading):
        return _STATE_RANK
    return _OTHER_RANK
