"""A recording as the model sees it now: messages that decisions shortened are replaced by their short forms.

A tool's file has no place for our edits, so an export for going on in the tool has to write the shortened messages
themselves. Every entry keeps its id and its place, so links between lines, labels and ``first_kept`` of a compaction
stay true.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from msgspec.structs import replace

from holdfast.formats.atif import read as atif
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
"""Reason of the note that replaces kept lines which quote or count messages that are shorter now."""
QUOTING_NOTES = {
    atif.COMPACTION_NOTE,
    claude_code.COMPACT_BOUNDARY_NOTE,
    f"{codex.CODEX_NOTE_PREFIX}compacted",
    f"{pi.PI_NOTE_PREFIX}compaction",
    f"{pi.PI_NOTE_PREFIX}branch_summary",
}
"""Reasons of notes whose lines a writer writes in place of the entry after them."""


def apply_decisions_to_messages(recording: Recording) -> Recording:
    """Return the branch at the leaf with the decisions in force applied to its messages; other branches are dropped.

    Two kinds of usage would mislead the tool. The newest answer's is removed if its request held more than the next
    one will: tools take it for the size of the session and would compact at once. Older usage that counted messages
    which are shorter now is marked as stale: it was paid for and is no measure any more.
    The lines of a recorded compaction that kept a shortened message are written anew.
    """
    state = build_state_at_leaf(recording)
    branch = get_branch_entries(recording)
    shortened = _find_shortened_messages(state)
    bodies = _rewrite_bodies(branch, state, shortened) if shortened else {}
    branch_ids = {entry.id for entry in branch}
    entries = []
    for entry in recording.entries:
        is_kept = entry.id in branch_ids or _is_label_on_branch(entry, branch_ids)
        if is_kept:
            body = bodies.get(entry.id, entry.body)
            entries.append(replace(entry, body=body))
    sidechains = tuple(apply_decisions_to_messages(sidechain) for sidechain in recording.sidechains)
    return replace(recording, entries=tuple(entries), sidechains=sidechains)


def _find_shortened_messages(state: ConversationState) -> dict[int, SizedMessage]:
    """Return the messages of which decisions replaced parts, as they are shown now, by index in the history.

    Spans that replace whole messages are left out: they belong to compactions, which a tool's file can express.
    """
    shortened = {}
    for index, edits in state.view.edits.items():
        if any(edit.span.part is None for edit in edits):
            continue
        for sized_message in list_shown_sized_messages_at(state, index):
            shortened[index] = _remeasure_message(sized_message)
    return shortened


def _remeasure_message(message: SizedMessage) -> SizedMessage:
    return replace(build_sized_message(message.message), api=message.api, base_raw=message.base_raw)


def _is_label_on_branch(entry: Entry, branch_ids: set[str]) -> bool:
    """Return whether ``entry`` labels an entry of the branch."""
    return isinstance(entry.body, LabelEntry) and entry.body.target in branch_ids and entry.parent in branch_ids


def _rewrite_bodies(
    branch_entries: Sequence[Entry],
    state: ConversationState,
    shortened: Mapping[int, SizedMessage],
) -> dict[str, EntryBody]:
    """Return the new bodies of all entries that change, by entry id."""
    message_entries = [entry for entry in branch_entries if isinstance(entry.body, MessageEntry | BranchSummaryEntry)]
    decision_ids = {entry_id for entry_id, _ in state.view.active_decisions}
    shortened_ids = {message_entries[index].id for index in shortened}
    bodies: dict[str, EntryBody] = {}
    for entry in branch_entries:
        remaining_body = _drop_applied_edits(entry.body, shortened)
        if remaining_body is not None:
            bodies[entry.id] = remaining_body
    # Later steps win: the newest answer loses its usage even where it was marked as stale, and a shortened answer
    # keeps its short message.
    bodies |= _mark_stale_answers(branch_entries, _find_change_positions(branch_entries, state, shortened))
    bodies |= _clear_newest_usage(branch_entries, decision_ids)
    bodies |= _replace_stale_notes(branch_entries, state, shortened_ids)
    for index, sized_message in shortened.items():
        entry = message_entries[index]
        bodies[entry.id] = _replace_body_message(entry.body, sized_message)
    return bodies


def _replace_body_message(body: EntryBody, message: SizedMessage) -> EntryBody:
    if isinstance(body, BranchSummaryEntry):
        return BranchSummaryEntry(message, body.source_id)
    return MessageEntry(message)


def _drop_applied_edits(body: EntryBody, shortened: Mapping[int, SizedMessage]) -> EntryBody | None:
    """Return a decision or compaction without the edits already applied to messages, or None if it had none."""
    if not isinstance(body, DecisionEntry | CompactionEntry):
        return None
    pending_edits = tuple(edit for edit in body.edits if not _is_applied(edit, shortened))
    if len(pending_edits) == len(body.edits):
        return None
    return replace(body, edits=pending_edits)


def _is_applied(edit: Edit, shortened: Mapping[int, SizedMessage]) -> bool:
    return any(index in shortened for index in _get_span_range(edit))


def _find_change_positions(
    branch_entries: Sequence[Entry],
    state: ConversationState,
    shortened: Mapping[int, SizedMessage],
) -> list[int]:
    """Return for each n the branch position of the last decision that shortened one of the first n messages.

    -1 where none did. The list has one element more than the history has messages.
    """
    decision_ids = {entry_id for entry_id, _ in state.view.active_decisions}
    position_by_message: dict[int, int] = {}
    for position, entry in enumerate(branch_entries):
        body = entry.body
        if entry.id not in decision_ids or not isinstance(body, DecisionEntry | CompactionEntry):
            continue
        for edit in body.edits:
            for index in _get_span_range(edit):
                if index in shortened:
                    position_by_message[index] = position
    newest_position = -1
    positions = [newest_position]
    for index in range(len(state.history.sized_messages)):
        newest_position = max(newest_position, position_by_message.get(index, -1))
        positions.append(newest_position)
    return positions


def _get_span_range(edit: Edit) -> range:
    return range(edit.span.start, edit.span.stop)


def _mark_stale_answers(branch_entries: Sequence[Entry], change_positions: Sequence[int]) -> dict[str, EntryBody]:
    """Return answers to requests that showed in full a message that was shortened later, marked as stale."""
    message_count = 0
    bodies: dict[str, EntryBody] = {}
    for position, entry in enumerate(branch_entries):
        body = entry.body
        if isinstance(body, RequestEntry):
            message_count = body.message_count
        elif isinstance(body, AnswerEntry) and body.usage.total and change_positions[message_count] > position:
            bodies[entry.id] = replace(body, prefix_digest=STALE_USAGE_BASIS)
    return bodies


def _clear_newest_usage(branch_entries: Sequence[Entry], decision_ids: set[str]) -> dict[str, EntryBody]:
    """Return the newest answer without usage, and its message without the tool's lines that repeat the usage.

    Empty if no decision in force came after that answer: then its usage is still the size of the session.
    """
    has_later_decision = False
    for index in range(len(branch_entries) - 1, -1, -1):
        entry = branch_entries[index]
        if entry.id in decision_ids:
            has_later_decision = True
        elif isinstance(entry.body, AnswerEntry) and entry.body.usage.total:
            if not has_later_decision:
                return {}
            bodies: dict[str, EntryBody] = {}
            message_entry = branch_entries[index - 1]
            if isinstance(message_entry.body, MessageEntry):
                bodies[message_entry.id] = MessageEntry(message_entry.body.sized_message)
            bodies[entry.id] = replace(entry.body, usage=Usage())
            return bodies
    return {}


def _replace_stale_notes(
    branch_entries: Sequence[Entry],
    state: ConversationState,
    shortened_ids: set[str],
) -> dict[str, EntryBody]:
    """Return placeholders for the notes with lines that quote a shortened message, by entry id.

    Lines of a summary quote the summary itself. Lines of the compaction in force quote every message that it kept,
    so they are stale as soon as one message before it is shorter.
    """
    stale_ids = set(shortened_ids)
    compaction_id = ""
    for id_, body in state.view.active_decisions:
        if isinstance(body, CompactionEntry):
            compaction_id = id_
    branch_ids = [entry.id for entry in branch_entries]
    if compaction_id in branch_ids:
        ids_before = branch_ids[: branch_ids.index(compaction_id)]
        if not shortened_ids.isdisjoint(ids_before):
            stale_ids.add(compaction_id)
    bodies: dict[str, EntryBody] = {}
    for note_entry, entry in pairwise(branch_entries):
        note = note_entry.body
        if entry.id in stale_ids and isinstance(note, NoteEntry) and note.reason in QUOTING_NOTES:
            bodies[note_entry.id] = NoteEntry(REWRITTEN_NOTE)
    return bodies
