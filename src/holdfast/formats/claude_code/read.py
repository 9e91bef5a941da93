"""Claude Code transcripts (``~/.claude/projects/*/*.jsonl``) as a tree of entries.

One answer lies on several lines with one ``message.id``; lines point to each other by uuid, through kinds that are no
part of the conversation, and not in a straight line when tools run in parallel. ``claude_tree`` puts that in order.
Lines marked ``isMeta`` were sent to the model and are kept. Progress, hooks, snapshots, queue operations, attachments
and local commands were not sent as they stand here; they are counted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.formats.base import FAILED, PAID, SYNTHETIC, Recording
from holdfast.formats.claude_code.tree import Node, Record, children, climbed, tree
from holdfast.formats.common.lines import UNREADABLE, LineFile, Row, Shape, millis, rows
from holdfast.formats.common.log import Call, Log, origin_of, slot_of
from holdfast.messages.message import Message
from holdfast.messages.parts import ToolCall, ToolResult
from holdfast.providers.anthropic import messages as anthropic
from holdfast.providers.responses import usage
from holdfast.state.entries import Body, Compaction, Note, Said, Usage
from holdfast.state.lazy_entries import LazyBody

FORMAT, API = "claude-code", "anthropic"
LINES = "claude-code:compact_boundary"
"""Reason of the note that keeps the lines of a recorded compaction."""
NOTHING = Raw()
"""What stands for a value whose words stay in the file; one object for all lines."""
OURS = "system"
"""Value of the field ``holdfast`` on lines of our own that hold a system message, a kind the tool does not have."""


class Line(Struct, rename="camel"):
    """The fields of a line that matter here; any may be missing."""

    type: str = ""
    subtype: str | None = None
    uuid: str | None = None
    parent_uuid: str | None = None
    logical_parent_uuid: str | None = None
    session_id: str | None = None
    agent_id: str | None = None
    request_id: str | None = None
    timestamp: str | None = None
    cwd: str | None = None
    is_sidechain: bool | None = None
    is_meta: bool | None = None
    is_compact_summary: bool | None = None
    is_api_error_message: bool | None = None
    message: Raw = Raw()
    compact_metadata: Raw = Raw()
    custom_title: str | None = None
    ai_title: str | None = None
    summary: str | None = None
    holdfast: str | None = None
    content: Raw = Raw()


class ApiMessage(Struct):
    """The API's message inside a line."""

    role: str = ""
    id: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    content: Raw = Raw(b"[]")
    usage: Raw = Raw()


class _Segment(Struct, rename="camel"):
    head_uuid: str = ""


class _Preserved(Struct, rename="camel"):
    uuids: list[str] = []
    all_uuids: list[str] = []


class _Metadata(Struct, rename="camel"):
    trigger: str | None = None
    pre_tokens: int | None = None
    post_tokens: int | None = None
    preserved_segment: Raw = Raw()
    preserved_messages: Raw = Raw()


B = TypeVar("B", bound=Body)
LINE = Shape(Line)
_MESSAGE = Shape(ApiMessage)
_METADATA, _SEGMENT, _PRESERVED = Shape(_Metadata), Shape(_Segment), Shape(_Preserved)


