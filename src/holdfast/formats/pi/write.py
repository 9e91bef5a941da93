"""A log as a pi session, version 3.

Lines that came from one go out as they came; lines of versions 1 and 2 get what version 3 asks for. A compaction of
ours is a ``compaction`` line that names the first entry it kept. pi goes on from the last line; where that is not the
leaf, a ``custom`` line behind the leaf makes it so.
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
    """Return ``recording`` as JSON lines, the header first; sub-agents' conversations have no place in the file."""
    source = WritableRecording(recording)
    return b"".join(line + b"\n" for line in (_encode_pi_header(source), *_iterate_pi_lines(source)))


def _encode_pi_header(source: WritableRecording) -> bytes:
    recording = source.recording
    for entry in source.order:
        if isinstance(entry.body, NoteEntry) and entry.body.reason == f"{PI_NOTE_PREFIX}session":
            version = PI_LINE.decode_or_default(replace_bad_escapes(entry.body.raw)).version or 1
            return set_json_fields(entry.body.raw, {"version": max(version, PI_VERSION)})
    at = next((entry.time_ms for entry in source.order if entry.time_ms is not None), None)
    head = {
        "type": "session",
        "version": PI_VERSION,
        "id": recording.session or "session",
        "timestamp": format_iso_time(at),
    }
    return to_json(head | {"cwd": recording.cwd})


def _iterate_pi_lines(source: WritableRecording) -> Iterator[bytes]:
    last: str | None = None
    for entry in source.order:
        above = source.get_parent_tool_id(entry)
        source.tool_ids[entry.id] = above
        for line in _write_pi_entry(source, entry):
            source.tool_ids[entry.id] = last = (
                PI_LINE.decode_or_default(replace_bad_escapes(line)).id or source.tool_ids[entry.id]
            )
            yield line
    leaf = source.entries_by_id.get(source.recording.leaf or "")
    if leaf is not None and source.tool_ids.get(leaf.id) not in (None, last):
        leaf_line = {"type": "custom", "id": f"{leaf.id}-leaf", "parentId": source.tool_ids[leaf.id]}
        yield to_json(
            leaf_line | {"timestamp": format_iso_time(leaf.time_ms), "customType": "holdfast.leaf", "data": None}
        )


def _write_pi_entry(source: WritableRecording, entry: Entry) -> Iterator[bytes]:
    """Yield the lines of ``entry``, each behind the one before."""
    body, above = entry.body, source.get_parent_tool_id(entry)
    if isinstance(body, MessageEntry) and body.sized_message.api == API and body.recording_envelope is not None:
        yield set_json_fields(
            _copy_pi_line(bytes(body.recording_envelope), entry.id, above), source.get_stale_usage_field(entry)
        )
    elif isinstance(body, MessageEntry):
        yield from _write_pi_message(source, entry, body.sized_message)
    elif isinstance(body, NoteEntry):
        kind = body.reason.removeprefix(PI_NOTE_PREFIX)
        if body.reason.startswith(PI_NOTE_PREFIX) and kind not in ("session", "compaction", "branch_summary"):
            yield _copy_pi_line(body.raw, entry.id, above)
    elif isinstance(body, CompactionEntry):
        yield _encode_pi_compaction(source, entry, body)
    elif isinstance(body, BranchSummaryEntry):
        line_fields = {"fromId": body.source_id, "summary": body.sized_message.message.text}
        line = source.get_note_before(entry, f"{PI_NOTE_PREFIX}branch_summary")
        yield (
            _copy_pi_line(line, entry.id, above)
            if line
            else to_json(_make_line_head(source, entry, "branch_summary") | line_fields)
        )
    elif isinstance(body, LabelEntry):
        line_fields = {"targetId": source.tool_ids.get(body.target) or body.target}
        yield to_json(
            _make_line_head(source, entry, "label") | line_fields | ({"label": body.name} if body.name else {})
        )


def _copy_pi_line(line: bytes, id_: str, above: str | None) -> bytes:
    """Return a line of a pi session with its place in the tree, untouched if it has that place."""
    if (
        b'"hookMessage"' in line
        and PI_MESSAGE.decode_or_default(message := PI_LINE.decode_or_default(replace_bad_escapes(line)).message).role
        == "hookMessage"
    ):
        line = set_json_fields(line, {"message": decode_raw_fields(message) | {"role": "custom"}})
    return set_json_fields(line, {"id": id_, "parentId": above})


def _make_line_head(source: WritableRecording, entry: Entry, kind: str) -> dict[str, Any]:
    return {
        "type": kind,
        "id": entry.id,
        "parentId": source.get_parent_tool_id(entry),
        "timestamp": format_iso_time(entry.time_ms),
    }


def _write_pi_message(source: WritableRecording, entry: Entry, sized_message: SizedMessage) -> Iterator[bytes]:
    """Yield a message as lines: one for each tool result, one for the rest."""
    above, id_ = source.get_parent_tool_id(entry), entry.id
    for number, message in enumerate(encode_pi_messages(strip_foreign_raw(sized_message, API))):
        id_ = entry.id if not number else f"{entry.id}-{number}"
        wire_message = message | (
            _encode_pi_answer(source, entry, sized_message) if sized_message.message.role == "assistant" else {}
        )
        head = _make_line_head(source, entry, "message") | {"id": id_, "parentId": above}
        yield to_json(
            head | {"message": wire_message | {"timestamp": entry.time_ms or 0}} | source.get_stale_usage_field(entry)
        )
        above = id_


def _encode_pi_answer(source: WritableRecording, entry: Entry, message: SizedMessage) -> dict[str, Any]:
    """Return what pi records of a model call."""
    answer = source.get_writable_answer(entry)
    usage = answer.usage
    api = source.recording.api or message.api
    fresh = max(0, usage.input - usage.cache_read - usage.cache_write)
    cost = dict.fromkeys(("input", "output", "cacheRead", "cacheWrite", "total"), 0)
    token_counts = {
        "input": fresh,
        "output": usage.output,
        "cacheRead": usage.cache_read,
        "cacheWrite": usage.cache_write,
    }
    return {
        "api": next((pi_api for pi_api, own_api in API_OF_PI_NAME.items() if own_api == api), api),
        "provider": "",
        "model": source.get_answer_model(entry),
        "usage": token_counts | {"totalTokens": usage.input + usage.output, "cost": cost},
        "stopReason": _PI_STOPS.get(answer.stop_reason, answer.stop_reason)
        or ("toolUse" if message.message.calls else "stop"),
    }


_PI_STOPS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "toolUse",
    "max_tokens": "length",
    "synthetic": "",
}
"""Stop reasons of the Messages API in pi's words."""


def _encode_pi_compaction(source: WritableRecording, entry: Entry, body: CompactionEntry) -> bytes:
    """Return a compaction as pi's line; it names itself as the first kept entry where nothing was kept."""
    kept_entries = source.get_kept_messages(entry)
    first = source.tool_ids.get(kept_entries[0].id) if kept_entries else entry.id
    line = source.get_note_before(entry, f"{PI_NOTE_PREFIX}compaction")
    if line:
        old: dict[str, Raw] = decode_raw_fields(replace_bad_escapes(line))
        index = old.pop("firstKeptEntryIndex", None)
        if index is not None:
            line = to_json(old | {"firstKeptEntryId": first})
        return _copy_pi_line(line, entry.id, source.get_parent_tool_id(entry))
    text = (body.summary or Message("user")).text
    line_fields = {"summary": text, "firstKeptEntryId": first, "tokensBefore": body.tokens_before, "fromHook": True}
    return to_json(_make_line_head(source, entry, "compaction") | line_fields)
