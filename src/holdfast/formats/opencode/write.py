"""Writer of opencode sessions: as the JSON that it imports, and as the messages of its database.

A session is a sequence, so only the branch at the leaf is written. Messages that came from opencode are copied,
with the results that the log has; results that the log cleared are marked as cleared. Every other message gets an
id that sorts after the one before it: opencode orders messages by id. A compaction of ours is a request for one and
a summary.
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
    INLINED_MIME_TYPES,
    INTERRUPTED_TEXT,
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
"""Version that sessions from elsewhere name: the one whose database and export this format was taken from."""
OPENCODE_AGENT = "build"
"""Agent of messages from elsewhere: the one that opencode starts with."""
UNKNOWN_NAME = "unknown"
"""Written for a model or a provider that the log does not name."""
UNTITLED_SESSION = "Session"
_PROVIDER_OF_API = {"anthropic": "anthropic", "openai-chat": "openai", "openai-responses": "openai", "gemini": "google"}
_OPENCODE_STOPS = {
    "end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool-calls", "toolUse": "tool-calls",
    "tool_calls": "tool-calls", "max_tokens": "length", "synthetic": "stop", "STOP": "stop",
}  # fmt: skip
"""opencode's words for the stop reasons of other tools."""
_ID_TIME_MASK = 2**48 - 1
"""Mask of the number in an opencode id: milliseconds since 1970 times 4,096, plus a counter, in 48 bits.

The number wraps around every 795 days. Ids of our messages count on from the message before, or from 0, so that
everything that opencode adds later sorts after them.
"""


def write_opencode_export(recording: Recording) -> bytes:
    """Return ``recording`` as the JSON that ``opencode import`` takes; it has no place for sub-agents' sessions."""
    session = build_opencode_session(recording)
    messages = [_encode_exported_message(message, session.id) for message in session.messages]
    return to_json({"info": Raw(session.info), "messages": messages})


def iter_opencode_sessions(recording: Recording) -> Iterator[OpencodeStoredSession]:
    """Yield the session of ``recording`` and those of its sub-agents."""
    first = build_opencode_session(recording)
    yield first
    for chain in recording.sidechains:
        yield build_opencode_session(chain, first.id)


def build_opencode_session(recording: Recording, parent: str = "") -> OpencodeStoredSession:
    """Return ``recording`` as opencode stores it; ``parent`` is the session that it is a sub-agent of, if any."""
    branch = get_branch_entries(recording)
    writer = _OpencodeWriter(WritableRecording(replace(recording, entries=tuple(branch))))
    for entry in branch:
        writer.write_entry(entry)
    messages = writer.finish_messages()
    info = _build_session_info(recording, branch, writer.last_time, parent)
    return OpencodeStoredSession(info["id"], to_json(info), messages)


def _encode_exported_message(message: OpencodeStoredMessage, session_id: str) -> dict[str, Any]:
    """Return a message as exported: messages and parts name their owners, which a database has as columns."""
    info = decode_raw_fields(message.info) | {"sessionID": session_id}
    owner_fields = {"sessionID": session_id, "messageID": message.id}
    parts = [decode_raw_fields(raw) | owner_fields for _, raw in message.parts]
    return {"info": info, "parts": parts}


def _build_session_info(
    recording: Recording,
    branch_entries: list[Entry],
    last_time: int,
    parent: str,
) -> dict[str, Any]:
    """Return the ``info`` of a session: the fields that it came with, and defaults for the others."""
    stored_info: dict[str, Any] = {}
    first_time = None
    for entry in branch_entries:
        if isinstance(entry.body, NoteEntry) and entry.body.reason == SESSION_NOTE and not stored_info:
            stored_info = dict(decode_raw_fields(entry.body.raw))
        if first_time is None:
            first_time = entry.time_ms
    first_time = first_time or 0
    title = recording.title
    if not title:
        bodies = [entry.body for entry in branch_entries]
        messages = (body.sized_message.message for body in bodies if isinstance(body, MessageEntry))
        title = (find_first_user_text(messages) or UNTITLED_SESSION)[:80]
    # The time is complemented: opencode lists sessions by id, the newest first.
    number = ~(first_time * 4096) & _ID_TIME_MASK
    new_id = f"ses_{number:012x}{_make_id_suffix(recording.session or UNTITLED_SESSION)}"
    info: dict[str, Any] = {
        "id": new_id,
        "slug": "holdfast",
        "projectID": "global",
        "directory": recording.cwd or "/",
        "path": "",
    }
    info |= stored_info
    if parent:
        info["parentID"] = parent
    info |= {"id": _decode_text_value(info["id"]), "title": title}
    info["version"] = info.get("version", OPENCODE_VERSION)
    info["time"] = {"created": first_time, "updated": max(first_time, last_time)}
    return info


