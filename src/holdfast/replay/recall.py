"""Online recall: whether each request still contains what the agent is about to use.

``StepDependencies`` are computed once for a session, independent of policies; ``score_request`` then judges a request
of any policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall
from holdfast.messages.references import Reference, iter_part_texts, iter_reference_texts, load_common_references
from holdfast.replay.evidence import TextIndex


class RecallCounts(Struct, frozen=True):
    """How many of ``total`` dependencies are present by name, and how many with their evidence."""

    names: int = 0
    facts: int = 0
    total: int = 0

    def __add__(self, other: RecallCounts) -> RecallCounts:
        return RecallCounts(self.names + other.names, self.facts + other.facts, self.total + other.total)

    @property
    def recall(self) -> float | None:
        """Share present by name, or None without dependencies."""
        return self.names / self.total if self.total else None

    @property
    def fact_recall(self) -> float | None:
        """Share present with evidence, or None without dependencies."""
        return self.facts / self.total if self.total else None


class NeedOutcome(Struct, frozen=True):
    """What became of one dependency of a step in one request."""

    reference: Reference
    has_name: bool
    has_fact: bool


def count_outcomes(outcomes: Iterable[NeedOutcome]) -> RecallCounts:
    """Return how many of the dependencies are present by name, and how many with their evidence."""
    names = facts = total = 0
    for outcome in outcomes:
        names += outcome.has_name
        facts += outcome.has_fact
        total += 1
    return RecallCounts(names, facts, total)


def iter_used_texts(message: Message) -> Iterator[str]:
    """Yield the texts in which the assistant uses references: its own and the strings in tool arguments."""
    for part in message.parts:
        if isinstance(part, Text | ToolCall):
            yield from iter_part_texts(part)


def find_references(texts: Iterable[str], lookup: TextIndex) -> set[Reference]:
    """Return all references in ``texts``."""
    references: set[Reference] = set()
    for text in texts:
        references |= lookup.get_references(text)
    return references


def drop_background(references: Iterable[Reference], setup_references: frozenset[Reference]) -> list[Reference]:
    """Return the references that are not background, sorted: neither in the setup nor on the shipped list."""
    background_names = load_common_references()
    specific_references = []
    for ref in references:
        if ref not in setup_references and ref[1] not in background_names:
            specific_references.append(ref)
    return sorted(specific_references)


class StepDependencies:
    """The references that each step of a session needs: known before it and not shown since the step before.

    ``steps`` are the positions of the model's answers in ``messages`` (by default all assistant messages);
    ``setup_texts`` are the texts of system prompt and tools, if they were recorded.
    """

    def __init__(
        self,
        messages: Sequence[Message],
        steps: Sequence[int] | None = None,
        setup_texts: Iterable[str] = (),
    ) -> None:
        self.lookup = TextIndex()
        self._setup_references = frozenset(find_references(setup_texts, self.lookup))
        self._texts_by_reference: dict[Reference, list[str]] = {}
        """The distinct texts that contain a reference, in order of their first appearance."""
        self._first_position: dict[str, int] = {}
        """Position of the message in which a text first appeared."""
        self._needs: dict[int, list[tuple[Reference, int]]] = {}
        """For each step its dependencies, each with the number of texts that contained it by then."""
        if steps is None:
            steps = find_answer_positions(messages)
        self._index_messages(messages, set(steps))

    def _index_messages(self, messages: Sequence[Message], steps: set[int]) -> None:
        shown_references: set[Reference] = set()
        for position, message in enumerate(messages):
            texts = [text for text in iter_reference_texts(message) if text]
            if position in steps:
                self._needs[position] = self._find_needs(message, shown_references)
                shown_references = set()
            else:
                shown_references |= find_references(texts, self.lookup)
            for text in texts:
                self._index_text(text, position)

    def _find_needs(self, answer: Message, shown_references: set[Reference]) -> list[tuple[Reference, int]]:
        used = find_references(iter_used_texts(answer), self.lookup)
        known = [ref for ref in used if ref in self._texts_by_reference and ref not in shown_references]
        # With the number of texts, so that a request is compared only with the history before this step.
        dependencies = drop_background(known, self._setup_references)
        return [(ref, len(self._texts_by_reference[ref])) for ref in dependencies]

    def _index_text(self, text: str, position: int) -> None:
        if text in self._first_position:
            return
        self._first_position[text] = position
        for ref in self.lookup.get_references(text):
            self._texts_by_reference.setdefault(ref, []).append(text)

    def get_dependencies(self, step: int) -> list[Reference]:
        """Return the dependencies of the step at position ``step``, sorted."""
        return [ref for ref, _ in self._needs.get(step, [])]

    def score_request(self, step: int, context: Iterable[str]) -> RecallCounts:
        """Return how many dependencies of a step a request with the texts ``context`` contains."""
        return count_outcomes(self.judge_request(step, context))

    def judge_request(self, step: int, context: Iterable[str]) -> list[NeedOutcome]:
        """Return for each dependency of a step, sorted, what of it a request with the texts ``context`` contains."""
        needs = self._needs.get(step)
        if not needs:
            return []
        context_texts = set(context)
        # Texts that the history did not have before the step: summaries and previews.
        new_texts = [text for text in context_texts if self._first_position.get(text, step) >= step]
        outcomes = []
        for ref, count in needs:
            history_texts = self._texts_by_reference[ref][:count]
            # A text that is still there as it was has all its evidence.
            if not context_texts.isdisjoint(history_texts):
                outcomes.append(NeedOutcome(ref, has_name=True, has_fact=True))
                continue
            reference_texts = [text for text in new_texts if ref in self.lookup.get_references(text)]
            has_fact = bool(reference_texts) and self.lookup.is_kept(ref, history_texts, reference_texts)
            outcomes.append(NeedOutcome(ref, has_name=bool(reference_texts), has_fact=has_fact))
        return outcomes


def find_answer_positions(messages: Sequence[Message]) -> list[int]:
    """Return the positions of assistant messages."""
    return [position for position, message in enumerate(messages) if message.role == "assistant"]
