"""Sessions of Gemini CLI (``~/.gemini/tmp/**/chats/session-*``) as a line of entries.

A header, then messages and ``$set`` lines that change fields of the session. A later line with an ``id`` takes the
place of the earlier one, ``$set.messages`` that of all messages; ``$rewindTo`` takes back a message and all behind it.
Older files are one JSON object with ``messages``. What the tool wrote is made into ``contents`` of the API as they were
sent; results stand on lines of their own, or beside their calls.
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
"""How the reason of a note begins that keeps a line of a session."""


_FIELD_NAMES = {
    "session": "sessionId",
    "start": "startTime",
    "calls": "toolCalls",
    "patch": "$set",
    "rewind": "$rewindTo",
}


class GeminiCliLine(Struct, rename=_FIELD_NAMES):
    """The fields of a line, header and whole file included; any may be missing."""

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
    """A call as a file has it, with what came of it; any field may be missing."""

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
RECORDED_TOOL_CALL, _SET_PATCH, _GEMINI_CLI_TOKENS = (
    LenientDecoder(GeminiCliToolCall),
    LenientDecoder(_SetPatch),
    LenientDecoder(_GeminiCliTokens),
)
_RAW_LIST = Decoder(list[Raw])
_ROLE_OF_TYPE = {"user": "user", "gemini": "model"}
_ID_SEPARATOR = b"__"
_COMPLETE_CONTENT = re.compile(rb'"(?:functionCall|thought)"\s*:')
"""What in a content says that all of the answer stands there, its calls too."""


class _GeminiCliRecord:
    """A message, and the lines that told it: each takes the place of the one before."""

    __slots__ = ("first", "has_stale_usage", "last", "last_entry_id", "line", "name", "raws")

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.first = self.last = number
        self.line = GeminiCliLine()
        self.has_stale_usage = False
        """Whether its usage is of a request that showed other words than stand before it now."""
        self.raws: list[bytes] = []
        self.last_entry_id: str | None = None
        """Id of its last entry."""

    @property
    def version(self) -> str:
        """The id of the message as it was told last: a file that grew tells it anew under the same name."""
        once = len(self.raws) == 1 and self.first > 1
        return self.name if once else f"{self.name}+{make_short_digest(self.raws[-1].decode(errors='replace'))}"


class _GeminiCliFile:
    """What the lines of one file say, before there are entries."""

    def __init__(self, data: bytes) -> None:
        self.log = RecordingBuilder()
        self.header: FileLine[GeminiCliLine] | None = None
        self.records: dict[str, _GeminiCliRecord] = {}
        self.replaced: list[_GeminiCliRecord] = []
        """Messages that a later list of all messages does not hold."""
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
            self.log.skipped["header (again)"] += self.header is not None
            self.header = self.header or row
            self._replace_messages(row.number, line.messages)
        else:
            self._add_message(row.number, line, row.raw)

    def _replace_messages(self, number: int, messages: Raw) -> None:
        """Take a list of all messages, if it is one."""
        try:
            raws = _RAW_LIST.decode(messages)
        except DECODE_ERRORS:
            if bytes(messages) not in (b"", b"null"):
                self.log.report_problem(number, "what should be a list of all messages is none; it changes nothing")
            return
        before, self.records = self.records, {}
        there, is_unchanged = [*before.values()], True
        for place, raw in enumerate(raws):
            line = GEMINI_CLI_LINE.decode_or_default(raw)
            if line.id in before:
                self.records[line.id] = before.pop(line.id)
            record = self._add_message(number, line, bytes(raw))
            record.has_stale_usage |= not is_unchanged
            is_unchanged &= place >= len(there) or (there[place] is record and record.last < number)
        self.replaced += before.values()

    def _rewind_to(self, number: int, name: str) -> None:
        """Take back message ``name`` and all behind it; all there are where it is not known, as the tool does."""
        names = list(self.records)
        if name not in self.records:
            self.log.report_problem(number, f"it takes back to message {name}, which is not there: all are taken back")
        removed_names = names[names.index(name) if name in self.records else 0 :]
        self.replaced += [self.records.pop(removed_name) for removed_name in removed_names]

    def _add_message(self, number: int, line: GeminiCliLine, raw: bytes) -> _GeminiCliRecord:
        name = line.id or f"line-{number}-{len(self.records)}"
        record = self.records.setdefault(name, _GeminiCliRecord(name, number))
        self._last = record
        if record.raws[-1:] != [raw]:
            record.line, record.last = line, number
            record.raws.append(raw)
        return record


def _decode_gemini_cli_lines(data: bytes) -> Iterator[FileLine[GeminiCliLine]]:
    """Yield the whole file if it is one JSON value, else its lines."""
    row = decode_document(data.removeprefix(BOM).strip(), GEMINI_CLI_LINE)
    if row.value is not None:
        yield row
    else:
        yield from decode_lines(data, GEMINI_CLI_LINE)


def read_gemini_cli(data: bytes) -> Recording:
    """Return the recording in ``data``."""
    file = _GeminiCliFile(data)
    head = tip = _append_gemini_cli_header(file)
    answered_ids = _find_answered_calls(file)
    for record in file.records.values():
        tip = record.last_entry_id = _append_gemini_cli_message(file.log, record, answered_ids, tip)
    for record in file.replaced:
        file.log.skipped["message (replaced)"] += 1
        file.log.add_entry(
            record.name,
            head,
            NoteEntry(f"{GEMINI_CLI_NOTE_PREFIX}replaced", bytes(join_origin_lines(record.raws))),
            None,
            record.last,
        )
    for before, row in file.damaged:
        file.log.add_damaged_line(row.number, row.raw, row.fault, before.last_entry_id if before is not None else head)
    line = file.header.value if file.header is not None and file.header.value is not None else GeminiCliLine()
    models = [record.line.model for record in file.records.values() if record.line.model]
    file.log.skipped = +file.log.skipped
    return file.log.finish_recording(
        Recording(
            format=FORMAT,
            session=line.session or "",
            model=models[-1] if models else "",
            api=gemini.API_NAME,
            leaf=tip,
        )
    )


def _append_gemini_cli_header(file: _GeminiCliFile) -> str | None:
    """Append the header as a note, the root of all; return its id."""
    row = file.header
    if row is None or row.value is None:
        file.log.report_problem(1, "the file does not begin with a session header; its messages are read without")
        return None
    header_bytes = encode_json(decode_raw_fields(row.decodable) | {"messages": None}) if row.value.messages else row.raw
    name = row.value.session or "session"
    return file.log.add_entry(
        name,
        None,
        NoteEntry(f"{GEMINI_CLI_NOTE_PREFIX}session", header_bytes),
        parse_millis(row.value.start),
        row.number,
    )


def _find_answered_calls(file: _GeminiCliFile) -> set[str]:
    """Return the ids of the calls whose results stand in lines of the user's."""
    out: set[str] = set()
    for record in file.records.values():
        if record.line.type == "user":
            content = gemini.decode_message(_encode_gemini_content("user", _get_content_parts(record.line.content)))
            out.update(result.call_id for result in content.results)
    return out


