"""A log as a session of Gemini CLI: JSON lines of messages, of which the way to the leaf is written.

Lines that came from the tool go out as they came. There a result stands twice, on a line of its own and beside its
call, and the tool sends both when it resumes; ours stand beside their calls alone. A compaction of ours is a ``$set``
of all messages: the summary, and what was kept.
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
    """Return ``recording`` as JSON lines, the header first; sub-agents' conversations have no place in the file."""
    way = get_branch_entries(recording)
    writing = _GeminiCliWriter(WritableRecording(replace(recording, entries=tuple(way))))
    for entry in way:
        writing.write_entry(entry)
    lines = [line for message in writing.lines for line in message.lines]
    return b"".join(line + b"\n" for line in (_encode_gemini_cli_header(recording, way), *lines))


def _encode_gemini_cli_header(recording: Recording, branch_entries: list[Entry]) -> bytes:
    for entry in branch_entries:
        if isinstance(entry.body, NoteEntry) and entry.body.reason == f"{GEMINI_CLI_NOTE_PREFIX}session":
            return _drop_messages_field(entry.body.raw)
    at = format_iso_time(next((entry.time_ms for entry in branch_entries if entry.time_ms is not None), None))
    header = {
        "sessionId": make_stable_uuid(recording.session),
        "projectHash": sha256(recording.cwd.encode()).hexdigest(),
    }
    return to_json(header | {"startTime": at, "lastUpdated": at, "kind": "main"})


def _drop_messages_field(line: bytes) -> bytes:
    header_fields = decode_raw_fields(line)
    return (
        line
        if "messages" not in header_fields
        else to_json({key: header_fields[key] for key in header_fields if key != "messages"})
    )


class _WrittenMessage:
    """A message, as the lines that tell it, each taking the place of the one before; or a ``$set`` of several."""

    __slots__ = ("_kept", "_lines")

    def __init__(self, *lines: bytes, kept_messages: tuple[_WrittenMessage, ...] = ()) -> None:
        self._lines = list(lines)
        self._kept = kept_messages

    @property
    def last(self) -> bytes:
        """What the message is in the end."""
        return self._lines[-1]

    @property
    def lines(self) -> list[bytes]:
        """The lines to be written."""
        if not self._kept:
            return self._lines
        messages = [Raw(replace_bad_escapes(message.last)) for message in self._kept]
        return [to_json({"$set": {"messages": messages, "lastUpdated": Raw(self.last)}})]

    def attach_results(self, results: dict[str, list[Any]]) -> set[str]:
        """Put results beside the calls that they answer; return the ids of those calls."""
        calls = decode_raw_elements(decode_raw_fields(replace_bad_escapes(self.last)).get("toolCalls", Raw()))
        ids = [RECORDED_TOOL_CALL.decode_or_default(call).id or "" for call in calls]
        own_ids = results.keys() & set(ids) - {""}
        new_calls = [
            decode_raw_fields(call) | {"result": results[id_]} if id_ in own_ids else call
            for id_, call in zip(ids, calls, strict=True)
        ]
        self._lines[-1] = set_json_fields(self.last, {"toolCalls": new_calls}) if own_ids else self.last
        return own_ids


