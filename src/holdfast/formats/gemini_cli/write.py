"""Writer of Gemini CLI sessions: JSON lines with the messages of the branch at the leaf.

Lines that came from the tool are copied. There a result is recorded twice, on a line of its own and beside its
call, and the tool sends both when it resumes; results that we write are only beside their calls. A compaction of
ours is a ``$set`` of all messages: the summary and the kept ones.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from holdfast.formats.base import UNFINISHED_STOPS, Recording, get_branch_entries
from holdfast.formats.common.lines import (
    decode_raw_elements,
    decode_raw_fields,
    format_iso_time,
    replace_bad_escapes,
    set_json_fields,
)
from holdfast.formats.common.writing import WritableRecording, make_stable_uuid, split_origin_lines, strip_foreign_raw
from holdfast.formats.gemini_cli.read import GEMINI_CLI_LINE, GEMINI_CLI_NOTE_PREFIX, RECORDED_TOOL_CALL, prefix_call_id
from holdfast.messages.message import Message, Role
from holdfast.messages.parts import Part, Thinking, ToolCall, ToolResult
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.common.json.raw_json import encode_json as to_json
from holdfast.providers.common.json.raw_json import wrap_call_arguments
from holdfast.providers.gemini import messages as gemini
from holdfast.providers.requests.message_dicts import encode_messages
from holdfast.state.entries import BranchSummaryEntry, CompactionEntry, Entry, MessageEntry, NoteEntry, Usage


def write_gemini_cli(recording: Recording) -> bytes:
    """Return ``recording`` as JSON lines, the header first. The file has no place for sub-agents' conversations."""
    branch = get_branch_entries(recording)
    writer = _GeminiCliWriter(WritableRecording(replace(recording, entries=tuple(branch))))
    for entry in branch:
        writer.write_entry(entry)
    lines = [_encode_gemini_cli_header(recording, branch)]
    for message in writer.messages:
        lines += message.lines
    return b"".join(line + b"\n" for line in lines)


def _encode_gemini_cli_header(recording: Recording, branch_entries: list[Entry]) -> bytes:
    """Return the header line that the session came with, or a new one."""
    first_time = None
    for entry in branch_entries:
        if isinstance(entry.body, NoteEntry) and entry.body.reason == f"{GEMINI_CLI_NOTE_PREFIX}session":
            return _drop_messages_field(entry.body.raw)
        if first_time is None:
            first_time = entry.time_ms
    at = format_iso_time(first_time)
    return to_json(
        {
            "sessionId": make_stable_uuid(recording.session),
            "projectHash": sha256(recording.cwd.encode()).hexdigest(),
            "startTime": at,
            "lastUpdated": at,
            "kind": "main",
        }
    )


def _drop_messages_field(line: bytes) -> bytes:
    """Return a header without ``messages``, which the header of a file in the old one-object form has."""
    header_fields = decode_raw_fields(line)
    if "messages" not in header_fields:
        return line
    del header_fields["messages"]
    return to_json(header_fields)


class _WrittenMessage:
    """A message as its lines, each replacing the one before; or a ``$set`` of several messages."""

    __slots__ = ("_kept", "_lines")

    def __init__(self, *lines: bytes, kept_messages: tuple[_WrittenMessage, ...] = ()) -> None:
        self._lines = list(lines)
        self._kept = kept_messages

    @property
    def last(self) -> bytes:
        """The line that is in force."""
        return self._lines[-1]

    @property
    def lines(self) -> list[bytes]:
        """The lines to be written."""
        if not self._kept:
            return self._lines
        messages = [Raw(replace_bad_escapes(message.last)) for message in self._kept]
        return [to_json({"$set": {"messages": messages, "lastUpdated": Raw(self.last)}})]

    def attach_results(self, results: dict[str, list[Any]]) -> set[str]:
        """Write results, given by call id, beside this message's calls; return the ids of the calls answered."""
        line_fields = decode_raw_fields(replace_bad_escapes(self.last))
        calls = decode_raw_elements(line_fields.get("toolCalls", Raw()))
        call_ids = [RECORDED_TOOL_CALL.decode_or_default(call).id or "" for call in calls]
        answered_ids = results.keys() & set(call_ids) - {""}
        if not answered_ids:
            return answered_ids
        new_calls: list[Any] = []
        for call_id, call in zip(call_ids, calls, strict=True):
            if call_id in answered_ids:
                new_calls.append(decode_raw_fields(call) | {"result": results[call_id]})
            else:
                new_calls.append(call)
        # Only the line in force; the earlier ones are history that the tool reads over.
        self._lines[-1] = set_json_fields(self.last, {"toolCalls": new_calls})
        return answered_ids