def _append_gemini_cli_message(
    log: RecordingBuilder, record: _GeminiCliRecord, answered_ids: set[str], parent: str | None
) -> str:
    """Append the entries of one message behind ``parent``; return the id of the last."""
    line, name, at = record.line, record.version, parse_millis(record.line.timestamp)
    role = _ROLE_OF_TYPE.get(line.type)
    if role is None:
        kind = line.type or "line without a type"
        log.skipped[kind] += 1
        return log.add_entry(
            name, parent, NoteEntry(f"{GEMINI_CLI_NOTE_PREFIX}{kind}", record.raws[-1]), at, record.first, record.last
        )
    parts = _get_content_parts(line.content)
    calls = (
        [RECORDED_TOOL_CALL.decode_or_default(raw) for raw in decode_raw_elements(line.calls)]
        if role == "model"
        else []
    )
    call_parts = (
        [] if any(_COMPLETE_CONTENT.search(bytes(part)) for part in parts) else map(_encode_function_call, calls)
    )
    body = _make_gemini_entry(_encode_gemini_content(role, [*parts, *call_parts]), record.raws)
    if role == "user":
        return log.add_entry(name, parent, body, at, record.first, record.last)
    is_paid = record.has_stale_usage or line.holdfast == STALE_USAGE_BASIS
    call = CallMetadata(line.model, _decode_gemini_cli_usage(line), "", record.last if line.tokens else 0, is_paid)
    tip = log.add_answer(name, parent, body, call, at, record.first, record.last)
    results = [
        part
        for call_record in calls
        if _strip_call_id_prefix(call_record) not in answered_ids
        for part in _encode_function_responses(call_record)
    ]
    if not results:
        return tip
    return log.add_entry(
        f"{name}+results",
        tip,
        _make_gemini_entry(_encode_gemini_content("user", results), record.raws),
        at,
        record.last,
    )


