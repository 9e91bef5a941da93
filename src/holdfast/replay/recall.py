"""Online recall: whether each request still holds what the agent is about to use.

``Dependencies`` is worked out once a session and knows no policy; ``score`` then judges one request of any of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall
from holdfast.messages.references import Reference, background, part_words, words
from holdfast.replay.evidence import Texts


class Hits(Struct, frozen=True):
    """Of ``total`` dependencies, how many are present by name and how many with their evidence."""

    present: int = 0
    facts: int = 0
    total: int = 0

    def __add__(self, other: Hits) -> Hits:
        return Hits(self.present + other.present, self.facts + other.facts, self.total + other.total)

    @property
    def recall(self) -> float | None:
        """Share present by name; nothing without dependencies."""
        return self.present / self.total if self.total else None

    @property
    def fact_recall(self) -> float | None:
        """Share present with evidence; nothing without dependencies."""
        return self.facts / self.total if self.total else None


def uses(message: Message) -> Iterator[str]:
    """Yield the texts by which the assistant uses references: its words and the strings of its tool arguments."""
    for part in message.parts:
        if isinstance(part, Text | ToolCall):
            yield from part_words(part)


def found_in(texts: Iterable[str], lookup: Texts) -> set[Reference]:
    """Return all references in ``texts``."""
    found: set[Reference] = set()
    for text in texts:
        found |= lookup.references(text)
    return found


def foreground(found: Iterable[Reference], frame: frozenset[Reference]) -> list[Reference]:
    """Return the references that are no background, sorted: neither in the frame nor on the shipped list."""
    known = background()
    return sorted(ref for ref in found if ref not in frame and ref[1] not in known)


class Dependencies:
    """What each step of a session depends on: references known before it and not shown since the step before.

    ``steps`` are the positions of the model's answers in ``messages`` (all assistant messages by default); ``frame``
    are the texts of system prompt and tools, if they were recorded.
    """

    def __init__(
        self,
        messages: Sequence[Message],
        steps: Sequence[int] | None = None,
        frame: Iterable[str] = (),
    ) -> None:
        self.lookup = Texts()
        self._frame = frozenset(found_in(frame, self.lookup))
        self._holders: dict[Reference, list[str]] = {}
        """The texts that hold a reference, each once, in order of their first appearance."""
        self._first: dict[str, int] = {}
        """Position of the message in which a text first stood."""
        self._needs: dict[int, list[tuple[Reference, int]]] = {}
        """For each step, its dependencies with the number of texts that held them by then."""
        self._read(messages, set(answers(messages) if steps is None else steps))

    def _read(self, messages: Sequence[Message], steps: set[int]) -> None:
        shown: set[Reference] = set()
        for position, message in enumerate(messages):
            texts = [text for text in words(message) if text]
            if position in steps:
                used = found_in(uses(message), self.lookup)
                known = [ref for ref in used if ref in self._holders and ref not in shown]
                self._needs[position] = [(ref, len(self._holders[ref])) for ref in foreground(known, self._frame)]
                shown = set()
            else:
                shown |= found_in(texts, self.lookup)
            for text in texts:
                self._hold(text, position)

    def _hold(self, text: str, position: int) -> None:
        if text in self._first:
            return
        self._first[text] = position
        for ref in self.lookup.references(text):
            self._holders.setdefault(ref, []).append(text)

    def at(self, step: int) -> list[Reference]:
        """Return the dependencies of the step at position ``step``, sorted."""
        return [ref for ref, _ in self._needs.get(step, [])]

    def score(self, step: int, context: Iterable[str]) -> Hits:
        """Return how many dependencies of a step the request holds whose messages say ``context``."""
        needs = self._needs.get(step)
        if not needs:
            return Hits()
        shown = set(context)
        foreign = [text for text in shown if self._first.get(text, step) >= step]
        present = facts = 0
        for ref, count in needs:
            said = self._holders[ref][:count]
            if not shown.isdisjoint(said):
                present += 1
                facts += 1
                continue
            kept = [text for text in foreign if ref in self.lookup.references(text)]
            if kept:
                present += 1
                facts += self.lookup.is_kept(ref, said, kept)
        return Hits(present, facts, len(needs))


def answers(messages: Sequence[Message]) -> list[int]:
    """Return the positions of the assistant's messages."""
    return [position for position, message in enumerate(messages) if message.role == "assistant"]
