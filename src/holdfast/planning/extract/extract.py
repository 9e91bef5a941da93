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

from holdfast.messages.message import Message, result_text
from holdfast.messages.parts import Part, ToolCall, ToolResult
from holdfast.messages.references import Reference, part_words
from holdfast.messages.size.tokens import count
from holdfast.messages.sized_message import Slot
from holdfast.messages.text.cutting import one_line
from holdfast.messages.text_runs import parts_said
from holdfast.planning.extract.ledger import Deed, command_lines, deed, deeds, file_lines
from holdfast.planning.extract.max_coverage import lazy_greedy
from holdfast.planning.extract.salience import Line, lines, message_refs, text_refs, traces, weigh
from holdfast.planning.extract.user_words import user_words
from holdfast.planning.settings import REACH, SCAN, Settings

PREFACE = (
    "The conversation before this point was replaced by this extract of it ({messages} messages), made from the log "
    "without a model. Quoted lines are verbatim; whatever is not here can be read back with recall."
)
EXTRACT = PREFACE.partition("{")[0]
"""How every extract begins."""
BESIDE = "Beside the summary, from the log and verbatim:"
_BELOW = "(continue from the messages below)"
_NOTHING_BELOW = "(no messages follow: continue with the newest request above)"
"""What the section of next steps says, with a kept tail and without one."""
LINE_TOKENS = 2
"""A line costs its own tokens and about this many for its bullet and newline."""
_CUES = re.compile(
    r"\b(?:decid|instead of|because|must not|must|never|always|root cause|the (?:fix|problem|issue|reason) is|"
    r"turns out|important|so (?:I|we)(?:'ll| will)|the plan|approach)|必须|不要|禁止|务必|优先|原因|决定|因此|修复",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?。!?])\s+|\n+")


def extract(
    head: Sequence[Slot], tail: Sequence[Slot], budget: int, settings: Settings = Settings(), told: str = ""
) -> str:
    """Return a summary of ``head`` in at most ``budget`` estimator tokens, the newest request apart.

    The settings give each section a share; what one leaves over goes to the coverage lines. ``tail`` and ``told`` are
    what stays visible behind it: a reference that stands there needs no line here.
    """
    return _render(len(head), _sections(head, tail, budget, settings, told), _BELOW if tail else _NOTHING_BELOW)


def supplement(head: Sequence[Slot], tail: Sequence[Slot], told: str, budget: int, settings: Settings) -> str:
    """Return what ``told``, a summary of ``head`` that somebody wrote, leaves uncovered, in about ``budget`` tokens.

    That is the user's words, the ledger and coverage lines for references that stand neither in it nor in ``tail``.
    """
    return _render_beside(_sections(head, tail, budget, replace(settings, summary_decision_share=0.0), told))


def _sections(head: Sequence[Slot], tail: Sequence[Slot], budget: int, settings: Settings, told: str = "") -> Sections:
    """Return what an extract says of ``head`` beside ``told``."""
    every = [slot.message for slot in head]
    head = newest(head, SCAN)
    messages = every[len(every) - len(head) :]
    done = list(deeds(messages))
    ledger = budget * settings.summary_ledger_share
    is_open = not any(slot.message.starts_turn for slot in tail)
    goal, constraints = user_words(every, int(budget * settings.summary_user_share), is_open=is_open)
    errors = [one_line(one.error, 200) for one in done[-30:] if one.failed and one.error][-3:]
    said = Sections(
        goal=goal,
        constraints=constraints,
        commands=_fill(command_lines(done), int(ledger * 0.4)),
        errors=errors,
        decisions=_fill(_decisions(messages), int(budget * settings.summary_decision_share)),
        files=_fill(file_lines(done), int(ledger * 0.6)),
    )
    spent = sum(count(text) + LINE_TOKENS for text in said.texts) + HEADINGS
    spare = int(budget * settings.summary_index_share)
    weights = _weights(
        head, {ref for slot in tail for ref in message_refs(slot)}.union(*map(text_refs, [told, *said.texts]))
    )
    quotes, covered = cover(head, weights, budget - spent - spare)
    open_refs = {ref: weight for ref, weight in weights.items() if ref not in covered}
    named = "\n".join([told, *said.texts, *quotes])
    handles = _fill(pointers(head, done, open_refs, named), spare)
    return replace(said, quotes=quotes, pointers=handles)


HEADINGS = 120
"""Estimator tokens of the preface and the section headings."""


def newest(slots: Sequence[Slot], size: int) -> Sequence[Slot]:
    """Return the newest of ``slots`` that are together within ``size``; at least one."""
    start = len(slots)
    while start and (size := size - slots[start - 1].size) >= 0:
        start -= 1
    return slots[min(start, len(slots) - 1) :]


class Sections(Struct, frozen=True):
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


def _render(messages: int, said: Sections, next_steps: str) -> str:
    return "\n".join(
        [
            PREFACE.format(messages=messages),
            "## Goal\n" + _list(said.goal, ""),
            "## Constraints & Preferences\n" + _list(said.constraints, ""),
            "## Progress\n### Done\n" + _list(said.commands),
            "### In Progress\n(none)\n### Blocked\n" + _list(said.errors),
            "## Key Decisions\n" + _list(said.decisions),
            f"## Next Steps\n{next_steps}",
            "## Critical Context\n" + _list(said.quotes, ""),
            "## Relevant Files\n" + _list([*said.files, *said.pointers]),
        ]
    )


