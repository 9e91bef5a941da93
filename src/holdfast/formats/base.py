"""What a recorded session says: a tree of entries, and the questions asked of it.

Every reader returns a ``Recording``. A recorded model call is three entries in a row: ``RequestEntry`` (with the
model), ``MessageEntry`` (the answer) and ``AnswerEntry`` (its usage and how it stopped). A recorded compaction is a
``CompactionEntry`` entry, so the branch at the leaf shows what the tool showed, and ``get_full_history_entries`` shows
what was really said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import (
    AnswerEntry,
    BranchSummaryEntry,
    Entry,
    MessageEntry,
    RequestEntry,
    RequestSetup,
    Usage,
)

SYNTHETIC, FAILED, ABORTED = "synthetic", "error", "aborted"
"""Values of ``AnswerEntry.stop_reason`` for answers that no model finished: made by the tool, failed, cut off by the
user.
"""
UNFINISHED_STOPS = frozenset({SYNTHETIC, FAILED, ABORTED})
STALE_USAGE_BASIS = "paid"
"""``AnswerEntry.prefix_digest`` where the request that was paid for showed other words than stand before the answer
now.

So its usage is no measure of them. It is also what the field ``holdfast`` says of such an answer in a tool's file.
"""


class RecordingProblem(Struct, frozen=True):
    """Something in the file is not as it should be: where, and what was made of it."""

    line: int
    """Counted from 1; 0 is the file as a whole."""
    reason: str

    @property
    def message(self) -> str:
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
    skipped_counts: dict[str, int] = {}
    """Lines that are no part of the conversation, counted by kind."""
    problems: tuple[RecordingProblem, ...] = ()
    sidechains: tuple[Recording, ...] = ()
    """Conversations of sub-agents that lie in the same file."""


class RecordedModelCall(Struct, frozen=True):
    """One recorded model call: the entry of its answer, when, by which model, and what it cost."""

    id: str
    at: int | None
    model: str
    usage: Usage
    stop: str


def get_branch_entries(recording: Recording, leaf: str | None = None) -> list[Entry]:
    """Return the entries from the root to ``leaf`` (default: the recording's; an unknown one: the last entry)."""
    entries_by_id = {entry.id: entry for entry in recording.entries}
    end = recording.leaf if leaf is None else leaf
    if end is not None and end not in entries_by_id:
        end = recording.entries[-1].id if recording.entries else None
    out: list[Entry] = []
    while end is not None and end in entries_by_id:
        entry = entries_by_id.pop(end)
        out.append(entry)
        end = entry.parent
    return out[::-1]


def get_full_history_entries(recording: Recording) -> list[Entry]:
    """Return all that was really said on the way to the leaf, in order, recorded compactions undone.

    Each answer of a model is followed by its ``AnswerEntry`` entry; a recorded frame stands where it came into force.
    """
    return [
        entry
        for entry in get_branch_entries(recording)
        if isinstance(entry.body, MessageEntry | BranchSummaryEntry | AnswerEntry | RequestSetup)
    ]


def build_state_at_leaf(recording: Recording, leaf: str | None = None) -> ConversationState:
    """Return the branch at ``leaf`` as the tool saw it: the recorded summary, the kept tail, what came later."""
    return ConversationState.from_entries(get_branch_entries(recording, leaf))


def list_model_calls(recording: Recording) -> list[RecordedModelCall]:
    """Return the model calls on the way to the leaf; answers that no model finished are none."""
    way = get_branch_entries(recording)
    entries_by_id = {entry.id: entry for entry in way}
    recorded_calls = (_to_recorded_call(entry, entries_by_id) for entry in way)
    return [step for step in recorded_calls if step is not None]


def _to_recorded_call(entry: Entry, entries_by_id: dict[str, Entry]) -> RecordedModelCall | None:
    answer, answer_entry = entry.body, entries_by_id.get(entry.parent or "")
    if not isinstance(answer, AnswerEntry) or answer.stop_reason in UNFINISHED_STOPS or answer_entry is None:
        return None
    request_entry = entries_by_id.get(answer_entry.parent or "")
    model = (
        request_entry.body.model if request_entry is not None and isinstance(request_entry.body, RequestEntry) else ""
    )
    return RecordedModelCall(answer_entry.id, answer_entry.time_ms, model, answer.usage, answer.stop_reason)


def make_recording(entries: Iterable[Entry], leaf: str | None = None) -> Recording:
    """Return ``entries`` of a log as a recording; ``leaf`` defaults to the last entry."""
    all_entries = tuple(entries)
    end = leaf if leaf is not None else all_entries[-1].id if all_entries else None
    return Recording(format="holdfast", entries=all_entries, leaf=end)
