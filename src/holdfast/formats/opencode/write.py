"""A log as a session of opencode: as the JSON that it imports, and as the rows of its database.

A session is one line of messages, so the way to the leaf is written. Messages that came from opencode go out as they
came, with the results that the log has; what the log cleared is marked as cleared. Every other message gets an id that
sorts behind the one before it. A compaction of ours is a request for one and its summary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

from msgspec import Raw
from msgspec.json import Decoder
from msgspec.structs import replace

from holdfast.formats.base import Recording, get_branch_entries
from holdfast.formats.common.lines import DECODE_ERRORS, decode_raw_elements, decode_raw_fields
from holdfast.formats.common.writing import WritableRecording, get_redacted_thinking, strip_foreign_raw
from holdfast.formats.opencode.parts import (
    ENDED_STATUSES,
    INLINED_MIME_TYPES,
    OPENCODE_INFO,
    OPENCODE_PART,
    SIGNATURE_FIELDS,
)
from holdfast.formats.opencode.read import (
    API,
    CLEARED_RULE,
    MESSAGE_NOTES,
    SESSION_NOTE,
    SUMMARY_NOTE,
    OpencodeStoredMessage,
    OpencodeStoredSession,
)
from holdfast.messages.message import Message, format_part_placeholder, get_result_text
from holdfast.messages.parts import Media, Opaque, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.text.user_text import find_first_user_text
from holdfast.providers.common.json.raw_json import encode_json as to_json
from holdfast.providers.common.json.raw_json import wrap_call_arguments
from holdfast.state.entries import (
    BranchSummaryEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    MessageEntry,
    NoteEntry,
    Usage,
)

OPENCODE_VERSION = "1.18.33"
"""[M] The version of opencode whose database and export were looked at; sessions from elsewhere say it made them."""
OPENCODE_AGENT = "build"
"""[M] opencode's usual agent."""
UNKNOWN_NAME = "unknown"
"""Stands for a model or a provider that the log does not name."""
UNTITLED_SESSION = "Session"
_PROVIDER_OF_API = {"anthropic": "anthropic", "openai-chat": "openai", "openai-responses": "openai", "gemini": "google"}
_OPENCODE_STOPS = {
    "end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool-calls", "toolUse": "tool-calls",
    "tool_calls": "tool-calls", "max_tokens": "length", "synthetic": "stop", "STOP": "stop",
}  # fmt: skip
"""Stop reasons of other tools in opencode's words."""
_ID_TIME_MASK = 2**48 - 1
"""[M] Bits of the number in an id: milliseconds since 1970 times 4,096 and a count; it begins anew every 795 days.

Messages of ours count on from the one before, or from 0: so all that opencode will write sorts behind them.
"""
_INTERRUPTED_TEXT = "[Tool execution was interrupted]"
"""What opencode itself tells the model of a call without a result."""


def write_opencode_export(recording: Recording) -> bytes:
    """Return ``recording`` as the JSON that ``opencode import`` takes; sub-agents' sessions have no place in it."""
    stored_session = build_opencode_session(recording)
    return to_json(
        {
            "info": Raw(stored_session.info),
            "messages": [_encode_exported_message(message, stored_session.id) for message in stored_session.messages],
        }
    )


def iter_opencode_sessions(recording: Recording) -> Iterator[OpencodeStoredSession]:
    """Yield the session of ``recording`` and those of its sub-agents."""
    first = build_opencode_session(recording)
    yield first
    for chain in recording.sidechains:
        yield build_opencode_session(chain, first.id)


def build_opencode_session(recording: Recording, parent: str = "") -> OpencodeStoredSession:
    """Return ``recording`` as opencode would hold it, under the session ``parent`` if there is one."""
    way = get_branch_entries(recording)
    writing = _OpencodeWriter(WritableRecording(replace(recording, entries=tuple(way))))
    for entry in way:
        writing.write_entry(entry)
    messages = writing.finish_messages()
    about = _build_session_info(recording, way, writing, parent)
    return OpencodeStoredSession(about["id"], to_json(about), messages)


