"""What happened to one message, for its page in the inspector: said, first sent, reduced, hidden, undone, read back.

Read from the small entries of the log. ``holdfast why`` tells it in more detail, from the whole log
(``message_story.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from holdfast.messages.text.single_line import clean_single_line
from holdfast.planning.extract.constants import HANDLE_CHARS
from holdfast.reports.entry_lines import describe_entry_body
from holdfast.reports.messages.read_backs import RecallCall, select_read_backs
from holdfast.reports.sessions.history import find_revoking_entries
from holdfast.reports.sessions.timeline import Timeline, TimelineRequest
from holdfast.state.entries import CompactionEntry, DecisionEntry, Entry, MessageEntry, NoteEntry, RevokeEntry
from holdfast.store.base import SessionStore
from holdfast.store.blobs.blob_names import NOTE_CAPPED, iter_named_hashes

EventKind: TypeAlias = Literal["said", "capped", "sent", "reduced", "hidden", "undone", "restored", "read_back"]


class MessageEvent(Struct, frozen=True):
    """Something that happened to a message."""

    kind: EventKind
    entry: str
    at: int | None
    text: str
    saves: int = 0
    """Estimated tokens of the message that it takes out of requests."""
    handle: str = ""
    """What ``recall`` reads the replaced text back with; empty if nothing was stored."""
    is_undone: bool = False
    request: int = 0
    """Number of the request that it is about, whose entry ``entry`` is; 0 if it is about none."""
    log_entry: str = ""
    """The entry that tells of it, if that is not ``entry``."""
    is_superseded: bool = False
    """Whether a later compaction in force hides the message too, so that undoing this one changes nothing for it."""


def read_decision_entries(store: SessionStore, key: str, timeline: Timeline) -> list[Entry]:
    """Return the decisions, compactions and undos of the branch of ``timeline``, in order."""
    decisions: list[Entry] = []
    for kind in ("decision", "compaction", "revoke"):
        decisions += [entry for entry in store.read_entries(key, kind) if entry.id in timeline.path_ids]
    return sorted(decisions, key=lambda entry: entry.seq)


def find_capped_note(store: SessionStore, key: str, said: Entry) -> Entry | None:
    """Return the note that the message of ``said`` was too long for an entry; None if it was not.

    It comes right before the message.
    """
    parent_id = said.parent
    while parent_id is not None:
        parent = store.get_entry(key, parent_id)
        if not isinstance(parent.body, NoteEntry):
            return None
        if parent.body.reason == NOTE_CAPPED:
            return parent
        parent_id = parent.parent
    return None


def has_decision_about(decisions: Sequence[Entry], number: int, pinned_count: int = 0) -> bool:
    """Return whether a decision reduced or hid message ``number``, undone or not."""
    return any(True for _ in _iterate_decision_events(decisions, number, pinned_count))


def list_message_events(
    timeline: Timeline,
    decisions: Sequence[Entry],
    number: int,
    said: Entry,
    *,
    pinned_count: int = 0,
    capped_note: Entry | None = None,
    recall_calls: Sequence[RecallCall] = (),
) -> list[MessageEvent]:
    """List what happened to message ``number`` of a branch, oldest first.

    ``decisions`` are those of ``read_decision_entries``, ``said`` is the entry of the message, ``pinned_count`` is the
    number of system messages at the start of the branch, which no compaction hides, ``capped_note`` is that of
    ``find_capped_note``, and ``recall_calls`` are the session's calls of the recall tool.
    """
    events = [_make_said_event(timeline, number, said)]
    if capped_note is not None:
        events += _make_capped_events(capped_note)
    first = next((request for request in timeline.requests if request.messages > number), None)
    if first is not None:
        text = f"first sent in request {first.number:,}"
        events.append(MessageEvent("sent", first.request, first.at, text, request=first.number))
    later_events = _mark_superseded([*_iterate_decision_events(decisions, number, pinned_count)])
    handles = [event.handle for event in events + later_events if event.handle]
    calls = select_read_backs(recall_calls, said.id, handles)
    later_events += _make_read_back_events(calls, timeline)
    order = {entry.id: entry.seq for entry in decisions} | {call.entry: call.seq for call in calls}
    later_events.sort(key=lambda event: order.get(event.log_entry or event.entry, 0))
    return events + later_events


def find_answered_request(timeline: Timeline, number: int) -> TimelineRequest | None:
    """Return the request that message ``number``, one of the assistant, is the answer to; None if there is none."""
    sent_before = [request for request in timeline.requests if request.messages <= number]
    # Messages of the same answer stand directly behind what was sent; any other came from somewhere else.
    return sent_before[-1] if sent_before and sent_before[-1].messages == number else None


def _make_said_event(timeline: Timeline, number: int, said: Entry) -> MessageEvent:
    """Make the event of a message's beginning; that of an answer leads to what the model saw when it said so."""
    text = f"said as message #{number}"
    body = said.body
    if isinstance(body, MessageEntry) and body.sized_message.message.role == "assistant":
        request = find_answered_request(timeline, number)
        if request is not None:
            text += f", in answer to request {request.number:,}: what the model saw"
            return MessageEvent("said", request.request, said.time_ms, text, request=request.number, log_entry=said.id)
    return MessageEvent("said", said.id, said.time_ms, text)


