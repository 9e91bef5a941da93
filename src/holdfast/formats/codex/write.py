"""Writer of Codex rollouts.

Lines that came from a rollout are copied, without their ordinals: events between them are not kept, and Codex stops at
a gap in the ordinals of a paginated rollout (codex#41566, 2026-08-29). So none that is written is paginated. A rollout
is a sequence and not a tree, so of a session that came from elsewhere only the branch at the leaf is written. A
compaction of ours is a ``compacted`` line with the whole new history.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from holdfast.formats.base import UNFINISHED_STOPS, Recording, get_branch_entries
from holdfast.formats.codex.items import API_NAME, encode_codex_items
from holdfast.formats.codex.read import CODEX_NOTE_PREFIX
from holdfast.formats.common.lines import decode_raw_fields, format_iso_time, replace_bad_escapes
from holdfast.formats.common.writing import WritableRecording, make_stable_uuid, split_origin_lines, strip_foreign_raw
from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.common.json.raw_json import encode_json as to_json
from holdfast.state.entries import BranchSummaryEntry, CompactionEntry, Entry, MessageEntry, NoteEntry, Usage

SESSION_META_NOTE = f"{CODEX_NOTE_PREFIX}session_meta"
"""Reason of the note that keeps the header line."""
_PAGINATION_FIELDS = ("history_mode", "history_base")


def write_codex(recording: Recording) -> bytes:
    """Return ``recording`` as JSON lines, ``session_meta`` first."""
    branch = get_branch_entries(recording)
    branch_ids = {entry.id for entry in branch}
    message_entries = []
    is_rollout = False
    for entry in recording.entries:
        if isinstance(entry.body, MessageEntry):
            message_entries.append(entry)
            is_rollout = is_rollout or _has_codex_origin(entry.body)
    # Rollback lines of a rollout express its other branches, so it is written whole. That needs the leaf's branch at
    # the end: Codex continues from the last line.
    if not is_rollout or message_entries[-1].id not in branch_ids:
        recording = replace(recording, entries=tuple(branch))
    writer = _CodexWriter(WritableRecording(recording))
    lines = [_encode_codex_header(writer.source), *writer.iterate_lines()]
    return b"".join(line + b"\n" for line in lines)


def _has_codex_origin(body: MessageEntry) -> bool:
    return body.sized_message.api == API_NAME and body.recording_envelope is not None


def _encode_codex_header(source: WritableRecording) -> bytes:
    """Return the header line that the session came with, or a new one."""
    first_time = None
    for entry in source.order:
        if isinstance(entry.body, NoteEntry) and entry.body.reason == SESSION_META_NOTE:
            return _remove_pagination(entry.body.raw)
        if first_time is None:
            first_time = entry.time_ms
    at = format_iso_time(first_time)
    payload = {
        "id": make_stable_uuid(source.recording.session),
        "timestamp": at,
        "cwd": source.recording.cwd,
        "originator": "holdfast",
        "cli_version": "0",
        "source": "exec",
        "instructions": None,
    }
    return _encode_codex_line(at, "session_meta", payload)


def _remove_pagination(header: bytes) -> bytes:
    """Return a header without what says that the lines are numbered, and that the history begins in another file."""
    fields = decode_raw_fields(replace_bad_escapes(header))
    payload = decode_raw_fields(fields.get("payload", Raw()))
    kept = {name: value for name, value in payload.items() if name not in _PAGINATION_FIELDS}
    if len(kept) == len(payload):
        return _remove_ordinal(header)
    return _remove_ordinal(to_json(fields | {"payload": kept}))


def _remove_ordinal(line: bytes) -> bytes:
    """Return a line without its ordinal; the same bytes if it has none."""
    if b'"ordinal"' not in line:
        return line
    fields = decode_raw_fields(replace_bad_escapes(line))
    if "ordinal" not in fields:
        return line
    del fields["ordinal"]
    return to_json(fields)


def _encode_codex_line(
    timestamp: str,
    kind: str,
    payload: object,
    extra_fields: Mapping[str, object] = MappingProxyType({}),
) -> bytes:
    return to_json({"timestamp": timestamp, "type": kind, "payload": payload, **extra_fields})


class _CodexWriter:
    """Writes one rollout, and keeps the model in force and the token total on the way."""

    def __init__(self, source: WritableRecording) -> None:
        self.source = source
        self.model = ""
        self.total = Usage()

    def iterate_lines(self) -> Iterator[bytes]:
        """Yield the lines of every entry, without the header."""
        for entry in self.source.order:
            body = entry.body
            if isinstance(body, MessageEntry | BranchSummaryEntry):
                yield from self._write_message(entry, body)
            elif isinstance(body, NoteEntry):
                is_codex_line = body.reason.startswith(CODEX_NOTE_PREFIX)
                if is_codex_line and body.reason != SESSION_META_NOTE:
                    yield _remove_ordinal(body.raw)
            elif isinstance(body, CompactionEntry):
                recorded_line = self.source.get_note_before(entry, f"{CODEX_NOTE_PREFIX}compacted")
                # A recorded line was written already, as the note before this entry.
                if not recorded_line:
                    yield self._encode_compacted(entry, body)

    def _write_message(self, entry: Entry, body: MessageEntry | BranchSummaryEntry) -> Iterator[bytes]:
        at = format_iso_time(entry.time_ms)
        is_answer = body.sized_message.message.role == "assistant"
        model = self.source.get_answer_model(entry) if is_answer else ""
        if model and model != self.model:
            self.model = model
            # Items do not name their model; readers take it from the last ``turn_context``.
            yield _encode_codex_line(at, "turn_context", {"cwd": self.source.recording.cwd, "model": model})
        if isinstance(body, MessageEntry) and _has_codex_origin(body) and body.recording_envelope is not None:
            yield from map(_remove_ordinal, split_origin_lines(body.recording_envelope))
        else:
            for item in _encode_message_items(body.sized_message):
                yield _encode_codex_line(at, "response_item", Raw(item))
        if is_answer:
            # Also after copied lines: their events were counted and not kept when the rollout was read.
            extra_fields = self.source.get_stale_usage_field(entry)
            yield _encode_codex_line(at, "event_msg", self._make_end_event(entry), extra_fields)

    def _make_end_event(self, entry: Entry) -> dict[str, Any]:
        """Return the event after an answer: that it was aborted, its usage, or (without usage) that it is complete."""
        answer = self.source.get_writable_answer(entry)
        if answer.stop_reason in UNFINISHED_STOPS:
            return {"type": "turn_aborted", "reason": "interrupted"}
        if not answer.usage.input:
            return {"type": "task_complete", "last_agent_message": None}
        old = self.total
        new = answer.usage
        self.total = Usage(
            old.input + new.input,
            old.output + new.output,
            old.cache_read + new.cache_read,
            old.cache_write + new.cache_write,
        )
        info = {"total_token_usage": _encode_codex_usage(self.total), "last_token_usage": _encode_codex_usage(new)}
        return {"type": "token_count", "info": info, "rate_limits": None}

    def _encode_compacted(self, entry: Entry, body: CompactionEntry) -> bytes:
        """Return a compaction as a line with the new history: system messages, the summary, the kept messages."""
        summary = body.summary or Message("user")
        kept_entries = self.source.get_kept_messages(entry)
        items: list[bytes] = []
        # Codex drops everything that is not in the new history, so the system messages of the head are repeated.
        for ancestor in get_branch_entries(self.source.recording, entry.id):
            if not isinstance(ancestor.body, MessageEntry) or ancestor in kept_entries:
                continue
            if ancestor.body.sized_message.message.role == "system":
                items += _encode_entry_items(ancestor)
        items += encode_codex_items(summary)
        for kept_entry in kept_entries:
            items += _encode_entry_items(kept_entry)
        payload = {"message": summary.text, "replacement_history": [Raw(item) for item in items]}
        return _encode_codex_line(format_iso_time(entry.time_ms), "compacted", payload)


def _encode_entry_items(entry: Entry) -> list[bytes]:
    body = entry.body
    if isinstance(body, MessageEntry | BranchSummaryEntry):
        return _encode_message_items(body.sized_message)
    return []


def _encode_message_items(message: SizedMessage) -> list[bytes]:
    """Return ``message`` as items: its own bytes if it came as items, else encoded anew."""
    if message.api == API_NAME and message.raw is not None:
        return split_origin_lines(message.raw)
    return encode_codex_items(strip_foreign_raw(message, API_NAME))


def _encode_codex_usage(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.input,
        "cached_input_tokens": usage.cache_read,
        "cache_write_input_tokens": usage.cache_write,
        "output_tokens": usage.output,
        "reasoning_output_tokens": 0,
        "total_tokens": usage.input + usage.output,
    }