def _encode_exported_message(message: OpencodeStoredMessage, session_id: str) -> dict[str, Any]:
    owner = {"sessionID": session_id}
    parts = [decode_raw_fields(raw) | owner | {"messageID": message.id} for _, raw in message.parts]
    return {"info": decode_raw_fields(message.info) | owner, "parts": parts}


def _build_session_info(
    recording: Recording, branch_entries: list[Entry], writing: _OpencodeWriter, parent: str
) -> dict[str, Any]:
    """Return what stands about a session."""
    notes = (
        entry.body
        for entry in branch_entries
        if isinstance(entry.body, NoteEntry) and entry.body.reason == SESSION_NOTE
    )
    stored_info: dict[str, Any] = dict(decode_raw_fields(next((note.raw for note in notes), b"{}")))
    first = next((entry.time_ms for entry in branch_entries if entry.time_ms is not None), 0)
    words = (
        find_first_user_text(
            entry.body.sized_message.message for entry in branch_entries if isinstance(entry.body, MessageEntry)
        )
        or UNTITLED_SESSION
    )
    name = recording.session or UNTITLED_SESSION
    fresh = f"ses_{~(first * 4096) & _ID_TIME_MASK:012x}{_make_id_suffix(name)}"  # the newest sort first
    about = {"id": fresh, "slug": "holdfast", "projectID": "global", "directory": recording.cwd or "/", "path": ""}
    about |= stored_info | ({"parentID": parent} if parent else {})
    about |= {"id": _decode_text_value(about["id"]), "title": recording.title or words[:80]}
    about |= {"version": about.get("version", OPENCODE_VERSION)}
    return about | {"time": {"created": first, "updated": max(first, writing.last_time)}}


