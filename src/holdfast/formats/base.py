"""A recorded session as a tree of entries, and the questions asked of it.

Every reader returns a ``Recording``. A recorded model call is three entries in a row: ``RequestEntry`` (with the
model), ``MessageEntry`` (the answer) and ``AnswerEntry`` (its usage and stop reason). A recorded compaction is a
``CompactionEntry``, so the state at the leaf shows the conversation as the tool showed it, and
``get_full_history_entries`` returns everything that was said.
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
"""Values of ``AnswerEntry.stop_reason`` for answers that no model finished: written by the tool itself, failed, or
interrupted by the user.
"""
# Their usage is zero or partial, so they neither count as model calls nor calibrate the estimator.
UNFINISHED_STOPS = frozenset({SYNTHETIC, FAILED, ABORTED})
STALE_USAGE_BASIS = "paid"
"""Value of ``AnswerEntry.prefix_digest`` when the request that was paid for differed from the messages stored now.

Such usage was really spent but must not calibrate the estimator. The ``holdfast`` field of an answer in a tool's file
has the same value, so that the mark survives an export and an import.
"""


class RecordingProblem(Struct, frozen=True):
    """A defect in the file: its line, what is wrong, and how the reader handled it."""

    line: int
    """Line number, counted from 1; 0 for the file as a whole."""
    reason: str

    @property
    def message(self) -> str:
        """The problem with its line number, as one line of text."""
        return f"line {self.line}: {self.reason}" if self.line else self.reason


class Recording(Struct, frozen=True):
    """A recorded session. Ids in ``entries`` are unique, and every parent precedes its children."""

    format: str
    """Name of a reader or of an API, or ``holdfast``."""
    session: str = ""
    cwd: str = ""
    title: str = ""
    model: str = ""
    """The model of the last answer."""
    api: str = ""
    """API that the session used, or empty if the file does not say."""
    entries: Sequence[Entry] = ()
    """A tuple, or ``state.lazy_entries.LazyEntries``, whose messages are read from the file on demand."""
    leaf: str | None = None
    """Id of the entry at which the conversation stood at the end of the file."""
    skipped_counts: dict[str, int] = {}
    """Number of lines that are not part of the conversation, by kind."""
    problems: tuple[RecordingProblem, ...] = ()
    sidechains: tuple[Recording, ...] = ()
    """Conversations of sub-agents stored in the same file."""
    window: int | None = None
    """The newest context window, in tokens, that the tool recorded for its model; None if the file does not say."""


class RecordedModelCall(Struct, frozen=True):
    """One recorded model call: id of the answer's entry, time in ms since 1970, model, usage and stop reason."""

    id: str
    at: int | None
    model: str
    usage: Usage
    stop: str


def get_branch_entries(recording: Recording, leaf: str | None = None) -> list[Entry]:
    """Return the entries from the root to ``leaf``, root first.

    ``leaf`` defaults to the recording's own. An unknown leaf counts as the last entry of the file.
    """
    remaining = {entry.id: entry for entry in recording.entries}
    entry_id = recording.leaf if leaf is None else leaf
    if entry_id is not None and entry_id not in remaining:
        entry_id = recording.entries[-1].id if recording.entries else None
    branch: list[Entry] = []
    # Each visited entry is removed, so a cycle of parents in a damaged file ends the walk.
    while entry_id is not None and entry_id in remaining:
        entry = remaining.pop(entry_id)
        branch.append(entry)
        entry_id = entry.parent
    branch.reverse()
    return branch


def get_full_history_entries(recording: Recording) -> list[Entry]:
    """Return everything said on the way to the leaf, in order, as if recorded compactions had not happened.

    Each answer of a model is followed by its ``AnswerEntry``; a recorded setup stands where it came into force.
    """
    history = []
    for entry in get_branch_entries(recording):
        if isinstance(entry.body, MessageEntry | BranchSummaryEntry | AnswerEntry | RequestSetup):
            history.append(entry)
    return history


def build_state_at_leaf(recording: Recording, leaf: str | None = None) -> ConversationState:
    """Return the conversation state at ``leaf`` as the tool showed it: recorded summary, kept tail, later messages."""
    return ConversationState.from_entries(get_branch_entries(recording, leaf))


def list_model_calls(recording: Recording) -> list[RecordedModelCall]:
    """Return the model calls on the way to the leaf, without answers that no model finished."""
    branch = get_branch_entries(recording)
    entries_by_id = {entry.id: entry for entry in branch}
    calls = []
    for entry in branch:
        call = _to_recorded_call(entry, entries_by_id)
        if call is not None:
            calls.append(call)
    return calls


def _to_recorded_call(entry: Entry, entries_by_id: dict[str, Entry]) -> RecordedModelCall | None:
    """Return the model call that ends with ``entry``, or None if the entry ends none or no model finished it."""
    answer = entry.body
    if not isinstance(answer, AnswerEntry) or answer.stop_reason in UNFINISHED_STOPS:
        return None
    message_entry = entries_by_id.get(entry.parent or "")
    if message_entry is None:
        return None
    model = ""
    request_entry = entries_by_id.get(message_entry.parent or "")
    if request_entry is not None and isinstance(request_entry.body, RequestEntry):
        model = request_entry.body.model
    return RecordedModelCall(
        message_entry.id,
        message_entry.time_ms,
        model,
        answer.usage,
        answer.stop_reason,
    )


def make_recording(entries: Iterable[Entry], leaf: str | None = None) -> Recording:
    """Return the entries of a log as a recording; ``leaf`` defaults to the last entry."""
    all_entries = tuple(entries)
    if leaf is None and all_entries:
        leaf = all_entries[-1].id
    return Recording(format="holdfast", entries=all_entries, leaf=leaf)