def _make_id_suffix(text: str) -> str:
    """Return the fourteen characters at the end of an id, a digest of ``text``."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=7).hexdigest()


class _OutgoingMessage:
    """A message that is being written."""

    __slots__ = ("id", "info", "original_id", "parts")

    def __init__(self, id_: str, info: Mapping[str, Any], original_id: str = "") -> None:
        self.id = id_
        self.original_id = original_id
        """Its id in the session that it came from, empty if it is from elsewhere."""
        self.info = dict(info)
        self.parts: list[dict[str, Any]] = []


class _OpencodeWriter:
    """Writes the entries of a branch one after the other, and keeps which call waits for its result."""

    def __init__(self, source: WritableRecording) -> None:
        self.source = source
        self.messages: list[_OutgoingMessage] = []
        self.calls: dict[str, dict[str, Any]] = {}
        """The part of each finished call, by call id."""
        self.open_calls: dict[str, dict[str, Any]] = {}
        """Those of ``calls`` whose result was not written yet."""
        self.ids: set[str] = set()
        self.message_ids: dict[str, str] = {}
        """Id of the message that holds each entry."""
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
        """Return the messages; calls that got no result are marked as interrupted."""
        # opencode itself tells the model the same of a call whose result is missing.
        for part in self.open_calls.values():
            interruption = ToolResult("", "", (Text(INTERRUPTED_TEXT),), is_error=True)
            part["state"] = _encode_tool_state(part, interruption, self.last_time)
        return tuple([_freeze_message(message) for message in self.messages])

    # -- messages from opencode ----------------------------------------------------------------------------------------

    def _copy_origin_message(self, entry: Entry, raw: bytes) -> None:
        """Write a message of opencode's, or add another answer to the message that holds the one before."""
        document = decode_raw_fields(raw)
        info = OPENCODE_INFO.decode_or_default(document["info"])
        if not self.messages or self.messages[-1].original_id != info.id:
            # Ids that we make have to sort after those of the recorded messages before them.
            self.last_id_number = max(self.last_id_number, _parse_id_number(info.id))
            message_id = self._claim_id("msg", info.id, entry.id)
            fields = decode_raw_fields(document["info"]) | {"id": message_id}
            self.messages.append(_OutgoingMessage(message_id, fields, info.id))
        message = self.messages[-1]
        message.info |= self.source.get_stale_usage_field(entry)
        self.last_time = max(self.last_time, info.time.created_ms)
        self.message_ids[entry.id] = message.id
        if info.role == "user":
            self.last_user_id = message.id
        for part in decode_raw_elements(document["parts"]):
            self._copy_origin_part(part)

    def _claim_id(self, kind: str, id_: str, text: str) -> str:
        """Return ``id_`` if it is one that is free, else a new id."""
        claimed_id = id_ if id_ and id_ not in self.ids else self._make_id(kind, text)
        self.ids.add(claimed_id)
        return claimed_id

    def _copy_origin_part(self, raw: Raw) -> None:
        piece = OPENCODE_PART.decode_or_default(raw)
        part: dict[str, Any] = dict(decode_raw_fields(raw))
        part["id"] = self._claim_id("prt", piece.id, piece.id)
        self.messages[-1].parts.append(part)
        if piece.type == "tool":
            # Decoded, because the result (which the log may have shortened) is written into it later.
            part["state"] = dict(decode_raw_fields(part.get("state", Raw(b"{}"))))
            self._register_call(piece.call, part)

    def _register_call(self, id_: str, part: dict[str, Any]) -> None:
        self.calls[id_] = self.open_calls[id_] = part

    # -- messages from elsewhere ---------------------------------------------------------------------------------------

    def _begin_message(self, entry: Entry, role: str) -> _OutgoingMessage:
        """Begin a new message that sorts after all others, by id and by time."""
        earliest_time = self.last_time + 1 if self.messages else self.last_time
        self.last_time = max(earliest_time, entry.time_ms or 0)
        message_id = self._make_id("msg", entry.id)
        info = {"id": message_id, "role": role, "time": {"created": self.last_time}, "agent": OPENCODE_AGENT}
        message = _OutgoingMessage(message_id, info)
        self.messages.append(message)
        self.message_ids[entry.id] = message_id
        if role == "user":
            # Answers name the user's message that they belong to.
            self.last_user_id = message_id
        return message

    def _make_id(self, kind: str, text: str) -> str:
        self.last_id_number += 1
        return f"{kind}_{self.last_id_number:012x}{_make_id_suffix(text)}"

    def _append_part(self, kind: str, /, **data: Any) -> dict[str, Any]:
        """Append a part to the newest message, and return it."""
        message = self.messages[-1]
        part_id = self._make_id("prt", f"{message.id}-{len(message.parts)}")
        part = {"id": part_id, "type": kind} | data
        message.parts.append(part)
        return part

    def _write_message(self, entry: Entry, message: Message) -> None:
        if message.role == "assistant":
            self._write_answer(entry, message)
            return
        # opencode has no system messages: they are the user's, with texts marked as not typed.
        outgoing = self._begin_message(entry, "user")
        outgoing.info["model"] = self._get_model_fields(entry)
        for part in message.parts:
            self._write_user_part(part, synthetic=message.role == "system")

    def _write_user_part(self, part: Part, *, synthetic: bool) -> None:
        if isinstance(part, ToolResult):
            self._write_result(part)
        elif isinstance(part, Text):
            synthetic_field = {"synthetic": True} if synthetic else {}
            self._append_part("text", text=part.text, **synthetic_field)
        elif isinstance(part, Media | Opaque):
            url = ""
            if isinstance(part, Media) and part.mime not in INLINED_MIME_TYPES:
                url = _make_media_url(part)
            if isinstance(part, Media) and url:
                filename = {"filename": part.name} if part.name else {}
                self._append_part("file", mime=part.mime, **filename, url=url)
            else:
                self._append_part("text", text=format_part_placeholder(part))

    def _get_model_fields(self, entry: Entry) -> dict[str, str]:
        return {"providerID": self.provider, "modelID": self.source.get_answer_model(entry) or UNKNOWN_NAME}

    def _write_answer(self, entry: Entry, message: Message) -> None:
        answer = self.source.get_writable_answer(entry)
        stop = _OPENCODE_STOPS.get(answer.stop_reason, answer.stop_reason)
        if not stop:
            stop = "tool-calls" if message.calls else "stop"
        self._begin_answer(entry, answer.usage, stop)
        for part in message.parts:
            self._write_answer_part(part)
        self._append_part("step-finish", reason=stop, cost=0, tokens=_encode_opencode_usage(answer.usage))
        self.messages[-1].info |= self.source.get_stale_usage_field(entry)

    def _begin_answer(
        self,
        entry: Entry,
        usage: Usage,
        stop: str,
        mode: str = OPENCODE_AGENT,
    ) -> _OutgoingMessage:
        """Begin a message of the model."""
        parent = self.last_user_id
        message = self._begin_message(entry, "assistant")
        directory = self.source.recording.cwd or "/"
        message.info |= {
            "time": {"created": self.last_time, "completed": self.last_time},
            "parentID": parent or message.id,
            "mode": mode,
            "agent": mode,
            "path": {"cwd": directory, "root": directory},
        }
        message.info |= self._get_model_fields(entry)
        message.info |= {"cost": 0, "tokens": _encode_opencode_usage(usage), "finish": stop}
        self._append_part("step-start")
        return message

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
        # A result goes into the part of its call, wherever that is: opencode has no messages of results.
        for result in message.results:
            if result.call_id in self.open_calls:
                self._write_result(result)
            else:
                # Its call is not on the branch, so there is no part to put it into; as a user's text it is still read.
                self._write_message(entry, Message.from_text("user", get_result_text(result)))

    def _write_result(self, result: ToolResult) -> None:
        part = self.open_calls.pop(result.call_id, None)
        if part is None:
            self._append_part("text", text=get_result_text(result), synthetic=True)
        else:
            part["state"] = _encode_tool_state(part, result, self.last_time)

    def _mark_cleared_results(self, entry: Entry, body: DecisionEntry) -> None:
        """Mark the results that opencode cleared with the time at which it did."""
        for edit in body.edits:
            if edit.rule != CLEARED_RULE:
                continue
            for replacement in edit.replacement:
                if not isinstance(replacement, ToolResult):
                    continue
                part = self.calls.get(replacement.call_id)
                if part is None or _decode_text_value(part["state"].get("status", "")) != "completed":
                    continue
                time = part["state"].get("time", {})
                time_fields = decode_raw_fields(time) if isinstance(time, Raw) else time
                part["state"]["time"] = {**time_fields, "compacted": entry.time_ms or self.last_time}

    def _write_compaction(self, entry: Entry, body: CompactionEntry) -> None:
        """Write a compaction as a request for one and its summary.

        opencode's tail begins at a message, so a tail that begins inside an answer with several steps keeps all of it.
        """
        tail = {}
        for kept_entry in self.source.get_kept_messages(entry):
            if kept_entry.id in self.message_ids:
                tail = {"tail_start_id": self.message_ids[kept_entry.id]}
                break
        marker = self._begin_message(entry, "user")
        marker.info["model"] = self._get_model_fields(entry)
        self._append_part("compaction", auto=body.trigger != "manual", **tail)
        self.last_time += 1  # messages are sorted by time first: the summary must come after its request
        summary = self._begin_answer(
            replace(entry, id=f"{entry.id}+summary"),
            Usage(),
            "stop",
            "compaction",
        )
        summary.info["summary"] = True
        self._append_part("text", text=(body.summary or Message("user")).text)


