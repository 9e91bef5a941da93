"""Reader of Gemini CLI sessions (``~/.gemini/tmp/**/chats/session-*``).

A file has a header, then messages and ``$set`` lines that change fields of the session. A later line with the same
``id`` replaces the earlier one, ``$set.messages`` replaces all messages, and ``$rewindTo`` removes a message and
everything after it. Older files are one JSON object with ``messages``. Messages are rebuilt as ``contents`` of the
API, as they were sent; tool results are on lines of their own or beside their calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import Decoder

from holdfast.formats.base import STALE_USAGE_BASIS, Recording
from holdfast.formats.common.lines import (
    BOM,
    DECODE_ERRORS,
    FileLine,
    LenientDecoder,
    decode_document,
    decode_lines,
    decode_raw_elements,
    decode_raw_fields,
    parse_millis,
)
from holdfast.formats.common.log import (
    CallMetadata,
    RecordingBuilder,
    join_origin_lines,
    make_short_digest,
    make_sized_message,
)
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.providers.gemini import messages as gemini
from holdfast.state.entries import MessageEntry, NoteEntry, Usage

__all__ = ["FORMAT", "GEMINI_CLI_NOTE_PREFIX", "read_gemini_cli"]

FORMAT = "gemini-cli"
GEMINI_CLI_NOTE_PREFIX = "gemini-cli:"
"""Prefix of the reason of a note that keeps a line of a session."""


_FIELD_NAMES = {
    "session": "sessionId",
    "start": "startTime",
    "calls": "toolCalls",
    "patch": "$set",
    "rewind": "$rewindTo",
}


class GeminiCliLine(Struct, rename=_FIELD_NAMES):
    """The fields of a line, a header or a whole file that the reader uses; any may be missing."""

    session: str | None = None
    start: str | None = None
    messages: Raw = Raw()
    patch: Raw = Raw()
    rewind: str | None = None
    id: str | None = None
    timestamp: str | None = None
    type: str = ""
    content: Raw = Raw()
    calls: Raw = Raw()
    tokens: Raw = Raw()
    model: str = ""
    holdfast: str | None = None


class _SetPatch(Struct):
    messages: Raw = Raw()


class GeminiCliToolCall(Struct):
    """A tool call and its result as a file has them; any field may be missing."""

    id: str | None = None
    name: str = ""
    args: Raw = Raw(b"{}")
    result: Raw = Raw(b"null")


class _GeminiCliTokens(Struct):
    input: int = 0
    output: int = 0
    cached: int = 0
    thoughts: int = 0
    tool: int = 0


GEMINI_CLI_LINE = LenientDecoder(GeminiCliLine)
RECORDED_TOOL_CALL = LenientDecoder(GeminiCliToolCall)
_SET_PATCH = LenientDecoder(_SetPatch)
_GEMINI_CLI_TOKENS = LenientDecoder(_GeminiCliTokens)
_RAW_LIST = Decoder(list[Raw])
_ROLE_OF_TYPE = {"user": "user", "gemini": "model"}
_ID_SEPARATOR = b"__"
"""The tool writes ``name__id`` for the ids of calls and results, but sends the bare id."""
_COMPLETE_CONTENT = re.compile(rb'"(?:functionCall|thought)"\s*:')
"""Matches a content that holds the whole answer, its calls too; otherwise the calls are only in ``toolCalls``."""


class _GeminiCliRecord:
    """A message, and all lines that told it; each replaces the one before."""

    __slots__ = ("first", "has_stale_usage", "last", "last_entry_id", "line", "name", "raws")

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.first = self.last = number
        self.line = GeminiCliLine()
        self.has_stale_usage = False
        """Whether the messages before it have changed since its request was sent."""
        self.raws: list[bytes] = []
        self.last_entry_id: str | None = None
        """Id of its last entry."""

    @property
    def version(self) -> str:
        """The entry's id: a digest is added if the message was told several times.

        The growing file tells one message again under the same id, and each version imported is an entry of its own.
        A file that is one JSON object (line 1) may hold any version, so there the digest is always added.
        """
        is_told_once = len(self.raws) == 1 and self.first > 1
        if is_told_once:
            return self.name
        return f"{self.name}+{make_short_digest(self.raws[-1].decode(errors='replace'))}"


class _GeminiCliFile:
    """The messages that the lines of one file leave in force, before they become entries."""

    def __init__(self, data: bytes) -> None:
        self.log = RecordingBuilder()
        self.header: FileLine[GeminiCliLine] | None = None
        self.records: dict[str, _GeminiCliRecord] = {}
        self.replaced: list[_GeminiCliRecord] = []
        """Messages that a later list of all messages, or a rewind, took out."""
        self.damaged: list[tuple[_GeminiCliRecord | None, FileLine[GeminiCliLine]]] = []
        self._last: _GeminiCliRecord | None = None
        for row in _decode_gemini_cli_lines(data):
            self._add_line(row)

    def _add_line(self, row: FileLine[GeminiCliLine]) -> None:
        line = row.value
        if line is None:
            self.damaged.append((self._last, row))
            return
        if row.fault:
            self.log.report_problem(row.number, row.fault)
        if line.patch:
            self.log.skipped["$set"] += 1
            self._replace_messages(row.number, _SET_PATCH.decode_or_default(line.patch).messages)
        elif line.rewind is not None:
            self.log.skipped["$rewindTo"] += 1
            self._rewind_to(row.number, line.rewind)
        elif line.session is not None and not line.type:
            # The first header has the session's id; a repeated one may still have a list of messages.
            self.log.skipped["header (again)"] += self.header is not None
            self.header = self.header or row
            self._replace_messages(row.number, line.messages)
        else:
            self._add_message(row.number, line, row.raw)

    def _replace_messages(self, number: int, messages: Raw) -> None:
        """Apply a list of all messages from line ``number``, if it is one."""
        try:
            raws = _RAW_LIST.decode(messages)
        except DECODE_ERRORS:
            if bytes(messages) not in (b"", b"null"):
                self.log.report_problem(number, "what should be a list of all messages is none; it changes nothing")
            return
        old_records = self.records
        old_order = list(old_records.values())
        self.records = {}
        is_unchanged = True  # whether all messages so far are as they were before this line
        for index, raw in enumerate(raws):
            line = GEMINI_CLI_LINE.decode_or_default(raw)
            if line.id in old_records:
                self.records[line.id] = old_records.pop(line.id)
            record = self._add_message(number, line, bytes(raw))
            # After a compaction of the tool its old answers follow messages that their requests did not have.
            if not is_unchanged:
                record.has_stale_usage = True
            if index < len(old_order):
                is_same = old_order[index] is record and record.last < number
                is_unchanged = is_unchanged and is_same
        self.replaced += old_records.values()

    def _rewind_to(self, number: int, name: str) -> None:
        """Remove message ``name`` and everything after it; if it is unknown, remove all messages, as the tool does."""
        names = list(self.records)
        position = 0
        if name in self.records:
            position = names.index(name)
        else:
            self.log.report_problem(number, f"it takes back to message {name}, which is not there: all are taken back")
        for removed_name in names[position:]:
            self.replaced.append(self.records.pop(removed_name))

    def _add_message(self, number: int, line: GeminiCliLine, raw: bytes) -> _GeminiCliRecord:
        name = line.id or f"line-{number}-{len(self.records)}"
        record = self.records.setdefault(name, _GeminiCliRecord(name, number))
        self._last = record
        # The tool writes the whole message again when a field changes, as when a tool has run.
        is_repetition = record.raws[-1:] == [raw]
        if not is_repetition:
            record.line = line
            record.last = number
            record.raws.append(raw)
        return record


def _decode_gemini_cli_lines(data: bytes) -> Iterator[FileLine[GeminiCliLine]]:
    """Yield the whole file if it is one JSON value, else its lines."""
    # Files of older versions are one object over many lines; a file with one line is the same either way.
    row = decode_document(data.removeprefix(BOM).strip(), GEMINI_CLI_LINE)
    if row.value is not None:
        yield row
    else:
        yield from decode_lines(data, GEMINI_CLI_LINE)


def read_gemini_cli(data: bytes) -> Recording:
    """Return the recording in ``data``."""
    file = _GeminiCliFile(data)
    root = _append_gemini_cli_header(file)
    answered_ids = _find_answered_calls(file)
    leaf = root
    model = ""
    for record in file.records.values():
        leaf = record.last_entry_id = _append_gemini_cli_message(file.log, record, answered_ids, leaf)
        model = record.line.model or model
    for record in file.replaced:
        file.log.skipped["message (replaced)"] += 1
        # Under the root and not in place: nothing of it may be on the branch that is sent.
        note = NoteEntry(f"{GEMINI_CLI_NOTE_PREFIX}replaced", bytes(join_origin_lines(record.raws)))
        file.log.add_entry(record.name, root, note, None, record.last)
    for previous, row in file.damaged:
        parent = previous.last_entry_id if previous is not None else root
        file.log.add_damaged_line(row.number, row.raw, row.fault, parent)
    # Drops the kinds that were counted zero times.
    file.log.skipped = +file.log.skipped
    header = file.header.value if file.header is not None else None
    session = header.session if header is not None else None
    return file.log.finish_recording(
        Recording(format=FORMAT, session=session or "", model=model, api=gemini.API_NAME, leaf=leaf)
    )


def _append_gemini_cli_header(file: _GeminiCliFile) -> str | None:
    """Append the header as a note, the root of all entries; return its id, or None without a header."""
    row = file.header
    if row is None or row.value is None:
        file.log.report_problem(1, "the file does not begin with a session header; its messages are read without")
        return None
    header_bytes = row.raw
    if row.value.messages:
        # A file that is one object: its messages become entries and must not be kept twice.
        header_bytes = encode_json(decode_raw_fields(row.decodable) | {"messages": None})
    note = NoteEntry(f"{GEMINI_CLI_NOTE_PREFIX}session", header_bytes)
    return file.log.add_entry(
        row.value.session or "session",
        None,
        note,
        parse_millis(row.value.start),
        row.number,
    )


def _find_answered_calls(file: _GeminiCliFile) -> set[str]:
    """Return the ids of calls with results in messages of the user, not only beside the call."""
    answered_ids: set[str] = set()
    for record in file.records.values():
        if record.line.type == "user":
            parts = _get_content_parts(record.line.content)
            message = gemini.decode_message(_encode_gemini_content("user", parts))
            answered_ids.update(result.call_id for result in message.results)
    return answered_ids


def _append_gemini_cli_message(
    log: RecordingBuilder,
    record: _GeminiCliRecord,
    answered_ids: set[str],
    parent: str | None,
) -> str:
    """Append the entries of one message after ``parent``; return the id of the last."""
    line = record.line
    name = record.version
    at = parse_millis(line.timestamp)
    role = _ROLE_OF_TYPE.get(line.type)
    if role is None:
        kind = line.type or "line without a type"
        log.skipped[kind] += 1
        note = NoteEntry(f"{GEMINI_CLI_NOTE_PREFIX}{kind}", record.raws[-1])
        return log.add_entry(name, parent, note, at, record.first, record.last)
    parts: list[Any] = list(_get_content_parts(line.content))
    calls = []
    if role == "model":
        calls = [RECORDED_TOOL_CALL.decode_or_default(raw) for raw in decode_raw_elements(line.calls)]
    # Content with signed parts holds the calls itself, with their signatures; a second copy would call the tools twice.
    if not any(_COMPLETE_CONTENT.search(bytes(part)) for part in parts):
        parts += [_encode_function_call(call) for call in calls]
    body = _make_gemini_entry(_encode_gemini_content(role, parts), record.raws)
    if role == "user":
        return log.add_entry(name, parent, body, at, record.first, record.last)
    has_stale_usage = record.has_stale_usage or line.holdfast == STALE_USAGE_BASIS
    usage_line = record.last if line.tokens else 0
    metadata = CallMetadata(line.model, _decode_gemini_cli_usage(line), "", usage_line, has_stale_usage)
    answer_id = log.add_answer(name, parent, body, metadata, at, record.first, record.last)
    results: list[Any] = []
    for call in calls:
        if _strip_call_id_prefix(call) not in answered_ids:
            results += _encode_function_responses(call)
    if not results:
        return answer_id
    results_body = _make_gemini_entry(_encode_gemini_content("user", results), record.raws)
    return log.add_entry(f"{name}+results", answer_id, results_body, at, record.last)


def _make_gemini_entry(content: Raw, lines: Sequence[bytes]) -> MessageEntry:
    sized_message = make_sized_message(gemini.decode_message(content), gemini.API_NAME, content)
    return MessageEntry(sized_message, join_origin_lines(lines))


def _encode_gemini_content(role: str, parts: Sequence[Any]) -> Raw:
    return Raw(encode_json({"role": role, "parts": parts}))


def _get_content_parts(content: Raw) -> list[Raw]:
    """Return a recorded content as parts of the API. It is a list of parts, one part, or a text.

    An empty text has no parts: the API refuses empty ones.
    """
    data = bytes(content)
    if data == b'""':
        return []
    if data.startswith(b'"'):
        return [Raw(encode_json({"text": content}))]
    raw_parts = [content] if data.startswith(b"{") else decode_raw_elements(content)
    return [_restore_sent_part(part) for part in raw_parts]


def _restore_sent_part(part: Raw) -> Raw:
    """Return a part as it was sent: without the tool's name before the id of a call or result."""
    if _ID_SEPARATOR not in bytes(part):
        return part
    part_fields = decode_raw_fields(part)
    for kind in ("functionCall", "functionResponse"):
        if kind not in part_fields:
            continue
        call = RECORDED_TOOL_CALL.decode_or_default(part_fields[kind])
        sent_id = _strip_call_id_prefix(call)
        if call.id and sent_id != call.id:
            call_fields = decode_raw_fields(part_fields[kind]) | {"id": sent_id}
            return Raw(encode_json(part_fields | {kind: call_fields}))
    return part


