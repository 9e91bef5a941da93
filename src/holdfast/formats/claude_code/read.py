"""Claude Code transcripts (``~/.claude/projects/*/*.jsonl``) as a tree of entries.

One answer lies on several lines with one ``message.id``; lines point to each other by uuid, through kinds that are no
part of the conversation, and not in a straight line when tools run in parallel. ``tree.py`` puts that in order.
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
from holdfast.formats.base import FAILED, STALE_USAGE_BASIS, SYNTHETIC, Recording
from holdfast.formats.claude_code.tree import ClaudeNode, ClaudeRecord, build_nodes, iter_ancestors, link_records
from holdfast.formats.common.lines import DECODE_ERRORS, FileLine, LenientDecoder, LineFile, decode_lines, parse_millis
from holdfast.formats.common.log import CallMetadata, RecordingBuilder, join_origin_lines, make_sized_message
from holdfast.messages.message import Message
from holdfast.messages.parts import ToolCall, ToolResult
from holdfast.providers.answers.usage import parse_window_usage
from holdfast.providers.anthropic import messages as anthropic
from holdfast.state.entries import CompactionEntry, EntryBody, MessageEntry, NoteEntry, Usage
from holdfast.state.lazy_entries import LazyBody

FORMAT, API = "claude-code", "anthropic"
COMPACT_BOUNDARY_NOTE = "claude-code:compact_boundary"
"""Reason of the note that keeps the lines of a recorded compaction."""
EMPTY_RAW = Raw()
"""What stands for a value whose words stay in the file; one object for all lines."""
SYSTEM_MARK = "system"
"""Value of the field ``holdfast`` on lines of our own that hold a system message, a kind the tool does not have."""


class ClaudeLine(Struct, rename="camel"):
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


class ClaudeApiMessage(Struct):
    """The API's message inside a line."""

    role: str = ""
    id: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    content: Raw = Raw(b"[]")
    usage: Raw = Raw()


class _PreservedSegment(Struct, rename="camel"):
    head_uuid: str = ""


class _PreservedMessages(Struct, rename="camel"):
    uuids: list[str] = []
    all_uuids: list[str] = []


class _CompactMetadata(Struct, rename="camel"):
    trigger: str | None = None
    pre_tokens: int | None = None
    post_tokens: int | None = None
    preserved_segment: Raw = Raw()
    preserved_messages: Raw = Raw()


B = TypeVar("B", bound=EntryBody)
CLAUDE_LINE = LenientDecoder(ClaudeLine)
_CLAUDE_MESSAGE = LenientDecoder(ClaudeApiMessage)
_COMPACT_METADATA, _PRESERVED_SEGMENT, _PRESERVED_MESSAGES = (
    LenientDecoder(_CompactMetadata),
    LenientDecoder(_PreservedSegment),
    LenientDecoder(_PreservedMessages),
)