def _detect_provider(recording: Recording) -> str:
    """Return opencode's name of the provider: by the recording's API, else by the first message of a known API."""
    if recording.api in _PROVIDER_OF_API:
        return _PROVIDER_OF_API[recording.api]
    for entry in recording.entries:
        if isinstance(entry.body, MessageEntry) and entry.body.sized_message.api in _PROVIDER_OF_API:
            return _PROVIDER_OF_API[entry.body.sized_message.api]
    return UNKNOWN_NAME


def _freeze_message(message: _OutgoingMessage) -> OpencodeStoredMessage:
    parts = []
    for part in message.parts:
        part_id = _decode_text_value(part.get("id", ""))
        parts.append((part_id, to_json(part)))
    return OpencodeStoredMessage(message.id, to_json(message.info), tuple(parts))


def _parse_id_number(id_: str) -> int:
    try:
        return int(id_.partition("_")[2][:12], 16)
    except ValueError:
        return 0


def _decode_text_value(value: Any) -> str:
    """Return a text that is a value or still raw JSON; empty for anything else."""
    if isinstance(value, str):
        return value
    try:
        return Decoder(str).decode(value)
    except DECODE_ERRORS:
        return ""


def _make_media_url(media: Media) -> str:
    """Return the URL of a file, or its data as one; empty for a file that only its provider can find."""
    if media.form == "base64":
        return f"data:{media.mime};base64,{media.source}"
    is_url = media.form == "url" or media.source.startswith("file:")
    return media.source if is_url else ""


