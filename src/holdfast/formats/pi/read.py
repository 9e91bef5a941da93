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
from holdfast.formats.base import PAID, Recording
from holdfast.formats.common.lines import UNREADABLE, LineFile, Row, Shape, millis, rows
from holdfast.formats.common.log import Call, Log, ordered, origin_of, slot_of
from holdfast.formats.pi.messages import (
    API,
    APIS,
    MESSAGE,
    PiMessage,
    content_parts,
    decode_message,
    message_of,
    usage_of,
)
from holdfast.messages.message import Message
from holdfast.state.entries import Body, BranchSummary, Compaction, Label, Note, Said, Usage
from holdfast.state.lazy_entries import LazyBody

__all__ = ["API", "FORMAT", "NOTE", "decode_message", "read"]

FORMAT = "pi"
NOTE = "pi:"
"""How the reason of a note begins that keeps a line of a pi session."""


class Line(Struct, rename="camel"):
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


B = TypeVar("B", bound=Body)
LINE = Shape(Line)


class _Record:
    """A line behind the header, and where its entries are once they are there."""

    __slots__ = ("before", "length", "line", "row", "said", "tail", "torn")

    def __init__(self, row: Row[Line], line: Line, *, torn: bool) -> None:
        self.row = row
        self.length = len(row.raw)
        self.line = line
        self.torn = torn
        """Whether a damaged line stands right before this one."""
        self.said = ""
        """Id of the entry that is this line."""
        self.tail: str | None = None
        """Id of its last entry."""
        self.before = 0
        """Slots on the way to it, without its own."""


class _File:
    """What the lines of one file say, before the tree is made; of an open file without their words."""

    def __init__(self, data: bytes | LineFile) -> None:
        self.log = Log()
        self._lines = data if isinstance(data, LineFile) else None
        self.header: Row[Line] | None = None
        self.records: list[_Record] = []
        self.damaged: list[tuple[int, Row[Line], str]] = []
        self.place: dict[str, int] = {}
        self.api = self.model = self.title = ""
        torn = False
        for row in rows(data, LINE):
            torn = self._take(row, torn=torn)

    def _take(self, row: Row[Line], *, torn: bool) -> bool:
        """Take one line; return whether it was damaged."""
        line = row.value
        if line is None:
            self.damaged.append((len(self.records), row, row.fault))
            return True
        if row.fault:
            self.log.problem(row.number, row.fault)
        if line.type == "session" and self.header is None and not self.records:
            self.header = row
        elif self._is_new(row, line):
            record = _Record(row, line, torn=torn)
            if self._lines is not None:
                _forget_words(record)
            self.records.append(record)
        return False

    def whole(self, record: _Record) -> Row[Line]:
        """Return the line of ``record``, which is read again where its words are not held."""
        if self._lines is None:
            return record.row
        return self._lines.read_again(record.row.number, record.row.start, record.length, LINE)

    def body(self, kind: type[B], make: Callable[[Row[Line]], B], record: _Record) -> B | LazyBody:
        """Return what ``make`` makes of a line: at once, or when it is asked for where its words are not held."""
        if self._lines is None:
            return make(record.row)
        return LazyBody(kind, partial(self._made, make, record))

    def _made(self, make: Callable[[Row[Line]], Body], record: _Record) -> Body:
        return make(self.whole(record))

    def _is_new(self, row: Row[Line], line: Line) -> bool:
        if line.id is None:
            return True
        place = self.place.setdefault(line.id, len(self.records))
        if place == len(self.records):
            return True
        first = self.whole(self.records[place])
        if first.raw == row.raw:
            self.log.skipped["copy of an earlier line"] += 1
            return False
        self.log.problem(row.number, f"id {line.id} is used again, first on line {first.number}; both are kept")
        return True


def _forget_words(record: _Record) -> None:
    """Keep of a record what the tree needs, which is small: its links, ids and times."""
    line = record.line
    line.type = sys.intern(line.type)
    line.message = line.content = Raw()
    line.summary = ""
    record.row = Row(record.row.number, b"", b"", None, start=record.row.start)


def read(data: bytes | LineFile) -> Recording:
    """Return the recording in ``data``.

    Of an open file the entries are lazy: each is read from it when it is asked for, so it must stay open.
    """
    file = _File(data)
    head = _header(file)
    links = [_link(file, index) for index in range(len(file.records))]
    order, cut = ordered(links)
    for index in cut:
        file.log.problem(file.records[index].row.number, "its parents form a circle; it starts a branch of its own")
    for index in order:
        record = file.records[index]
        parent = file.records[links[index]].tail if links[index] >= 0 else head
        record.before = file.log.depth[parent]
        record.said = record.tail = _emit(file, record, links, index, parent)
    _keep_damaged(file, head)
    line = file.header.value if file.header is not None and file.header.value is not None else Line()
    return file.log.finish(
        Recording(
            format=FORMAT,
            session=line.id or "",
            cwd=line.cwd,
            title=file.title,
            model=file.model,
            api=file.api,
            leaf=file.records[-1].tail if file.records else head,
        )
    )


def _header(file: _File) -> str | None:
    """Append the header as a note, the root of all; return its id."""
    row = file.header
    if row is None or row.value is None:
        file.log.problem(1, "the file does not begin with a session header; its messages are read without")
        return None
    line = row.value
    return file.log.add(line.id or "session", None, Note(f"{NOTE}session", row.raw), millis(line.timestamp), row.number)


