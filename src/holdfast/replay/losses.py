"""Where facts are lost: what was gone when the model used it, what it was, and where it had stood.

``LossRecorder`` watches the requests of one policy over one session; ``pool_losses`` adds up several sessions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from heapq import nlargest
from itertools import accumulate, pairwise
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.messages.message import Message
from holdfast.messages.parts import Part, ToolCall, ToolResult
from holdfast.messages.references import Reference, decode_call_arguments, iter_json_strings, iter_part_texts
from holdfast.messages.text.text_runs import merge_adjacent_texts
from holdfast.replay.measure import SessionStudy
from holdfast.replay.recall import NeedOutcome
from holdfast.replay.simulate import SimulatedRequest

NEAR_CUT_TOKENS = 8_000
"""Distance in tokens up to which a message is just before the cut: about what one large result has."""
WORST_STEPS = 5
"""Steps that are told one by one; with their facts they fill half a screen."""
MAX_ACTION_CHARS = 200
"""Characters of what the model did at a step: enough for a command or a path."""
KIND_NAMES = {
    "url": "URL",
    "path": "path",
    "file": "file name",
    "id": "identifier",
    "kebab": "hyphenated word",
    "hex": "hash",
    "number": "number",
}
"""The kinds of references in words, in the order of the table."""
_AGE_LIMITS = (8_000, 16_000, 32_000, 64_000, 128_000)
"""Limits of the age groups, in tokens. Doubled each time, since losses grow with the order of magnitude."""
AGE_NAMES = (
    f"under {_AGE_LIMITS[0]:,}",
    *(f"{low:,} to {high:,}" for low, high in pairwise(_AGE_LIMITS)),
    f"{_AGE_LIMITS[-1]:,} and more",
)
MENTION_NAMES = ("1 message", "2 messages", "3 to 5 messages", "6 and more")
SOURCE_NAMES = (
    "user",
    "text of the model",
    "call",
    "result",
    "failed result",
    "other",
)
PLACE_NAMES = (
    "in the kept part",
    f"up to {NEAR_CUT_TOKENS:,} before the cut",
    "older",
)
GROUP_ORDER: dict[str, tuple[str, ...]] = {
    "kind": tuple(KIND_NAMES.values()),
    "age": AGE_NAMES,
    "mentions": MENTION_NAMES,
    "source": SOURCE_NAMES,
    "place": PLACE_NAMES,
}
"""The tables, each with its groups in order."""


class LossCount(Struct, frozen=True):
    """How many of the ``needed`` facts of a group were lost."""

    lost: int = 0
    needed: int = 0

    def __add__(self, other: LossCount) -> LossCount:
        return LossCount(self.lost + other.lost, self.needed + other.needed)


class LostFact(Struct, frozen=True):
    """One fact that was gone when the model used it, and where it had stood last."""

    name: str
    kind: str
    """A value of ``KIND_NAMES``."""
    name_known: bool
    """Whether the request still had the name, without what was said about it."""
    message: int
    """Position of the newest message before the step that has it, counted from 0."""
    source: str
    """One of ``SOURCE_NAMES``."""
    tool: str
    """The tool of a call or result; empty for other sources."""
    age: int
    """Tokens of the messages between that one and the step."""
    mentions: int
    """How many messages before the step have it."""
    place: str
    """One of ``PLACE_NAMES``."""


class LossStep(Struct, frozen=True):
    """One step at which facts were missing."""

    file: str
    answer: int
    """Number of the answer, counted from 1."""
    message: int
    """Position of the answer among the messages, counted from 0."""
    action: str
    """What the model did: its calls, or the beginning of its text."""
    facts: tuple[LostFact, ...]


class LossReport(Struct, frozen=True):
    """The losses of one policy, over one session or several."""

    count: LossCount = LossCount()
    names_known: int = 0
    """Lost facts whose name was still in the request."""
    tables: dict[str, dict[str, LossCount]] = {}
    """For each table of ``GROUP_ORDER`` the groups that anything was needed of, in order."""
    worst_steps: tuple[LossStep, ...] = ()
    """The steps that missed most, most first."""


class LossRecorder:
    """Collects the losses of one policy over one session, request by request."""

    def __init__(self, study: SessionStudy, file: str) -> None:
        self._study = study
        self._file = file
        sizes = map(study.count_message, study.session.messages)
        self._tokens_before = list(accumulate(sizes, initial=0))
        """Tokens of all messages before each position."""
        self._positions = _index_positions(study)
        self._answer_numbers = {step.index: number for number, step in enumerate(study.session.steps, 1)}
        self._tool_names = {call.id: call.name for message in study.messages for call in message.calls}
        self._tables: dict[str, dict[str, LossCount]] = {table: {} for table in GROUP_ORDER}
        self._steps: list[LossStep] = []
        self._count = LossCount()
        self._names_known = 0

    def add_request(self, request: SimulatedRequest, outcomes: Sequence[NeedOutcome]) -> None:
        """Add what became of the facts that the answer to ``request`` needs."""
        step = request.step.index
        first_kept = request.plan.state.view.first_kept
        lost_facts = []
        for outcome in outcomes:
            fact = self._describe_fact(outcome, step, first_kept)
            self._count_fact(fact, is_lost=not outcome.has_fact)
            if not outcome.has_fact:
                lost_facts.append(fact)
        if lost_facts:
            action = describe_action(self._study.messages[step])
            number = self._answer_numbers[step]
            self._steps.append(LossStep(self._file, number, step, action, tuple(lost_facts)))

    def _describe_fact(self, outcome: NeedOutcome, step: int, first_kept: int) -> LostFact:
        kind, name = outcome.reference
        positions = self._positions[outcome.reference]
        mentions = bisect_left(positions, step)
        last = positions[mentions - 1]
        source, tool = self._find_source(self._study.messages[last], outcome.reference)
        return LostFact(
            name=name,
            kind=KIND_NAMES[kind],
            name_known=outcome.has_name,
            message=last,
            source=source,
            tool=tool,
            age=self._tokens_before[step] - self._tokens_before[last + 1],
            mentions=mentions,
            place=self._name_place(last, first_kept),
        )

    def _name_place(self, position: int, first_kept: int) -> str:
        kept, near, older = PLACE_NAMES
        if position >= first_kept:
            return kept
        distance = self._tokens_before[first_kept] - self._tokens_before[position + 1]
        return near if distance <= NEAR_CUT_TOKENS else older

    def _find_source(self, message: Message, reference: Reference) -> tuple[str, str]:
        """Return the source of a reference in a message, and the tool of its call or result."""
        # The last part that has it is the one that stood nearest.
        for part in reversed(merge_adjacent_texts(message)):
            texts = iter_part_texts(part)
            if any(reference in self._study.dependencies.lookup.get_references(text) for text in texts):
                return self._name_source(message, part)
        return "other", ""

    def _name_source(self, message: Message, part: Part) -> tuple[str, str]:
        if isinstance(part, ToolCall):
            return "call", part.name
        if isinstance(part, ToolResult):
            tool = part.name or self._tool_names.get(part.call_id, "")
            return "failed result" if part.is_error else "result", tool
        sources = {"user": "user", "assistant": "text of the model"}
        return sources.get(message.role, "other"), ""

    def _count_fact(self, fact: LostFact, *, is_lost: bool) -> None:
        one = LossCount(int(is_lost), 1)
        groups = {
            "kind": fact.kind,
            "age": name_age(fact.age),
            "mentions": name_mentions(fact.mentions),
            "source": fact.source,
            "place": fact.place,
        }
        for table, group in groups.items():
            counts = self._tables[table]
            counts[group] = counts.get(group, LossCount()) + one
        self._count += one
        self._names_known += is_lost and fact.name_known

    def make_report(self) -> LossReport:
        """Return the losses so far."""
        return LossReport(
            self._count,
            self._names_known,
            _sort_groups(self._tables),
            find_worst_steps(self._steps),
        )


def _index_positions(study: SessionStudy) -> dict[Reference, list[int]]:
    """Return the positions of the messages that have each reference, in order."""
    lookup = study.dependencies.lookup
    positions: dict[Reference, list[int]] = {}
    for position, sized_message in enumerate(study.session.messages):
        references: set[Reference] = set()
        for text in lookup.get_texts(sized_message):
            references |= lookup.get_references(text)
        for reference in references:
            positions.setdefault(reference, []).append(position)
    return positions


def name_age(tokens: int) -> str:
    """Return the group of an age in tokens."""
    for limit, name in zip(_AGE_LIMITS, AGE_NAMES, strict=False):
        if tokens < limit:
            return name
    return AGE_NAMES[-1]


def name_mentions(count: int) -> str:
    """Return the group of a number of messages, which is at least 1."""
    once, twice, some, many = MENTION_NAMES
    if count >= 6:
        return many
    return some if count >= 3 else (once, twice)[count - 1]


def describe_action(answer: Message) -> str:
    """Return what an answer did: each call with its first argument, or the beginning of its text without calls."""
    if not answer.calls:
        return " ".join(answer.text[:MAX_ACTION_CHARS].split())
    actions = []
    for call in answer.calls:
        argument = next(iter_json_strings(decode_call_arguments(call)), "")
        actions.append(" ".join(f"{call.name} {argument[:MAX_ACTION_CHARS]}".split()))
    return "; ".join(actions)[:MAX_ACTION_CHARS]


def find_worst_steps(steps: Iterable[LossStep]) -> tuple[LossStep, ...]:
    """Return the steps that missed most facts, most first; the earlier one of equals comes first."""
    return tuple(nlargest(WORST_STEPS, steps, key=lambda step: len(step.facts)))


def _sort_groups(tables: dict[str, dict[str, LossCount]]) -> dict[str, dict[str, LossCount]]:
    sorted_tables = {}
    for table, order in GROUP_ORDER.items():
        counts = tables.get(table, {})
        sorted_tables[table] = {group: counts[group] for group in order if group in counts}
    return sorted_tables


def pool_losses(reports: Sequence[LossReport]) -> LossReport:
    """Return the losses of one policy over several sessions as one."""
    tables: dict[str, dict[str, LossCount]] = {}
    steps: list[LossStep] = []
    for report in reports:
        steps += report.worst_steps
        for table, counts in report.tables.items():
            sums = tables.setdefault(table, {})
            for group, count in counts.items():
                sums[group] = sums.get(group, LossCount()) + count
    return LossReport(
        sum((report.count for report in reports), LossCount()),
        sum(report.names_known for report in reports),
        _sort_groups(tables),
        find_worst_steps(steps),
    )


def encode_losses(report: LossReport) -> dict[str, Any]:
    """Return the losses under the names in docs/metrics.md."""
    tables = msgspec.to_builtins(report.tables)
    steps = msgspec.to_builtins(report.worst_steps)
    return {
        "lost": report.count.lost,
        "needed": report.count.needed,
        "names_known": report.names_known,
        **{f"by_{table}": tables.get(table, {}) for table in GROUP_ORDER},
        "worst_steps": steps,
    }
