"""Reader of pi and OpenClaw sessions (``*.jsonl``, versions 1 to 3).

Lines that change a setting become notes on the branch, so the tree is the file's own. Version 1 has no ids: its
lines follow each other and get their line numbers as ids. As in pi, a parent that is not in the file ends the
branch; only if a damaged line is right before does the line before that count as the parent. Versions before 3 have
a role ``hookMessage``, which is ``custom`` now.

OpenClaw adds three things to the tree. A ``leaf`` line says where the conversation goes on. A line with the mode
``side`` is beside the conversation, which goes on from the line before it. A ``reset`` hides what came before, like a
compaction without a summary. A line with an id but without a parent follows the conversation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from msgspec import UNSET, Raw, Struct, UnsetType

from holdfast.errors import FormatError
from holdfast.formats.base import STALE_USAGE_BASIS, Recording
from holdfast.formats.common.lines import DECODE_ERRORS, FileLine, LenientDecoder, LineFile, decode_lines, parse_millis
from holdfast.formats.common.log import (
    CallMetadata,
    RecordingBuilder,
    join_origin_lines,
    make_sized_message,
    order_parents_first,
)
from holdfast.formats.pi.messages import (
    API,
    API_OF_PI_NAME,
    PI_MESSAGE,
    PiMessage,
    convert_pi_message,
    decode_pi_content,
    decode_pi_message,
    decode_pi_usage,
)
from holdfast.messages.message import Message
from holdfast.state.entries import (
    TRIGGER_MANUAL,
    BranchSummaryEntry,
    CompactionEntry,
    EntryBody,
    LabelEntry,
    MessageEntry,
    NoteEntry,
    Usage,
)
from holdfast.state.lazy_entries import LazyBody

__all__ = ["API", "FORMAT", "PI_NOTE_PREFIX", "decode_pi_message", "read_pi"]

FORMAT = "pi"
PI_NOTE_PREFIX = "pi:"
"""Prefix of the reason of a note that keeps a line of a pi session."""


class PiLine(Struct, rename="camel"):
    """The fields of a line or a header that the reader uses; any may be missing."""

    type: str = ""
    id: str | None = None
    parent_id: str | UnsetType | None = UNSET
    timestamp: str | float | None = None
    version: int | None = None
    cwd: str = ""
    name: str = ""
    message: Raw = Raw()
    model_id: str = ""
    summary: str = ""
    first_kept_entry_id: str | None = None
    first_kept_entry_index: int | None = None
    tokens_before: int = 0
    from_id: str = ""
    content: Raw = Raw(b"[]")
    target_id: str | None = ""
    append_parent_id: str | UnsetType | None = UNSET
    append_mode: str = ""
    label: str | None = None
    holdfast: str | None = None


B = TypeVar("B", bound=EntryBody)
PI_LINE = LenientDecoder(PiLine)


class _PiRecord:
    """A line after the header, and its entries once they are added."""

    __slots__ = ("entry_id", "follows_damage", "last_entry_id", "length", "line", "messages_before", "row")

    def __init__(self, row: FileLine[PiLine], line: PiLine, *, follows_damage: bool) -> None:
        self.row = row
        self.length = len(row.raw)
        self.line = line
        self.follows_damage = follows_damage
        """Whether the line right before this one is damaged."""
        self.entry_id = ""
        """Id of the entry that labels on this line refer to."""
        self.last_entry_id: str | None = None
        """Id of its last entry."""
        self.messages_before = 0
        """Number of messages on the branch before it."""


class _PiFile:
    """The decoded lines of one file, before they are linked; without their content if the file can be read again."""

    def __init__(self, data: bytes | LineFile) -> None:
        self.log = RecordingBuilder()
        self._lines = data if isinstance(data, LineFile) else None
        self.header: FileLine[PiLine] | None = None
        self.records: list[_PiRecord] = []
        self.damaged: list[tuple[int, FileLine[PiLine], str]] = []
        self.positions: dict[str, int] = {}
        self.api = self.model = self.title = ""
        follows_damage = False
        for row in decode_lines(data, PI_LINE):
            follows_damage = self._add_line(row, follows_damage=follows_damage)

    def _add_line(self, row: FileLine[PiLine], *, follows_damage: bool) -> bool:
        """Add one line, and return whether it is damaged."""
        line = row.value
        if line is None:
            self.damaged.append((len(self.records), row, row.fault))
            return True
        if row.fault:
            self.log.report_problem(row.number, row.fault)
        # Only the first line can be the header; a later ``session`` line is kept as a note.
        if line.type == "session" and self.header is None and not self.records:
            self.header = row
        elif self._is_new(row, line):
            record = _PiRecord(row, line, follows_damage=follows_damage)
            if self._lines is not None:
                _drop_pi_content(record)
            self.records.append(record)
        return False

    def reload_line(self, record: _PiRecord) -> FileLine[PiLine]:
        """Return the line of ``record``, read again from the file if its content is not in memory."""
        if self._lines is None:
            return record.row
        return self._lines.reread_line(record.row.number, record.row.start, record.length, PI_LINE)

    def make_body(
        self,
        kind: type[B],
        make: Callable[[FileLine[PiLine]], B],
        record: _PiRecord,
    ) -> B | LazyBody:
        """Return the body that ``make`` builds from a line: now, or lazily if its content is not in memory."""
        if self._lines is None:
            return make(record.row)
        return LazyBody(kind, partial(self._load_body, make, record))

    def _load_body(self, make: Callable[[FileLine[PiLine]], EntryBody], record: _PiRecord) -> EntryBody:
        return make(self.reload_line(record))

    def _is_new(self, row: FileLine[PiLine], line: PiLine) -> bool:
        """Return whether a line is not a copy of an earlier one with the same id."""
        if line.id is None:
            return True
        position = self.positions.setdefault(line.id, len(self.records))
        if position == len(self.records):
            return True
        first = self.reload_line(self.records[position])
        if first.raw == row.raw:
            self.log.skipped["copy of an earlier line"] += 1
            return False
        self.log.report_problem(row.number, f"id {line.id} is used again, first on line {first.number}; both are kept")
        return True


def _drop_pi_content(record: _PiRecord) -> None:
    """Reduce a record to the small fields that linking needs: links, ids and times."""
    line = record.line
    line.type = sys.intern(line.type)
    line.message = line.content = Raw()
    line.summary = ""
    record.row = FileLine(record.row.number, b"", b"", None, start=record.row.start)


def read_pi(data: bytes | LineFile) -> Recording:
    """Return the recording in ``data``.

    Entries of an open file are lazy: each is read from it on demand, so the file must stay open.
    """
    file = _PiFile(data)
    root = _append_pi_header(file)
    parents, leaf = _link_records(file)
    # Lines may precede their parents in a damaged file, but an entry needs its parent to be there.
    order, cycle_starts = order_parents_first(parents)
    for index in cycle_starts:
        number = file.records[index].row.number
        file.log.report_problem(number, "its parents form a circle; it starts a branch of its own")
    for index in order:
        record = file.records[index]
        parent = file.records[parents[index]].last_entry_id if parents[index] >= 0 else root
        record.messages_before = file.log.message_counts[parent]
        record.entry_id = record.last_entry_id = _append_pi_line(file, record, parents, index, parent)
    _keep_damaged_pi_lines(file, root)
    header = PiLine()
    if file.header is not None and file.header.value is not None:
        header = file.header.value
    return file.log.finish_recording(
        Recording(
            format=FORMAT,
            session=header.id or "",
            cwd=header.cwd,
            title=file.title,
            model=file.model,
            api=file.api,
            leaf=file.records[leaf].last_entry_id if leaf >= 0 else root,
        )
    )


def _append_pi_header(file: _PiFile) -> str | None:
    """Append the header as a note, the root of all entries; return its id, or None without a header."""
    row = file.header
    if row is None or row.value is None:
        file.log.report_problem(1, "the file does not begin with a session header; its messages are read without")
        return None
    note = NoteEntry(f"{PI_NOTE_PREFIX}session", row.raw)
    at = parse_millis(row.value.timestamp)
    return file.log.add_entry(row.value.id or "session", None, note, at, row.number)


def _link_records(file: _PiFile) -> tuple[list[int], int]:
    """Return the index of the parent of each record, -1 for none, and that of the record where the conversation stands.

    The latter is -1 if no line says so.
    """
    parents: list[int] = []
    resets: list[int] = []
    """For each record, the index of the nearest reset on its branch, itself included; -1 for none."""
    leaf = append_parent = newest_reset = -1
    for index, record in enumerate(file.records):
        line = record.line
        is_beside = line.append_mode == "side"
        if line.type == "leaf":
            parent = _find_leaf_target(file, record, leaf)
        else:
            parent = _find_parent_record(file, index, leaf)
            # OpenClaw's writer goes on from the newest line, also if that one is beside the conversation.
            if not is_beside and parent == append_parent != leaf:
                parent = leaf
        reset = resets[parent] if 0 <= parent < index else -1
        # Nothing but lines beside the conversation leads back to before a reset, as in OpenClaw.
        if reset != newest_reset and (line.type == "leaf" or not is_beside):
            parent, reset = leaf, newest_reset
        if line.type == "reset":
            reset = newest_reset = index
        parents.append(parent)
        resets.append(reset)
        append_parent = index
        if line.type == "leaf" and isinstance(line.append_parent_id, str):
            append_parent = file.positions.get(line.append_parent_id, index)
        if line.type == "leaf" or not is_beside:
            leaf = index
    return parents, leaf


def _find_leaf_target(file: _PiFile, record: _PiRecord, leaf: int) -> int:
    """Return the index of the record that a ``leaf`` line names, -1 if it names the root."""
    target_id = record.line.target_id
    if target_id is None:
        return -1
    position = file.positions.get(target_id)
    if position is None:
        # OpenClaw ignores such a line too.
        file.log.report_problem(record.row.number, f"the leaf {target_id} is not in the file; the line changes nothing")
        return leaf
    return position


def _find_parent_record(file: _PiFile, index: int, leaf: int) -> int:
    """Return the index of the parent of record ``index``, -1 for none; ``leaf`` is where the conversation stands."""
    record = file.records[index]
    line = record.line
    # Version 1: every line follows the one before.
    if line.id is None:
        return index - 1
    if isinstance(line.parent_id, UnsetType):
        return leaf
    if line.parent_id is None:
        return -1
    position = file.positions.get(line.parent_id)
    if position is not None:
        return position
    missing = f"the parent {line.parent_id} is not in the file"
    if record.follows_damage:
        # The damaged line was most likely the parent.
        file.log.report_problem(record.row.number, f"{missing}; the line before the damaged one is taken instead")
        return index - 1
    file.log.report_problem(record.row.number, f"{missing}; it starts a branch of its own")
    return -1


def _append_pi_line(
    file: _PiFile,
    record: _PiRecord,
    parents: list[int],
    index: int,
    parent: str | None,
) -> str:
    """Append the entries of one line after ``parent``; return the id of the last."""
    line = record.line
    log = file.log
    number = record.row.number
    name = line.id or f"{number:08x}"
    at = parse_millis(line.timestamp)
    if line.type == "message":
        return _append_pi_message(file, record, name, parent)
    if line.type == "label":
        target = file.positions.get(line.target_id or "")
        target_id = file.records[target].entry_id if target is not None else ""
        return log.add_entry(
            name,
            parent,
            LabelEntry(target_id or line.target_id or "", line.label or ""),
            at,
            number,
        )
    if line.type == "custom_message":
        return log.add_entry(name, parent, _make_custom_body(file, record), at, number)
    if line.type in ("compaction", "branch_summary", "reset"):
        # The line is kept too: it has fields (details, usage) that our entries have no place for.
        parent = log.add_entry(f"{name}+line", parent, _make_line_note(file, record, line.type), at, number)
        body: CompactionEntry | BranchSummaryEntry | LazyBody
        if line.type == "branch_summary":
            body = file.make_body(BranchSummaryEntry, _make_branch_summary, record)
        else:
            first_kept = _find_first_kept_line(file, parents, index, log.message_counts[parent])
            make = _make_pi_reset if line.type == "reset" else _make_pi_compaction
            body = file.make_body(CompactionEntry, partial(make, first_kept), record)
        return log.add_entry(name, parent, body, at, number)
    return _append_setting_line(file, record, name, parent)


def _make_line_note(file: _PiFile, record: _PiRecord, kind: str) -> NoteEntry | LazyBody:
    """Return a note that keeps the line."""
    return file.make_body(NoteEntry, partial(_build_line_note, f"{PI_NOTE_PREFIX}{kind}"), record)


def _build_line_note(reason: str, row: FileLine[PiLine]) -> NoteEntry:
    return NoteEntry(reason, row.raw)


def _make_branch_summary(row: FileLine[PiLine]) -> BranchSummaryEntry:
    line = row.value or PiLine()
    return BranchSummaryEntry(make_sized_message(Message.from_text("user", line.summary), "", None), line.from_id)


def _make_pi_compaction(first_kept_index: int, row: FileLine[PiLine]) -> CompactionEntry:
    line = row.value or PiLine()
    sized_message = make_sized_message(Message.from_text("user", line.summary), "", None)
    return CompactionEntry(
        first_kept=first_kept_index,
        summary=sized_message.message,
        head_tokens=sized_message.tokens,
        tokens_before=line.tokens_before,
        author="model",
    )


def _make_pi_reset(first_kept_index: int, _row: FileLine[PiLine]) -> CompactionEntry:
    """Return what the user's wish to start over does in the same session."""
    return CompactionEntry(first_kept=first_kept_index, trigger=TRIGGER_MANUAL)