class _File:
    """What the lines of one file say, before the tree is made; of an open file without their words."""

    def __init__(self, data: bytes | LineFile) -> None:
        self.log = Log()
        self.records: list[Record[Line, ApiMessage]] = []
        self._lines = data if isinstance(data, LineFile) else None
        self.damaged: list[tuple[int, Row[Line], str]] = []
        """Lines that could not be read: after which record they stand, and why."""
        self.titles: dict[str, str] = {}
        self._known: dict[str, int] = {}
        for row in rows(data, LINE):
            self._take(row)

    def _take(self, row: Row[Line]) -> None:
        line = row.value
        if line is None:
            self.damaged.append((len(self.records), row, row.fault))
            return
        if row.fault:
            self.log.problem(row.number, row.fault)
        record = self._record(row, line)
        if self._is_new(record):
            self.records.append(record if self._lines is None else _without_words(record))

    def whole(self, records: Iterable[Record[Line, ApiMessage]]) -> list[Record[Line, ApiMessage]]:
        """Return ``records`` with their words, which are read again where they are not held."""
        return [self._whole(record) for record in records]

    def _whole(self, record: Record[Line, ApiMessage]) -> Record[Line, ApiMessage]:
        if self._lines is None:
            return record
        row = self._lines.read_again(record.number, record.start, record.length, LINE)
        line = row.value or Line()
        api, message = (None, None) if record.message is None else _said(line)
        return replace(record, raw=row.raw, line=line, message=message, api=api)

    def body(
        self,
        kind: type[B],
        make: Callable[[Sequence[Record[Line, ApiMessage]]], B],
        records: Sequence[Record[Line, ApiMessage]],
    ) -> B | LazyBody:
        """Return ``make`` of ``records``: at once, or, where their words are not held, when it is asked for."""
        if self._lines is None:
            return make(records)
        return LazyBody(kind, partial(self._made, make, tuple(records)))

    def _made(
        self,
        make: Callable[[Sequence[Record[Line, ApiMessage]]], Body],
        records: Sequence[Record[Line, ApiMessage]],
    ) -> Body:
        return make(self.whole(records))

    def _record(self, row: Row[Line], line: Line) -> Record[Line, ApiMessage]:
        message = api = None
        if _is_ours(line) or line.type in ("user", "assistant"):
            try:
                api, message = _said(line)
            except (FormatError, *UNREADABLE) as error:
                self.log.skipped[f"{line.type} (unreadable)"] += 1
                self.damaged.append((len(self.records), row, f"the message is kept as a note: {error}"))
        elif line.type != "system" or line.subtype != "compact_boundary":
            self._count(line)
        boundary = line.type == "system" and line.subtype == "compact_boundary"
        kept = message is not None or boundary
        return Record(row.number, row.raw, line, kept, message, api, start=row.start, length=len(row.raw))

    def _count(self, line: Line) -> None:
        kind = f"{line.type}:{line.subtype}" if line.subtype else line.type or "line without a type"
        self.log.skipped[kind] += 1
        for name, title in (("custom", line.custom_title), ("ai", line.ai_title), ("summary", line.summary)):
            if title:
                self.titles[name] = title

    def _is_new(self, record: Record[Line, ApiMessage]) -> bool:
        """Return whether this is no copy of an earlier line; note its uuid."""
        uuid = record.line.uuid
        if uuid is None:
            return True
        place = self._known.get(uuid)
        first = None if place is None else self.records[place]
        if first is not None and first.kept and record.kept:
            if _is_copy(self._whole(first), record):
                self.log.skipped["copy of an earlier line"] += 1
                return False
            self.log.problem(record.number, f"uuid {uuid} is used again, first on line {first.number}; both are kept")
            record.named = False
        elif first is not None and (first.kept or not record.kept):
            record.named = False
        else:
            self._known[uuid] = len(self.records)
        return True

    @property
    def title(self) -> str:
        return next((self.titles[name] for name in ("custom", "ai", "summary") if name in self.titles), "")


def _is_ours(line: Line) -> bool:
    return line.type == "system" and line.holdfast == OURS


def _is_copy(first: Record[Line, ApiMessage], record: Record[Line, ApiMessage]) -> bool:
    """Return whether a line says what an earlier line of the same uuid says."""
    return first.api is None or record.api is None or first.api.content == record.api.content


def _said(line: Line) -> tuple[ApiMessage, Message]:
    """Return the message of a line in both forms; raises ``FormatError`` or ``UNREADABLE`` where there is none."""
    wire = Raw(b'{"role":"system","content":' + bytes(line.content) + b"}") if _is_ours(line) else line.message
    api = _MESSAGE.fit(wire)
    message = anthropic.decode(wire)
    if api.role not in ("user", "assistant", "system"):
        raise FormatError(f"its role is {api.role!r}; known are user, assistant and system")
    return api, message