def _render_beside(said: Sections) -> str:
    """Return the sections that hold anything, each under its name."""
    named = (
        ("The user's words", [*said.goal, *said.constraints], ""),
        ("Commands", said.commands, "- "),
        ("Errors", said.errors, "- "),
        ("Lines", said.quotes, ""),
        ("Files", [*said.files, *said.pointers], "- "),
    )
    told = [f"## {name}\n{_list(items, bullet)}" for name, items, bullet in named if items]
    return "\n".join([BESIDE, *told]) if told else ""


def _list(items: Iterable[str], bullet: str = "- ") -> str:
    return "\n".join(bullet + item for item in items) or "(none)"


def _fill(candidates: Iterable[str], budget: int) -> list[str]:
    """Return the first candidates that fit the budget together."""
    out: list[str] = []
    for text in candidates:
        budget -= count(text) + LINE_TOKENS
        if budget < 0:
            break
        out.append(text)
    return out


# -- decisions ---------------------------------------------------------------------------------------------------------


def _decisions(messages: Sequence[Message]) -> list[str]:
    """Return sentences of the agent that say why or what was decided, newest first."""
    found: list[str] = []
    for message in reversed(messages):
        if message.role == "assistant":
            sentences = _SENTENCE.split(message.text)
            found += [one_line(s, 200) for s in reversed(sentences) if 30 <= len(s) <= 400 and _CUES.search(s)]
    return list(dict.fromkeys(found))


# -- coverage lines ----------------------------------------------------------------------------------------------------


class Quote(Struct, frozen=True):
    """A line of the head that may be quoted: where it stood, what it costs."""

    place: tuple[int, int, int]
    line: Line
    cost: int


def cover(head: Sequence[Slot], weights: dict[Reference, float], budget: int) -> tuple[list[str], set[Reference]]:
    """Return lines of ``head`` that cover the heaviest references, in order, and the references they cover.

    With the headings that tell where they stood they are within ``budget``.
    """
    chosen = _greedy(_quotes(head, weights), weights, budget)
    calls = {call.id: call for slot in head for call in slot.message.calls}

    def told(number: int) -> list[str]:
        return _by_source(head, calls, sorted(chosen[:number], key=lambda quote: quote.place))

    def size(number: int) -> int:
        return count("\n".join(told(number)))

    every = len(chosen)
    held = every if size(every) <= budget else bisect(range(1, every), budget, key=size)
    return told(held), {ref for quote in chosen[:held] for ref in quote.line.refs if ref in weights}


def _weights(head: Sequence[Slot], shown: set[Reference]) -> dict[Reference, float]:
    length = sum(slot.size for slot in head)
    return {ref: weigh(ref, trace, length) for ref, trace in traces(head).items() if ref not in shown}


def _quotes(head: Sequence[Slot], weights: dict[Reference, float]) -> list[Quote]:
    """Return each distinct line that holds a wanted reference, at its newest place."""
    newest: dict[str, Quote] = {}
    wanted = weights.keys()
    for index, slot in enumerate(head):
        for place, part in enumerate(parts_said(slot.message)):
            number = 0
            for text in part_words(part):
                for line in lines(text):
                    number += 1
                    if not wanted.isdisjoint(line.refs):
                        newest[line.text] = Quote((index, place, number), line, line.cost + LINE_TOKENS)
    return list(newest.values())


def _greedy(quotes: list[Quote], weights: dict[Reference, float], budget: int) -> list[Quote]:
    """Return the quotes that cover most for their cost within the budget, the best first."""
    taken = lazy_greedy([(quote.line.refs, quote.cost) for quote in quotes], dict(weights), budget)
    return [quotes[number] for number in taken]


def _by_source(head: Sequence[Slot], calls: dict[str, ToolCall], quotes: Sequence[Quote]) -> list[str]:
    """Return the lines in order, with a heading wherever they come from another result."""
    out: list[str] = []
    source = ""
    for quote in quotes:
        heading = _heading(parts_said(head[quote.place[0]].message)[quote.place[1]], calls)
        if heading and heading != source:
            out.append(f"[{heading}]")
            source = heading
        out.append(quote.line.text)
    return out


def _heading(part: Part, calls: dict[str, ToolCall]) -> str:
    call = calls.get(part.call_id) if isinstance(part, ToolResult) else part
    if not isinstance(call, ToolCall):
        return ""
    one = deed(call)
    return "/".join(one.what.split("/")[-2:]) if one.is_of_file else one_line(f"{one.tool} {one.what}", 48)


# -- pointers ----------------------------------------------------------------------------------------------------------


def pointers(head: Sequence[Slot], done: Sequence[Deed], weights: dict[Reference, float], said: str) -> Iterator[str]:
    """Yield names of results worth reading again, best first: each covers references that nothing else does.

    A result is named by its path where it has one, else by its call id. Those that ``said`` names already come for
    nothing and are taken first.
    """
    left = dict(weights)
    texts = {result.call_id: result_text(result)[:REACH] for slot in head for result in slot.message.results}
    unnamed: list[tuple[Deed, list[Reference]]] = []
    for one in done:
        refs = [ref for ref in text_refs(texts.get(one.call_id, "")) if ref in left]
        if _handle(one) in said:
            for ref in refs:
                del left[ref]
        elif refs:
            unnamed.append((one, refs))
    for number in lazy_greedy([(refs, 1) for _, refs in unnamed], left, len(unnamed)):
        one = unnamed[number][0]
        yield one.what if one.is_of_file else f"{one.call_id} {one_line(one.what, 30)}"


def _handle(one: Deed) -> str:
    return one.what if one.is_of_file else one.call_id