def _append_setting_line(file: _PiFile, record: _PiRecord, name: str, parent: str | None) -> str:
    line = record.line
    kind = line.type or "line without a type"
    file.log.skipped[kind] += 1
    if kind == "session_info":
        file.title = line.name
    elif kind == "model_change":
        file.model = line.model_id
    note = _make_line_note(file, record, kind)
    return file.log.add_entry(name, parent, note, parse_millis(line.timestamp), record.row.number)


def _make_custom_body(file: _PiFile, record: _PiRecord) -> MessageEntry | NoteEntry | LazyBody:
    try:
        decode_pi_content((file.reload_line(record).value or PiLine()).content)
    except DECODE_ERRORS as error:
        file.log.report_problem(record.row.number, f"the content is kept as a note: {error}")
        return _make_line_note(file, record, "custom_message")
    return file.make_body(MessageEntry, _make_custom_entry, record)


def _make_custom_entry(row: FileLine[PiLine]) -> MessageEntry:
    message = Message("user", decode_pi_content((row.value or PiLine()).content))
    return MessageEntry(make_sized_message(message, API, None), join_origin_lines([row.raw]))


def _append_pi_message(file: _PiFile, record: _PiRecord, name: str, parent: str | None) -> str:
    log = file.log
    number = record.row.number
    at = parse_millis(record.line.timestamp)
    try:
        message = PI_MESSAGE.decode_strict((file.reload_line(record).value or PiLine()).message)
        # Only to see now whether it raises; a lazy body converts it again.
        convert_pi_message(message)
    except (FormatError, *DECODE_ERRORS) as error:
        log.skipped["message (unreadable)"] += 1
        log.report_problem(number, f"the message is kept as a note: {error}")
        return log.add_entry(name, parent, _make_line_note(file, record, "message"), at, number)
    if at is None:
        at = parse_millis(message.timestamp)
    # A command of the user's that pi shows and does not send to the model.
    if message.exclude_from_context:
        log.skipped[f"{message.role} (not in the context)"] += 1
        return log.add_entry(name, parent, _make_line_note(file, record, "message"), at, number)
    body = file.make_body(MessageEntry, _make_pi_entry, record)
    if message.role != "assistant":
        return log.add_entry(name, parent, body, at, number)
    file.api = API_OF_PI_NAME.get(message.api, message.api) or file.api
    file.model = message.model or file.model
    return log.add_answer(name, parent, body, _get_pi_call(message, record), at, number)