def _make_id_suffix(text: str) -> str:
    """Return the fourteen characters that end an id: the same for the same text."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=7).hexdigest()


class _OutgoingMessage:
    """A message being written."""

    __slots__ = ("id", "info", "original_id", "parts")

    def __init__(self, id_: str, info: Mapping[str, Any], original_id: str = "") -> None:
        self.id = id_
        self.original_id = original_id
        """The id that it came with, if it came from opencode."""
        self.info = dict(info)
        self.parts: list[dict[str, Any]] = []


class _OpencodeWriter:
    """The fold over the way to the leaf: the messages so far, and which call waits for which result."""

    def __init__(self, source: WritableRecording) -> None:
        self.source = source
        self.messages: list[_OutgoingMessage] = []
        self.calls: dict[str, dict[str, Any]] = {}
        """The part of each call that has ended."""
        self.open_calls: dict[str, dict[str, Any]] = {}
        """Those of them whose result did not come yet."""
        self.ids: set[str] = set()
        self.message_ids: dict[str, str] = {}
        """The message that holds each entry."""
        self.last_time = self.last_id_number = 0
        self.last_user_id = ""
        self.provider = _detect_provider(source.recording)

    def write_entry(self, entry: Entry) -> None:
        """Write one entry."""
        body = entry.body
        if isinstance(body, NoteEntry) and body.reason in MESSAGE_NOTES:
            self._copy_origin_message(entry, body.raw)
        elif isinstance(body, MessageEntry) and body.sized_message.message.role == "tool":
            self._write_results(entry, body.sized_message.message)
        elif isinstance(body, MessageEntry) and body.sized_message.api == API and body.recording_envelope is not None:
            self._copy_origin_message(entry, bytes(body.recording_envelope))
        elif isinstance(body, MessageEntry):
            self._write_message(entry, strip_foreign_raw(body.sized_message, API))
        elif isinstance(body, BranchSummaryEntry):
            self._write_message(entry, Message.from_text("user", body.sized_message.message.text))
        elif isinstance(body, CompactionEntry) and not self.source.get_note_before(entry, SUMMARY_NOTE):
            self._write_compaction(entry, body)
        elif isinstance(body, DecisionEntry):
            self._mark_cleared_results(entry, body)

    def finish_messages(self) -> tuple[OpencodeStoredMessage, ...]:
        """Return the messages; a call that got no result was interrupted."""
        for part in self.open_calls.values():
            part["state"] = _encode_tool_state(
                part, ToolResult("", "", (Text(_INTERRUPTED_TEXT),), is_error=True), self.last_time
            )
        return tuple([_freeze_message(message) for message in self.messages])

    # -- what opencode said --------------------------------------------------------------------------------------------

    def _copy_origin_message(self, entry: Entry, raw: bytes) -> None:
        """Write a message, or one more answer of the message before, that opencode made."""
        document = decode_raw_fields(raw)
        info = OPENCODE_INFO.decode_or_default(document["info"])
        if not self.messages or self.messages[-1].original_id != info.id:
            self.last_id_number = max(self.last_id_number, _parse_id_number(info.id))
            own = self._claim_id("msg", info.id, entry.id)
            self.messages.append(_OutgoingMessage(own, decode_raw_fields(document["info"]) | {"id": own}, info.id))
        self.messages[-1].info |= self.source.get_stale_usage_field(entry)
        self.last_time = max(self.last_time, info.time.created_ms)
        self.message_ids[entry.id] = own = self.messages[-1].id
        self.last_user_id = own if info.role == "user" else self.last_user_id
        for part in decode_raw_elements(document["parts"]):
            self._copy_origin_part(part)

    def _claim_id(self, kind: str, id_: str, text: str) -> str:
        """Return an id as it came, or another where it is taken or none."""
        free = id_ if id_ and id_ not in self.ids else self._make_id(kind, text)
        self.ids.add(free)
        return free

    def _copy_origin_part(self, raw: Raw) -> None:
        piece = OPENCODE_PART.decode_or_default(raw)
        part: dict[str, Any] = decode_raw_fields(raw) | {"id": self._claim_id("prt", piece.id, piece.id)}
        self.messages[-1].parts.append(part)
        if piece.type == "tool" and piece.state.status in ENDED_STATUSES:
            part["state"] = dict(decode_raw_fields(part["state"]))
            self._register_call(piece.call, part)

    def _register_call(self, id_: str, part: dict[str, Any]) -> None:
        self.calls[id_] = self.open_calls[id_] = part

    # -- what was said elsewhere ---------------------------------------------------------------------------------------

    def _begin_message(self, entry: Entry, role: str) -> _OutgoingMessage:
        """Begin a message that sorts behind all others."""
        self.last_time = max(self.last_time + bool(self.messages), entry.time_ms or 0)
        id_ = self._make_id("msg", entry.id)
        message = _OutgoingMessage(
            id_, {"id": id_, "role": role, "time": {"created": self.last_time}, "agent": OPENCODE_AGENT}
        )
        self.messages.append(message)
        self.message_ids[entry.id] = id_
        self.last_user_id = id_ if role == "user" else self.last_user_id
        return message

    def _make_id(self, kind: str, text: str) -> str:
        self.last_id_number += 1
        return f"{kind}_{self.last_id_number:012x}{_make_id_suffix(text)}"

    def _append_part(self, kind: str, /, **data: Any) -> dict[str, Any]:
        """Append a part to the newest message; return it."""
        message = self.messages[-1]
        part = {"id": self._make_id("prt", f"{message.id}-{len(message.parts)}"), "type": kind} | data
        message.parts.append(part)
        return part

    def _write_message(self, entry: Entry, message: Message) -> None:
        if message.role == "assistant":
            self._write_answer(entry, message)
            return
        message_row = self._begin_message(entry, "user")
        message_row.info["model"] = self._get_model_fields(entry)
        for part in message.parts:
            self._write_user_part(part, synthetic=message.role == "system")

    def _write_user_part(self, part: Part, *, synthetic: bool) -> None:
        if isinstance(part, ToolResult):
            self._write_result(part)
        elif isinstance(part, Media) and part.mime not in INLINED_MIME_TYPES and (url := _make_media_url(part)):
            self._append_part("file", mime=part.mime, **({"filename": part.name} if part.name else {}), url=url)
        elif isinstance(part, Text):
            self._append_part("text", text=part.text, **({"synthetic": True} if synthetic else {}))
        elif isinstance(part, Media | Opaque):
            self._append_part("text", text=format_part_placeholder(part))

    def _get_model_fields(self, entry: Entry) -> dict[str, str]:
        return {"providerID": self.provider, "modelID": self.source.get_answer_model(entry) or UNKNOWN_NAME}

    def _write_answer(self, entry: Entry, message: Message) -> None:
        answer = self.source.get_writable_answer(entry)
        stop = _OPENCODE_STOPS.get(answer.stop_reason, answer.stop_reason) or (
            "tool-calls" if message.calls else "stop"
        )
        self._begin_answer(entry, answer.usage, stop)
        for part in message.parts:
            self._write_answer_part(part)
        self._append_part("step-finish", reason=stop, cost=0, tokens=_encode_opencode_usage(answer.usage))
        self.messages[-1].info |= self.source.get_stale_usage_field(entry)

    def _begin_answer(self, entry: Entry, usage: Usage, stop: str, mode: str = OPENCODE_AGENT) -> _OutgoingMessage:
        """Begin a message of the model's."""
        parent = self.last_user_id
        message_row = self._begin_message(entry, "assistant")
        where = self.source.recording.cwd or "/"
        message_row.info |= {
            "time": {"created": self.last_time, "completed": self.last_time},
            "parentID": parent or message_row.id,
        }
        message_row.info |= {"mode": mode, "agent": mode, "path": {"cwd": where, "root": where}}
        message_row.info |= self._get_model_fields(entry) | {
            "cost": 0,
            "tokens": _encode_opencode_usage(usage),
            "finish": stop,
        }
        self._append_part("step-start")
        return message_row

    def _write_answer_part(self, part: Part) -> None:
        span = {"start": self.last_time, "end": self.last_time}
        if isinstance(part, Text):
            self._append_part("text", text=part.text)
        elif isinstance(part, Thinking):
            self._append_part("reasoning", text=part.text, time=span, **_encode_signature_metadata(part))
        elif isinstance(part, ToolCall):
            state = {"status": "completed", "input": wrap_call_arguments(part.arguments), "time": span}
            self._register_call(part.id, self._append_part("tool", callID=part.id, tool=part.name, state=state))
        elif isinstance(part, Media | Opaque):
            self._append_part("text", text=format_part_placeholder(part))

    # -- results -------------------------------------------------------------------------------------------------------

    def _write_results(self, entry: Entry, message: Message) -> None:
        if self.messages:
            self.message_ids[entry.id] = self.messages[-1].id
        for result in message.results:
            if result.call_id in self.open_calls:
                self._write_result(result)
            else:  # of a call that is not on the way
                self._write_message(entry, Message.from_text("user", get_result_text(result)))

    def _write_result(self, result: ToolResult) -> None:
        part = self.open_calls.pop(result.call_id, None)
        if part is None:
            self._append_part("text", text=get_result_text(result), synthetic=True)
        else:
            part["state"] = _encode_tool_state(part, result, self.last_time)

    def _mark_cleared_results(self, entry: Entry, body: DecisionEntry) -> None:
        """Mark the results that opencode cleared as cleared then."""
        puts = [new_part for edit in body.edits if edit.rule == CLEARED_RULE for new_part in edit.replacement]
        for new_part in puts:
            part = self.calls.get(new_part.call_id) if isinstance(new_part, ToolResult) else None
            if part is not None and _decode_text_value(part["state"]["status"]) == "completed":
                time = part["state"].get("time", {})
                time = decode_raw_fields(time) if isinstance(time, Raw) else time
                part["state"]["time"] = {**time, "compacted": entry.time_ms or self.last_time}

    def _write_compaction(self, entry: Entry, body: CompactionEntry) -> None:
        """Write a compaction as a request for one and a summary; it keeps whole messages."""
        kept_ids = [
            self.message_ids[kept_entry.id]
            for kept_entry in self.source.get_kept_messages(entry)
            if kept_entry.id in self.message_ids
        ]
        marker = self._begin_message(entry, "user")
        marker.info["model"] = self._get_model_fields(entry)
        tail = {"tail_start_id": kept_ids[0]} if kept_ids else {}
        self._append_part("compaction", auto=body.trigger != "manual", **tail)
        self.last_time += 1
        summary = self._begin_answer(replace(entry, id=f"{entry.id}+summary"), Usage(), "stop", "compaction")
        summary.info["summary"] = True
        self._append_part("text", text=(body.summary or Message("user")).text)