def _without_words(record: Record[Line, ApiMessage]) -> Record[Line, ApiMessage]:
    """Return what the tree needs of a record, which is small: its links, its ids, its usage.

    A value that decoding left raw is a view into its whole line; it is copied to let go of that.
    """
    line, api, message = record.line, record.api, record.message
    line.message = line.content = NOTHING
    line.compact_metadata = line.compact_metadata.copy() if line.compact_metadata else NOTHING
    line.type, line.session_id, line.cwd = sys.intern(line.type), _interned(line.session_id), _interned(line.cwd)
    if api is not None:
        api.content, api.usage = NOTHING, api.usage.copy() if api.usage else NOTHING
        api.role, api.model, api.stop_reason = sys.intern(api.role), _interned(api.model), _interned(api.stop_reason)
    if message is not None:
        calls = [ToolCall(call.id, call.name) for call in message.calls]
        results = [ToolResult(result.call_id) for result in message.results]
        message = Message(message.role, (*calls, *results))
    return replace(record, raw=b"", message=message)


def _interned(text: str | None) -> str | None:
    """Return the same text for all lines that repeat it."""
    return None if text is None else sys.intern(text)


def read(data: bytes | LineFile) -> Recording:
    """Return the recording in ``data``. A file that holds only a sub-agent's conversation is that conversation.

    Of an open file the entries are lazy: each is read from it when it is asked for, so it must stay open.
    """
    file = _File(data)
    groups, up = tree(file.records, file.log)
    main = groups.pop("", None)
    if main is None:
        main = groups.pop(next(iter(groups))) if groups else []
    chains = tuple([_recording(file, Log(), chain, up) for chain in groups.values()])
    whole = _recording(file, file.log, main, up)
    return file.log.finish(replace(whole, sidechains=chains, title=file.title))


def _recording(file: _File, log: Log, indexes: list[int], up: list[int]) -> Recording:
    """Return the conversation on the lines ``indexes``."""
    records = file.records
    nodes = children(records, indexes, up, log)
    for node in nodes:
        _emit(file, log, node)
    home = {index: node for node in nodes for index in node.members}
    last = records[indexes[-1]].line if indexes else Line()
    answers = [node for node in nodes if node.kind == "assistant"]
    recording = Recording(
        format=FORMAT,
        session=(last.agent_id if last.is_sidechain else last.session_id) or last.session_id or last.uuid or "",
        cwd=last.cwd or "",
        model=next((model for node in reversed(answers) if (model := _model(records, node))), ""),
        api=API,
        leaf=home[indexes[-1]].end.tail if indexes else None,
    )
    if log is file.log:
        _keep_damaged(file, home)
    return log.finish(recording)


def _keep_damaged(file: _File, home: dict[int, Node]) -> None:
    """Keep the lines that could not be read, each behind the last good one before it."""
    before, passed = None, 0
    for place, row, reason in file.damaged:
        for index in range(passed, place):
            before = home[index].tail if index in home else before
        passed = place
        file.log.damage(row.number, row.raw, reason, before)


def _emit(file: _File, log: Log, node: Node) -> None:
    """Append the entries of ``node`` behind those of its parent."""
    parent = node.parent.tail if node.parent is not None else None
    if node.kind == "compaction":
        _emit_compaction(file, log, node, parent)
        return
    members = [file.records[index] for index in node.members]
    first, last = members[0], members[-1]
    at, name = millis(first.line.timestamp), last.line.uuid or f"line-{last.number}"
    said = file.body(Said, _said_on, members)
    if node.kind == "assistant":
        node.tail = log.answer(name, parent, said, _call(members), at, first.number, last.number)
        node.said = log.entries[-1].parent or ""
    else:
        node.tail = node.said = log.add(name, parent, said, at, first.number, last.number)


def _said_on(members: Sequence[Record[Line, ApiMessage]]) -> Said:
    return Said(slot_of(*_joined(members)), origin_of([record.raw for record in members]))