class _ClaudeFile:
    """What the lines of one file say, before the tree is made; of an open file without their words."""

    def __init__(self, data: bytes | LineFile) -> None:
        self.log = RecordingBuilder()
        self.records: list[ClaudeRecord[ClaudeLine, ClaudeApiMessage]] = []
        self._lines = data if isinstance(data, LineFile) else None
        self.damaged: list[tuple[int, FileLine[ClaudeLine], str]] = []
        """Lines that could not be read: after which record they stand, and why."""
        self.titles: dict[str, str] = {}
        self._positions: dict[str, int] = {}
        for row in decode_lines(data, CLAUDE_LINE):
            self._add_line(row)

    def _add_line(self, row: FileLine[ClaudeLine]) -> None:
        line = row.value
        if line is None:
            self.damaged.append((len(self.records), row, row.fault))
            return
        if row.fault:
            self.log.report_problem(row.number, row.fault)
        record = self._make_record(row, line)
        if self._is_new(record):
            self.records.append(record if self._lines is None else _drop_content(record))

    def reload_records(
        self, records: Iterable[ClaudeRecord[ClaudeLine, ClaudeApiMessage]]
    ) -> list[ClaudeRecord[ClaudeLine, ClaudeApiMessage]]:
        """Return ``records`` with their words, which are read again where they are not held."""
        return [self._reload_record(record) for record in records]

    def _reload_record(
        self, record: ClaudeRecord[ClaudeLine, ClaudeApiMessage]
    ) -> ClaudeRecord[ClaudeLine, ClaudeApiMessage]:
        if self._lines is None:
            return record
        row = self._lines.reread_line(record.number, record.start, record.length, CLAUDE_LINE)
        line = row.value or ClaudeLine()
        api, message = (None, None) if record.message is None else _decode_line_message(line)
        return replace(record, raw=row.raw, line=line, message=message, api=api)

    def make_body(
        self,
        kind: type[B],
        make: Callable[[Sequence[ClaudeRecord[ClaudeLine, ClaudeApiMessage]]], B],
        records: Sequence[ClaudeRecord[ClaudeLine, ClaudeApiMessage]],
    ) -> B | LazyBody:
        """Return ``make`` of ``records``: at once, or, where their words are not held, when it is asked for."""
        if self._lines is None:
            return make(records)
        return LazyBody(kind, partial(self._load_body, make, tuple(records)))

    def _load_body(
        self,
        make: Callable[[Sequence[ClaudeRecord[ClaudeLine, ClaudeApiMessage]]], EntryBody],
        records: Sequence[ClaudeRecord[ClaudeLine, ClaudeApiMessage]],
    ) -> EntryBody:
        return make(self.reload_records(records))

    def _make_record(self, row: FileLine[ClaudeLine], line: ClaudeLine) -> ClaudeRecord[ClaudeLine, ClaudeApiMessage]:
        message = api = None
        if _is_own_system_line(line) or line.type in ("user", "assistant"):
            try:
                api, message = _decode_line_message(line)
            except (FormatError, *DECODE_ERRORS) as error:
                self.log.skipped[f"{line.type} (unreadable)"] += 1
                self.damaged.append((len(self.records), row, f"the message is kept as a note: {error}"))
        elif line.type != "system" or line.subtype != "compact_boundary":
            self._count_skipped(line)
        boundary = line.type == "system" and line.subtype == "compact_boundary"
        is_kept = message is not None or boundary
        return ClaudeRecord(row.number, row.raw, line, is_kept, message, api, start=row.start, length=len(row.raw))

    def _count_skipped(self, line: ClaudeLine) -> None:
        kind = f"{line.type}:{line.subtype}" if line.subtype else line.type or "line without a type"
        self.log.skipped[kind] += 1
        for name, title in (("custom", line.custom_title), ("ai", line.ai_title), ("summary", line.summary)):
            if title:
                self.titles[name] = title

    def _is_new(self, record: ClaudeRecord[ClaudeLine, ClaudeApiMessage]) -> bool:
        """Return whether this is no copy of an earlier line; note its uuid."""
        uuid = record.line.uuid
        if uuid is None:
            return True
        place = self._positions.get(uuid)
        first = None if place is None else self.records[place]
        if first is not None and first.is_kept and record.is_kept:
            if _is_same_record(self._reload_record(first), record):
                self.log.skipped["copy of an earlier line"] += 1
                return False
            self.log.report_problem(
                record.number, f"uuid {uuid} is used again, first on line {first.number}; both are kept"
            )
            record.is_link_target = False
        elif first is not None and (first.is_kept or not record.is_kept):
            record.is_link_target = False
        else:
            self._positions[uuid] = len(self.records)
        return True

    @property
    def title(self) -> str:
        return next((self.titles[name] for name in ("custom", "ai", "summary") if name in self.titles), "")


def _is_own_system_line(line: ClaudeLine) -> bool:
    return line.type == "system" and line.holdfast == SYSTEM_MARK


def _is_same_record(
    first: ClaudeRecord[ClaudeLine, ClaudeApiMessage], record: ClaudeRecord[ClaudeLine, ClaudeApiMessage]
) -> bool:
    """Return whether a line says what an earlier line of the same uuid says."""
    return first.api is None or record.api is None or first.api.content == record.api.content


def _decode_line_message(line: ClaudeLine) -> tuple[ClaudeApiMessage, Message]:
    """Return the message of a line in both forms; raises ``FormatError`` or ``DECODE_ERRORS`` where there is none."""
    wire = (
        Raw(b'{"role":"system","content":' + bytes(line.content) + b"}") if _is_own_system_line(line) else line.message
    )
    api = _CLAUDE_MESSAGE.decode_strict(wire)
    message = anthropic.decode_message(wire)
    if api.role not in ("user", "assistant", "system"):
        raise FormatError(f"its role is {api.role!r}; known are user, assistant and system")
    return api, message


