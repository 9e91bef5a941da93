"""Matching a session that is imported again against the entries that the log already has.

A file that Holdfast exported says what the log says, but not in the same places: lines outside the conversation are
gone, so ids made of line numbers differ, results may be in another order, and links may lead elsewhere. Entries are
therefore matched by content and by the message before them, not by id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from holdfast.formats.apply_decisions import QUOTING_NOTES
from holdfast.formats.base import Recording
from holdfast.formats.common.log import make_short_digest
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.entries import (
    AnswerEntry,
    BranchSummaryEntry,
    CompactionEntry,
    Entry,
    MessageEntry,
    NoteEntry,
    RequestEntry,
)
from holdfast.state.lazy_entries import LazyEntry, get_entry_headers, get_entry_type, load_entries_lazily, load_entry

_LINE_NUMBER_ID_PREFIX = "line-"
"""Prefix of ids that readers made of a line number: in another file the same id is another line."""


def select_new_entries(recording: Recording, log_entries: Sequence[Entry]) -> Recording:
    """Return ``recording`` without the entries that the log already has, the rest attached to the log's entries.

    An entry is in the log if an entry with the same content follows the same message there.
    """
    headers = get_entry_headers(recording.entries)
    new_entries = list(headers)
    leaf = recording.leaf
    if log_entries:
        log = _ExistingLog(log_entries, {entry.id for entry in headers})
        new_entries = []
        for header in headers:
            new_entry = log.match_or_rename(header)
            if new_entry is not None:
                new_entries.append(new_entry)
        if leaf is not None:
            leaf = log.log_ids.get(leaf, leaf)
    # A quoting note serves only the entry after it; where that entry is in the log already, so is a note.
    parents = {entry.parent for entry in new_entries}
    kept_entries = [entry for entry in new_entries if entry.id in parents or not _is_quoting_note(entry)]
    return replace(recording, entries=load_entries_lazily(kept_entries), leaf=leaf)


class _ExistingLog:
    """The entries of the log, and the ids that entries of the new reading have or get there."""

    def __init__(self, log_entries: Sequence[Entry], read_ids: set[str]) -> None:
        self.entries_by_id = {entry.id: entry for entry in get_entry_headers(log_entries)}
        self.log_ids: dict[str, str] = {}
        """For each entry that was read, its id in the log."""
        self._newest_messages: dict[str | None, str | None] = {None: None}
        """For each entry id, the id of the newest conversation entry up to it."""
        self._unmatched: defaultdict[tuple[str | None, Hashable], dict[str, None]] = defaultdict(dict)
        """Ids of log entries not matched yet, by the message before them and their content; in order of preference."""
        self._content_keys = {entry.id: make_content_key(entry) for entry in log_entries}
        # Entries with the id of an entry being read come last: such a pair matches by id, and taking it for another
        # entry with the same content would leave the pair unmatched.
        for entry in sorted(self.entries_by_id.values(), key=lambda entry: entry.id in read_ids):
            key = self._find_message_before(entry), self._content_keys[entry.id]
            self._unmatched[key][entry.id] = None

    def _find_message_before(self, entry: Entry | LazyEntry) -> str | None:
        """Return the id of the newest conversation entry above an entry of the log, or None at the root."""
        return self._find_newest_message(entry.parent)

    def _find_newest_message(self, entry_id: str | None) -> str | None:
        """Return the id of the newest conversation entry up to an entry of the log, itself included, or None.

        Fills ``_newest_messages`` for everything on the way, so all look-ups together take linear time.
        """
        trail: list[str | None] = []
        while entry_id not in self._newest_messages:
            trail.append(entry_id)
            ancestor = self.entries_by_id.get(entry_id or "")
            entry_id = ancestor.parent if ancestor is not None else None
        newest = self._newest_messages[entry_id]
        for trail_id in reversed(trail):
            trail_entry = self.entries_by_id.get(trail_id or "")
            if trail_entry is not None and _is_conversation_entry(trail_entry):
                newest = trail_id
            self._newest_messages[trail_id] = newest
        return newest

    def match_or_rename(self, header: Entry | LazyEntry) -> Entry | LazyEntry | None:
        """Return a new entry with its id and parent in the log, or None if the log has it already."""
        entry = load_entry(header)
        parent = self.log_ids.get(entry.parent or "", entry.parent)
        # A note may be in the log without anything after it: the entries that follow it here follow another one there.
        previous_message_id = self._find_newest_message(parent)
        matched_id = self._take_match(entry, previous_message_id)
        if matched_id is not None:
            self.log_ids[entry.id] = matched_id
            return None
        new_id = self._choose_new_id(entry, previous_message_id)
        self.log_ids[entry.id] = new_id
        self._newest_messages[new_id] = new_id if _is_conversation_entry(entry) else previous_message_id
        return replace(header, id=new_id, parent=parent)

    def _choose_new_id(self, entry: Entry, previous_message_id: str | None) -> str:
        """Return the id of a new entry: its own, or one with a digest if the log uses its own for something else.

        A message that changed under a tool's id keeps that id, so that the import reports the conflict.
        """
        logged_key = self._content_keys.get(entry.id)
        if logged_key is None:
            return entry.id
        key = make_content_key(entry)
        has_tool_id = not entry.id.startswith(_LINE_NUMBER_ID_PREFIX)
        if _is_conversation_entry(entry) and has_tool_id and logged_key != key:
            return entry.id
        return f"{entry.id}+{make_short_digest(f'{previous_message_id} {key!r}')}"

    def _take_match(self, entry: Entry, previous_message_id: str | None) -> str | None:
        """Return the id of the log entry that ``entry`` repeats, or None. Each log entry is taken once."""
        key = make_content_key(entry)
        # An entry with the same id in the same place is the same one, even if this version reads it otherwise.
        namesake = self.entries_by_id.get(entry.id)
        if namesake is not None and key != self._content_keys[entry.id]:
            is_same_place = self._find_message_before(namesake) == previous_message_id
            if is_same_place and _is_same_despite_key(load_entry(namesake), entry):
                key = self._content_keys[entry.id]
        candidates = self._unmatched[previous_message_id, key]
        matched_id = entry.id if entry.id in candidates else next(iter(candidates), None)
        if matched_id is not None:
            del candidates[matched_id]
        return matched_id


def make_content_key(entry: Entry) -> Hashable:
    """Return a key of the entry's content, without times, tool envelopes and fields that no tool writes."""
    body = entry.body
    if isinstance(body, MessageEntry | BranchSummaryEntry):
        sized_message = body.sized_message
        return type(body), sized_message.message.role, sized_message.digest
    if isinstance(body, CompactionEntry):
        summary_text = "" if body.summary is None else body.summary.text
        return CompactionEntry, body.first_kept, summary_text
    if isinstance(body, RequestEntry):
        return RequestEntry, body.message_count, body.model
    if isinstance(body, AnswerEntry):
        # Only these two survive an export to every format; details of cache and reasoning do not.
        return AnswerEntry, body.usage.input, body.usage.output
    return type(body), blake2b(msgspec.json.encode(body)).digest()


def _is_conversation_entry(entry: Entry | LazyEntry) -> bool:
    """Return whether ``entry`` is part of the conversation, not a remark about it."""
    return get_entry_type(entry) in (MessageEntry, BranchSummaryEntry, CompactionEntry)


def _is_same_despite_key(log_entry: Entry, entry: Entry) -> bool:
    """Return whether two entries with one id in one place are the same though their content keys differ.

    Two cases: notes of a tool, since their lines link to other lines, and messages that another version of Holdfast
    measured. How a message is read may change between versions; the log keeps the older reading.
    """
    log_body = log_entry.body
    body = entry.body
    if isinstance(log_body, NoteEntry) and isinstance(body, NoteEntry):
        return log_body.reason == body.reason
    if not isinstance(log_body, MessageEntry | BranchSummaryEntry) or type(log_body) is not type(body):
        return False
    return build_sized_message(log_body.sized_message.message).digest == body.sized_message.digest


def _is_quoting_note(entry: Entry | LazyEntry) -> bool:
    """Return whether ``entry`` keeps the lines that a tool wrote for the entry after it."""
    if get_entry_type(entry) is not NoteEntry:
        return False
    body = load_entry(entry).body
    return isinstance(body, NoteEntry) and body.reason in QUOTING_NOTES