def _joined(members: Sequence[Record[Line, ApiMessage]]) -> tuple[Message, str, bytes]:
    """Return the message that lies on one or several lines, and its wire form made of the blocks' own bytes."""
    messages = [record.message for record in members if record.message is not None]
    role = messages[0].role
    contents = [bytes(record.api.content) for record in members if record.api is not None]
    wire = b"user" if role == "tool" else role.encode()
    content = contents[0] if len(contents) == 1 else b"[" + b",".join(_blocks(contents)) + b"]"
    parts = tuple([part for message in messages for part in message.parts])
    return Message(role, parts), API, b'{"role":"' + wire + b'","content":' + content + b"}"


def _blocks(contents: Iterable[bytes]) -> Iterable[bytes]:
    for content in contents:
        if content.startswith(b'"'):
            yield b'{"type":"text","text":' + content + b"}"
        elif content.startswith(b"[") and (inner := content[1:-1].strip()):
            yield inner


def _call(members: Sequence[Record[Line, ApiMessage]]) -> Call:
    """Return model, usage and stop reason; each line repeats them, the last one is right."""
    apis = [record.api for record in members if record.api is not None]
    model = next((api.model for api in reversed(apis) if api.model), "")
    stop = next((api.stop_reason for api in reversed(apis) if api.stop_reason), "")
    if any(record.line.is_api_error_message for record in members):
        stop = FAILED
    elif model == "<synthetic>":
        stop = SYNTHETIC
    told = next((found for api in reversed(apis) if (found := usage(API, api.usage)) is not None), None)
    is_paid = any(record.line.holdfast == PAID for record in members)
    number = members[-1].number if told else 0
    return Call("" if model == "<synthetic>" else model, told or Usage(), stop, number, is_paid)


def _model(records: list[Record[Line, ApiMessage]], node: Node) -> str:
    api = records[node.members[-1]].api
    return api.model if api is not None and api.model and api.model != "<synthetic>" else ""


def _emit_compaction(file: _File, log: Log, node: Node, parent: str | None) -> None:
    """Append a recorded compaction: its lines as a note, then the entry. Without a summary it hides nothing."""
    members = [file.records[index] for index in node.members]
    first, last = members[0], members[-1]
    at, name = millis(first.line.timestamp), last.line.uuid or f"line-{last.number}"
    note = file.body(Note, _lines_of_compaction, members)
    if last.message is None:
        node.tail = node.said = log.add(name, parent, note, at, first.number, last.number)
        log.problem(first.number, "a compaction without its summary hides nothing")
        return
    parent = log.add(f"{name}+lines", parent, note, at, first.number, last.number)
    told = _METADATA.of(first.line.compact_metadata)
    keep = _keep(log, node, file.records, told, parent)
    body = file.body(Compaction, partial(_compaction, told, keep), members)
    node.tail = node.said = log.add(name, parent, body, at, first.number, last.number)


def _lines_of_compaction(members: Sequence[Record[Line, ApiMessage]]) -> Note:
    return Note(LINES, b"\n".join([record.raw for record in members]))


def _compaction(told: _Metadata, keep: int, members: Sequence[Record[Line, ApiMessage]]) -> Compaction:
    summary = members[-1].message or Message("user", ())
    return Compaction(
        keep=keep,
        summary=summary,
        size=slot_of(summary, API, None).size,
        before=told.pre_tokens or 0,
        after=told.post_tokens or 0,
        trigger=told.trigger or "auto",
        by="model",
    )


def _keep(log: Log, node: Node, records: list[Record[Line, ApiMessage]], told: _Metadata, parent: str | None) -> int:
    """Return the index of the first slot that the compaction kept: the oldest preserved message on the way to it."""
    keep = log.depth[parent]
    uuids = _preserved(told)
    for before in climbed(node.parent) if uuids else ():
        if any(records[index].line.uuid in uuids for index in before.members):
            keep = log.depth[before.said] - 1
    return keep


def _preserved(told: _Metadata) -> set[str]:
    listed, head = _PRESERVED.of(told.preserved_messages), _SEGMENT.of(told.preserved_segment).head_uuid
    return {*listed.uuids, *listed.all_uuids, *([head] if head else [])}
