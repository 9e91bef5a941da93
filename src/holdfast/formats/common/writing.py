"""What every writer needs of a log: its entries in an order for a file, and the facts that belong together."""

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
    """A log to be written: what belongs to which message, and what was written for which entry."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.entries_by_id = {entry.id: entry for entry in recording.entries}
        self.order = _order_leaf_last(recording)
        self._answers = {entry.parent: entry.body for entry in self.order if isinstance(entry.body, AnswerEntry)}
        self._last_edit_ends = _find_last_edit_ends(self.order)
        self.tool_ids: dict[str | None, str | None] = {None: None}
        """For each entry the tool's id that what follows it hangs on."""

    def get_parent_tool_id(self, entry: Entry) -> str | None:
        """Return the tool's id of what ``entry`` hangs on."""
        return self.tool_ids.get(entry.parent)

    def get_writable_answer(self, entry: Entry) -> AnswerEntry:
        """Return the usage of a model's answer; none where it is that of a request that showed less than is written.

        Lines of a tool tell what that tool sent, whatever was decided here.
        """
        answer, body = self._answers.get(entry.id) or AnswerEntry(prefix_digest=""), entry.body
        if not self._last_edit_ends[entry.id] or (
            isinstance(body, MessageEntry) and body.recording_envelope is not None
        ):
            return answer
        return replace(answer, usage=Usage())

    def get_stale_usage_field(self, entry: Entry) -> dict[str, Any]:
        """Return the field that an answer has in a tool's file where its request showed other words than are there."""
        return (
            {"holdfast": STALE_USAGE_BASIS}
            if self.get_writable_answer(entry).prefix_digest == STALE_USAGE_BASIS
            else {}
        )

    def get_answer_model(self, entry: Entry) -> str:
        """Return the model that gave an answer."""
        request_entry = self.entries_by_id.get(entry.parent or "")
        model_name = (
            request_entry.body.model
            if request_entry is not None and isinstance(request_entry.body, RequestEntry)
            else ""
        )
        return model_name or self.recording.model

    def get_note_before(self, entry: Entry, reason: str) -> bytes:
        """Return what the note before ``entry`` keeps, if there is one for ``reason``."""
        before = self.entries_by_id.get(entry.parent or "")
        body = before.body if before is not None else None
        return body.raw if isinstance(body, NoteEntry) and body.reason == reason else b""

    def get_kept_messages(self, entry: Entry) -> list[Entry]:
        """Return the messages that compaction ``entry`` kept, in order."""
        body = entry.body
        message_entries = [
            path_entry
            for path_entry in get_branch_entries(self.recording, entry.id)
            if isinstance(path_entry.body, MessageEntry | BranchSummaryEntry)
        ]
        return message_entries[body.first_kept :] if isinstance(body, CompactionEntry) else []


def _find_last_edit_ends(order: Sequence[Entry]) -> dict[str | None, int]:
    """Return where the last edit ends that is in force at each entry; 0 where none is, as behind a compaction of it."""
    ends: dict[str | None, int] = {None: 0}
    for entry in order:
        end, body = ends.get(entry.parent, 0), entry.body
        if isinstance(body, CompactionEntry) and end <= body.first_kept:
            end = 0
        edits = body.edits if isinstance(body, DecisionEntry | CompactionEntry) else ()
        ends[entry.id] = max([end, *(edit.span.stop for edit in edits)])
    return ends


def drop_entries_after_leaf(recording: Recording) -> Recording:
    """Return ``recording`` without what hangs on its leaf: for tools that go on from the newest message."""
    later: set[str | None] = {recording.leaf}
    kept_entries = []
    for entry in recording.entries:
        if entry.parent is not None and entry.parent in later:
            later.add(entry.id)
        else:
            kept_entries.append(entry)
    return replace(recording, entries=tuple(kept_entries))


def _order_leaf_last(recording: Recording) -> list[Entry]:
    """Return the entries, parents first, so that the leaf comes last: tools go on from the end of a file."""
    entries = list(recording.entries)
    way = {entry.id for entry in get_branch_entries(recording)}
    if not entries or not way or entries[-1].id in way:
        return entries
    entries_by_id = {entry.id: entry for entry in entries}
    ordered_entries: dict[str, Entry] = {}
    for entry in [entry for entry in entries if entry.id not in way] + [entry for entry in entries if entry.id in way]:
        trail: list[Entry] = []
        above: Entry | None = entry
        while above is not None and above.id not in ordered_entries:
            trail.append(above)
            above = entries_by_id.get(above.parent or "")
        ordered_entries.update((trail_entry.id, trail_entry) for trail_entry in reversed(trail))
    return list(ordered_entries.values())


def split_origin_lines(origin: Raw) -> list[bytes]:
    """Return the lines that an entry came from."""
    text = bytes(origin)
    if not text.startswith(b"["):
        return [text]
    try:
        return [bytes(line) for line in _RAW_LINES.decode(text)]
    except DECODE_ERRORS:  # half a surrogate pair in one of them: the standard library finds where they part
        return _split_objects_by_brackets(text)


def _split_objects_by_brackets(text: bytes) -> list[bytes]:
    """Return the objects of a list by counting brackets outside of strings."""
    out, depth, start, is_in_string, index = [], 0, 0, False, 0
    while index < len(text):
        char = text[index]
        if is_in_string:
            index += char == 0x5C  # a backslash takes the next byte with it
            is_in_string = char != 0x22
        elif char == 0x22:
            is_in_string = True
        elif char in b"{[":
            depth += 1
            start = index if depth == 2 else start
        elif char in b"}]":
            depth -= 1
            if depth == 1:
                out.append(text[start : index + 1])
        index += 1
    return out


def strip_foreign_raw(sized_message: SizedMessage, api: str) -> Message:
    """Return the message of ``sized_message`` for another API: no part keeps bytes that only its own API
    understands.
    """
    message = sized_message.message
    if sized_message.api == api:
        return message
    parts = [part for part in map(_strip_part_raw, message.parts) if part is not None]
    return Message(message.role, tuple(parts))


def _strip_part_raw(part: Part) -> Part | None:
    if isinstance(part, Opaque):
        return None if part.kind.startswith("message") else Text(format_part_placeholder(part))
    if isinstance(part, ToolResult):
        inner = tuple([inner_part for inner_part in map(_strip_part_raw, part.content) if inner_part is not None])
        return replace(part, content=inner, raw=None)
    return part if isinstance(part, Thinking) and get_redacted_thinking(part) else replace(part, raw=None)


def get_redacted_thinking(part: Thinking) -> str:
    """Return what stands for thinking that its provider shows to nobody, which is no signature; nothing of other."""
    block = _REDACTED_BLOCK_DATA.decode_or_default(part.raw) if part.raw is not None else _RedactedBlockData()
    return block.data if block.type == "redacted_thinking" else ""


class _RedactedBlockData(Struct):
    type: str = ""
    data: str = ""


_REDACTED_BLOCK_DATA = LenientDecoder(_RedactedBlockData)


def make_stable_uuid(text: str) -> str:
    """Return ``text`` if it has the form of a UUID, else one made of its digest: the same for the same text."""
    if len(text) == 36 and [len(piece) for piece in text.split("-")] == [8, 4, 4, 4, 12]:
        return text
    digits = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:]}"
