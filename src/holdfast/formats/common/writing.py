"""Facts of a log that every writer needs: entries in file order, and the answer, model and notes of each message."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from holdfast.formats.base import STALE_USAGE_BASIS, Recording, get_branch_entries
from holdfast.formats.common.lines import DECODE_ERRORS, LenientDecoder
from holdfast.messages.message import Message, format_part_placeholder
from holdfast.messages.parts import Opaque, Part, Text, Thinking, ToolResult
from holdfast.messages.sized_message import SizedMessage
from holdfast.state.entries import (
    AnswerEntry,
    BranchSummaryEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    MessageEntry,
    NoteEntry,
    RequestEntry,
    Usage,
)

_RAW_LINES = Decoder(list[Raw])


class WritableRecording:
    """A log prepared for a writer: which entries belong to a message, and which ids the tool's file has for entries."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.entries_by_id = {entry.id: entry for entry in recording.entries}
        self.order = _order_leaf_last(recording)
        self._answers: dict[str | None, AnswerEntry] = {}
        """Usage and stop reason of each answer, by the id of its message."""
        for entry in self.order:
            if isinstance(entry.body, AnswerEntry):
                self._answers[entry.parent] = entry.body
        self._last_edit_ends = _find_last_edit_ends(self.order)
        self.tool_ids: dict[str | None, str | None] = {None: None}
        """For each entry that was written, the tool's id to which the next line links."""

    def get_parent_tool_id(self, entry: Entry) -> str | None:
        """Return the tool's id to which the line of ``entry`` links, or None at the root."""
        return self.tool_ids.get(entry.parent)

    def get_writable_answer(self, entry: Entry) -> AnswerEntry:
        """Return the usage and stop reason of an answer, for the tool's file.

        The usage is empty if the request showed less than the file does, because edits were in force: the tool would
        take it for the size of its session. Lines that came from the tool keep theirs, which the tool itself paid for.
        """
        answer = self._answers.get(entry.id) or AnswerEntry(prefix_digest="")
        is_edited = self._last_edit_ends[entry.id] > 0
        is_from_tool = isinstance(entry.body, MessageEntry) and entry.body.recording_envelope is not None
        if is_edited and not is_from_tool:
            return replace(answer, usage=Usage())
        return answer

    def get_stale_usage_field(self, entry: Entry) -> dict[str, Any]:
        """Return the extra field that marks an answer's usage as stale in the tool's file, or an empty dict."""
        if self.get_writable_answer(entry).prefix_digest != STALE_USAGE_BASIS:
            return {}
        return {"holdfast": STALE_USAGE_BASIS}

    def get_answer_model(self, entry: Entry) -> str:
        """Return the model that gave an answer; by default the recording's."""
        request_entry = self.entries_by_id.get(entry.parent or "")
        model = ""
        if request_entry is not None and isinstance(request_entry.body, RequestEntry):
            model = request_entry.body.model
        return model or self.recording.model

    def get_note_before(self, entry: Entry, reason: str) -> bytes:
        """Return the bytes of the note right before ``entry`` if it has this reason, else empty bytes."""
        note_entry = self.entries_by_id.get(entry.parent or "")
        if note_entry is None:
            return b""
        note = note_entry.body
        if isinstance(note, NoteEntry) and note.reason == reason:
            return note.raw
        return b""

    def get_kept_messages(self, entry: Entry) -> list[Entry]:
        """Return the message entries that compaction ``entry`` kept, in order; empty for any other entry."""
        body = entry.body
        if not isinstance(body, CompactionEntry):
            return []
        branch = get_branch_entries(self.recording, entry.id)
        message_entries = [item for item in branch if isinstance(item.body, MessageEntry | BranchSummaryEntry)]
        return message_entries[body.first_kept :]


def _find_last_edit_ends(order: Sequence[Entry]) -> dict[str | None, int]:
    """Return for each entry the message index at which the last edit in force ends, 0 where no edit is in force.

    A compaction that summarizes all edited messages ends their edits.
    """
    ends: dict[str | None, int] = {None: 0}
    for entry in order:
        body = entry.body
        end = ends.get(entry.parent, 0)
        if isinstance(body, CompactionEntry) and end <= body.first_kept:
            end = 0
        if isinstance(body, DecisionEntry | CompactionEntry):
            for edit in body.edits:
                end = max(end, edit.span.stop)
        ends[entry.id] = end
    return ends


