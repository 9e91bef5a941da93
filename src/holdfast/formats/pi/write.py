"""Writer of pi sessions, version 3.

Lines that came from a pi session are copied; lines of versions 1 and 2 get the fields that version 3 requires. A
compaction of ours is a ``compaction`` line that names the first entry it kept. pi continues from the last line; if
that is not the leaf, a ``custom`` line after the leaf makes it so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Raw

from holdfast.formats.base import Recording
from holdfast.formats.common.lines import decode_raw_fields, format_iso_time, replace_bad_escapes, set_json_fields
from holdfast.formats.common.writing import WritableRecording, strip_foreign_raw
from holdfast.formats.pi.messages import API_OF_PI_NAME, PI_MESSAGE, encode_pi_messages
from holdfast.formats.pi.read import API, PI_LINE, PI_NOTE_PREFIX
from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.common.json.raw_json import encode_json as to_json
from holdfast.state.entries import BranchSummaryEntry, CompactionEntry, Entry, LabelEntry, MessageEntry, NoteEntry

PI_VERSION = 3


def write_pi(recording: Recording) -> bytes:
    """Return ``recording`` as JSON lines, the header first. The file has no place for sub-agents' conversations."""
    source = WritableRecording(recording)
    lines = [_encode_pi_header(source), *_iterate_pi_lines(source)]
    return b"".join(line + b"\n" for line in lines)


def _encode_pi_header(source: WritableRecording) -> bytes:
    """Return the header line that the session came with, with the version raised to ours, or a new one."""
    recording = source.recording
    first_time = None
    for entry in source.order:
        if isinstance(entry.body, NoteEntry) and entry.body.reason == f"{PI_NOTE_PREFIX}session":
            version = PI_LINE.decode_or_default(replace_bad_escapes(entry.body.raw)).version or 1
            return set_json_fields(entry.body.raw, {"version": max(version, PI_VERSION)})
        if first_time is None:
            first_time = entry.time_ms
    return to_json(
        {
            "type": "session",
            "version": PI_VERSION,
            "id": recording.session or "session",
            "timestamp": format_iso_time(first_time),
            "cwd": recording.cwd,
        }
    )


def _iterate_pi_lines(source: WritableRecording) -> Iterator[bytes]:
    last_id: str | None = None
    for entry in source.order:
        # An entry that writes no line passes its parent's id on to its children.
        tool_id = source.get_parent_tool_id(entry)
        source.tool_ids[entry.id] = tool_id
        for line in _write_pi_entry(source, entry):
            tool_id = PI_LINE.decode_or_default(replace_bad_escapes(line)).id or tool_id
            source.tool_ids[entry.id] = last_id = tool_id
            yield line
    leaf = source.entries_by_id.get(source.recording.leaf or "")
    if leaf is None:
        return
    leaf_id = source.tool_ids.get(leaf.id)
    # ``custom`` lines are not sent to the model, so this one changes nothing but where pi continues.
    if leaf_id is not None and leaf_id != last_id:
        yield to_json(
            {
                "type": "custom",
                "id": f"{leaf.id}-leaf",
                "parentId": leaf_id,
                "timestamp": format_iso_time(leaf.time_ms),
                "customType": "holdfast.leaf",
                "data": None,
            }
        )


def _write_pi_entry(source: WritableRecording, entry: Entry) -> Iterator[bytes]:
    """Yield the lines of ``entry``."""
    body = entry.body
    parent_id = source.get_parent_tool_id(entry)
    if isinstance(body, MessageEntry):
        if body.sized_message.api == API and body.recording_envelope is not None:
            line = _copy_pi_line(bytes(body.recording_envelope), entry.id, parent_id)
            yield set_json_fields(line, source.get_stale_usage_field(entry))
        else:
            yield from _write_pi_message(source, entry, body.sized_message)
    elif isinstance(body, NoteEntry):
        kind = body.reason.removeprefix(PI_NOTE_PREFIX)
        # The header was written first; these others are written with the entry after the note.
        is_written_elsewhere = kind in ("session", "compaction", "branch_summary", "reset")
        if body.reason.startswith(PI_NOTE_PREFIX) and not is_written_elsewhere:
            yield _copy_pi_line(body.raw, entry.id, parent_id)
    elif isinstance(body, CompactionEntry):
        yield _encode_pi_compaction(source, entry, body)
    elif isinstance(body, BranchSummaryEntry):
        recorded_line = source.get_note_before(entry, f"{PI_NOTE_PREFIX}branch_summary")
        if recorded_line:
            yield _copy_pi_line(recorded_line, entry.id, parent_id)
        else:
            line_fields = {"fromId": body.source_id, "summary": body.sized_message.message.text}
            yield to_json(_make_line_head(source, entry, "branch_summary") | line_fields)
    elif isinstance(body, LabelEntry):
        label_fields = {"targetId": source.tool_ids.get(body.target) or body.target}
        if body.name:
            label_fields["label"] = body.name
        yield to_json(_make_line_head(source, entry, "label") | label_fields)


