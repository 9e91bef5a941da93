"""The extract: a summary made without a model, from the log, by quoting it.

The user's words verbatim, a ledger of files and commands, decisions by cue phrases, and *coverage lines*: a greedy
weighted cover of the references that the agent is likely to need, by the lines they stood in.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from holdfast.model.messages import Message, result_text
from holdfast.model.parts import Part, Text, ToolCall, ToolResult
from holdfast.model.slots import Slot
from holdfast.policy.ledger import Deed, command_lines, deed, deeds, file_lines
from holdfast.policy.salience import Line, lines, message_refs, text_refs, traces, weigh
from holdfast.view.references import Reference, part_words
from holdfast.view.text import clip, one_line
from holdfast.view.tokens import count

PREFACE = (
    "The conversation before this point was replaced by this extract of it ({messages} messages), made from the log "
    "without a model. Quoted lines are verbatim; whatever is not here can be read back with recall."
)
LINE_TOKENS = 2
"""A line costs its own tokens and about this many for its bullet and newline."""
_CUES = re.compile(
    r"\b(?:decid|instead of|because|must not|must|never|always|root cause|the (?:fix|problem|issue|reason) is|"
    r"turns out|important|so (?:I|we)(?:'ll| will)|the plan|approach)|必须|不要|禁止|务必|优先|原因|决定|因此|修复",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?。!?])\s+|\n+")


class Shares(Struct, frozen=True):
    """How the budget of an extract is divided; what a section leaves over goes to the coverage lines."""

    words: float = 0.20
    """The user's words."""
    ledger: float = 0.15
    """Files and commands."""
    decisions: float = 0.05
    index: float = 0.05
    """Names alone, for what no line covers."""


def extract(head: Sequence[Slot], tail: Sequence[Slot], budget: int, shares: Shares = Shares()) -> str:
    """Return a summary of ``head`` in at most about ``budget`` estimator tokens.

    ``tail`` is what stays visible behind it: a reference that stands there needs no line here.
    """
    messages = [slot.message for slot in head]
    done = list(deeds(messages))
    goal, constraints = _user_words(messages, int(budget * shares.words))
    files = _fill(file_lines(done), int(budget * shares.ledger * 0.6))
    commands = _fill(command_lines(done), int(budget * shares.ledger * 0.4))
    decisions = _fill(_decisions(messages), int(budget * shares.decisions))
    errors = [one_line(one.error, 200) for one in done[-30:] if one.failed and one.error][-3:]
    fixed = [*goal, *constraints, *files, *commands, *decisions, *errors]
    spent = sum(count(text) + LINE_TOKENS for text in fixed) + 120
    left = budget - spent
    shown = {ref for slot in tail for ref in message_refs(slot)}
    for text in fixed:
        shown |= {ref for line in lines(text) for ref in line.refs}
    spare = int(budget * shares.index)
    weights = _weights(head, shown)
    quotes, covered = cover(head, weights, left - spare)
    said = "\n".join([*fixed, *quotes])
    handles = _fill(pointers(head, done, {r: w for r, w in weights.items() if r not in covered}, said), spare)
    return _render(len(messages), goal, constraints, commands, errors, decisions, quotes, handles, files)


def _render(
    messages: int,
    goal: list[str],
    constraints: list[str],
    commands: list[str],
    errors: list[str],
    decisions: list[str],
    quotes: list[str],
    handles: list[str],
    files: list[str],
) -> str:
    sections = [
        PREFACE.format(messages=messages),
        "## Goal\n" + _list(goal, ""),
        "## Constraints & Preferences\n" + _list(constraints, ""),
        "## Progress\n### Done\n" + _list(commands),
        "### In Progress\n(none)\n### Blocked\n" + _list(errors),
        "## Key Decisions\n" + _list(decisions),
        "## Next Steps\n(continue from the messages below)",
        "## Critical Context\n" + _list(quotes, ""),
        "## Relevant Files\n" + _list([*files, *handles]),
    ]
    return "\n".join(sections)


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


# -- the user's words --------------------------------------------------------------------------------------------------