def prefix_call_id(name: str, id_: str) -> str:
    """Return the id of a call as a file has it: with the name of its tool as a prefix."""
    prefix = f"{name}{_ID_SEPARATOR.decode()}"
    return id_ if id_.startswith(prefix) else prefix + id_


def _strip_call_id_prefix(call: GeminiCliToolCall) -> str | None:
    """Return the id of a call as the API got it, or None for a call without an id."""
    return call.id and call.id.removeprefix(f"{call.name}{_ID_SEPARATOR.decode()}")


def _encode_function_call(call: GeminiCliToolCall) -> dict[str, Any]:
    id_field = {"id": _strip_call_id_prefix(call)} if call.id else {}
    return {"functionCall": id_field | {"name": call.name, "args": call.args}}


def _encode_function_responses(call: GeminiCliToolCall) -> list[Any]:
    """Return the parts that answer ``call``; a result that is a plain text becomes a function response."""
    if not bytes(call.result).startswith(b'"'):
        return _get_content_parts(call.result)
    id_field = {"id": _strip_call_id_prefix(call)} if call.id else {}
    return [{"functionResponse": id_field | {"name": call.name, "response": {"output": call.result}}}]


def _decode_gemini_cli_usage(line: GeminiCliLine) -> Usage:
    tokens = _GEMINI_CLI_TOKENS.decode_or_default(line.tokens)
    # Gemini reports thoughts beside the output, and tool prompts beside the input.
    output = tokens.output + tokens.thoughts
    return Usage(tokens.input + tokens.tool, output, tokens.cached, reasoning=tokens.thoughts)