def _mark_superseded(events: Sequence[MessageEvent]) -> list[MessageEvent]:
    """Return ``events`` with each reduction marked that a later compaction in force makes void for the message."""
    marked: list[MessageEvent] = []
    is_hidden_later = False
    for event in reversed(events):
        is_reduction = event.kind in {"reduced", "hidden"}
        marked.append(replace(event, is_superseded=is_hidden_later) if is_reduction else event)
        is_hidden_later = is_hidden_later or (event.kind == "hidden" and not event.is_undone)
    return marked[::-1]


def _make_read_back_events(calls: Sequence[RecallCall], timeline: Timeline) -> list[MessageEvent]:
    """Make the events of calls on the branch, each with the request that the call was the answer to."""
    numbers = {id_: number for number, id_ in enumerate(timeline.message_ids)}
    events: list[MessageEvent] = []
    for call in calls:
        if call.entry not in numbers:
            continue
        sent_before = [request for request in timeline.requests if request.messages <= numbers[call.entry]]
        if not sent_before:
            text = f"the model read it back in message #{numbers[call.entry]}"
            events.append(MessageEvent("read_back", call.entry, call.at, text, log_entry=call.entry))
            continue
        request = sent_before[-1]
        text = f"the model read it back at request {request.number:,}"
        event = MessageEvent("read_back", request.request, call.at, text, request=request.number, log_entry=call.entry)
        events.append(event)
    return events


def _make_capped_events(note: Entry) -> list[MessageEvent]:
    """Make an event for each text of the message that is stored beside the log."""
    assert isinstance(note.body, NoteEntry)
    text = "too long for an entry of the log, which has its beginning and end; the whole text is stored beside it"
    return [
        MessageEvent("capped", note.id, note.time_ms, text, handle=hash_[:HANDLE_CHARS])
        for hash_ in iter_named_hashes(note.body)
    ]


def _iterate_decision_events(decisions: Sequence[Entry], number: int, pinned_count: int) -> Iterator[MessageEvent]:
    undone_ids = find_revoking_entries(decisions)
    touching_ids: set[str] = set()
    for entry in decisions:
        body = entry.body
        if isinstance(body, RevokeEntry):
            if body.revoked_id in touching_ids:
                kind: EventKind = "restored" if body.is_restored else "undone"
                text = "the decision is in force again" if body.is_restored else "the decision was undone"
                yield MessageEvent(kind, entry.id, entry.time_ms, text)
            continue
        assert isinstance(body, DecisionEntry | CompactionEntry)
        is_undone = entry.id in undone_ids
        for edit in body.edits:
            if edit.span.covers(number):
                touching_ids.add(entry.id)
                why = clean_single_line(edit.why)
                text = f"{clean_single_line(edit.rule, 40)}: {why}" if why else clean_single_line(edit.rule, 40)
                handle = edit.blob_hash[:HANDLE_CHARS]
                yield MessageEvent("reduced", entry.id, entry.time_ms, text, edit.saves, handle, is_undone)
        if isinstance(body, CompactionEntry) and pinned_count <= number < body.first_kept:
            touching_ids.add(entry.id)
            text = describe_entry_body(body)
            yield MessageEvent("hidden", entry.id, entry.time_ms, text, is_undone=is_undone)
