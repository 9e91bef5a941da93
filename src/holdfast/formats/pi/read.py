"""pi and OpenClaw sessions (``*.jsonl``, versions 1 to 3) as a tree of entries.

Lines that change a setting are notes on the way, so the tree is the file's own. Version 1 has no ids: its lines follow
each other and get their line numbers as ids. As in pi, a parent that is not in the file ends the way up; only where a
damaged line stands right before is the line before that taken. Versions before 3 call a role ``hookMessage``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from msgspec import Raw, Struct

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
"""How the reason of a note begins that keeps a line of a pi session."""


class PiLine(Struct, rename="camel"):
    """The fields of a line, header included; any may be missing."""

    type: str = ""
    id: str | None = None
    parent_id: str | None = None
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
    target_id: str = ""
    label: str | None = None
    holdfast: str | None = None


B = TypeVar("B", bound=EntryBody)
PI_LINE = LenientDecoder(PiLine)


class _PiRecord:
    """A line behind the header, and where its entries are once they are there."""

    __slots__ = ("entry_id", "follows_damage", "last_entry_id", "length", "line", "messages_before", "row")

    def __init__(self, row: FileLine[PiLine], line: PiLine, *, torn: bool) -> None:
        self.row = row
        self.length = len(row.raw)
        self.line = line
        self.follows_damage = torn
        """Whether a damaged line stands right before this one."""
        self.entry_id = ""
        """Id of the entry that is this line."""
        self.last_entry_id: str | None = None
        """Id of its last entry."""
        self.messages_before = 0
        """Slots on the way to it, without its own."""


class _PiFile:
    """What the lines of one file say, before the tree is made; of an open file without their words."""

    def __init__(self, data: bytes | LineFile) -> None:
        self.log = RecordingBuilder()
        self._lines = data if isinstance(data, LineFile) else None
        self.header: FileLine[PiLine] | None = None
        self.records: list[_PiRecord] = []
        self.damaged: list[tuple[int, FileLine[PiLine], str]] = []
        self.positions: dict[str, int] = {}
        self.api = self.model = self.title = ""
        torn = False
        for row in decode_lines(data, PI_LINE):
            torn = self._add_line(row, torn=torn)

    def _add_line(self, row: FileLine[PiLine], *, torn: bool) -> bool:
        """Take one line; return whether it was damaged."""
        line = row.value
        if line is None:
            self.damaged.append((len(self.records), row, row.fault))
            return True
        if row.fault:
            self.log.report_problem(row.number, row.fault)
        if line.type == "session" and self.header is None and not self.records:
            self.header = row
        elif self._is_new(row, line):
            record = _PiRecord(row, line, torn=torn)
            if self._lines is not None:
                _drop_pi_content(record)
            self.records.append(record)
        return False

    def reload_line(self, record: _PiRecord) -> FileLine[PiLine]:
        """Return the line of ``record``, which is read again where its words are not held."""
        if self._lines is None:
            return record.row
        return self._lines.reread_line(record.row.number, record.row.start, record.length, PI_LINE)

    def make_body(self, kind: type[B], make: Callable[[FileLine[PiLine]], B], record: _PiRecord) -> B | LazyBody:
        """Return what ``make`` makes of a line: at once, or when it is asked for where its words are not held."""
        if self._lines is None:
            return make(record.row)
        return LazyBody(kind, partial(self._load_body, make, record))

    def _load_body(self, make: Callable[[FileLine[PiLine]], EntryBody], record: _PiRecord) -> EntryBody:
        return make(self.reload_line(record))

    def _is_new(self, row: FileLine[PiLine], line: PiLine) -> bool:
        if line.id is None:
            return True
        place = self.positions.setdefault(line.id, len(self.records))
        if place == len(self.records):
            return True
        first = self.reload_line(self.records[place])
        if first.raw == row.raw:
            self.log.skipped["copy of an earlier line"] += 1
            return False
        self.log.report_problem(row.number, f"id {line.id} is used again, first on line {first.number}; both are kept")
        return True


def _drop_pi_content(record: _PiRecord) -> None:
    """Keep of a record what the tree needs, which is small: its links, ids and times."""
    line = record.line
    line.type = sys.intern(line.type)
    line.message = line.content = Raw()
    line.summary = ""
    record.row = FileLine(record.row.number, b"", b"", None, start=record.row.start)


def read_pi(data: bytes | LineFile) -> Recording:
    """Return the recording in ``data``.

    Of an open file the entries are lazy: each is read from it when it is asked for, so it must stay open.
    """
    file = _PiFile(data)
    head = _append_pi_header(file)
    links = [_find_parent_record(file, index) for index in range(len(file.records))]
    order, cycle_starts = order_parents_first(links)
    for index in cycle_starts:
        file.log.report_problem(
            file.records[index].row.number, "its parents form a circle; it starts a branch of its own"
        )
    for index in order:
        record = file.records[index]
        parent = file.records[links[index]].last_entry_id if links[index] >= 0 else head
        record.messages_before = file.log.message_counts[parent]
        record.entry_id = record.last_entry_id = _append_pi_line(file, record, links, index, parent)
    _keep_damaged_pi_lines(file, head)
    line = file.header.value if file.header is not None and file.header.value is not None else PiLine()
    return file.log.finish_recording(
        Recording(
            format=FORMAT,
            session=line.id or "",
            cwd=line.cwd,
            title=file.title,
            model=file.model,
            api=file.api,
            leaf=file.records[-1].last_entry_id if file.records else head,
        )
    )


def _append_pi_header(file: _PiFile) -> str | None:
    """Append the header as a note, the root of all; return its id."""
    row = file.header
    if row is None or row.value is None:
        file.log.report_problem(1, "the file does not begin with a session header; its messages are read without")
        return None
    line = row.value
    return file.log.add_entry(
        line.id or "session",
        None,
        NoteEntry(f"{PI_NOTE_PREFIX}session", row.raw),
        parse_millis(line.timestamp),
        row.number,
    )


def _find_parent_record(file: _PiFile, index: int) -> int:
    """Return the record that record ``index`` hangs on; -1 for none."""
    record = file.records[index]
    line = record.line
    if line.id is None:
        return index - 1
    if line.parent_id is None:
        return -1
    place = file.positions.get(line.parent_id)
    if place is None:
        instead = (
            "the line before the damaged one is taken instead"
            if record.follows_damage
            else "it starts a branch of its own"
        )
        file.log.report_problem(record.row.number, f"the parent {line.parent_id} is not in the file; {instead}")
        return index - 1 if record.follows_damage else -1
    return place


def _append_pi_line(file: _PiFile, record: _PiRecord, links: list[int], index: int, parent: str | None) -> str:
    """Append the entries of one line behind ``parent``; return the id of the last."""
    line, log, number = record.line, file.log, record.row.number
    name, at = line.id or f"{number:08x}", parse_millis(line.timestamp)
    if line.type == "message":
        return _append_pi_message(file, record, name, parent)
    if line.type == "label":
        target = file.positions.get(line.target_id)
        target_id = file.records[target].entry_id if target is not None else ""
        return log.add_entry(name, parent, LabelEntry(target_id or line.target_id, line.label or ""), at, number)
    if line.type == "custom_message":
        return log.add_entry(name, parent, _make_custom_body(file, record), at, number)
    if line.type in ("compaction", "branch_summary"):
        parent = log.add_entry(f"{name}+line", parent, _make_line_note(file, record, line.type), at, number)
        if line.type == "branch_summary":
            return log.add_entry(
                name, parent, file.make_body(BranchSummaryEntry, _make_branch_summary, record), at, number
            )
        keep = _find_first_kept_line(file, links, index, log.message_counts[parent])
        return log.add_entry(
            name, parent, file.make_body(CompactionEntry, partial(_make_pi_compaction, keep), record), at, number
        )
    return _append_setting_line(file, record, name, parent)


def _make_line_note(file: _PiFile, record: _PiRecord, kind: str) -> NoteEntry | LazyBody:
    """Return the note that keeps a line."""
    return file.make_body(NoteEntry, partial(_build_line_note, f"{PI_NOTE_PREFIX}{kind}"), record)


def _build_line_note(reason: str, row: FileLine[PiLine]) -> NoteEntry:
    return NoteEntry(reason, row.raw)


def _make_branch_summary(row: FileLine[PiLine]) -> BranchSummaryEntry:
    line = row.value or PiLine()
    return BranchSummaryEntry(make_sized_message(Message.from_text("user", line.summary), "", None), line.from_id)


def _make_pi_compaction(keep: int, row: FileLine[PiLine]) -> CompactionEntry:
    line = row.value or PiLine()
    sized_message = make_sized_message(Message.from_text("user", line.summary), "", None)
    return CompactionEntry(
        first_kept=keep,
        summary=sized_message.message,
        head_tokens=sized_message.tokens,
        tokens_before=line.tokens_before,
        author="model",
    )


def _append_setting_line(file: _PiFile, record: _PiRecord, name: str, parent: str | None) -> str:
    line = record.line
    kind = line.type or "line without a type"
    file.log.skipped[kind] += 1
    if kind == "session_info":
        file.title = line.name
    elif kind == "model_change":
        file.model = line.model_id
    return file.log.add_entry(
        name, parent, _make_line_note(file, record, kind), parse_millis(line.timestamp), record.row.number
    )


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
    log, number, at = file.log, record.row.number, parse_millis(record.line.timestamp)
    try:
        message = PI_MESSAGE.decode_strict((file.reload_line(record).value or PiLine()).message)
        convert_pi_message(message)
    except (FormatError, *DECODE_ERRORS) as error:
        log.skipped["message (unreadable)"] += 1
        log.report_problem(number, f"the message is kept as a note: {error}")
        return log.add_entry(name, parent, _make_line_note(file, record, "message"), at, number)
    at = parse_millis(message.timestamp) if at is None else at
    if message.exclude_from_context:
        log.skipped[f"{message.role} (not in the context)"] += 1
        return log.add_entry(name, parent, _make_line_note(file, record, "message"), at, number)
    body = file.make_body(MessageEntry, _make_pi_entry, record)
    if message.role != "assistant":
        return log.add_entry(name, parent, body, at, number)
    file.api, file.model = API_OF_PI_NAME.get(message.api, message.api) or file.api, message.model or file.model
    return log.add_answer(name, parent, body, _get_pi_call(message, record), at, number)


def _make_pi_entry(row: FileLine[PiLine]) -> MessageEntry:
    wire = (row.value or PiLine()).message
    return MessageEntry(
        make_sized_message(convert_pi_message(PI_MESSAGE.decode_strict(wire)), API, wire), join_origin_lines([row.raw])
    )


def _get_pi_call(message: PiMessage, record: _PiRecord) -> CallMetadata:
    usage = decode_pi_usage(message)
    number = record.row.number if usage is not None else 0
    return CallMetadata(
        message.model, usage or Usage(), message.stop_reason, number, record.line.holdfast == STALE_USAGE_BASIS
    )


def _find_first_kept_line(file: _PiFile, links: list[int], index: int, count: int) -> int:
    """Return the index of the first slot a compaction kept; ``count``, nothing, if that line is not on the way."""
    line = file.records[index].line
    first = file.positions.get(line.first_kept_entry_id or "", -1)
    if line.first_kept_entry_id is None and line.first_kept_entry_index is not None:
        first = line.first_kept_entry_index - (file.header is not None)
    above = links[index]
    while above >= 0:
        if above == first:
            return file.records[above].messages_before
        above = links[above]
    return count


def _keep_damaged_pi_lines(file: _PiFile, head: str | None) -> None:
    """Keep the lines that could not be read, each behind the last good one before it."""
    for place, row, reason in file.damaged:
        before = file.records[place - 1].last_entry_id if place else head
        file.log.add_damaged_line(row.number, row.raw, reason, before)
