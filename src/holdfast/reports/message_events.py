"""What happened to one message: said, first sent, reduced, hidden, undone, restored.

Read from the small entries of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from holdfast.messages.text.single_line import clean_single_line
from holdfast.planning.extract.constants import HANDLE_CHARS
from holdfast.reports.entry_lines import describe_entry_body
from holdfast.reports.history import find_revoking_entries
from holdfast.reports.timeline import TimelineRequest
from holdfast.state.entries import CompactionEntry, DecisionEntry, Entry, RevokeEntry
from holdfast.store.base import SessionStore

EventKind: TypeAlias = Literal["said", "sent", "reduced", "hidden", "undone", "restored"]


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
    """Number of the request that it is about; 0 if it is about none."""


def list_message_events(
    store: SessionStore,
    key: str,
    path_ids: Iterable[str],
    number: int,
    said: Entry,
    requests: Sequence[TimelineRequest],
) -> list[MessageEvent]:
    """List what happened to message ``number`` of a branch, oldest first.

    ``path_ids`` are the ids of the branch's entries, ``said`` the entry of the message, ``requests`` those of the
    branch.
    """
    on_path = set(path_ids)
    decisions: list[Entry] = []
    for kind in ("decision", "compaction", "revoke"):
        decisions += [entry for entry in store.read_entries(key, kind) if entry.id in on_path]
    decisions.sort(key=lambda entry: entry.seq)
    events = [MessageEvent("said", said.id, said.time_ms, f"said as message #{number}")]
    first = next((request for request in requests if request.messages > number), None)
    if first is not None:
        text = f"first sent in request {first.number:,}"
        events.append(MessageEvent("sent", first.request, first.at, text, request=first.number))
    return events + list(_iterate_decision_events(decisions, number))


def _iterate_decision_events(decisions: Sequence[Entry], number: int) -> Iterator[MessageEvent]:
    undone_ids = find_revoking_entries(decisions)
    touching_ids: set[str] = set()
    is_hidden = False
    for entry in decisions:
        body = entry.body
        if isinstance(body, RevokeEntry):
            if body.revoked_id in touching_ids:
                is_hidden = False
                kind: EventKind = "restored" if body.is_restored else "undone"
                text = "the decision is in force again" if body.is_restored else "the decision was undone"
                yield MessageEvent(kind, entry.id, entry.time_ms, text)
            continue
        assert isinstance(body, DecisionEntry | CompactionEntry)
        is_undone = entry.id in undone_ids
        for edit in body.edits:
            if edit.span.start <= number < max(edit.span.stop, edit.span.start + 1):
                touching_ids.add(entry.id)
                why = clean_single_line(edit.why)
                text = f"{clean_single_line(edit.rule, 40)}: {why}" if why else clean_single_line(edit.rule, 40)
                handle = edit.blob_hash[:HANDLE_CHARS]
                yield MessageEvent("reduced", entry.id, entry.time_ms, text, edit.saves, handle, is_undone)
        if isinstance(body, CompactionEntry) and number < body.first_kept:
            touching_ids.add(entry.id)
            # Later compactions hide it too, which is no news.
            if is_hidden and not is_undone:
                continue
            is_hidden = not is_undone
            text = describe_entry_body(body)
            yield MessageEvent("hidden", entry.id, entry.time_ms, text, is_undone=is_undone)