class _GeminiCliWriter:
    """Writes the entries of a branch one after the other, and keeps which message holds which entry."""

    def __init__(self, source: WritableRecording) -> None:
        self.source = source
        self.messages: list[_WrittenMessage] = []
        self.message_of_entry: dict[str, _WrittenMessage] = {}
        self.last_origin = b""
        """Lines that the previous entry came from."""
        self.answer: _WrittenMessage | None = None
        """The newest answer, beside whose calls results are written."""
        self.tool_names: dict[str, str] = {}
        """Name of the tool of each call, by call id."""

    def write_entry(self, entry: Entry) -> None:
        """Write one entry."""
        body = entry.body
        if isinstance(body, NoteEntry):
            if _is_message_note(body):
                self.messages.append(_WrittenMessage(body.raw))
        elif isinstance(body, MessageEntry | BranchSummaryEntry):
            origin = body.recording_envelope if isinstance(body, MessageEntry) else None
            if origin is not None and _has_gemini_cli_origin(bytes(origin)):
                self._copy_origin_lines(entry, bytes(origin))
            else:
                self._write_message(entry, body.sized_message)
        elif isinstance(body, CompactionEntry):
            self._write_compaction(entry, body)

    def _copy_origin_lines(self, entry: Entry, origin: bytes) -> None:
        # An answer and the results beside its calls are two entries that came from the same lines: write them once.
        if origin != self.last_origin:
            stale_usage_field = self.source.get_stale_usage_field(entry)
            lines = [set_json_fields(line, stale_usage_field) for line in split_origin_lines(Raw(origin))]
            self._append_message(entry, _WrittenMessage(*lines))
        self.last_origin = origin

    def _append_message(self, entry: Entry, message: _WrittenMessage) -> None:
        self.messages.append(message)
        self.message_of_entry[entry.id] = message
        if GEMINI_CLI_LINE.decode_or_default(replace_bad_escapes(message.last)).type == "gemini":
            self.answer = message

    def _write_message(self, entry: Entry, sized_message: SizedMessage) -> None:
        message = self._fill_tool_names(strip_foreign_raw(sized_message, gemini.API_NAME))
        # An answer that failed before its first word: the API would refuse the empty message.
        if not message.parts and self.source.get_writable_answer(entry).stop_reason in UNFINISHED_STOPS:
            return
        at = format_iso_time(entry.time_ms)
        line: dict[str, Any] = {"id": make_stable_uuid(entry.id), "timestamp": at}
        parts = _encode_gemini_parts(message)
        if message.role == "assistant":
            line |= {"type": "gemini"} | _encode_gemini_answer(self.source, entry, message, parts, at)
            line |= self.source.get_stale_usage_field(entry)
            self._append_message(entry, _WrittenMessage(to_json(line)))
            return
        parts = self._attach_to_answer(parts)
        if not parts and self.answer is not None:
            # All its results are beside their calls.
            self.message_of_entry[entry.id] = self.answer
            return
        line |= {"type": "user", "content": parts}
        self._append_message(entry, _WrittenMessage(to_json(line)))

    def _fill_tool_names(self, message: Message) -> Message:
        """Return ``message`` with a tool name in every result, which the API requires and others do not have."""
        for call in message.calls:
            self.tool_names[call.id] = call.name
        return Message(message.role, tuple([self._fill_result_name(part) for part in message.parts]))

    def _fill_result_name(self, part: Part) -> Part:
        if not isinstance(part, ToolResult) or part.name:
            return part
        return replace(part, name=self.tool_names.get(part.call_id, ""))

    def _attach_to_answer(self, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Write results beside the calls of the newest answer; return the other parts."""
        if self.answer is None:
            return parts
        parts_by_call: dict[str, list[Any]] = {}
        for part in parts:
            call_id = _get_answered_call(part)
            parts_by_call.setdefault(call_id, []).append(part)
        attached_ids = self.answer.attach_results(parts_by_call)
        return [part for part in parts if _get_answered_call(part) not in attached_ids]

    def _write_compaction(self, entry: Entry, body: CompactionEntry) -> None:
        at = format_iso_time(entry.time_ms)
        text = (body.summary or Message("user")).text
        line = {"id": make_stable_uuid(entry.id), "timestamp": at, "type": "user", "content": [{"text": text}]}
        messages = [_WrittenMessage(to_json(line))]
        for kept_entry in self.source.get_kept_messages(entry):
            message = self.message_of_entry.get(kept_entry.id)
            # A call and its results are entries in one message, which must not be sent twice.
            if message is not None and message not in messages:
                messages.append(message)
        self.messages.append(_WrittenMessage(to_json(at), kept_messages=tuple(messages)))


def _is_message_note(note: NoteEntry) -> bool:
    """Return whether a note keeps a line with a message of the tool that the model never saw."""
    if not note.reason.startswith(GEMINI_CLI_NOTE_PREFIX):
        return False
    return GEMINI_CLI_LINE.decode_or_default(replace_bad_escapes(note.raw)).id is not None


def _get_answered_call(part: dict[str, Any]) -> str:
    """Return the id of the call that a part answers, or an empty string for any other part."""
    response = part.get("functionResponse")
    return str(response.get("id", "")) if isinstance(response, dict) else ""


def _has_gemini_cli_origin(origin: bytes) -> bool:
    last_line = split_origin_lines(Raw(origin))[-1]
    line = GEMINI_CLI_LINE.decode_or_default(replace_bad_escapes(last_line))
    return line.id is not None and line.type in ("user", "gemini")


def _encode_gemini_parts(message: Message) -> list[dict[str, Any]]:
    """Return a message as parts of the API, with call ids as a file has them."""
    wire_parts: list[dict[str, Any]] = []
    for part in message.parts:
        wire_parts += _encode_gemini_part(message.role, part)
    return wire_parts


def _encode_gemini_part(role: Role, part: Part) -> list[dict[str, Any]]:
    """Return one part as parts of the API; empty if the API has no form for it."""
    if isinstance(part, ToolCall | ToolResult):
        # Its bytes have the id as sent, without the tool's name.
        part = replace(part, raw=None)
    wire_parts = []
    for content in encode_messages(gemini.API_NAME, [Message(role, (part,))]):
        for wire_part in content.get("parts") or ():
            # An opaque part of another tool may be any JSON.
            if isinstance(wire_part, dict):
                wire_parts.append(wire_part)
    if isinstance(part, ToolCall):
        for wire_part in wire_parts:
            call = wire_part["functionCall"]
            call["id"] = prefix_call_id(call["name"], part.id)
    elif isinstance(part, ToolResult):
        for wire_part in wire_parts:
            response = wire_part["functionResponse"]
            response["id"] = prefix_call_id(response["name"], part.call_id)
    return wire_parts


def _encode_gemini_answer(
    source: WritableRecording,
    entry: Entry,
    message: Message,
    parts: list[dict[str, Any]],
    timestamp: str,
) -> dict[str, Any]:
    """Return the fields of an answer's line.

    Calls are written in ``toolCalls``. If a part is signed they are in the content too: a signature is valid only
    beside its call.
    """
    is_signed = any("thoughtSignature" in part or part.get("thought") for part in parts)
    content_parts = parts
    thoughts: list[dict[str, str]] = []
    if not is_signed:
        content_parts = [part for part in parts if "functionCall" not in part]
        texts = [part.text for part in message.parts if isinstance(part, Thinking)]
        thoughts = [{"subject": "", "description": text} for text in texts if text]
    is_plain_text = len(content_parts) == 1 and content_parts[0].keys() == {"text"}
    content: Any = content_parts[0]["text"] if is_plain_text else content_parts
    answer_fields: dict[str, Any] = {
        "content": content or "",
        "thoughts": thoughts,
        "tokens": _encode_gemini_cli_usage(source.get_writable_answer(entry).usage),
        "model": source.get_answer_model(entry),
    }
    if message.calls:
        answer_fields["toolCalls"] = [_encode_tool_call(call, timestamp) for call in message.calls]
    return answer_fields


def _encode_tool_call(call: ToolCall, timestamp: str) -> dict[str, Any]:
    return {
        "id": prefix_call_id(call.name, call.id),
        "name": call.name,
        "args": wrap_call_arguments(call.arguments),
        "status": "success",
        "timestamp": timestamp,
    }


def _encode_gemini_cli_usage(usage: Usage) -> dict[str, int]:
    output = max(0, usage.output - usage.reasoning)
    counts = {"input": usage.input, "output": output, "cached": usage.cache_read, "thoughts": usage.reasoning}
    return counts | {"tool": 0, "total": usage.total}
