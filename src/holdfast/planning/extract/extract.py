"""The extract: a summary made without a model, from the log, by quoting it.

The user's words verbatim, a ledger of files and commands, decisions by cue phrases, and *coverage lines*: a greedy
weighted cover of the references that the agent is likely to need, by the lines they stood in.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Part, ToolCall, ToolResult
from holdfast.messages.references import Reference, iter_part_texts
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.messages.sized_message import SizedMessage
from holdfast.messages.text.text_cuts import flatten_to_line
from holdfast.messages.text.text_runs import merge_adjacent_texts
from holdfast.planning.extract.constants import (
    MAX_SCANNED_TOKENS,
    RECALL_POINTER_CHARS,
    SUMMARY_DECISION_SHARE,
    SUMMARY_LEDGER_SHARE,
    SUMMARY_POINTER_SHARE,
)
from holdfast.planning.extract.ledger import (
    ToolAction,
    describe_tool_call,
    format_command_lines,
    format_file_lines,
    list_tool_actions,
)
from holdfast.planning.extract.max_coverage import select_max_coverage
from holdfast.planning.extract.salience import (
    ReferenceLine,
    find_distinctive_references,
    find_message_references,
    find_reference_lines,
    trace_references,
    weigh_reference,
)
from holdfast.planning.extract.user_words import quote_user_messages
from holdfast.planning.settings import Settings

EXTRACT_PREFACE = (
    "The conversation before this point was replaced by this extract of it ({messages} messages), made from the log "
    "without a model. Quoted lines are verbatim; whatever is not here can be read back with recall."
)
EXTRACT_OPENING = EXTRACT_PREFACE.partition("{")[0]
"""How every extract begins."""
SUPPLEMENT_OPENING = "Beside the summary, from the log and verbatim:"
_CONTINUE_BELOW_TEXT = "(continue from the messages below)"
_NO_TAIL_TEXT = "(no messages follow: continue with the newest request above)"
"""What the section of next steps says, with a kept tail and without one."""
LINE_OVERHEAD_TOKENS = 2
"""A line costs its own tokens and about this many for its bullet and newline."""
_DECISION_CUES = re.compile(
    r"\b(?:decid|instead of|because|must not|must|never|always|root cause|the (?:fix|problem|issue|reason) is|"
    r"turns out|important|so (?:I|we)(?:'ll| will)|the plan|approach)|必须|不要|禁止|务必|优先|原因|决定|因此|修复",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?。!?])\s+|\n+")


def build_extract(
    head: Sequence[SizedMessage],
    tail: Sequence[SizedMessage],
    budget: int,
    settings: Settings = Settings(),
    visible_text: str = "",
) -> str:
    """Return a summary of ``head`` in at most ``budget`` estimator tokens, the newest request apart.

    The settings give each section a share; what one leaves over goes to the coverage lines. ``tail`` and
    ``visible_text`` are what stays visible behind it: a reference that stands there needs no line here.
    """
    return _render_extract(
        len(head),
        _collect_extract_sections(head, tail, budget, settings, visible_text),
        _CONTINUE_BELOW_TEXT if tail else _NO_TAIL_TEXT,
    )


def build_supplement(
    head: Sequence[SizedMessage], tail: Sequence[SizedMessage], written_summary: str, budget: int, settings: Settings
) -> str:
    """Return what ``written_summary``, a summary of ``head`` that somebody wrote, leaves uncovered, in about ``budget``
    tokens.

    That is the user's words, the ledger and coverage lines for references that stand neither in it nor in ``tail``.
    """
    return _render_supplement(
        _collect_extract_sections(head, tail, budget, settings, written_summary, with_decisions=False)
    )


def _collect_extract_sections(
    head: Sequence[SizedMessage],
    tail: Sequence[SizedMessage],
    budget: int,
    settings: Settings,
    visible_text: str = "",
    *,
    with_decisions: bool = True,
) -> ExtractSections:
    """Return what an extract says of ``head`` beside ``visible_text``."""
    every = [sized_message.message for sized_message in head]
    head = take_newest_messages(head, MAX_SCANNED_TOKENS)
    messages = every[len(every) - len(head) :]
    actions = list(list_tool_actions(messages))
    ledger = budget * SUMMARY_LEDGER_SHARE
    decision_tokens = int(budget * SUMMARY_DECISION_SHARE) if with_decisions else 0
    is_open = not any(sized_message.message.is_turn_start for sized_message in tail)
    goal, constraints = quote_user_messages(every, int(budget * settings.summary.user_share), is_open=is_open)
    errors = [flatten_to_line(action.error, 200) for action in actions[-30:] if action.has_failed and action.error][-3:]
    sections = ExtractSections(
        goal=goal,
        constraints=constraints,
        commands=_take_within_budget(format_command_lines(actions), int(ledger * 0.4)),
        errors=errors,
        decisions=_take_within_budget(_find_decisions(messages), decision_tokens),
        files=_take_within_budget(format_file_lines(actions), int(ledger * 0.6)),
    )
    spent = sum(estimate_text_tokens(text) + LINE_OVERHEAD_TOKENS for text in sections.texts) + HEADINGS_TOKENS
    spare = int(budget * SUMMARY_POINTER_SHARE)
    weights = _weigh_unshown_references(
        head,
        {ref for sized_message in tail for ref in find_message_references(sized_message)}.union(
            *map(find_distinctive_references, [visible_text, *sections.texts])
        ),
    )
    quotes, covered_refs = select_coverage_lines(head, weights, budget - spent - spare)
    open_refs = {ref: weight for ref, weight in weights.items() if ref not in covered_refs}
    all_text = "\n".join([visible_text, *sections.texts, *quotes])
    handles = _take_within_budget(select_result_pointers(head, actions, open_refs, all_text), spare)
    return replace(sections, quotes=quotes, pointers=handles)


HEADINGS_TOKENS = 120
"""Estimator tokens of the preface and the section headings."""


def take_newest_messages(messages: Sequence[SizedMessage], size: int) -> Sequence[SizedMessage]:
    """Return the newest of ``messages`` that are together within ``size``; at least one."""
    start = len(messages)
    while start and (size := size - messages[start - 1].tokens) >= 0:
        start -= 1
    return messages[min(start, len(messages) - 1) :]


class ExtractSections(Struct, frozen=True):
    """What an extract says, section by section; each item is a line or a quoted text."""

    goal: list[str]
    constraints: list[str]
    commands: list[str]
    errors: list[str]
    decisions: list[str]
    files: list[str]
    quotes: list[str] = []
    pointers: list[str] = []

    @property
    def texts(self) -> list[str]:
        """Every item that is not a coverage line."""
        return [*self.goal, *self.constraints, *self.commands, *self.errors, *self.decisions, *self.files]


def _render_extract(messages: int, sections: ExtractSections, next_steps: str) -> str:
    return "\n".join(
        [
            EXTRACT_PREFACE.format(messages=messages),
            "## Goal\n" + _render_list(sections.goal, ""),
            "## Constraints & Preferences\n" + _render_list(sections.constraints, ""),
            "## Progress\n### Done\n" + _render_list(sections.commands),
            "### In Progress\n(none)\n### Blocked\n" + _render_list(sections.errors),
            "## Key Decisions\n" + _render_list(sections.decisions),
            f"## Next Steps\n{next_steps}",
            "## Critical Context\n" + _render_list(sections.quotes, ""),
            "## Relevant Files\n" + _render_list([*sections.files, *sections.pointers]),
        ]
    )


def _render_supplement(sections: ExtractSections) -> str:
    """Return the sections that hold anything, each under its name."""
    groups = (
        ("The user's words", [*sections.goal, *sections.constraints], ""),
        ("Commands", sections.commands, "- "),
        ("Errors", sections.errors, "- "),
        ("Lines", sections.quotes, ""),
        ("Files", [*sections.files, *sections.pointers], "- "),
    )
    blocks = [f"## {name}\n{_render_list(items, bullet)}" for name, items, bullet in groups if items]
    return "\n".join([SUPPLEMENT_OPENING, *blocks]) if blocks else ""


def _render_list(items: Iterable[str], bullet: str = "- ") -> str:
    return "\n".join(bullet + item for item in items) or "(none)"


def _take_within_budget(candidates: Iterable[str], budget: int) -> list[str]:
    """Return the first candidates that fit the budget together."""
    out: list[str] = []
    for text in candidates:
        budget -= estimate_text_tokens(text) + LINE_OVERHEAD_TOKENS
        if budget < 0:
            break
        out.append(text)
    return out


# -- decisions ---------------------------------------------------------------------------------------------------------


def _find_decisions(messages: Sequence[Message]) -> list[str]:
    """Return sentences of the agent that say why or what was decided, newest first."""
    decisions: list[str] = []
    for message in reversed(messages):
        if message.role == "assistant":
            sentences = _SENTENCE.split(message.text)
            decisions += [
                flatten_to_line(s, 200) for s in reversed(sentences) if 30 <= len(s) <= 400 and _DECISION_CUES.search(s)
            ]
    return list(dict.fromkeys(decisions))


# -- coverage lines ----------------------------------------------------------------------------------------------------


class QuotableLine(Struct, frozen=True):
    """A line of the head that may be quoted: where it stood, what it costs."""

    place: tuple[int, int, int]
    line: ReferenceLine
    cost: int


def select_coverage_lines(
    head: Sequence[SizedMessage], weights: dict[Reference, float], budget: int
) -> tuple[list[str], set[Reference]]:
    """Return lines of ``head`` that cover the heaviest references, in order, and the references they cover.

    With the headings that tell where they stood they are within ``budget``.
    """
    chosen = _select_quotes(_find_quotable_lines(head, weights), weights, budget)
    calls = {call.id: call for sized_message in head for call in sized_message.message.calls}

    def told(number: int) -> list[str]:
        return _group_quotes_by_source(head, calls, sorted(chosen[:number], key=lambda quote: quote.place))

    def size(number: int) -> int:
        return estimate_text_tokens("\n".join(told(number)))

    every = len(chosen)
    quote_count = every if size(every) <= budget else bisect(range(1, every), budget, key=size)
    return told(quote_count), {ref for quote in chosen[:quote_count] for ref in quote.line.refs if ref in weights}


def _weigh_unshown_references(head: Sequence[SizedMessage], visible_refs: set[Reference]) -> dict[Reference, float]:
    length = sum(sized_message.tokens for sized_message in head)
    return {
        ref: weigh_reference(ref, trace, length)
        for ref, trace in trace_references(head).items()
        if ref not in visible_refs
    }


def _find_quotable_lines(head: Sequence[SizedMessage], weights: dict[Reference, float]) -> list[QuotableLine]:
    """Return each distinct line that holds a wanted reference, at its newest place."""
    newest: dict[str, QuotableLine] = {}
    wanted_refs = weights.keys()
    for index, sized_message in enumerate(head):
        for place, part in enumerate(merge_adjacent_texts(sized_message.message)):
            number = 0
            for text in iter_part_texts(part):
                for line in find_reference_lines(text):
                    number += 1
                    if not wanted_refs.isdisjoint(line.refs):
                        newest[line.text] = QuotableLine((index, place, number), line, line.cost + LINE_OVERHEAD_TOKENS)
    return list(newest.values())


def _select_quotes(quotes: list[QuotableLine], weights: dict[Reference, float], budget: int) -> list[QuotableLine]:
    """Return the quotes that cover most for their cost within the budget, the best first."""
    numbers = select_max_coverage([(quote.line.refs, quote.cost) for quote in quotes], dict(weights), budget)
    return [quotes[number] for number in numbers]


def _group_quotes_by_source(
    head: Sequence[SizedMessage], calls: dict[str, ToolCall], quotes: Sequence[QuotableLine]
) -> list[str]:
    """Return the lines in order, with a heading wherever they come from another result."""
    out: list[str] = []
    source = ""
    for quote in quotes:
        heading = _describe_source(merge_adjacent_texts(head[quote.place[0]].message)[quote.place[1]], calls)
        if heading and heading != source:
            out.append(f"[{heading}]")
            source = heading
        out.append(quote.line.text)
    return out


def _describe_source(part: Part, calls: dict[str, ToolCall]) -> str:
    call = calls.get(part.call_id) if isinstance(part, ToolResult) else part
    if not isinstance(call, ToolCall):
        return ""
    action = describe_tool_call(call)
    return (
        "/".join(action.subject.split("/")[-2:])
        if action.is_file_action
        else flatten_to_line(f"{action.tool} {action.subject}", 48)
    )


# -- pointers ----------------------------------------------------------------------------------------------------------


def select_result_pointers(
    head: Sequence[SizedMessage], actions: Sequence[ToolAction], weights: dict[Reference, float], named_text: str
) -> Iterator[str]:
    """Yield names of results worth reading again, best first: each covers references that nothing else does.

    A result is named by its path where it has one, else by its call id. Those that ``named_text`` names already come
    for nothing and are taken first.
    """
    remaining = dict(weights)
    texts = {
        result.call_id: get_result_text(result)[:RECALL_POINTER_CHARS]
        for sized_message in head
        for result in sized_message.message.results
    }
    candidates: list[tuple[ToolAction, list[Reference]]] = []
    for action in actions:
        refs = [ref for ref in find_distinctive_references(texts.get(action.call_id, "")) if ref in remaining]
        if _get_recall_handle(action) in named_text:
            for ref in refs:
                del remaining[ref]
        elif refs:
            candidates.append((action, refs))
    for number in select_max_coverage([(refs, 1) for _, refs in candidates], remaining, len(candidates)):
        action = candidates[number][0]
        yield action.subject if action.is_file_action else f"{action.call_id} {flatten_to_line(action.subject, 30)}"


def _get_recall_handle(action: ToolAction) -> str:
    return action.subject if action.is_file_action else action.call_id