def _detect_provider(recording: Recording) -> str:
    """Return whose API the session was held with, as far as the log or its messages tell."""
    apis = (entry.body.sized_message.api for entry in recording.entries if isinstance(entry.body, MessageEntry))
    return next((_PROVIDER_OF_API[api] for api in (recording.api, *apis) if api in _PROVIDER_OF_API), UNKNOWN_NAME)


def _freeze_message(message: _OutgoingMessage) -> OpencodeStoredMessage:
    parts = tuple([(_decode_text_value(part.get("id", "")), to_json(part)) for part in message.parts])
    return OpencodeStoredMessage(message.id, to_json(message.info), parts)


def _parse_id_number(id_: str) -> int:
    try:
        return int(id_.partition("_")[2][:12], 16)
    except ValueError:
        return 0


def _decode_text_value(value: Any) -> str:
    """Return a text, as a value or as JSON."""
    if isinstance(value, str):
        return value
    try:
        return Decoder(str).decode(value)
    except DECODE_ERRORS:
        return ""


def _make_media_url(media: Media) -> str:
    """Return where a file is, or all of it; nothing where only one provider knows it."""
    if media.form == "base64":
        return f"data:{media.mime};base64,{media.source}"
    return media.source if media.form == "url" or media.source.startswith("file:") else ""