def _make_gemini_entry(content: Raw, lines: Sequence[bytes]) -> MessageEntry:
    return MessageEntry(
        make_sized_message(gemini.decode_message(content), gemini.API_NAME, content), join_origin_lines(lines)
    )


def _encode_gemini_content(role: str, parts: Sequence[Any]) -> Raw:
    return Raw(encode_json({"role": role, "parts": parts}))


def _get_content_parts(content: Raw) -> list[Raw]:
    """Return what was said as parts of the API: a list of them, one of them, or a text; none for an empty text."""
    data = bytes(content)
    if data.startswith(b'"'):
        return [Raw(encode_json({"text": content}))] if len(data) > len(b'""') else []
    return [_restore_sent_part(part) for part in ([content] if data.startswith(b"{") else decode_raw_elements(content))]


def _restore_sent_part(part: Raw) -> Raw:
    """Return a part as it was sent: a file has the name of the tool before the ids of calls and results."""
    if _ID_SEPARATOR not in bytes(part):
        return part
    part_fields = decode_raw_fields(part)
    for kind in ("functionCall", "functionResponse"):
        call = RECORDED_TOOL_CALL.decode_or_default(part_fields[kind]) if kind in part_fields else GeminiCliToolCall()
        if call.id and _strip_call_id_prefix(call) != call.id:
            return Raw(
                encode_json(
                    part_fields | {kind: decode_raw_fields(part_fields[kind]) | {"id": _strip_call_id_prefix(call)}}
                )
            )
    return part


def prefix_call_id(name: str, id_: str) -> str:
    """Return the id of a call as a file has it: with the name of its tool before it."""
    prefix = f"{name}{_ID_SEPARATOR.decode()}"
    return id_ if id_.startswith(prefix) else prefix + id_


def _strip_call_id_prefix(call: GeminiCliToolCall) -> str | None:
    """Return the id of a call as the API got it."""
    return call.id and call.id.removeprefix(f"{call.name}{_ID_SEPARATOR.decode()}")


def _encode_function_call(call: GeminiCliToolCall) -> dict[str, Any]:
    id_field = {"id": _strip_call_id_prefix(call)} if call.id else {}
    return {"functionCall": id_field | {"name": call.name, "args": call.args}}


def _encode_function_responses(call: GeminiCliToolCall) -> list[Any]:
    """Return the parts that answer ``call``; words alone become a response."""
    if not bytes(call.result).startswith(b'"'):
        return _get_content_parts(call.result)
    id_field = {"id": _strip_call_id_prefix(call)} if call.id else {}
    return [{"functionResponse": id_field | {"name": call.name, "response": {"output": call.result}}}]


def _decode_gemini_cli_usage(line: GeminiCliLine) -> Usage:
    tokens = _GEMINI_CLI_TOKENS.decode_or_default(line.tokens)
    output = tokens.output + tokens.thoughts
    return Usage(tokens.input + tokens.tool, output, tokens.cached, reasoning=tokens.thoughts)
