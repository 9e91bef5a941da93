"""A session that is read again: which of its entries are in the log already, whatever they are called there.

A file that was exported says what the log says, but not in the same places: lines that are no part of the conversation
are gone, so that ids made of line numbers are others, results stand in another order, links lead elsewhere.
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
"""How ids begin that readers made of a line's number: in another file they mean nothing."""


def select_new_entries(recording: Recording, log_entries: Sequence[Entry]) -> Recording:
    """Return of ``recording`` what the log ``log_entries`` has not, hung on what it has.

    An entry is in the log if one that says the same follows the same words there.
    """
    headers = get_entry_headers(recording.entries)
    new, leaf = list(headers), recording.leaf
    if log_entries:
        log = _ExistingLog(log_entries, {entry.id for entry in headers})
        new = [new_entry for entry in headers if (new_entry := log.match_or_rename(entry)) is not None]
        leaf = leaf if leaf is None else log.log_ids.get(leaf, leaf)
    parents = {entry.parent for entry in new}
    kept_entries = [entry for entry in new if entry.id in parents or not _is_quoting_note(entry)]
    return replace(recording, entries=load_entries_lazily(kept_entries), leaf=leaf)


class _ExistingLog:
    """What is in the log, and what the entries of a new reading are called there."""

    def __init__(self, log_entries: Sequence[Entry], read_ids: set[str]) -> None:
        self.entries_by_id = {entry.id: entry for entry in get_entry_headers(log_entries)}
        self.log_ids: dict[str, str] = {}
        """For each entry that was read its id in the log."""
        self._newest_messages: dict[str | None, str | None] = {None: None}
        """For each entry the newest words up to it."""
        self._unmatched: defaultdict[tuple[str | None, Hashable], dict[str, None]] = defaultdict(dict)
        """By the words before them and what they say: entries that nothing read is yet."""
        self._content_keys = {entry.id: make_content_key(entry) for entry in log_entries}
        for entry in sorted(
            self.entries_by_id.values(), key=lambda entry: entry.id in read_ids
        ):  # its own name comes last
            self._unmatched[self._find_message_before(entry), self._content_keys[entry.id]][entry.id] = None

    def _find_message_before(self, entry: Entry | LazyEntry) -> str | None:
        """Return the newest words above an entry of the log."""
        trail, at = [], entry.parent
        while at not in self._newest_messages:
            trail.append(at)
            at = self.entries_by_id[at].parent if at in self.entries_by_id else None
        words = self._newest_messages[at]
        for trail_id in reversed(trail):
            trail_entry = self.entries_by_id.get(trail_id or "")
            words = trail_id if trail_entry is not None and _is_conversation_entry(trail_entry) else words
            self._newest_messages[trail_id] = words
        return words

    def match_or_rename(self, header: Entry | LazyEntry) -> Entry | LazyEntry | None:
        """Return an entry behind what the log has; nothing if it is there."""
        entry = load_entry(header)
        parent = self.log_ids.get(entry.parent or "", entry.parent)
        before = self._newest_messages.get(parent, parent)
        twin_id = self._take_match(entry, before)
        if twin_id is not None:
            self.log_ids[entry.id] = twin_id
            return None
        name = self._choose_new_id(entry, before)
        self.log_ids[entry.id] = name
        self._newest_messages[name] = name if _is_conversation_entry(entry) else before
        return replace(header, id=name, parent=parent)

    def _choose_new_id(self, entry: Entry, previous_message_id: str | None) -> str:
        """Return how ``entry`` is called in the log; one that says otherwise what the log has is a conflict there."""
        twin = self._content_keys.get(entry.id)
        if twin is None or (
            _is_conversation_entry(entry)
            and not entry.id.startswith(_LINE_NUMBER_ID_PREFIX)
            and twin != make_content_key(entry)
        ):
            return entry.id
        return f"{entry.id}+{make_short_digest(f'{previous_message_id} {make_content_key(entry)!r}')}"

    def _take_match(self, entry: Entry, previous_message_id: str | None) -> str | None:
        """Return the entry of the log that ``entry`` is, if there is one; it is no other one's any more."""
        twin = self.entries_by_id.get(entry.id)
        says = make_content_key(entry)
        if (
            twin is not None
            and says != self._content_keys[entry.id]
            and self._find_message_before(twin) == previous_message_id
        ):
            says = self._content_keys[entry.id] if _is_same_despite_key(load_entry(twin), entry) else says
        free = self._unmatched[previous_message_id, says]
        twin_id = entry.id if entry.id in free else next(iter(free), None)
        if twin_id is not None:
            del free[twin_id]
        return twin_id


def make_content_key(entry: Entry) -> Hashable:
    """Return what ``entry`` says, apart from times, from what a tool kept around it, and from what no tool writes."""
    body = entry.body
    if isinstance(body, MessageEntry | BranchSummaryEntry):
        return type(body), body.sized_message.message.role, body.sized_message.digest
    if isinstance(body, CompactionEntry):
        return CompactionEntry, body.first_kept, body.summary.text if body.summary is not None else ""
    if isinstance(body, RequestEntry):
        return RequestEntry, body.message_count, body.model
    if isinstance(body, AnswerEntry):
        return AnswerEntry, body.usage.input, body.usage.output
    return type(body), blake2b(msgspec.json.encode(body)).digest()


def _is_conversation_entry(entry: Entry | LazyEntry) -> bool:
    """Return whether the conversation consists of such as ``entry``; all else only tells about it."""
    return get_entry_type(entry) in (MessageEntry, BranchSummaryEntry, CompactionEntry)


def _is_same_despite_key(twin: Entry, entry: Entry) -> bool:
    """Return whether two entries of one name and place are the same though they say otherwise.

    So are notes of a tool's whose lines name other lines, and messages that another version measured: how one is read
    may change, and what was told of it then stays in the log.
    """
    twin_body, entry_body = twin.body, entry.body
    if isinstance(twin_body, NoteEntry) and isinstance(entry_body, NoteEntry):
        return twin_body.reason == entry_body.reason
    if not isinstance(twin_body, MessageEntry | BranchSummaryEntry) or type(twin_body) is not type(entry_body):
        return False
    return build_sized_message(twin_body.sized_message.message).digest == entry_body.sized_message.digest


def _is_quoting_note(entry: Entry | LazyEntry) -> bool:
    """Return whether ``entry`` keeps the lines of the entry behind it."""
    if get_entry_type(entry) is not NoteEntry:
        return False
    body = load_entry(entry).body
    return isinstance(body, NoteEntry) and body.reason in QUOTING_NOTES