def _user_words(messages: Sequence[Message], budget: int) -> tuple[list[str], list[str]]:
    """Return the first and newest message of the user, and those between, newest first while the budget lasts.

    The newest is whole whatever it costs; older ones are clipped to a third of the budget each.
    """
    said = [message.text.strip() for message in messages if message.starts_turn and message.text.strip()]
    if not said:
        return [], []
    newest = said[-1]
    budget -= count(newest)
    goal = [f"Newest request of the user, verbatim:\n{newest}"]
    if len(said) > 1:
        first = clip(said[0], max(200, budget * 4 // 3))
        budget -= count(first)
        goal.insert(0, f"First request of the user, verbatim:\n{first}")
    kept: list[str] = []
    for text in dict.fromkeys(reversed(said[1:-1])):
        short = clip(text, max(120, budget * 4 // 3))
        budget -= count(short) + LINE_TOKENS
        if budget < 0:
            break
        kept.append(f"User: {short}" + (" […]" if len(short) < len(text) else ""))
    return goal, kept[::-1]


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


def cover(
    head: Sequence[Slot], weights: dict[Reference, float], budget: int
) -> tuple[list[str], set[Reference]]:
    """Return lines of ``head`` that cover the heaviest references, in order, and the references they cover."""
    chosen, covered = _greedy(_quotes(head, weights), weights, budget)
    return _by_source(head, sorted(chosen, key=lambda quote: quote.place)), covered


def _weights(head: Sequence[Slot], shown: set[Reference]) -> dict[Reference, float]:
    length = sum(slot.size for slot in head)
    return {ref: weigh(ref, trace, length) for ref, trace in traces(head).items() if ref not in shown}


def _quotes(head: Sequence[Slot], weights: dict[Reference, float]) -> list[Quote]:
    """Return each distinct line that holds a wanted reference, at its newest place."""
    newest: dict[str, Quote] = {}
    for index, slot in enumerate(head):
        for place, part in enumerate(slot.message.parts):
            number = 0
            for text in part_words(part):
                for line in lines(text):
                    number += 1
                    if any(ref in weights for ref in line.refs):
                        newest[line.text] = Quote((index, place, number), line, line.cost + LINE_TOKENS)
    return list(newest.values())


def _greedy(
    quotes: list[Quote], weights: dict[Reference, float], budget: int
) -> tuple[list[Quote], set[Reference]]:
    """Return quotes chosen by lazy greedy cover, gain for each token, and the references they cover."""
    covered: set[Reference] = set()
    chosen: list[Quote] = []

    def gain(quote: Quote) -> float:
        return sum(weights.get(ref, 0.0) for ref in quote.line.refs if ref not in covered) / quote.cost

    heap = [(-gain(quote), number) for number, quote in enumerate(quotes)]
    heapq.heapify(heap)
    while heap and budget > 8:
        worth, number = heapq.heappop(heap)
        quote = quotes[number]
        now = gain(quote)
        if now <= 0:
            continue
        if -worth > now * 1.0000001:
            heapq.heappush(heap, (-now, number))
            continue
        if quote.cost <= budget:
            chosen.append(quote)
            covered.update(quote.line.refs)
            budget -= quote.cost
    return chosen, covered


def _by_source(head: Sequence[Slot], quotes: Sequence[Quote]) -> list[str]:
    """Return the lines in order, with a heading wherever they come from another result."""
    out: list[str] = []
    source = ""
    calls = {call.id: (index, call) for index, slot in enumerate(head) for call in slot.message.calls}
    for quote in quotes:
        heading = _heading(head[quote.place[0]].message.parts[quote.place[1]], calls)
        if heading and heading != source:
            out.append(f"[{heading}]")
            source = heading
        out.append(quote.line.text)
    return out


def _heading(part: Part, calls: dict[str, tuple[int, ToolCall]]) -> str:
    if isinstance(part, Text):
        return ""
    if isinstance(part, ToolResult) and part.call_id in calls:
        index, call = calls[part.call_id]
        return _title(deed(index, call, None))
    if isinstance(part, ToolCall):
        return _title(deed(0, part, None))
    return ""


def _title(one: Deed) -> str:
    if one.verb in {"read", "edit"}:
        return "/".join(one.what.split("/")[-2:])
    return one_line(f"{one.tool} {one.what}", 48)


# -- pointers ----------------------------------------------------------------------------------------------------------

REACH = 50_000
"""Characters of a result that one pointer stands for: what a single recall shows at most."""


def pointers(
    head: Sequence[Slot], done: Sequence[Deed], weights: dict[Reference, float], said: str
) -> Iterator[str]:
    """Yield names of results worth reading again, best first: each covers references that nothing else does.

    A result is named by its path where it has one, else by its call id. Those that ``said`` names already come for
    nothing and are taken first.
    """
    left = dict(weights)
    texts = {result.call_id: result_text(result)[:REACH] for slot in head for result in slot.message.results}
    open_: list[tuple[Deed, list[Reference]]] = []
    for one in done:
        refs = [ref for ref in text_refs(texts.get(one.call_id, "")) if ref in left]
        if _handle(one) in said:
            for ref in refs:
                left.pop(ref, None)
        elif refs:
            open_.append((one, refs))
    while open_:
        worth = [sum(left.get(ref, 0.0) for ref in refs) for _, refs in open_]
        best = max(range(len(open_)), key=worth.__getitem__)
        if worth[best] <= 0:
            return
        one, refs = open_.pop(best)
        for ref in refs:
            left.pop(ref, None)
        yield one.what if one.verb in {"read", "edit"} else f"{one.call_id} {one_line(one.what, 30)}"


def _handle(one: Deed) -> str:
    return one.what if one.verb in {"read", "edit"} else one.call_id
