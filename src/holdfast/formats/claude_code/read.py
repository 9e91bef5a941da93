"""Reader of Claude Code transcripts (``~/.claude/projects/*/*.jsonl``).

One answer is spread over several lines with the same ``message.id``. Lines link to each other by uuid, through
lines that are not part of the conversation, and not in a straight line when tools run in parallel; ``tree.py``
sorts that out. Lines marked ``isMeta`` were sent to the model and are kept. Progress, hooks, snapshots, queue
operations, attachments and local commands were not sent in this form; they are only counted, except for words of the
user that stand nowhere else (``queue.py``). Results that the tool cleared become a decision (``microcompact.py``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.formats.base import FAILED, STALE_USAGE_BASIS, SYNTHETIC, Recording
from holdfast.formats.claude_code.microcompact import (
    MICROCOMPACT_METADATA,
    MICROCOMPACT_NOTE,
    find_cleared_calls,
    make_clearing_edits,
)
from holdfast.formats.claude_code.queue import PromptQueue
from holdfast.formats.claude_code.tree import (
    ClaudeNode,
    ClaudeRecord,
    build_nodes,
    find_last_node,
    iter_ancestors,
    link_records,
)
from holdfast.formats.common.lines import DECODE_ERRORS, FileLine, LenientDecoder, LineFile, decode_lines, parse_millis
from holdfast.formats.common.log import (
    CallMetadata,
    RecordingBuilder,
    join_origin_lines,
    make_short_digest,
    make_sized_message,
)
from holdfast.messages.message import Message
from holdfast.messages.parts import Part, ToolCall, ToolResult
from holdfast.planning.extract.previous_summary import is_extract
from holdfast.providers.answers.usage import parse_window_usage
from holdfast.providers.anthropic import messages as anthropic
from holdfast.state.edits import Edit
from holdfast.state.entries import CompactionEntry, DecisionEntry, EntryBody, MessageEntry, NoteEntry, Usage
from holdfast.state.lazy_entries import LazyBody

FORMAT = "claude-code"
API = "anthropic"
COMPACT_BOUNDARY_NOTE = "claude-code:compact_boundary"
"""Reason of the note that keeps the lines of a recorded compaction."""
EMPTY_RAW = Raw()
"""Placeholder for a value that stays in the file; one object shared by all lines."""
_SYNTHETIC_MODEL = "<synthetic>"
"""Model that Claude Code names on answers that it wrote itself, such as error texts."""
_ANY_LATER_LINE = sys.maxsize
"""Line number for what depends on lines that the file may not have yet."""
SYSTEM_MARK = "system"
"""Value of the ``holdfast`` field on lines that we write for system messages, which the tool has no line for."""
QUEUED_MARK = "queued"
"""Value of the ``holdfast`` field on user lines that we write for words of the queue: they repeat no other line."""


class ClaudeLine(Struct, rename="camel"):
    """The fields of a line that the reader uses; any may be missing."""

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
    microcompact_metadata: Raw = Raw()
    custom_title: str | None = None
    ai_title: str | None = None
    summary: str | None = None
    holdfast: str | None = None
    content: Raw = Raw()
    operation: str = ""
    attachment: Raw = Raw()


class ClaudeApiMessage(Struct):
    """The message of the API inside a line."""

    role: str = ""
    id: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    content: Raw = Raw(b"[]")
    usage: Raw = Raw()


class _Attachment(Struct, rename="camel"):
    type: str = ""
    prompt: Raw = Raw()
    command_mode: str | None = None
    is_meta: bool | None = None


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
_Record: TypeAlias = ClaudeRecord[ClaudeLine, ClaudeApiMessage]
CLAUDE_LINE = LenientDecoder(ClaudeLine)
_CLAUDE_MESSAGE = LenientDecoder(ClaudeApiMessage)
_ATTACHMENT = LenientDecoder(_Attachment)
_COMPACT_METADATA = LenientDecoder(_CompactMetadata)
_PRESERVED_SEGMENT = LenientDecoder(_PreservedSegment)
_PRESERVED_MESSAGES = LenientDecoder(_PreservedMessages)


class _ClaudeFile:
    """The decoded lines of one file, before they are linked; without their content if the file can be read again."""

    def __init__(self, data: bytes | LineFile) -> None:
        self.log = RecordingBuilder()
        self.records: list[_Record] = []
        self._lines = data if isinstance(data, LineFile) else None
        self._boundary_uuid: str | None = None
        self.damaged: list[tuple[int, FileLine[ClaudeLine], str]] = []
        """Lines that could not be read: the number of records before each, the line, and the reason."""
        self.titles: dict[str, str] = {}
        self._positions: dict[str, int] = {}
        self._queue = PromptQueue()
        for row in decode_lines(data, CLAUDE_LINE):
            self._add_line(row)
        self._keep_queued_prompts()

    def _add_line(self, row: FileLine[ClaudeLine]) -> None:
        line = row.value
        if line is None:
            self.damaged.append((len(self.records), row, row.fault))
            return
        if row.fault:
            self.log.report_problem(row.number, row.fault)
        record = self._make_record(row, line)
        if not self._is_new(record):
            return
        self._follow_queue(record)
        if self._lines is not None:
            record = _drop_content(record)
        self.records.append(record)

    def _follow_queue(self, record: _Record) -> None:
        """Take a line into account for the words that the user typed while the agent worked."""
        line = record.line
        message = record.message
        index = len(self.records)
        if line.type == "queue-operation":
            self._queue.add_operation(line.operation, message.text.strip() if message is not None else "", index)
        elif message is None or line.is_sidechain or line.is_meta or line.is_compact_summary:
            return
        elif line.type == "attachment":
            self._queue.add_attachment(message.text.strip(), index)
        elif line.type == "assistant":
            self._queue.add_answer()
        elif line.type == "user" and not message.results and line.holdfast != QUEUED_MARK:
            for repeated in self._queue.add_user_line(message.text.strip()):
                self._count_unkept(self.records[repeated])

    def _keep_queued_prompts(self) -> None:
        """Make messages of the words that stand in no user line, each at the place where the model got them."""
        for prompt in self._queue.list_unwritten_prompts():
            record = self.records[prompt.record]
            if not record.is_kept:
                record.is_kept = True
                self.log.skipped[record.line.type] -= 1
            # Attachments of today have links like all other lines; these are followed.
            if record.line.uuid is None:
                record.place = prompt.place
        self.log.skipped = +self.log.skipped

    def _count_unkept(self, record: _Record) -> None:
        """Leave out an attachment whose words a user line repeats; it still carries links."""
        if record.is_kept:
            record.is_kept = False
            self.log.skipped[record.line.type] += 1

    def reload_records(self, records: Iterable[_Record]) -> list[_Record]:
        """Return ``records`` with their content, read again from the file where it was dropped."""
        return [self._reload_record(record) for record in records]

    def _reload_record(self, record: _Record) -> _Record:
        if self._lines is None:
            return record
        row = self._lines.reread_line(record.number, record.start, record.length, CLAUDE_LINE)
        line = row.value or ClaudeLine()
        if record.message is None:
            return replace(record, raw=row.raw, line=line, message=None, api=None)
        api, message = _decode_line_message(line)
        return replace(record, raw=row.raw, line=line, message=message, api=api)

    def make_body(
        self,
        kind: type[B],
        make: Callable[[Sequence[_Record]], B],
        records: Sequence[_Record],
    ) -> B | LazyBody:
        """Return ``make(records)``: now, or lazily if the content of the records is not in memory."""
        if self._lines is None:
            return make(records)
        return LazyBody(kind, partial(self._load_body, make, tuple(records)))

    def _load_body(
        self,
        make: Callable[[Sequence[_Record]], EntryBody],
        records: Sequence[_Record],
    ) -> EntryBody:
        return make(self.reload_records(records))

    def _make_record(self, row: FileLine[ClaudeLine], line: ClaudeLine) -> _Record:
        message = api = None
        is_boundary = line.type == "system" and line.subtype == "compact_boundary"
        is_microcompact = line.type == "system" and line.subtype == "microcompact_boundary"
        is_queue_operation = line.type == "queue-operation"
        is_message_line = line.type in ("user", "assistant") or _is_own_system_line(line)
        if is_message_line or _get_queued_prompt(line):
            try:
                api, message = _decode_line_message(line)
            except (FormatError, *DECODE_ERRORS) as error:
                self.log.skipped[f"{line.type} (unreadable)"] += 1
                self.damaged.append((len(self.records), row, f"the message is kept as a note: {error}"))
        elif not is_boundary and not is_microcompact:
            # The tool has about twenty other kinds of lines and adds more: unknown ones are counted, never an error.
            self._count_skipped(line)
        if is_boundary:
            self._boundary_uuid = line.uuid
        elif message is not None and self._is_unmarked_extract(line, message):
            line.is_compact_summary = True
        if is_queue_operation and message is not None:
            # Only the end of the file tells whether its words stand in no other line.
            self._count_skipped(line)
        is_kept = is_boundary or is_microcompact or (message is not None and not is_queue_operation)
        return ClaudeRecord(
            row.number,
            row.raw,
            line,
            is_kept,
            message,
            api,
            is_microcompact,
            start=row.start,
            length=len(row.raw),
        )

    def _is_unmarked_extract(self, line: ClaudeLine, message: Message) -> bool:
        """Return whether a line is the summary of the compaction before it, written by our plugin.

        Claude Code marks the summaries of its own. What a plugin makes has no mark, and is the first message after the
        boundary.
        """
        if line.type != "user" or self._boundary_uuid is None or line.parent_uuid != self._boundary_uuid:
            return False
        return is_extract(message.text)

    def _count_skipped(self, line: ClaudeLine) -> None:
        kind = line.type or "line without a type"
        if line.subtype:
            kind = f"{line.type}:{line.subtype}"
        self.log.skipped[kind] += 1
        for source, title in (("custom", line.custom_title), ("ai", line.ai_title), ("summary", line.summary)):
            if title:
                self.titles[source] = title

    def _is_new(self, record: _Record) -> bool:
        """Return whether ``record`` is not a copy of an earlier line, and decide which of two lines owns their uuid.

        The tool writes preserved messages again after a compaction, under their uuids: that is one line. Its snapshots
        reuse uuids of messages too (claude-code#36583), so a kept line wins over one that only carries links. Two kept
        lines with different content both stay, and links lead to the first.
        """
        uuid = record.line.uuid
        if uuid is None:
            return True
        position = self._positions.get(uuid)
        first = None if position is None else self.records[position]
        if first is None or (record.is_kept and not first.is_kept):
            self._positions[uuid] = len(self.records)
            return True
        if not first.is_kept or not record.is_kept:
            record.is_link_target = False
            return True
        if _is_same_record(self._reload_record(first), record):
            self.log.skipped["copy of an earlier line"] += 1
            return False
        self.log.report_problem(
            record.number, f"uuid {uuid} is used again, first on line {first.number}; both are kept"
        )
        record.is_link_target = False
        return True

    @property
    def title(self) -> str:
        """The title that the user gave, else the generated one, else the newest summary line."""
        for source in ("custom", "ai", "summary"):
            if source in self.titles:
                return self.titles[source]
        return ""


def _is_own_system_line(line: ClaudeLine) -> bool:
    return line.type == "system" and line.holdfast == SYSTEM_MARK


def _is_same_record(first: _Record, record: _Record) -> bool:
    """Return whether two lines with the same uuid have the same content."""
    return first.api is None or record.api is None or first.api.content == record.api.content


def _decode_line_message(line: ClaudeLine) -> tuple[ClaudeApiMessage, Message]:
    """Return the message of a line, as the API's struct and as ours.

    Raises ``FormatError`` or one of ``DECODE_ERRORS`` if the line holds no message.
    """
    wire = line.message
    if prompt := _get_queued_prompt(line):
        wire = Raw(b'{"role":"user","content":' + prompt + b"}")
    elif _is_own_system_line(line):
        wire = Raw(b'{"role":"system","content":' + bytes(line.content) + b"}")
    api = _CLAUDE_MESSAGE.decode_strict(wire)
    message = anthropic.decode_message(wire)
    if api.role not in ("user", "assistant", "system"):
        raise FormatError(f"its role is {api.role!r}; known are user, assistant and system")
    return api, message


def _get_queued_prompt(line: ClaudeLine) -> bytes:
    """Return the JSON of the words in a line of the queue: a text, or blocks with images; empty without any."""
    prompt = b""
    if line.type == "queue-operation":
        prompt = bytes(line.content)
    elif line.type == "attachment":
        attachment = _ATTACHMENT.decode_or_default(line.attachment)
        is_typed = attachment.command_mode in (None, "prompt") and not attachment.is_meta
        if attachment.type == "queued_command" and is_typed:
            prompt = bytes(attachment.prompt)
    is_text = prompt.startswith(b'"') and bool(prompt.strip(b'" '))
    is_blocks = prompt.startswith(b"[") and bool(prompt.strip(b"[] "))
    return prompt if is_text or is_blocks else b""


def _drop_content(record: _Record) -> _Record:
    """Return a record with only the small fields that linking needs: links, ids and usage.

    A raw value is a view into its whole line, which it would keep in memory; hence the copies.
    """
    line = record.line
    line.message = line.content = line.attachment = EMPTY_RAW
    line.compact_metadata = line.compact_metadata.copy() if line.compact_metadata else EMPTY_RAW
    line.microcompact_metadata = line.microcompact_metadata.copy() if line.microcompact_metadata else EMPTY_RAW
    # A transcript repeats these texts on every line; interned, a million lines share one object each.
    line.type = sys.intern(line.type)
    line.session_id = _intern_optional(line.session_id)
    line.cwd = _intern_optional(line.cwd)
    api = record.api
    if api is not None:
        api.content = EMPTY_RAW
        api.usage = api.usage.copy() if api.usage else EMPTY_RAW
        api.role = sys.intern(api.role)
        api.model = _intern_optional(api.model)
        api.stop_reason = _intern_optional(api.stop_reason)
    message = record.message
    if message is not None:
        calls = [ToolCall(call.id, call.name) for call in message.calls]
        results = [ToolResult(result.call_id) for result in message.results]
        message = Message(message.role, (*calls, *results))
    return replace(record, raw=b"", message=message)


def _intern_optional(text: str | None) -> str | None:
    return None if text is None else sys.intern(text)


def read_claude_code(data: bytes | LineFile) -> Recording:
    """Return the recording in ``data``.

    In a file with only sub-agents' conversations, the first of them is the recording. Entries of an open file are
    lazy: each is read from it on demand, so the file must stay open.
    """
    file = _ClaudeFile(data)
    groups, parents = link_records(file.records, file.log)
    main: list[int] = []
    if groups:
        main_key = "" if "" in groups else next(iter(groups))
        main = groups.pop(main_key)
    sidechains = []
    for group in groups.values():
        # A builder of its own: each conversation counts its own messages and entries.
        sidechains.append(_build_claude_recording(file, RecordingBuilder(), group, parents))
    recording = _build_claude_recording(file, file.log, main, parents)
    return file.log.finish_recording(replace(recording, sidechains=tuple(sidechains), title=file.title))


def _build_claude_recording(
    file: _ClaudeFile,
    log: RecordingBuilder,
    indexes: list[int],
    parents: list[int],
) -> Recording:
    """Return the conversation made of the records ``indexes``."""
    records = file.records
    node_by_record = {}
    model = ""
    for node in build_nodes(records, indexes, parents, log):
        _append_node(file, log, node)
        for index in node.members:
            node_by_record[index] = node
        if node.kind == "assistant":
            model = _get_node_model(records, node) or model
    last_line = ClaudeLine()
    leaf = None
    if indexes:
        last_line = records[indexes[-1]].line
        # The tool continues from the newest line, whatever branch that is on.
        leaf = find_last_node(node_by_record[indexes[-1]]).last_entry_id
    # All sub-agents of a session share its session id; their agent id tells them apart.
    session = last_line.agent_id if last_line.is_sidechain else None
    recording = Recording(
        format=FORMAT,
        session=session or last_line.session_id or last_line.uuid or "",
        cwd=last_line.cwd or "",
        model=model,
        api=API,
        leaf=leaf,
    )
    if log is file.log:
        _keep_damaged_claude_lines(file, node_by_record)
    return log.finish_recording(recording)


def _keep_damaged_claude_lines(file: _ClaudeFile, node_by_record: dict[int, ClaudeNode]) -> None:
    """Keep each line that could not be read as a note after the last entry before it."""
    previous_entry_id = None
    next_index = 0
    for record_count, row, reason in file.damaged:
        for index in range(next_index, record_count):
            if index in node_by_record:
                previous_entry_id = node_by_record[index].last_entry_id
        next_index = record_count
        file.log.add_damaged_line(row.number, row.raw, reason, previous_entry_id)


def _append_node(file: _ClaudeFile, log: RecordingBuilder, node: ClaudeNode) -> None:
    """Append the entries of ``node`` after those of its parent."""
    parent = node.parent.last_entry_id if node.parent is not None else None
    if node.kind == "compaction":
        _append_claude_compaction(file, log, node, parent)
        return
    if node.kind == "microcompact":
        _append_microcompact(file, log, node, parent)
        return
    members = [file.records[index] for index in node.members]
    first = members[0]
    last = members[-1]
    at = parse_millis(first.line.timestamp)
    # Named by its last line: of an answer that is still being written, the next import gets another entry.
    name = last.line.uuid or f"line-{last.number}"
    body = file.make_body(MessageEntry, _make_claude_entry, members)
    if node.kind == "assistant":
        call = _get_claude_call(members)
        node.last_entry_id = log.add_answer(name, parent, body, call, at, first.number, last.number)
        node.entry_id = log.entries[-1].parent or ""
    elif first.line.type in ("queue-operation", "attachment"):
        # A later line may repeat the words; then they are no message here, and what follows them has another parent.
        name = f"{name}+{make_short_digest(parent or '')}"
        node.entry_id = log.add_entry(name, parent, body, at, first.number, _ANY_LATER_LINE)
        node.last_entry_id = node.entry_id
    else:
        node.entry_id = log.add_entry(name, parent, body, at, first.number, last.number)
        node.last_entry_id = node.entry_id


def _make_claude_entry(members: Sequence[_Record]) -> MessageEntry:
    message, wire = _join_message_records(members)
    origin = join_origin_lines([record.raw for record in members])
    return MessageEntry(make_sized_message(message, API, wire), origin)


def _join_message_records(members: Sequence[_Record]) -> tuple[Message, bytes]:
    """Return the message spread over one or more lines, and its wire form made of the blocks' own bytes."""
    messages = [record.message for record in members if record.message is not None]
    contents = [bytes(record.api.content) for record in members if record.api is not None]
    role = messages[0].role
    wire_role = "user" if role == "tool" else role
    content = contents[0]
    if len(contents) > 1:
        content = b"[" + b",".join(_iterate_block_bytes(contents)) + b"]"
    parts: list[Part] = []
    for message in messages:
        parts += message.parts
    # The blocks keep their own bytes, so that a signature in one of them stays valid.
    wire = b'{"role":"' + wire_role.encode() + b'","content":' + content + b"}"
    return Message(role, tuple(parts)), wire


def _iterate_block_bytes(contents: Iterable[bytes]) -> Iterable[bytes]:
    """Yield the JSON of the blocks in ``contents``; content that is a plain string becomes a text block."""
    for content in contents:
        if content.startswith(b'"'):
            yield b'{"type":"text","text":' + content + b"}"
        elif content.startswith(b"["):
            blocks = content[1:-1].strip()
            if blocks:
                yield blocks


def _get_claude_call(members: Sequence[_Record]) -> CallMetadata:
    """Return model, usage and stop reason of an answer.

    Each line of the answer repeats them as of when it was written, so the last line that has a value is right.
    """
    model = stop = ""
    usage = None
    for record in reversed(members):
        if record.api is None:
            continue
        model = model or record.api.model or ""
        stop = stop or record.api.stop_reason or ""
        if usage is None:
            usage = parse_window_usage(API, record.api.usage)
    # The text of an API error is written as an answer, so it must not count as one of the model.
    if any(record.line.is_api_error_message for record in members):
        stop = FAILED
    elif model == _SYNTHETIC_MODEL:
        stop = SYNTHETIC
    if model == _SYNTHETIC_MODEL:
        model = ""
    usage_line = members[-1].number if usage else 0
    is_stale = any(record.line.holdfast == STALE_USAGE_BASIS for record in members)
    return CallMetadata(model, usage or Usage(), stop, usage_line, is_stale)


def _get_node_model(records: list[_Record], node: ClaudeNode) -> str:
    api = records[node.members[-1]].api
    if api is None or not api.model or api.model == _SYNTHETIC_MODEL:
        return ""
    return api.model


def _append_claude_compaction(
    file: _ClaudeFile,
    log: RecordingBuilder,
    node: ClaudeNode,
    parent: str | None,
) -> None:
    """Append a recorded compaction: its lines as a note, then the entry.

    A boundary without its summary (a compaction that was not finished) stays a note and hides nothing.
    """
    members = [file.records[index] for index in node.members]
    first = members[0]
    last = members[-1]
    at = parse_millis(first.line.timestamp)
    name = last.line.uuid or f"line-{last.number}"
    note = file.make_body(NoteEntry, _make_boundary_note, members)
    if last.message is None:
        node.last_entry_id = node.entry_id = log.add_entry(
            name,
            parent,
            note,
            at,
            first.number,
            last.number,
        )
        log.report_problem(first.number, "a compaction without its summary hides nothing")
        return
    parent = log.add_entry(f"{name}+lines", parent, note, at, first.number, last.number)
    metadata = _COMPACT_METADATA.decode_or_default(first.line.compact_metadata)
    first_kept = _find_first_kept_message(log, node, file.records, metadata, parent)
    body = file.make_body(CompactionEntry, partial(_make_claude_compaction, metadata, first_kept), members)
    node.last_entry_id = node.entry_id = log.add_entry(name, parent, body, at, first.number, last.number)


def _make_boundary_note(members: Sequence[_Record]) -> NoteEntry:
    return NoteEntry(COMPACT_BOUNDARY_NOTE, b"\n".join([record.raw for record in members]))


def _make_claude_compaction(
    metadata: _CompactMetadata,
    first_kept_index: int,
    members: Sequence[_Record],
) -> CompactionEntry:
    summary = members[-1].message or Message("user", ())
    return CompactionEntry(
        first_kept=first_kept_index,
        summary=summary,
        head_tokens=make_sized_message(summary, API, None).tokens,
        tokens_before=metadata.pre_tokens or 0,
        tokens_after=metadata.post_tokens or 0,
        trigger=metadata.trigger or "auto",
        author="" if is_extract(summary.text) else "model",
    )


def _append_microcompact(file: _ClaudeFile, log: RecordingBuilder, node: ClaudeNode, parent: str | None) -> None:
    """Append results that Claude Code cleared as a decision: its line as a note, then the entry.

    The file keeps the full texts; only requests from here on show the placeholder.
    """
    record = file.records[node.members[0]]
    at = parse_millis(record.line.timestamp)
    name = record.line.uuid or f"line-{record.number}"
    note = file.make_body(NoteEntry, _make_microcompact_note, [record])
    metadata = MICROCOMPACT_METADATA.decode_or_default(record.line.microcompact_metadata)
    cleared = find_cleared_calls(metadata, iter_ancestors(node.parent), file.records)
    if cleared.missing_count:
        log.report_problem(
            record.number,
            f"{cleared.missing_count:,} of the {len(metadata.compacted_tool_ids):,} results that Claude Code cleared "
            "here are not among the messages before; nothing is changed for these",
        )
    if not cleared.nodes:
        node.last_entry_id = node.entry_id = log.add_entry(name, parent, note, at, record.number)
        return
    node.cleared_calls = frozenset(cleared.nodes)
    parent = log.add_entry(f"{name}+line", parent, note, at, record.number)
    members_by_message: dict[int, list[_Record]] = {}
    for result_node in cleared.nodes.values():
        message_index = log.message_counts[result_node.entry_id] - 1
        members_by_message[message_index] = [file.records[index] for index in result_node.members]
    make = partial(_make_microcompact, file, members_by_message, node.cleared_calls, metadata.tokens_saved)
    body = file.make_body(DecisionEntry, make, [record])
    node.last_entry_id = node.entry_id = log.add_entry(name, parent, body, at, record.number)


def _make_microcompact_note(members: Sequence[_Record]) -> NoteEntry:
    return NoteEntry(MICROCOMPACT_NOTE, members[0].raw)


def _make_microcompact(
    file: _ClaudeFile,
    members_by_message: Mapping[int, Sequence[_Record]],
    cleared_calls: frozenset[str],
    claimed_tokens: int,
    _: Sequence[_Record],
) -> DecisionEntry:
    """Return the decision; the results are read again where their texts stay in the file."""
    edits: list[Edit] = []
    for message_index in sorted(members_by_message):
        message, _wire = _join_message_records(file.reload_records(members_by_message[message_index]))
        edits += make_clearing_edits(message_index, message, cleared_calls, claimed_tokens)
    return DecisionEntry(tuple(edits))


def _find_first_kept_message(
    log: RecordingBuilder,
    node: ClaudeNode,
    records: list[_Record],
    metadata: _CompactMetadata,
    parent: str | None,
) -> int:
    """Return the index of the first message that the compaction kept: the oldest preserved one on its branch.

    If none was preserved, that is the number of messages before the compaction.
    """
    first_kept = log.message_counts[parent]
    preserved_uuids = _get_preserved_uuids(metadata)
    # Without preserved messages there is no walk: it would take quadratic time over many compactions.
    if not preserved_uuids:
        return first_kept
    for ancestor in iter_ancestors(node.parent):
        if any(records[index].line.uuid in preserved_uuids for index in ancestor.members):
            first_kept = log.message_counts[ancestor.entry_id] - 1
    return first_kept


def _get_preserved_uuids(metadata: _CompactMetadata) -> set[str]:
    """Return the uuids of preserved lines, in whichever of its three fields the tool's version wrote them."""
    messages = _PRESERVED_MESSAGES.decode_or_default(metadata.preserved_messages)
    segment = _PRESERVED_SEGMENT.decode_or_default(metadata.preserved_segment)
    uuids = {*messages.uuids, *messages.all_uuids}
    if segment.head_uuid:
        uuids.add(segment.head_uuid)
    return uuids