def _link(file: _File, index: int) -> int:
    """Return the record that record ``index`` hangs on; -1 for none."""
    record = file.records[index]
    line = record.line
    if line.id is None:
        return index - 1
    if line.parent_id is None:
        return -1
    place = file.place.get(line.parent_id)
    if place is None:
        instead = "the line before the damaged one is taken instead" if record.torn else "it starts a branch of its own"
        file.log.problem(record.row.number, f"the parent {line.parent_id} is not in the file; {instead}")
        return index - 1 if record.torn else -1
    return place


def _emit(file: _File, record: _Record, links: list[int], index: int, parent: str | None) -> str:
    """Append the entries of one line behind ``parent``; return the id of the last."""
    line, log, number = record.line, file.log, record.row.number
    name, at = line.id or f"{number:08x}", millis(line.timestamp)
    if line.type == "message":
        return _emit_message(file, record, name, parent)
    if line.type == "label":
        target = file.place.get(line.target_id)
        known = file.records[target].said if target is not None else ""
        return log.add(name, parent, Label(known or line.target_id, line.label or ""), at, number)
    if line.type == "custom_message":
        return log.add(name, parent, _custom(file, record), at, number)
    if line.type in ("compaction", "branch_summary"):
        parent = log.add(f"{name}+line", parent, _note(file, record, line.type), at, number)
        if line.type == "branch_summary":
            return log.add(name, parent, file.body(BranchSummary, _branch_summary, record), at, number)
        keep = _keep(file, links, index, log.depth[parent])
        return log.add(name, parent, file.body(Compaction, partial(_compaction, keep), record), at, number)
    return _emit_setting(file, record, name, parent)


def _note(file: _File, record: _Record, kind: str) -> Note | LazyBody:
    """Return the note that keeps a line."""
    return file.body(Note, partial(_note_of, f"{NOTE}{kind}"), record)


def _note_of(reason: str, row: Row[Line]) -> Note:
    return Note(reason, row.raw)


def _branch_summary(row: Row[Line]) -> BranchSummary:
    line = row.value or Line()
    return BranchSummary(slot_of(Message.of("user", line.summary), "", None), line.from_id)


def _compaction(keep: int, row: Row[Line]) -> Compaction:
    line = row.value or Line()
    slot = slot_of(Message.of("user", line.summary), "", None)
    return Compaction(keep=keep, summary=slot.message, size=slot.size, before=line.tokens_before, by="model")


def _emit_setting(file: _File, record: _Record, name: str, parent: str | None) -> str:
    line = record.line
    kind = line.type or "line without a type"
    file.log.skipped[kind] += 1
    if kind == "session_info":
        file.title = line.name
    elif kind == "model_change":
        file.model = line.model_id
    return file.log.add(name, parent, _note(file, record, kind), millis(line.timestamp), record.row.number)


def _custom(file: _File, record: _Record) -> Said | Note | LazyBody:
    try:
        content_parts((file.whole(record).value or Line()).content)
    except UNREADABLE as error:
        file.log.problem(record.row.number, f"the content is kept as a note: {error}")
        return _note(file, record, "custom_message")
    return file.body(Said, _custom_said, record)


def _custom_said(row: Row[Line]) -> Said:
    message = Message("user", content_parts((row.value or Line()).content))
    return Said(slot_of(message, API, None), origin_of([row.raw]))


def _emit_message(file: _File, record: _Record, name: str, parent: str | None) -> str:
    log, number, at = file.log, record.row.number, millis(record.line.timestamp)
    try:
        found = MESSAGE.fit((file.whole(record).value or Line()).message)
        message_of(found)
    except (FormatError, *UNREADABLE) as error:
        log.skipped["message (unreadable)"] += 1
        log.problem(number, f"the message is kept as a note: {error}")
        return log.add(name, parent, _note(file, record, "message"), at, number)
    at = millis(found.timestamp) if at is None else at
    if found.exclude_from_context:
        log.skipped[f"{found.role} (not in the context)"] += 1
        return log.add(name, parent, _note(file, record, "message"), at, number)
    said = file.body(Said, _said, record)
    if found.role != "assistant":
        return log.add(name, parent, said, at, number)
    file.api, file.model = APIS.get(found.api, found.api) or file.api, found.model or file.model
    return log.answer(name, parent, said, _call(found, record), at, number)


def _said(row: Row[Line]) -> Said:
    wire = (row.value or Line()).message
    return Said(slot_of(message_of(MESSAGE.fit(wire)), API, wire), origin_of([row.raw]))


def _call(found: PiMessage, record: _Record) -> Call:
    usage = usage_of(found)
    number = record.row.number if usage is not None else 0
    return Call(found.model, usage or Usage(), found.stop_reason, number, record.line.holdfast == PAID)


def _keep(file: _File, links: list[int], index: int, count: int) -> int:
    """Return the index of the first slot a compaction kept; ``count``, nothing, if that line is not on the way."""
    line = file.records[index].line
    first = file.place.get(line.first_kept_entry_id or "", -1)
    if line.first_kept_entry_id is None and line.first_kept_entry_index is not None:
        first = line.first_kept_entry_index - (file.header is not None)
    above = links[index]
    while above >= 0:
        if above == first:
            return file.records[above].before
        above = links[above]
    return count


def _keep_damaged(file: _File, head: str | None) -> None:
    """Keep the lines that could not be read, each behind the last good one before it."""
    for place, row, reason in file.damaged:
        before = file.records[place - 1].tail if place else head
        file.log.damage(row.number, row.raw, reason, before)
