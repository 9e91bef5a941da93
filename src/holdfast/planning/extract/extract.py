"""The extract: a summary made without a model, by quoting the log.

It holds the user's words verbatim, a ledger of files and commands, decisions found by cue phrases, and *coverage
lines*: lines chosen by greedy weighted cover, so that they mention the references which the agent is likely to need
again.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Part, ToolCall, ToolResult
from holdfast.messages.references import Reference
from holdfast.messages.size.tokens import estimate_line_tokens, estimate_text_tokens
from holdfast.messages.sized_message import SizedMessage
from holdfast.messages.text.text_cuts import flatten_to_line
from holdfast.messages.text.text_runs import merge_adjacent_texts
from holdfast.planning.extract.constants import (
    MAX_SCANNED_TOKENS,
    MIN_LINE_WORTH,
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
from holdfast.planning.extract.previous_summary import EXTENSION_PREFACE, EXTRACT_OPENING
from holdfast.planning.extract.salience import (
    LINE_OVERHEAD_TOKENS,
    QuotableLine,
    find_distinctive_references,
    scan_message,
    trace_references,
    weigh_reference,
)
from holdfast.planning.extract.user_words import compute_grown_share, quote_user_messages
from holdfast.planning.settings import Settings

EXTRACT_PREFACE = EXTRACT_OPENING + (
    "{messages} messages), made from the log without a model. Quoted lines are verbatim; whatever is not here can be "
    "read back with recall."
)
SHORT_EXTRACT_PREFACE = EXTRACT_OPENING + "{messages} messages); recall reads back the rest."
SHORT_FORM_TOKENS = 1_500
"""Budget of an extract in estimator tokens under which its fixed sentences are short. The long ones cost about 50
tokens, which are over 3 % of such an extract. Chosen by judgement."""
SUPPLEMENT_OPENING = "Beside the summary, from the log and verbatim:"
# Content of the section "Next Steps", with a kept tail and without one.
_CONTINUE_BELOW_TEXT = "(continue from the messages below)"
_NO_TAIL_TEXT = "(no messages follow: continue with the newest request above)"
EXTRACT_FRAME_TOKENS = 80
"""Estimator tokens of the preface and the headings of a short extract, about."""
SECTION_HEADING_TOKENS = 7
"""Estimator tokens of the heading of one section."""
MAX_REQUOTES = 2
"""How often at most the user's words are quoted again with what is left over: the second time uses what the first one
made superfluous, and a third would hardly find anything."""
MIN_LEFT_OVER_TOKENS = 64
"""Estimator tokens for which the user's words are quoted once more: less would add a sentence or none. Chosen by
judgement."""

# Phrases, English and Chinese, of sentences that give a reason or settle something.
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
    section_budget: int | None = None,
    quoted_count: int = 0,
) -> str:
    """Summarize ``head`` in at most ``budget`` estimator tokens, not counting the newest request.

    Quoted lines may take all that the other sections leave, as long as each is worth its tokens. The shares of the
    other sections are shares of ``section_budget`` (by default ``budget``), and the user's words grow beyond their
    share only while the extract is within it. ``tail`` and ``visible_text`` stay visible after the extract: references
    that stand there need no line here. The first ``quoted_count`` messages of ``head`` are quotes of an earlier
    extract.
    """

    def render_extract(sections: ExtractSections) -> str:
        return _render_extract(sections, len(head), has_tail=bool(tail), is_short=budget < SHORT_FORM_TOKENS)

    sections = _collect_extract_sections(
        _ExtractHead(head, quoted_count),
        tail,
        budget,
        settings,
        render_extract,
        visible_text,
        section_budget=section_budget,
    )
    return render_extract(sections)


def build_extension(
    head: Sequence[SizedMessage],
    new_count: int,
    tail: Sequence[SizedMessage],
    budget: int,
    shown_texts: Sequence[str],
) -> str:
    """Extend the extract in ``shown_texts`` by the last ``new_count`` messages of ``head``, in ``budget`` tokens.

    The extension tells what the agent did in these messages, and quotes lines of the whole head for references that
    neither the extract nor ``tail`` shows. The new messages hold no words of the user. Sizes are estimator tokens.
    """
    new_messages = [sized_message.message for sized_message in head[len(head) - new_count :]]
    new_actions = list(list_tool_actions(new_messages))

    def render_extension(sections: ExtractSections) -> str:
        return _render_extension(sections, new_count)

    sections = _list_agent_sections(new_messages, new_actions, budget)
    scanned_head = take_newest_messages(head, MAX_SCANNED_TOKENS)
    sections = _add_quoted_lines(
        sections, scanned_head, new_actions, tail, budget, budget, render_extension, shown_texts
    )
    return render_extension(sections)


def build_supplement(
    head: Sequence[SizedMessage],
    tail: Sequence[SizedMessage],
    written_summary: str,
    budget: int,
    settings: Settings,
    quoted_count: int = 0,
) -> str:
    """Quote the parts of ``head`` that ``written_summary`` lacks, in about ``budget`` estimator tokens.

    That is the user's words, the ledger, and coverage lines for references that stand neither in the summary nor in
    ``tail``. Return an empty string if nothing was left out. Decisions are left to the summary.
    """
    sections = _collect_extract_sections(
        _ExtractHead(head, quoted_count),
        tail,
        budget,
        settings,
        _render_supplement,
        written_summary,
        with_decisions=False,
    )
    return _render_supplement(sections)


class _ExtractHead(NamedTuple):
    """The messages that an extract is made of."""

    messages: Sequence[SizedMessage]
    quoted_count: int
    """How many of them, at the start, are quotes of an earlier extract."""


def _collect_extract_sections(
    extract_head: _ExtractHead,
    tail: Sequence[SizedMessage],
    budget: int,
    settings: Settings,
    render_sections: SectionsRenderer,
    visible_text: str = "",
    *,
    with_decisions: bool = True,
    section_budget: int | None = None,
) -> ExtractSections:
    """Choose the content of each section of an extract of ``extract_head``, which ``render_sections`` will render.

    What the agent did comes first, then the user's words within their share, then lines of the head, and at last more
    of the user's words with what the lines left. All but the lines stay within ``section_budget``.
    """
    head, quoted_count = extract_head
    section_budget = budget if section_budget is None else min(budget, section_budget)
    all_messages = [sized_message.message for sized_message in head]
    # The user's words are quoted from the whole head, since rules never expire; everything else from its newest part,
    # which bounds the time that a compaction takes.
    scanned_head = take_newest_messages(head, MAX_SCANNED_TOKENS)
    scanned_messages = all_messages[len(all_messages) - len(scanned_head) :]
    actions = list(list_tool_actions(scanned_messages))
    sections = _list_agent_sections(scanned_messages, actions, section_budget, with_decisions=with_decisions)

    # Where much of the head is the user's, their words may grow beyond their share into what the others leave.
    user_tokens = int(section_budget * settings.summary.user_share)
    grown_share = compute_grown_share(all_messages, sum(sized_message.tokens for sized_message in head))
    # Four headings are still to come: two for the user's words, one for quoted lines and one for pointers.
    frame_tokens = estimate_text_tokens(render_sections(sections)) + 4 * SECTION_HEADING_TOKENS
    left_over = section_budget - frame_tokens - int(section_budget * SUMMARY_POINTER_SHARE)
    has_request_in_tail = any(sized_message.message.is_turn_start for sized_message in tail)
    quote_user = partial(
        quote_user_messages,
        all_messages,
        user_tokens,
        is_open=not has_request_in_tail,
        later_messages=[sized_message.message for sized_message in tail],
        quoted_count=quoted_count,
    )
    user_quotes = quote_user(max_tokens=min(int(section_budget * grown_share), left_over))
    sections = _quote_user_in_sections(sections, user_quotes)

    sections = _add_quoted_lines(
        sections, scanned_head, actions, tail, budget, section_budget, render_sections, [visible_text]
    )

    # What is left goes to the user's words: counted to the last token where these are much of the head, since there
    # they are what is needed again; elsewhere a small rest is not worth its price. Lines that the user's words then
    # hold too are left out, and their tokens go the same way.
    counts_exactly = grown_share > settings.summary.user_share
    spent = estimate_text_tokens(render_sections(replace(sections, quotes=[], pointers=[])))
    spent += 2 * SECTION_HEADING_TOKENS + _estimate_lines([*sections.quotes, *sections.pointers])
    left_over = section_budget - spent
    for _ in range(MAX_REQUOTES):
        if counts_exactly:
            left_over = section_budget - estimate_text_tokens(render_sections(sections))
        if left_over < MIN_LEFT_OVER_TOKENS:
            break
        quoted_tokens = _estimate_lines([*sections.goal, *sections.constraints])
        sections = _quote_user_in_sections(sections, quote_user(max_tokens=quoted_tokens + left_over))
        user_text = "\n".join([*sections.goal, *sections.constraints])
        other_quotes = [line for line in sections.quotes if line not in user_text]
        left_over = _estimate_lines(sections.quotes) - _estimate_lines(other_quotes)
        sections = replace(sections, quotes=other_quotes)
    return sections


def _list_agent_sections(
    messages: Sequence[Message],
    actions: Sequence[ToolAction],
    section_budget: int,
    *,
    with_decisions: bool = True,
) -> ExtractSections:
    """Return the sections about what the agent did in ``messages``, each within its share of ``section_budget``."""
    ledger_tokens = section_budget * SUMMARY_LEDGER_SHARE
    decision_tokens = int(section_budget * SUMMARY_DECISION_SHARE) if with_decisions else 0
    return ExtractSections(
        goal=[],
        constraints=[],
        commands=_take_within_budget(format_command_lines(actions), int(ledger_tokens * 0.4)),
        errors=_list_recent_errors(actions),
        decisions=_take_within_budget(_find_decisions(messages), decision_tokens),
        files=_take_within_budget(format_file_lines(actions), int(ledger_tokens * 0.6)),
    )


def _add_quoted_lines(
    sections: ExtractSections,
    head: Sequence[SizedMessage],
    actions: Sequence[ToolAction],
    tail: Sequence[SizedMessage],
    budget: int,
    section_budget: int,
    render_sections: SectionsRenderer,
    visible_texts: Sequence[str],
) -> ExtractSections:
    """Return ``sections`` with lines of ``head``, and with pointers to results of ``actions``.

    Lines come after the other sections: they get what those leave of ``budget``, and need not repeat a reference that
    is mentioned there, in ``tail`` or in ``visible_texts``. Pointers come last, for references that no line covers.
    """
    pointer_tokens = int(section_budget * SUMMARY_POINTER_SHARE)
    # The headings of lines and pointers are still to come.
    spent = estimate_text_tokens(render_sections(sections)) + 2 * SECTION_HEADING_TOKENS
    shown_refs = _collect_shown_references(tail, [*visible_texts, *sections.texts])
    weights = _weigh_unshown_references(head, shown_refs)
    quotes, covered_refs = select_coverage_lines(head, weights, budget - spent - pointer_tokens)
    open_weights = {}
    for ref, weight in weights.items():
        if ref not in covered_refs:
            open_weights[ref] = weight
    shown_text = "\n".join([*visible_texts, *sections.texts, *quotes])
    all_pointers = select_result_pointers(head, actions, open_weights, shown_text)
    return replace(sections, quotes=quotes, pointers=_take_within_budget(all_pointers, pointer_tokens))


def _quote_user_in_sections(sections: ExtractSections, user_quotes: tuple[list[str], list[str]]) -> ExtractSections:
    goal, constraints = user_quotes
    return replace(sections, goal=goal, constraints=constraints)


def _estimate_lines(lines: Iterable[str]) -> int:
    """Estimate the tokens of ``lines``, bullets and line ends included."""
    return sum(estimate_line_tokens(line) + LINE_OVERHEAD_TOKENS for line in lines)


def _list_recent_errors(actions: Sequence[ToolAction]) -> list[str]:
    """Return the last errors among the newest actions.

    An error that many actions came after is solved or given up. Thirty actions and three errors: chosen by judgement.
    """
    errors = []
    for action in actions[-30:]:
        if action.has_failed and action.error:
            errors.append(action.error)
    return [flatten_to_line(error, 200) for error in errors[-3:]]


def _collect_shown_references(tail: Sequence[SizedMessage], texts: Iterable[str]) -> set[Reference]:
    """Return the references that stand in ``tail`` or in ``texts``."""
    refs: set[Reference] = set()
    for sized_message in tail:
        refs.update(scan_message(sized_message).refs)
    for text in texts:
        refs.update(find_distinctive_references(text))
    return refs


def take_newest_messages(messages: Sequence[SizedMessage], size: int) -> Sequence[SizedMessage]:
    """Return the newest of ``messages`` that are together within ``size`` estimator tokens; at least one."""
    start = len(messages)
    while start:
        size -= messages[start - 1].tokens
        if size < 0:
            break
        start -= 1
    return messages[min(start, len(messages) - 1) :]


class ExtractSections(Struct, frozen=True):
    """The content of an extract by section; each item is a line or a quoted text."""

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
        """All items but the coverage lines and pointers, which are chosen in view of them."""
        return [*self.goal, *self.constraints, *self.commands, *self.errors, *self.decisions, *self.files]


SectionsRenderer: TypeAlias = Callable[[ExtractSections], str]


def _render_extract(sections: ExtractSections, message_count: int, *, has_tail: bool, is_short: bool) -> str:
    """Render the preface and the sections that are not empty, in the order in which a model is asked for them."""
    preface = SHORT_EXTRACT_PREFACE if is_short else EXTRACT_PREFACE
    next_steps: list[str] = []
    if not has_tail and sections.goal:
        next_steps = [_NO_TAIL_TEXT]
    elif has_tail and sections.texts and not is_short:
        next_steps = [_CONTINUE_BELOW_TEXT]
    blocks = [
        preface.format(messages=message_count),
        *_render_section("## Goal", sections.goal, ""),
        *_render_section("## Constraints & Preferences", sections.constraints, ""),
        *_render_section("## Progress", _render_progress(sections), ""),
        *_render_section("## Key Decisions", sections.decisions),
        *_render_section("## Next Steps", next_steps, ""),
        *_render_section("## Critical Context", sections.quotes, ""),
        *_render_section("## Relevant Files", [*sections.files, *sections.pointers]),
    ]
    return "\n".join(blocks)


def _render_progress(sections: ExtractSections) -> list[str]:
    return [*_render_section("### Done", sections.commands), *_render_section("### Blocked", sections.errors)]


def _render_extension(sections: ExtractSections, message_count: int) -> str:
    """Render the opening of an extension and the sections that are not empty."""
    blocks = [
        EXTENSION_PREFACE.format(messages=message_count),
        *_render_section("## Progress", _render_progress(sections), ""),
        *_render_section("## Key Decisions", sections.decisions),
        *_render_section("## Critical Context", sections.quotes, ""),
        *_render_section("## Relevant Files", [*sections.files, *sections.pointers]),
    ]
    return "\n".join(blocks)


def _render_supplement(sections: ExtractSections) -> str:
    """Render the sections that are not empty, or return an empty string if all are."""
    blocks = [
        *_render_section("## The user's words", [*sections.goal, *sections.constraints], ""),
        *_render_section("## Commands", sections.commands),
        *_render_section("## Errors", sections.errors),
        *_render_section("## Lines", sections.quotes, ""),
        *_render_section("## Files", [*sections.files, *sections.pointers]),
    ]
    if not blocks:
        return ""
    return "\n".join([SUPPLEMENT_OPENING, *blocks])


def _render_section(heading: str, items: Sequence[str], bullet: str = "- ") -> list[str]:
    """Return the heading with its items below as one block, or no block without items."""
    if not items:
        return []
    return ["\n".join([heading, *(bullet + item for item in items)])]


def _take_within_budget(candidates: Iterable[str], budget: int) -> list[str]:
    """Return the candidates before the first that exceeds ``budget`` (estimator tokens)."""
    lines: list[str] = []
    for text in candidates:
        budget -= estimate_line_tokens(text) + LINE_OVERHEAD_TOKENS
        if budget < 0:
            break
        lines.append(text)
    return lines


# -- decisions ---------------------------------------------------------------------------------------------------------


def _find_decisions(messages: Sequence[Message]) -> list[str]:
    """Return distinct sentences of the agent that hold a decision cue, newest first.

    Sentences under 30 characters name nothing that they are about; over 400 they are rarely one sentence.
    """
    decisions: dict[str, None] = {}
    for message in reversed(messages):
        if message.role != "assistant":
            continue
        for sentence in reversed(_SENTENCE.split(message.text)):
            if 30 <= len(sentence) <= 400 and _DECISION_CUES.search(sentence):
                decisions[flatten_to_line(sentence, 200)] = None
    return list(decisions)


# -- coverage lines ----------------------------------------------------------------------------------------------------


class Quote(NamedTuple):
    """A line of the head that is quoted."""

    message_index: int
    line: QuotableLine

    @property
    def source(self) -> tuple[int, int]:
        """The part that it comes from: the index of its message, and its index in that."""
        return self.message_index, self.line.part_index

    @property
    def place(self) -> tuple[int, int, int]:
        """Where it stands in the head, to sort by."""
        return self.message_index, self.line.part_index, self.line.line_number


def select_coverage_lines(
    head: Sequence[SizedMessage], weights: dict[Reference, float], budget: int
) -> tuple[list[str], set[Reference]]:
    """Choose lines of ``head`` that cover the heaviest references.

    Return the lines in the order of the head, with headings that name their source, all within ``budget`` estimator
    tokens, and the references that they cover.
    """
    chosen = _select_quotes(head, weights, budget)
    sources = _describe_sources(head, chosen)

    def render_best_quotes(count: int) -> list[str]:
        return _group_quotes_by_source(sources, sorted(chosen[:count], key=attrgetter("place")))

    def estimate_best_quotes(count: int) -> int:
        return estimate_text_tokens("\n".join(render_best_quotes(count)))

    # The selection counted the lines alone. How many headings they need is known only afterwards, so the longest prefix
    # of the selection that fits with its headings is found by bisection.
    quote_count = len(chosen)
    if estimate_best_quotes(quote_count) > budget:
        quote_count = bisect(range(1, quote_count), budget, key=estimate_best_quotes)
    covered_refs: set[Reference] = set()
    for quote in chosen[:quote_count]:
        covered_refs.update(ref for ref in quote.line.refs if ref in weights)
    return render_best_quotes(quote_count), covered_refs


def _weigh_unshown_references(head: Sequence[SizedMessage], visible_refs: set[Reference]) -> dict[Reference, float]:
    """Return the weight of each reference in ``head`` that is not among ``visible_refs``."""
    length = sum(sized_message.tokens for sized_message in head)
    unshown_references: dict[Reference, float] = {}
    for ref, use in trace_references(head).items():
        if ref not in visible_refs:
            unshown_references[ref] = weigh_reference(ref, use, length)
    return unshown_references


def _select_quotes(head: Sequence[SizedMessage], weights: dict[Reference, float], budget: int) -> list[Quote]:
    """Return the lines of ``head`` that are worth their cost, the best first, as many as are within the budget.

    A line that stands in several places is quoted from the newest one.
    """
    # Whole messages are merged at once: a head has some ten thousand lines, and each compaction merges all of them.
    newest_lines: dict[str, QuotableLine] = {}
    message_indexes: dict[str, int] = {}
    for message_index, sized_message in enumerate(head):
        lines = scan_message(sized_message).lines
        newest_lines.update(lines)
        message_indexes.update(dict.fromkeys(lines, message_index))

    candidates = list(newest_lines.values())
    quotes: list[Quote] = []
    for number in select_max_coverage(candidates, dict(weights), budget, MIN_LINE_WORTH):
        line = candidates[number]
        quotes.append(Quote(message_indexes[line.text], line))
    return quotes


def _describe_sources(head: Sequence[SizedMessage], quotes: Iterable[Quote]) -> dict[tuple[int, int], str]:
    """Return the heading of each part of ``head`` that ``quotes`` come from, by its message and its index in that."""
    calls = {call.id: call for sized_message in head for call in sized_message.message.calls}
    sources: dict[tuple[int, int], str] = {}
    for message_index, part_index in {quote.source for quote in quotes}:
        part = merge_adjacent_texts(head[message_index].message)[part_index]
        sources[message_index, part_index] = _describe_source(part, calls)
    return sources


def _group_quotes_by_source(sources: dict[tuple[int, int], str], quotes: Sequence[Quote]) -> list[str]:
    """Return the lines of ``quotes`` in their order, with a heading wherever they come from another call or result."""
    lines: list[str] = []
    current_source = ""
    for quote in quotes:
        source = sources[quote.source]
        if source and source != current_source:
            lines.append(f"[{source}]")
            current_source = source
        lines.append(quote.line.text)
    return lines


def _describe_source(part: Part, calls: dict[str, ToolCall]) -> str:
    """Return a short name of the call that ``part`` is or answers, or an empty string for other parts."""
    call = calls.get(part.call_id) if isinstance(part, ToolResult) else part
    if not isinstance(call, ToolCall):
        return ""
    action = describe_tool_call(call)
    if action.is_file_action:
        return "/".join(action.subject.split("/")[-2:])
    return flatten_to_line(f"{action.tool} {action.subject}", 48)


# -- pointers ----------------------------------------------------------------------------------------------------------


class _PointerCandidate(Struct, frozen=True):
    """An action whose result may be pointed at, and the references that nothing else covers."""

    action: ToolAction
    refs: list[Reference]
    cost: int = 1
    """The same for all: how many fit is decided by the caller, who takes them while its budget lasts."""


def select_result_pointers(
    head: Sequence[SizedMessage],
    actions: Sequence[ToolAction],
    weights: dict[Reference, float],
    named_text: str,
) -> Iterator[str]:
    """Yield names of results worth reading again, best first: each covers references that nothing else covers.

    A result is named by its path if it has one, else by its call id. Results that ``named_text`` names cost nothing, so
    their references count as covered before others are chosen.
    """
    remaining_weights = dict(weights)
    result_texts: dict[str, str] = {}
    for sized_message in head:
        for result in sized_message.message.results:
            result_texts[result.call_id] = get_result_text(result)[:RECALL_POINTER_CHARS]

    candidates: list[_PointerCandidate] = []
    for action in actions:
        text = result_texts.get(action.call_id, "")
        refs = [ref for ref in find_distinctive_references(text) if ref in remaining_weights]
        if _get_recall_handle(action) in named_text:
            for ref in refs:
                del remaining_weights[ref]
        elif refs:
            candidates.append(_PointerCandidate(action, refs))

    for index in select_max_coverage(candidates, remaining_weights, len(candidates)):
        action = candidates[index].action
        if action.is_file_action:
            yield action.subject
        else:
            yield f"{action.call_id} {flatten_to_line(action.subject, 30)}"


def _get_recall_handle(action: ToolAction) -> str:
    return action.subject if action.is_file_action else action.call_id
