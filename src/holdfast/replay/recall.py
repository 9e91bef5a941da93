"""Online recall: whether each request still holds what the agent is about to use.

``StepDependencies`` is worked out once a session and knows no policy; ``score`` then judges one request of any of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall
from holdfast.messages.references import Reference, iter_part_texts, iter_reference_texts, load_common_references
from holdfast.replay.evidence import TextIndex


class RecallCounts(Struct, frozen=True):
    """Of ``total`` dependencies, how many are present by name and how many with their evidence."""

    names: int = 0
    facts: int = 0
    total: int = 0

    def __add__(self, other: RecallCounts) -> RecallCounts:
        return RecallCounts(self.names + other.names, self.facts + other.facts, self.total + other.total)

    @property
    def recall(self) -> float | None:
        """Share present by name; nothing without dependencies."""
        return self.names / self.total if self.total else None

    @property
    def fact_recall(self) -> float | None:
        """Share present with evidence; nothing without dependencies."""
        return self.facts / self.total if self.total else None


def iter_used_texts(message: Message) -> Iterator[str]:
    """Yield the texts by which the assistant uses references: its words and the strings of its tool arguments."""
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
    """Return the references that are no background, sorted: neither in the frame nor on the shipped list."""
    background_names = load_common_references()
    return sorted(ref for ref in references if ref not in setup_references and ref[1] not in background_names)


class StepDependencies:
    """What each step of a session depends on: references known before it and not shown since the step before.

    ``steps`` are the positions of the model's answers in ``messages`` (all assistant messages by default); ``frame``
    are the texts of system prompt and tools, if they were recorded.
    """

    def __init__(
        self,
        messages: Sequence[Message],
        steps: Sequence[int] | None = None,
        setup_texts: Iterable[str] = (),
    ) -> None:
        self.lookup = TextIndex()
        self._frame = frozenset(find_references(setup_texts, self.lookup))
        self._holders: dict[Reference, list[str]] = {}
        """The texts that hold a reference, each once, in order of their first appearance."""
        self._first: dict[str, int] = {}
        """Position of the message in which a text first stood."""
        self._needs: dict[int, list[tuple[Reference, int]]] = {}
        """For each step, its dependencies with the number of texts that held them by then."""
        self._index_messages(messages, set(find_answer_positions(messages) if steps is None else steps))

    def _index_messages(self, messages: Sequence[Message], steps: set[int]) -> None:
        shown_references: set[Reference] = set()
        for position, message in enumerate(messages):
            texts = [text for text in iter_reference_texts(message) if text]
            if position in steps:
                used = find_references(iter_used_texts(message), self.lookup)
                known_references = [ref for ref in used if ref in self._holders and ref not in shown_references]
                self._needs[position] = [
                    (ref, len(self._holders[ref])) for ref in drop_background(known_references, self._frame)
                ]
                shown_references = set()
            else:
                shown_references |= find_references(texts, self.lookup)
            for text in texts:
                self._index_text(text, position)

    def _index_text(self, text: str, position: int) -> None:
        if text in self._first:
            return
        self._first[text] = position
        for ref in self.lookup.get_references(text):
            self._holders.setdefault(ref, []).append(text)

    def get_dependencies(self, step: int) -> list[Reference]:
        """Return the dependencies of the step at position ``step``, sorted."""
        return [ref for ref, _ in self._needs.get(step, [])]

    def score_request(self, step: int, context: Iterable[str]) -> RecallCounts:
        """Return how many dependencies of a step the request holds whose messages say ``context``."""
        needs = self._needs.get(step)
        if not needs:
            return RecallCounts()
        context_texts = set(context)
        foreign = [text for text in context_texts if self._first.get(text, step) >= step]
        present = facts = 0
        for ref, count in needs:
            holder_texts = self._holders[ref][:count]
            if not context_texts.isdisjoint(holder_texts):
                present += 1
                facts += 1
                continue
            reference_texts = [text for text in foreign if ref in self.lookup.get_references(text)]
            if reference_texts:
                present += 1
                facts += self.lookup.is_kept(ref, holder_texts, reference_texts)
        return RecallCounts(present, facts, len(needs))


def find_answer_positions(messages: Sequence[Message]) -> list[int]:
    """Return the positions of the assistant's messages."""
    return [position for position, message in enumerate(messages) if message.role == "assistant"]