def _drop_content(record: ClaudeRecord[ClaudeLine, ClaudeApiMessage]) -> ClaudeRecord[ClaudeLine, ClaudeApiMessage]:
    """Return what the tree needs of a record, which is small: its links, its ids, its usage.

    A value that decoding left raw is a view into its whole line; it is copied to let go of that.
    """
    line, api, message = record.line, record.api, record.message
    line.message = line.content = EMPTY_RAW
    line.compact_metadata = line.compact_metadata.copy() if line.compact_metadata else EMPTY_RAW
    line.type, line.session_id, line.cwd = (
        sys.intern(line.type),
        _intern_optional(line.session_id),
        _intern_optional(line.cwd),
    )
    if api is not None:
        api.content, api.usage = EMPTY_RAW, api.usage.copy() if api.usage else EMPTY_RAW
        api.role, api.model, api.stop_reason = (
            sys.intern(api.role),
            _intern_optional(api.model),
            _intern_optional(api.stop_reason),
        )
    if message is not None:
        calls = [ToolCall(call.id, call.name) for call in message.calls]
        results = [ToolResult(result.call_id) for result in message.results]
        message = Message(message.role, (*calls, *results))
    return replace(record, raw=b"", message=message)


def _intern_optional(text: str | None) -> str | None:
    """Return the same text for all lines that repeat it."""
    return None if text is None else sys.intern(text)


def read_claude_code(data: bytes | LineFile) -> Recording:
    """Return the recording in ``data``. A file that holds only a sub-agent's conversation is that conversation.

    Of an open file the entries are lazy: each is read from it when it is asked for, so it must stay open.
    """
    file = _ClaudeFile(data)
    groups, up = link_records(file.records, file.log)
    main = groups.pop("", None)
    if main is None:
        main = groups.pop(next(iter(groups))) if groups else []
    chains = tuple([_build_claude_recording(file, RecordingBuilder(), chain, up) for chain in groups.values()])
    whole = _build_claude_recording(file, file.log, main, up)
    return file.log.finish_recording(replace(whole, sidechains=chains, title=file.title))


def _build_claude_recording(
    file: _ClaudeFile, log: RecordingBuilder, indexes: list[int], parents: list[int]
) -> Recording:
    """Return the conversation on the lines ``indexes``."""
    records = file.records
    nodes = build_nodes(records, indexes, parents, log)
    for node in nodes:
        _append_node(file, log, node)
    home = {index: node for node in nodes for index in node.members}
    last = records[indexes[-1]].line if indexes else ClaudeLine()
    answers = [node for node in nodes if node.kind == "assistant"]
    recording = Recording(
        format=FORMAT,
        session=(last.agent_id if last.is_sidechain else last.session_id) or last.session_id or last.uuid or "",
        cwd=last.cwd or "",
        model=next((model for node in reversed(answers) if (model := _get_node_model(records, node))), ""),
        api=API,
        leaf=home[indexes[-1]].end.last_entry_id if indexes else None,
    )
    if log is file.log:
        _keep_damaged_claude_lines(file, home)
    return log.finish_recording(recording)


def _keep_damaged_claude_lines(file: _ClaudeFile, home: dict[int, ClaudeNode]) -> None:
    """Keep the lines that could not be read, each behind the last good one before it."""
    before, next_place = None, 0
    for place, row, reason in file.damaged:
        for index in range(next_place, place):
            before = home[index].last_entry_id if index in home else before
        next_place = place
        file.log.add_damaged_line(row.number, row.raw, reason, before)


def _append_node(file: _ClaudeFile, log: RecordingBuilder, node: ClaudeNode) -> None:
    """Append the entries of ``node`` behind those of its parent."""
    parent = node.parent.last_entry_id if node.parent is not None else None
    if node.kind == "compaction":
        _append_claude_compaction(file, log, node, parent)
        return
    members = [file.records[index] for index in node.members]
    first, last = members[0], members[-1]
    at, name = parse_millis(first.line.timestamp), last.line.uuid or f"line-{last.number}"
    body = file.make_body(MessageEntry, _make_claude_entry, members)
    if node.kind == "assistant":
        node.last_entry_id = log.add_answer(
            name, parent, body, _get_claude_call(members), at, first.number, last.number
        )
        node.entry_id = log.entries[-1].parent or ""
    else:
        node.last_entry_id = node.entry_id = log.add_entry(name, parent, body, at, first.number, last.number)


def _make_claude_entry(members: Sequence[ClaudeRecord[ClaudeLine, ClaudeApiMessage]]) -> MessageEntry:
    return MessageEntry(
        make_sized_message(*_join_message_records(members)), join_origin_lines([record.raw for record in members])
    )


def _join_message_records(members: Sequence[ClaudeRecord[ClaudeLine, ClaudeApiMessage]]) -> tuple[Message, str, bytes]:
    """Return the message that lies on one or several lines, and its wire form made of the blocks' own bytes."""
    messages = [record.message for record in members if record.message is not None]
    role = messages[0].role
    contents = [bytes(record.api.content) for record in members if record.api is not None]
    wire = b"user" if role == "tool" else role.encode()
    content = contents[0] if len(contents) == 1 else b"[" + b",".join(_iterate_block_bytes(contents)) + b"]"
    parts = tuple([part for message in messages for part in message.parts])
    return Message(role, parts), API, b'{"role":"' + wire + b'","content":' + content + b"}"