class _GeminiCliWriter:
    """The fold over the way to the leaf: the lines so far, and which of them is which entry."""

    def __init__(self, source: WritableRecording) -> None:
        self.source = source
        self.lines: list[_WrittenMessage] = []
        self.message_of_entry: dict[str, _WrittenMessage] = {}
        """The message that tells an entry."""
        self.last_origin = b""
        """The lines that told the entry before."""
        self.answer: _WrittenMessage | None = None
        self.tool_names: dict[str, str] = {}
        """The tool of each call."""

    def write_entry(self, entry: Entry) -> None:
        """Write one entry."""
        body = entry.body
        if (
            isinstance(body, NoteEntry)
            and body.reason.startswith(GEMINI_CLI_NOTE_PREFIX)
            and GEMINI_CLI_LINE.decode_or_default(replace_bad_escapes(body.raw)).id is not None
        ):
            self.lines.append(_WrittenMessage(body.raw))
        elif (
            isinstance(body, MessageEntry)
            and body.recording_envelope is not None
            and _has_gemini_cli_origin(bytes(body.recording_envelope))
        ):
            self._copy_origin_lines(entry, bytes(body.recording_envelope))
        elif isinstance(body, MessageEntry | BranchSummaryEntry):
            self._write_message(entry, body.sized_message)
        elif isinstance(body, CompactionEntry):
            self._write_compaction(entry, body)

    def _copy_origin_lines(self, entry: Entry, origin: bytes) -> None:
        if origin != self.last_origin:  # results beside their calls come from the same lines
            mark = self.source.get_stale_usage_field(entry)
            self._append_message(
                entry, _WrittenMessage(*[set_json_fields(line, mark) for line in split_origin_lines(Raw(origin))])
            )
        self.last_origin = origin

    def _append_message(self, entry: Entry, message: _WrittenMessage) -> None:
        self.lines.append(message)
        self.message_of_entry[entry.id] = message
        if GEMINI_CLI_LINE.decode_or_default(replace_bad_escapes(message.last)).type == "gemini":
            self.answer = message

    def _write_message(self, entry: Entry, sized_message: SizedMessage) -> None:
        message = self._fill_tool_names(strip_foreign_raw(sized_message, gemini.API_NAME))
        if not message.parts and self.source.get_writable_answer(entry).stop_reason in UNFINISHED_STOPS:
            return
        head = {"id": make_stable_uuid(entry.id), "timestamp": format_iso_time(entry.time_ms)}
        parts = _encode_gemini_parts(message)
        if message.role == "assistant":
            line = (
                head
                | {"type": "gemini"}
                | _encode_gemini_answer(self.source, entry, message, parts, format_iso_time(entry.time_ms))
            )
            line |= self.source.get_stale_usage_field(entry)
        else:
            parts = self._attach_to_answer(parts)
            line = head | {"type": "user", "content": parts}
        if parts or message.role == "assistant" or self.answer is None:
            self._append_message(entry, _WrittenMessage(to_json(line)))
        else:
            self.message_of_entry[entry.id] = self.answer

    def _fill_tool_names(self, message: Message) -> Message:
        """Return ``message`` with the name of its tool in every result."""
        self.tool_names |= {call.id: call.name for call in message.calls}
        return Message(message.role, tuple([self._fill_result_name(part) for part in message.parts]))

    def _fill_result_name(self, part: Part) -> Part:
        if not isinstance(part, ToolResult) or part.name:
            return part
        return replace(part, name=self.tool_names.get(part.call_id, ""))

    def _attach_to_answer(self, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Put results beside the calls of the newest answer; return the parts that are none of those."""
        parts_by_call: dict[str, list[Any]] = {}
        for part in parts:
            parts_by_call.setdefault(_get_answered_call(part), []).append(part)
        placed_ids = self.answer.attach_results(parts_by_call) if self.answer is not None else set()
        return [part for part in parts if _get_answered_call(part) not in placed_ids]

    def _write_compaction(self, entry: Entry, body: CompactionEntry) -> None:
        words = (body.summary or Message("user")).text
        line = {
            "id": make_stable_uuid(entry.id),
            "timestamp": format_iso_time(entry.time_ms),
            "type": "user",
            "content": [{"text": words}],
        }
        kept_messages = [
            self.message_of_entry[kept_entry.id]
            for kept_entry in self.source.get_kept_messages(entry)
            if kept_entry.id in self.message_of_entry
        ]
        summary = _WrittenMessage(to_json(line))
        self.lines.append(
            _WrittenMessage(
                to_json(format_iso_time(entry.time_ms)), kept_messages=(summary, *dict.fromkeys(kept_messages))
            )
        )


def _get_answered_call(part: dict[str, Any]) -> str:
    """Return the id of the call that a part answers, if it answers one."""
    response = part.get("functionResponse")
    return str(response.get("id", "")) if isinstance(response, dict) else ""


def _has_gemini_cli_origin(origin: bytes) -> bool:
    line = GEMINI_CLI_LINE.decode_or_default(replace_bad_escapes(split_origin_lines(Raw(origin))[-1]))
    return line.id is not None and line.type in ("user", "gemini")


def _encode_gemini_parts(message: Message) -> list[dict[str, Any]]:
    """Return a message as parts of the API, calls and results under the ids that they have in a file."""
    return [wire_part for part in message.parts for wire_part in _encode_gemini_part(message.role, part)]


def _encode_gemini_part(role: Role, part: Part) -> list[dict[str, Any]]:
    """Return one part as the API has it, none where it has no form for it, or is no object."""
    own = isinstance(part, ToolCall | ToolResult)
    contents = encode_messages(gemini.API_NAME, [Message(role, (replace(part, raw=None) if own else part,))])
    out = [wire_part for content in contents for wire_part in content.get("parts") or () if isinstance(wire_part, dict)]
    if isinstance(part, ToolCall | ToolResult):
        kind, id_ = ("functionCall", part.id) if isinstance(part, ToolCall) else ("functionResponse", part.call_id)
        for wire_part in out:
            wire_part[kind]["id"] = prefix_call_id(wire_part[kind]["name"], id_)
    return out


def _encode_gemini_answer(
    source: WritableRecording, entry: Entry, message: Message, parts: list[dict[str, Any]], timestamp: str
) -> dict[str, Any]:
    """Return what the tool records of an answer; calls stand in the content too where something there is signed."""
    is_signed = any("thoughtSignature" in part or part.get("thought") for part in parts)
    wire_parts = parts if is_signed else [part for part in parts if "functionCall" not in part]
    content: Any = wire_parts[0]["text"] if len(wire_parts) == 1 and wire_parts[0].keys() == {"text"} else wire_parts
    thoughts = [part.text for part in message.parts if isinstance(part, Thinking) and part.text and not is_signed]
    calls = [
        {"id": prefix_call_id(call.name, call.id), "name": call.name, "args": wrap_call_arguments(call.arguments)}
        | {"status": "success", "timestamp": timestamp}
        for call in message.calls
    ]
    answer_fields: dict[str, Any] = {
        "content": content or "",
        "thoughts": [{"subject": "", "description": thought} for thought in thoughts],
    }
    answer_fields |= {
        "tokens": _encode_gemini_cli_usage(source.get_writable_answer(entry).usage),
        "model": source.get_answer_model(entry),
    }
    return answer_fields | ({"toolCalls": calls} if calls else {})


def _encode_gemini_cli_usage(usage: Usage) -> dict[str, int]:
    output = max(0, usage.output - usage.reasoning)
    counts = {"input": usage.input, "output": output, "cached": usage.cache_read, "thoughts": usage.reasoning}
    return counts | {"tool": 0, "total": usage.total}