def _make_pi_entry(row: FileLine[PiLine]) -> MessageEntry:
    wire = (row.value or PiLine()).message
    message = convert_pi_message(PI_MESSAGE.decode_strict(wire))
    return MessageEntry(make_sized_message(message, API, wire), join_origin_lines([row.raw]))


def _get_pi_call(message: PiMessage, record: _PiRecord) -> CallMetadata:
    usage = decode_pi_usage(message)
    usage_line = record.row.number if usage is not None else 0
    has_stale_usage = record.line.holdfast == STALE_USAGE_BASIS
    return CallMetadata(message.model, usage or Usage(), message.stop_reason, usage_line, has_stale_usage)


def _find_first_kept_line(file: _PiFile, parents: list[int], index: int, message_count: int) -> int:
    """Return the index of the first message that a compaction kept.

    That is ``message_count``, so nothing kept, if the line it names is not on its branch.
    """
    line = file.records[index].line
    first_kept = file.positions.get(line.first_kept_entry_id or "", -1)
    if line.first_kept_entry_id is None and line.first_kept_entry_index is not None:
        # Version 1 counts lines, the header included.
        first_kept = line.first_kept_entry_index - (file.header is not None)
    ancestor = parents[index]
    while ancestor >= 0:
        if ancestor == first_kept:
            return file.records[ancestor].messages_before
        ancestor = parents[ancestor]
    return message_count


def _keep_damaged_pi_lines(file: _PiFile, root: str | None) -> None:
    """Keep each line that could not be read as a note after the last record before it."""
    for record_count, row, reason in file.damaged:
        previous_entry_id = root
        if record_count:
            previous_entry_id = file.records[record_count - 1].last_entry_id
        file.log.add_damaged_line(row.number, row.raw, reason, previous_entry_id)