def _iterate_block_bytes(contents: Iterable[bytes]) -> Iterable[bytes]:
    for content in contents:
        if content.startswith(b'"'):
            yield b'{"type":"text","text":' + content + b"}"
        elif content.startswith(b"[") and (inner := content[1:-1].strip()):
            yield inner


def _get_claude_call(members: Sequence[ClaudeRecord[ClaudeLine, ClaudeApiMessage]]) -> CallMetadata:
    """Return model, usage and stop reason; each line repeats them, the last one is right."""
    apis = [record.api for record in members if record.api is not None]
    model = next((api.model for api in reversed(apis) if api.model), "")
    stop = next((api.stop_reason for api in reversed(apis) if api.stop_reason), "")
    if any(record.line.is_api_error_message for record in members):
        stop = FAILED
    elif model == "<synthetic>":
        stop = SYNTHETIC
    reported_usage = next(
        (api_usage for api in reversed(apis) if (api_usage := parse_window_usage(API, api.usage)) is not None), None
    )
    is_paid = any(record.line.holdfast == STALE_USAGE_BASIS for record in members)
    number = members[-1].number if reported_usage else 0
    return CallMetadata("" if model == "<synthetic>" else model, reported_usage or Usage(), stop, number, is_paid)


def _get_node_model(records: list[ClaudeRecord[ClaudeLine, ClaudeApiMessage]], node: ClaudeNode) -> str:
    api = records[node.members[-1]].api
    return api.model if api is not None and api.model and api.model != "<synthetic>" else ""


def _append_claude_compaction(file: _ClaudeFile, log: RecordingBuilder, node: ClaudeNode, parent: str | None) -> None:
    """Append a recorded compaction: its lines as a note, then the entry. Without a summary it hides nothing."""
    members = [file.records[index] for index in node.members]
    first, last = members[0], members[-1]
    at, name = parse_millis(first.line.timestamp), last.line.uuid or f"line-{last.number}"
    note = file.make_body(NoteEntry, _make_boundary_note, members)
    if last.message is None:
        node.last_entry_id = node.entry_id = log.add_entry(name, parent, note, at, first.number, last.number)
        log.report_problem(first.number, "a compaction without its summary hides nothing")
        return
    parent = log.add_entry(f"{name}+lines", parent, note, at, first.number, last.number)
    metadata = _COMPACT_METADATA.decode_or_default(first.line.compact_metadata)
    keep = _find_first_kept_message(log, node, file.records, metadata, parent)
    body = file.make_body(CompactionEntry, partial(_make_claude_compaction, metadata, keep), members)
    node.last_entry_id = node.entry_id = log.add_entry(name, parent, body, at, first.number, last.number)


def _make_boundary_note(members: Sequence[ClaudeRecord[ClaudeLine, ClaudeApiMessage]]) -> NoteEntry:
    return NoteEntry(COMPACT_BOUNDARY_NOTE, b"\n".join([record.raw for record in members]))


def _make_claude_compaction(
    metadata: _CompactMetadata, keep: int, members: Sequence[ClaudeRecord[ClaudeLine, ClaudeApiMessage]]
) -> CompactionEntry:
    summary = members[-1].message or Message("user", ())
    return CompactionEntry(
        first_kept=keep,
        summary=summary,
        head_tokens=make_sized_message(summary, API, None).tokens,
        tokens_before=metadata.pre_tokens or 0,
        tokens_after=metadata.post_tokens or 0,
        trigger=metadata.trigger or "auto",
        author="model",
    )


def _find_first_kept_message(
    log: RecordingBuilder,
    node: ClaudeNode,
    records: list[ClaudeRecord[ClaudeLine, ClaudeApiMessage]],
    metadata: _CompactMetadata,
    parent: str | None,
) -> int:
    """Return the index of the first slot that the compaction kept: the oldest preserved message on the way to it."""
    keep = log.message_counts[parent]
    uuids = _get_preserved_uuids(metadata)
    for before in iter_ancestors(node.parent) if uuids else ():
        if any(records[index].line.uuid in uuids for index in before.members):
            keep = log.message_counts[before.entry_id] - 1
    return keep


def _get_preserved_uuids(metadata: _CompactMetadata) -> set[str]:
    messages, head = (
        _PRESERVED_MESSAGES.decode_or_default(metadata.preserved_messages),
        _PRESERVED_SEGMENT.decode_or_default(metadata.preserved_segment).head_uuid,
    )
    return {*messages.uuids, *messages.all_uuids, *([head] if head else [])}