def drop_entries_after_leaf(recording: Recording) -> Recording:
    """Return ``recording`` without the descendants of its leaf, for tools that always continue from the newest
    message.
    """
    later: set[str | None] = {recording.leaf}
    kept_entries = []
    for entry in recording.entries:
        if entry.parent is not None and entry.parent in later:
            later.add(entry.id)
        else:
            kept_entries.append(entry)
    return replace(recording, entries=tuple(kept_entries))


def _order_leaf_last(recording: Recording) -> list[Entry]:
    """Return the entries, parents before children, with the leaf's branch last: tools continue from a file's end."""
    entries = list(recording.entries)
    branch_ids = {entry.id for entry in get_branch_entries(recording)}
    if not entries or not branch_ids or entries[-1].id in branch_ids:
        return entries
    entries_by_id = {entry.id: entry for entry in entries}
    other_entries = [entry for entry in entries if entry.id not in branch_ids]
    branch_entries = [entry for entry in entries if entry.id in branch_ids]
    ordered_entries: dict[str, Entry] = {}
    for entry in other_entries + branch_entries:
        # Another branch grows out of this one, so the shared ancestors have to come with it.
        trail: list[Entry] = []
        ancestor: Entry | None = entry
        while ancestor is not None and ancestor.id not in ordered_entries:
            trail.append(ancestor)
            ancestor = entries_by_id.get(ancestor.parent or "")
        for trail_entry in reversed(trail):
            ordered_entries[trail_entry.id] = trail_entry
    return list(ordered_entries.values())


def split_origin_lines(origin: Raw) -> list[bytes]:
    """Return the lines that an entry came from: the inverse of ``join_origin_lines``."""
    text = bytes(origin)
    if not text.startswith(b"["):
        return [text]
    try:
        return [bytes(line) for line in _RAW_LINES.decode(text)]
    except DECODE_ERRORS:
        # msgspec refuses the array if one line holds a lone surrogate; the lines still have to come out unchanged.
        return _split_objects_by_brackets(text)


def _split_objects_by_brackets(text: bytes) -> list[bytes]:
    """Return the objects of a JSON array, found by counting brackets outside strings."""
    objects = []
    depth = 0
    start = 0
    is_in_string = False
    index = 0
    while index < len(text):
        char = text[index]
        if is_in_string:
            if char == ord("\\"):
                index += 1  # the escaped byte: a quote there does not end the string
            is_in_string = char != ord('"')
        elif char == ord('"'):
            is_in_string = True
        elif char in b"{[":
            depth += 1
            if depth == 2:
                start = index
        elif char in b"}]":
            depth -= 1
            if depth == 1:
                objects.append(text[start : index + 1])
        index += 1
    return objects


def strip_foreign_raw(sized_message: SizedMessage, api: str) -> Message:
    """Return the message for ``api``, without the raw bytes of its parts if they are of another API."""
    message = sized_message.message
    if sized_message.api == api:
        return message
    parts = [part for part in map(_strip_part_raw, message.parts) if part is not None]
    return Message(message.role, tuple(parts))


def _strip_part_raw(part: Part) -> Part | None:
    """Return a part without raw bytes, or None for a field of the foreign message object."""
    if isinstance(part, Opaque):
        if part.kind.startswith("message"):
            return None
        return Text(format_part_placeholder(part))
    if isinstance(part, ToolResult):
        inner_parts = [inner for inner in map(_strip_part_raw, part.content) if inner is not None]
        return replace(part, content=tuple(inner_parts), raw=None)
    if isinstance(part, Thinking) and get_redacted_thinking(part):
        return part  # its raw bytes are all there is of it
    return replace(part, raw=None)


def get_redacted_thinking(part: Thinking) -> str:
    """Return the encrypted data of redacted thinking, or an empty string for readable thinking.

    The data stands in for the text and is not a signature over it.
    """
    if part.raw is None:
        return ""
    block = _REDACTED_BLOCK_DATA.decode_or_default(part.raw)
    return block.data if block.type == "redacted_thinking" else ""


class _RedactedBlockData(Struct):
    type: str = ""
    data: str = ""


_REDACTED_BLOCK_DATA = LenientDecoder(_RedactedBlockData)


def make_stable_uuid(text: str) -> str:
    """Return ``text`` if it looks like a UUID, else a UUID made of its digest, so equal texts give equal UUIDs.

    Stable, so that a second export of the same log gives the same file.
    """
    group_lengths = [len(group) for group in text.split("-")]
    if group_lengths == [8, 4, 4, 4, 12]:
        return text
    digits = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    # Version 4 and a valid variant, as a strict parser requires.
    third = f"4{digits[13:16]}"
    fourth = f"8{digits[17:20]}"
    return f"{digits[:8]}-{digits[8:12]}-{third}-{fourth}-{digits[20:]}"
