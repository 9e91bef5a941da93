"""A log as a Codex rollout.

Lines that came from one go out as they came. A rollout is a line, not a tree: of a tree that came from elsewhere the
way to the leaf is written. A compaction of ours is a ``compacted`` line with the whole new history.
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
from holdfast.formats.common.lines import format_iso_time
from holdfast.formats.common.writing import WritableRecording, make_stable_uuid, split_origin_lines, strip_foreign_raw
from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.common.json.raw_json import encode_json as to_json
from holdfast.state.entries import BranchSummaryEntry, CompactionEntry, Entry, MessageEntry, NoteEntry, Usage

SESSION_META_NOTE = f"{CODEX_NOTE_PREFIX}session_meta"


def write_codex(recording: Recording) -> bytes:
    """Return ``recording`` as JSON lines, ``session_meta`` first."""
    message_entries = [entry for entry in recording.entries if isinstance(entry.body, MessageEntry)]
    way = {entry.id for entry in get_branch_entries(recording)}
    whole = (
        any(isinstance(entry.body, MessageEntry) and _has_codex_origin(entry.body) for entry in message_entries)
        and message_entries[-1].id in way
    )
    written_recording = recording if whole else replace(recording, entries=tuple(get_branch_entries(recording)))
    writer = _CodexWriter(WritableRecording(written_recording))
    return b"".join(line + b"\n" for line in (_encode_codex_header(writer.source), *writer.iterate_lines()))


def _has_codex_origin(body: MessageEntry) -> bool:
    return body.sized_message.api == API_NAME and body.recording_envelope is not None


def _encode_codex_header(source: WritableRecording) -> bytes:
    for entry in source.order:
        if isinstance(entry.body, NoteEntry) and entry.body.reason == SESSION_META_NOTE:
            return entry.body.raw
    at = format_iso_time(next((entry.time_ms for entry in source.order if entry.time_ms is not None), None))
    id_ = make_stable_uuid(source.recording.session)
    payload = {"id": id_, "timestamp": at, "cwd": source.recording.cwd, "originator": "holdfast", "cli_version": "0"}
    return _encode_codex_line(at, "session_meta", payload | {"source": "exec", "instructions": None})


def _encode_codex_line(
    timestamp: str, kind: str, payload: object, extra_fields: Mapping[str, object] = MappingProxyType({})
) -> bytes:
    return to_json({"timestamp": timestamp, "type": kind, "payload": payload, **extra_fields})


class _CodexWriter:
    """A rollout being written: the model in force and the tokens so far."""

    def __init__(self, source: WritableRecording) -> None:
        self.source = source
        self.model = ""
        self.total = Usage()

    def iterate_lines(self) -> Iterator[bytes]:
        """Yield the lines of every entry."""
        for entry in self.source.order:
            body = entry.body
            if isinstance(body, MessageEntry | BranchSummaryEntry):
                yield from self._write_message(entry, body)
            elif (
                isinstance(body, NoteEntry)
                and body.reason.startswith(CODEX_NOTE_PREFIX)
                and body.reason != SESSION_META_NOTE
            ):
                yield body.raw
            elif isinstance(body, CompactionEntry) and not self.source.get_note_before(
                entry, f"{CODEX_NOTE_PREFIX}compacted"
            ):
                yield self._encode_compacted(entry, body)

    def _write_message(self, entry: Entry, body: MessageEntry | BranchSummaryEntry) -> Iterator[bytes]:
        at, is_answer = format_iso_time(entry.time_ms), body.sized_message.message.role == "assistant"
        model = self.source.get_answer_model(entry) if is_answer else ""
        if model and model != self.model:
            self.model = model
            yield _encode_codex_line(at, "turn_context", {"cwd": self.source.recording.cwd, "model": model})
        if isinstance(body, MessageEntry) and _has_codex_origin(body) and body.recording_envelope is not None:
            yield from split_origin_lines(body.recording_envelope)
        else:
            for item in _encode_message_items(body.sized_message):
                yield _encode_codex_line(at, "response_item", Raw(item))
        if is_answer:
            yield _encode_codex_line(
                at, "event_msg", self._make_end_event(entry), self.source.get_stale_usage_field(entry)
            )

    def _make_end_event(self, entry: Entry) -> dict[str, Any]:
        """Return the event that ends an answer: its usage, that it was cut off, or that it is complete."""
        answer = self.source.get_writable_answer(entry)
        if answer.stop_reason in UNFINISHED_STOPS:
            return {"type": "turn_aborted", "reason": "interrupted"}
        if not answer.usage.input:
            return {"type": "task_complete", "last_agent_message": None}
        old, new = self.total, answer.usage
        self.total = Usage(
            old.input + new.input,
            old.output + new.output,
            old.cache_read + new.cache_read,
            old.cache_write + new.cache_write,
        )
        info = {"total_token_usage": _encode_codex_usage(self.total), "last_token_usage": _encode_codex_usage(new)}
        return {"type": "token_count", "info": info, "rate_limits": None}

    def _encode_compacted(self, entry: Entry, body: CompactionEntry) -> bytes:
        """Return a compaction with the new history: system messages, the summary, what was kept."""
        summary = body.summary or Message("user")
        before = [
            item_entry
            for item_entry in get_branch_entries(self.source.recording, entry.id)
            if isinstance(item_entry.body, MessageEntry)
        ]
        system_entries = [
            item_entry
            for item_entry in before
            if isinstance(item_entry.body, MessageEntry) and item_entry.body.sized_message.message.role == "system"
        ]
        kept_entries = self.source.get_kept_messages(entry)
        items = [
            item
            for item_entry in system_entries
            if item_entry not in kept_entries
            for item in _encode_entry_items(item_entry)
        ]
        items += encode_codex_items(summary)
        items += [item for item_entry in kept_entries for item in _encode_entry_items(item_entry)]
        payload = {"message": summary.text, "replacement_history": [Raw(item) for item in items]}
        return _encode_codex_line(format_iso_time(entry.time_ms), "compacted", payload)


def _encode_entry_items(entry: Entry) -> list[bytes]:
    body = entry.body
    return _encode_message_items(body.sized_message) if isinstance(body, MessageEntry | BranchSummaryEntry) else []


def _encode_message_items(message: SizedMessage) -> list[bytes]:
    """Return the items that say what ``message`` says."""
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