def _copy_pi_line(line: bytes, id_: str, parent_id: str | None) -> bytes:
    """Return a line of a pi session with this id and parent; the same bytes if it has them already."""
    # Cheap test first: only lines before version 3 have the role.
    if b'"hookMessage"' in line:
        message = PI_LINE.decode_or_default(replace_bad_escapes(line)).message
        if PI_MESSAGE.decode_or_default(message).role == "hookMessage":
            line = set_json_fields(line, {"message": decode_raw_fields(message) | {"role": "custom"}})
    return set_json_fields(line, {"id": id_, "parentId": parent_id})


def _make_line_head(source: WritableRecording, entry: Entry, kind: str) -> dict[str, Any]:
    return {
        "type": kind,
        "id": entry.id,
        "parentId": source.get_parent_tool_id(entry),
        "timestamp": format_iso_time(entry.time_ms),
    }


def _write_pi_message(source: WritableRecording, entry: Entry, sized_message: SizedMessage) -> Iterator[bytes]:
    """Yield a message as lines: one for each tool result, one for the rest."""
    parent_id = source.get_parent_tool_id(entry)
    answer_fields: dict[str, Any] = {}
    if sized_message.message.role == "assistant":
        answer_fields = _encode_pi_answer(source, entry, sized_message)
    for number, message in enumerate(encode_pi_messages(strip_foreign_raw(sized_message, API))):
        line_id = f"{entry.id}-{number}" if number else entry.id
        wire_message = message | answer_fields | {"timestamp": entry.time_ms or 0}
        head = _make_line_head(source, entry, "message") | {"id": line_id, "parentId": parent_id}
        yield to_json(head | {"message": wire_message} | source.get_stale_usage_field(entry))
        parent_id = line_id


def _encode_pi_answer(source: WritableRecording, entry: Entry, message: SizedMessage) -> dict[str, Any]:
    """Return the fields that pi records of a model call."""
    answer = source.get_writable_answer(entry)
    usage = answer.usage
    api = source.recording.api or message.api
    pi_apis = [pi_api for pi_api, own_api in API_OF_PI_NAME.items() if own_api == api]
    stop = _PI_STOPS.get(answer.stop_reason, answer.stop_reason)
    if not stop:
        stop = "toolUse" if message.message.calls else "stop"
    return {
        "api": pi_apis[0] if pi_apis else api,
        "provider": "",
        "model": source.get_answer_model(entry),
        "usage": {
            "input": max(0, usage.input - usage.cache_read - usage.cache_write),
            "output": usage.output,
            "cacheRead": usage.cache_read,
            "cacheWrite": usage.cache_write,
            "totalTokens": usage.input + usage.output,
            "cost": dict.fromkeys(("input", "output", "cacheRead", "cacheWrite", "total"), 0),
        },
        "stopReason": stop,
    }


_PI_STOPS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "toolUse",
    "max_tokens": "length",
    "synthetic": "",
}
"""pi's words for the stop reasons of the Messages API."""


def _encode_pi_compaction(source: WritableRecording, entry: Entry, body: CompactionEntry) -> bytes:
    """Return a compaction as a line of pi.

    A compaction that kept nothing names itself as the first kept entry: pi requires one, and then shows the summary
    and everything after it.
    """
    kept_entries = source.get_kept_messages(entry)
    first_kept_id = source.tool_ids.get(kept_entries[0].id) if kept_entries else entry.id
    line = source.get_note_before(entry, f"{PI_NOTE_PREFIX}compaction")
    line = line or source.get_note_before(entry, f"{PI_NOTE_PREFIX}reset")
    if line:
        fields: dict[str, Raw] = decode_raw_fields(replace_bad_escapes(line))
        # Version 1 counts lines, which are others in the file being written.
        if fields.pop("firstKeptEntryIndex", None) is not None:
            line = to_json(fields | {"firstKeptEntryId": first_kept_id})
        return _copy_pi_line(line, entry.id, source.get_parent_tool_id(entry))
    compaction_fields = {
        "summary": (body.summary or Message("user")).text,
        "firstKeptEntryId": first_kept_id,
        "tokensBefore": body.tokens_before,
        "fromHook": True,
    }
    return to_json(_make_line_head(source, entry, "compaction") | compaction_fields)