def _encode_signature_metadata(part: Thinking) -> dict[str, Any]:
    """Return the metadata field with the signature of a thought, or with the data of redacted thinking."""
    redacted_data = get_redacted_thinking(part)
    if redacted_data:
        return {"metadata": {"anthropic": {"redactedData": redacted_data}}}
    if part.signature is None or not part.signature.data:
        return {}
    for provider, (api, field) in SIGNATURE_FIELDS.items():
        if part.signature.api == api:
            return {"metadata": {provider: {field: part.signature.data}}}
    return {}


def _encode_opencode_usage(usage: Usage) -> dict[str, Any]:
    cache = {"read": usage.cache_read, "write": usage.cache_write}
    uncached = max(0, usage.input - usage.cache_read - usage.cache_write)
    output = max(0, usage.output - usage.reasoning)
    return {"total": usage.total, "input": uncached, "output": output, "reasoning": usage.reasoning, "cache": cache}


def _encode_tool_state(part: dict[str, Any], result: ToolResult, at: int) -> dict[str, Any]:
    """Return the state of a tool part with its result; other fields stay if the state was of the same kind before."""
    old_state = part["state"]
    text = get_result_text(result)
    files = [content_part for content_part in result.content if isinstance(content_part, Media)]
    status = "error" if result.is_error else "completed"
    state = {"status": status, "input": old_state.get("input", {})}
    if _decode_text_value(old_state.get("status", "")) == status:
        # A result without files was shortened: the recorded attachments are no part of it any more.
        state = {name: value for name, value in old_state.items() if name != "attachments" or files}
    if result.is_error:
        state.setdefault("time", {"start": at, "end": at})
        state["error"] = text
        return state
    state.setdefault("title", "")
    state.setdefault("metadata", {})
    state.setdefault("time", {"start": at, "end": at})
    state["output"] = text
    if files and "attachments" not in state:
        state["attachments"] = _encode_attachments(part, files)
    return state


def _encode_attachments(part: dict[str, Any], files: list[Media]) -> list[dict[str, Any]]:
    part_id = _decode_text_value(part["id"])
    attachments: list[dict[str, Any]] = []
    for file in files:
        url = _make_media_url(file)
        if url:
            attachment_id = f"{part_id}{len(attachments)}"
            attachments.append({"id": attachment_id, "type": "file", "mime": file.mime, "url": url})
    return attachments