def _encode_signature_metadata(part: Thinking) -> dict[str, Any]:
    """Return where the seal of a thought stands; what stands for one that nobody is shown has a field of its own."""
    if data := get_redacted_thinking(part):
        return {"metadata": {"anthropic": {"redactedData": data}}}
    for provider, (api, field) in SIGNATURE_FIELDS.items():
        if part.signature is not None and part.signature.api == api and part.signature.data:
            return {"metadata": {provider: {field: part.signature.data}}}
    return {}


def _encode_opencode_usage(usage: Usage) -> dict[str, Any]:
    cache = {"read": usage.cache_read, "write": usage.cache_write}
    fresh = max(0, usage.input - usage.cache_read - usage.cache_write)
    output = max(0, usage.output - usage.reasoning)
    return {"total": usage.total, "input": fresh, "output": output, "reasoning": usage.reasoning, "cache": cache}


def _encode_tool_state(part: dict[str, Any], result: ToolResult, at: int) -> dict[str, Any]:
    """Return how the run of a tool ended; what else is known of it stays."""
    old = part["state"]
    text, files = (
        get_result_text(result),
        [content_part for content_part in result.content if isinstance(content_part, Media)],
    )
    status = "error" if result.is_error else "completed"
    base = {"status": status, "input": old.get("input", {})}
    if _decode_text_value(old["status"]) == status:
        base = {key: value for key, value in old.items() if key != "attachments" or files}
    if result.is_error:
        return base | ({} if "time" in base else {"time": {"start": at, "end": at}}) | {"error": text}
    completed_state: dict[str, Any] = {"title": "", "metadata": {}, "time": {"start": at, "end": at}}
    completed_state = (
        base | {key: value for key, value in completed_state.items() if key not in base} | {"output": text}
    )
    return (
        completed_state
        if not files or "attachments" in base
        else completed_state | {"attachments": _encode_attachments(part, files)}
    )


def _encode_attachments(part: dict[str, Any], files: list[Media]) -> list[dict[str, Any]]:
    file_urls = [(file, url) for file in files if (url := _make_media_url(file))]
    return [
        {"id": f"{_decode_text_value(part['id'])}{number}", "type": "file", "mime": file.mime, "url": url}
        for number, (file, url) in enumerate(file_urls)
    ]
