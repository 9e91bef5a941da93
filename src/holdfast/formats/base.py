"""What a recorded session says: a tree of entries, and the questions asked of it.

Every reader returns a ``Recording``. A recorded model call is three entries in a row: ``Request`` (with the model),
``Said`` (the answer) and ``Answer`` (its usage and how it stopped). A recorded compaction is a ``Compaction`` entry,
so the branch at the leaf shows what the tool showed, and ``history`` shows what was really said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from holdfast.state.branch.branch import Branch
from holdfast.state.entries import Answer, BranchSummary, Entry, Frame, Request, Said, Usage

SYNTHETIC, FAILED, ABORTED = "synthetic", "error", "aborted"
"""Values of ``Answer.stop`` for answers that no model finished: made by the tool, failed, cut off by the user."""
NO_STEP = frozenset({SYNTHETIC, FAILED, ABORTED})
PAID = "paid"
"""``Answer.basis`` where the request that was paid for showed other words than stand before the answer now.

So its usage is no measure of them. It is also what the field ``holdfast`` says of such an answer in a tool's file.
"""


class Problem(Struct, frozen=True):
    """Something in the file is not as it should be: where, and what was made of it."""

    line: int
    """Counted from 1; 0 is the file as a whole."""
    reason: str

    @property
    def told(self) -> str:
        """Where it is and what it is, in one line."""
        return f"line {self.line}: {self.reason}" if self.line else self.reason


class Recording(Struct, frozen=True):
    """A recorded session. Ids of ``entries`` are unique, each parent stands earlier in the tuple."""

    format: str
    """The name of a reader, of an API, or ``holdfast``."""
    session: str = ""
    cwd: str = ""
    title: str = ""
    model: str = ""
    """The model of the last answer."""
    api: str = ""
    """The API the session was held with, as far as the file says."""
    entries: Sequence[Entry] = ()
    """A tuple, or ``model.lazy.LazyEntries`` whose words are read from the file when they are asked for."""
    leaf: str | None = None
    """Where the conversation stood at the end of the file."""
    skipped: dict[str, int] = {}
    """Lines that are no part of the conversation, counted by kind."""
    problems: tuple[Problem, ...] = ()
    sidechains: tuple[Recording, ...] = ()
    """Conversations of sub-agents that lie in the same file."""


class Step(Struct, frozen=True):
    """One recorded model call: the entry of its answer, when, by which model, and what it cost."""

    id: str
    at: int | None
    model: str
    usage: Usage
    stop: str


def path(recording: Recording, leaf: str | None = None) -> list[Entry]:
    """Return the entries from the root to ``leaf`` (default: the recording's; an unknown one: the last entry)."""
    known = {entry.id: entry for entry in recording.entries}
    end = recording.leaf if leaf is None else leaf
    if end is not None and end not in known:
        end = recording.entries[-1].id if recording.entries else None
    out: list[Entry] = []
    while end is not None and end in known:
        entry = known.pop(end)
        out.append(entry)
        end = entry.parent
    return out[::-1]


def history(recording: Recording) -> list[Entry]:
    """Return all that was really said on the way to the leaf, in order, recorded compactions undone.

    Each answer of a model is followed by its ``Answer`` entry; a recorded frame stands where it came into force.
    """
    return [entry for entry in path(recording) if isinstance(entry.body, Said | BranchSummary | Answer | Frame)]


def context(recording: Recording, leaf: str | None = None) -> Branch:
    """Return the branch at ``leaf`` as the tool saw it: the recorded summary, the kept tail, what came later."""
    return Branch.build(path(recording, leaf))


def steps(recording: Recording) -> list[Step]:
    """Return the model calls on the way to the leaf; answers that no model finished are none."""
    way = path(recording)
    known = {entry.id: entry for entry in way}
    found = (_step(entry, known) for entry in way)
    return [step for step in found if step is not None]


def _step(entry: Entry, known: dict[str, Entry]) -> Step | None:
    answer, said = entry.body, known.get(entry.parent or "")
    if not isinstance(answer, Answer) or answer.stop in NO_STEP or said is None:
        return None
    asked = known.get(said.parent or "")
    model = asked.body.model if asked is not None and isinstance(asked.body, Request) else ""
    return Step(said.id, said.at, model, answer.usage, answer.stop)


def recording_of(entries: Iterable[Entry], leaf: str | None = None) -> Recording:
    """Return ``entries`` of a log as a recording; ``leaf`` defaults to the last entry."""
    kept = tuple(entries)
    end = leaf if leaf is not None else kept[-1].id if kept else None
    return Recording(format="holdfast", entries=kept, leaf=end)
