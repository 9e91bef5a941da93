"""A recording as the model sees it now: what was decided in its place is said by the messages themselves.

Every entry keeps its id and its place, so that all that names one still does: links between lines, labels, the first
message that a compaction kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

from msgspec.structs import replace

from holdfast.formats.base import STALE_USAGE_BASIS, Recording, build_state_at_leaf, get_branch_entries
from holdfast.formats.claude_code import read as claude_code
from holdfast.formats.codex import read as codex
from holdfast.formats.pi import read as pi
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.sized_message import SizedMessage
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit
from holdfast.state.entries import (
    AnswerEntry,
    BranchSummaryEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    EntryBody,
    LabelEntry,
    MessageEntry,
    NoteEntry,
    RequestEntry,
    Usage,
)
from holdfast.state.view import list_shown_sized_messages_at

REWRITTEN_NOTE = "rewritten"
"""Reason of the note that stands where lines did that said or named what is shorter now."""
QUOTING_NOTES = {
    claude_code.COMPACT_BOUNDARY_NOTE,
    f"{codex.CODEX_NOTE_PREFIX}compacted",
    f"{pi.PI_NOTE_PREFIX}compaction",
    f"{pi.PI_NOTE_PREFIX}branch_summary",
}
"""Reasons of notes whose lines are written instead of the entry behind them."""


def apply_decisions_to_messages(recording: Recording) -> Recording:
    """Return the way to the leaf with the decisions in force applied to its messages; other branches are left out.

    Usage of the newest answer goes where the request held more than the next one will: a tool takes a session for full
    by it. That of older ones which counted what is shorter now is marked: it was paid, and measures nothing any more.
    The lines of a recorded compaction that kept a message which is shorter now are written anew.
    """
    state, way = build_state_at_leaf(recording), get_branch_entries(recording)
    short = _find_shortened_messages(state)
    there = {entry.id for entry in way}
    bodies = _rewrite_bodies(way, state, short) if short else {}
    kept_entries = (entry for entry in recording.entries if entry.id in there or _is_label_on_branch(entry, there))
    entries = tuple(replace(entry, body=bodies.get(entry.id, entry.body)) for entry in kept_entries)
    return replace(
        recording,
        entries=entries,
        sidechains=tuple(apply_decisions_to_messages(sidechain) for sidechain in recording.sidechains),
    )


def _find_shortened_messages(state: ConversationState) -> dict[int, SizedMessage]:
    """Return the messages of which parts gave way, as they are shown, by slot."""
    indexes = (index for index, edits in state.view.edits.items() if all(edit.span.part is not None for edit in edits))
    return {
        index: _remeasure_message(sized_message)
        for index in indexes
        for sized_message in list_shown_sized_messages_at(state, index)
    }


def _remeasure_message(message: SizedMessage) -> SizedMessage:
    return replace(build_sized_message(message.message), api=message.api, base_raw=message.base_raw)


def _is_label_on_branch(entry: Entry, branch_ids: set[str]) -> bool:
    """Return whether ``entry`` is a label of something on the way."""
    return isinstance(entry.body, LabelEntry) and entry.body.target in branch_ids and entry.parent in branch_ids


def _rewrite_bodies(
    branch_entries: Sequence[Entry], state: ConversationState, shortened: Mapping[int, SizedMessage]
) -> dict[str, EntryBody]:
    """Return what the entries say instead that do not stay as they are."""
    message_entries = [entry for entry in branch_entries if isinstance(entry.body, MessageEntry | BranchSummaryEntry)]
    bodies = {
        entry.id: new for entry in branch_entries if (new := _drop_applied_edits(entry.body, shortened)) is not None
    }
    bodies |= _mark_stale_answers(branch_entries, _find_change_positions(branch_entries, state, shortened))
    bodies |= _clear_newest_usage(branch_entries, {id_ for id_, _ in state.view.active_decisions})
    bodies |= _replace_stale_notes(branch_entries, state, {message_entries[index].id for index in shortened})
    return bodies | {
        message_entries[index].id: _replace_body_message(message_entries[index].body, sized_message)
        for index, sized_message in shortened.items()
    }


def _replace_body_message(body: EntryBody, message: SizedMessage) -> EntryBody:
    return (
        BranchSummaryEntry(message, body.source_id) if isinstance(body, BranchSummaryEntry) else MessageEntry(message)
    )


def _drop_applied_edits(body: EntryBody, shortened: Mapping[int, SizedMessage]) -> EntryBody | None:
    """Return a decision or compaction without the edits that its messages say now; nothing if it has none."""
    if not isinstance(body, DecisionEntry | CompactionEntry) or not any(
        _is_applied(edit, shortened) for edit in body.edits
    ):
        return None
    return replace(body, edits=tuple(edit for edit in body.edits if not _is_applied(edit, shortened)))


def _is_applied(edit: Edit, shortened: Mapping[int, SizedMessage]) -> bool:
    return any(index in shortened for index in _get_span_range(edit))


def _find_change_positions(
    branch_entries: Sequence[Entry], state: ConversationState, shortened: Mapping[int, SizedMessage]
) -> list[int]:
    """Return for each number of slots where on the way the last decision stands that made one of them shorter."""
    law = {id_ for id_, _ in state.view.active_decisions}
    at: dict[int, int] = {}
    for place, entry in enumerate(branch_entries):
        body = entry.body
        if entry.id in law and isinstance(body, DecisionEntry | CompactionEntry):
            at |= dict.fromkeys(
                (index for edit in body.edits for index in _get_span_range(edit) if index in shortened), place
            )
    return [*accumulate((at.get(index, -1) for index in range(len(state.history.sized_messages))), max, initial=-1)]


def _get_span_range(edit: Edit) -> range:
    return range(edit.span.start, edit.span.stop)


def _mark_stale_answers(branch_entries: Sequence[Entry], changed_at: Sequence[int]) -> dict[str, EntryBody]:
    """Return the answers whose requests showed in full what was decided to be shorter only later."""
    slot_count, bodies = 0, dict[str, EntryBody]()
    for place, entry in enumerate(branch_entries):
        body = entry.body
        if isinstance(body, RequestEntry):
            slot_count = body.message_count
        elif isinstance(body, AnswerEntry) and body.usage.total and changed_at[slot_count] > place:
            bodies[entry.id] = replace(body, prefix_digest=STALE_USAGE_BASIS)
    return bodies


def _clear_newest_usage(branch_entries: Sequence[Entry], decision_ids: set[str]) -> dict[str, EntryBody]:
    """Return the newest answer and its message without usage, where something in force was decided behind it."""
    for index in range(len(branch_entries) - 1, -1, -1):
        body, previous_entry = branch_entries[index].body, branch_entries[index - 1]
        if branch_entries[index].id in decision_ids:
            decision_ids = set()
        elif isinstance(body, AnswerEntry) and body.usage.total:
            anew = (
                {previous_entry.id: MessageEntry(previous_entry.body.sized_message)}
                if isinstance(previous_entry.body, MessageEntry)
                else {}
            )
            return {} if decision_ids else {**anew, branch_entries[index].id: replace(body, usage=Usage())}
    return {}


def _replace_stale_notes(
    branch_entries: Sequence[Entry], state: ConversationState, shortened_ids: set[str]
) -> dict[str, EntryBody]:
    """Return the notes of lines that say what is said shorter now: before the compaction in force, and summaries."""
    compaction_id = next(
        (id_ for id_, body in reversed(state.view.active_decisions) if isinstance(body, CompactionEntry)), ""
    )
    place = next((index for index, entry in enumerate(branch_entries) if entry.id == compaction_id), 0)
    if not shortened_ids.isdisjoint(entry.id for entry in branch_entries[:place]):
        shortened_ids = {*shortened_ids, compaction_id}
    pairs = ((before.body, before.id) for before, entry in pairwise(branch_entries) if entry.id in shortened_ids)
    return {
        id_: NoteEntry(REWRITTEN_NOTE)
        for note, id_ in pairs
        if isinstance(note, NoteEntry) and note.reason in QUOTING_NOTES
    }
