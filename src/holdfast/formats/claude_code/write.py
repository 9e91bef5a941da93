"""A log as a Claude Code transcript.

Lines that came from one go out as they came; only a link to a line that is not written (progress, hooks) is led on to
the message before. Everything else is written anew. A compaction of ours is a ``compact_boundary`` line, which names
the messages that were kept, and a summary line. Claude Code goes on from the newest message, so what hangs on the leaf
(after a step back) is not written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import Raw, Struct

from holdfast.formats.base import Recording
from holdfast.formats.claude_code.read import API, COMPACT_BOUNDARY_NOTE, SYSTEM_MARK
from holdfast.formats.common.lines import (
    LenientDecoder,
    decode_raw_fields,
    format_iso_time,
    replace_bad_escapes,
    set_json_fields,
)
from holdfast.formats.common.writing import (
    WritableRecording,
    drop_entries_after_leaf,
    make_stable_uuid,
    split_origin_lines,
    strip_foreign_raw,
)
from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.anthropic import messages as anthropic
from holdfast.providers.anthropic.cache_control import strip_message_breakpoints
from holdfast.providers.common.json.raw_json import encode_json as to_json
from holdfast.state.entries import (
    TRIGGER_AUTO,
    TRIGGER_MANUAL,
    BranchSummaryEntry,
    CompactionEntry,
    Entry,
    MessageEntry,
    NoteEntry,
    Usage,
)


class _ClaudeLink(Struct, rename="camel"):
    uuid: str | None = None
    parent_uuid: str | None = None
    logical_parent_uuid: str | None = None

    @property
    def parent(self) -> str | None:
        """The link that counts: a compaction's is the logical one."""
        return self.parent_uuid if self.logical_parent_uuid is None else self.logical_parent_uuid


_CLAUDE_LINK = LenientDecoder(_ClaudeLink)


def write_claude_code(recording: Recording) -> bytes:
    """Return ``recording`` with its sub-agents' conversations, which stand first, as JSON lines."""
    lines = [line for chain in (*recording.sidechains, recording) for line in _iterate_claude_lines(chain)]
    return b"".join(line + b"\n" for line in lines)


class _ClaudeWriter:
    """One conversation being written."""

    def __init__(self, recording: Recording) -> None:
        self.source = WritableRecording(drop_entries_after_leaf(recording))
        links = [link for entry in self.source.order for link in _get_entry_links(entry)]
        self.uuid_counts = Counter(link.uuid for link in links)
        """How many of the lines that go out as they came have a uuid."""
        self.parents = {link.uuid: link.parent for link in links}
        self.used_uuids: set[str] = set()
        """The uuids written so far."""
        self._valid_links: set[str] = set()
        self._invalid_links: set[str] = set()

    def is_valid_link(self, uuid: str) -> bool:
        """Return whether a link to ``uuid`` may stay: it means one line, written already or to be hung on one that is.

        So no link leads to two lines or in a circle. Each link is followed once.
        """
        trail: list[str] = []
        at: str | None = uuid
        while (
            at is not None and self.uuid_counts[at] == 1 and at not in self._valid_links and at not in self.used_uuids
        ):
            if at in self._invalid_links:
                return False
            self._invalid_links.add(at)
            trail.append(at)
            at = self.parents[at]
        if at is None or self.uuid_counts[at] != 1:
            return False
        self._invalid_links.difference_update(trail)
        self._valid_links.update(trail)
        return True

    def make_common_fields(self, entry: Entry, kind: str, uuid: str) -> dict[str, Any]:
        """Return the fields that every line has."""
        recording = self.source.recording
        return {
            "parentUuid": self.source.get_parent_tool_id(entry),
            "isSidechain": False,
            "userType": "external",
            "cwd": recording.cwd,
            "sessionId": make_stable_uuid(recording.session),
            "version": "2.0.0",
            "gitBranch": "",
            "type": kind,
            "uuid": uuid,
            "timestamp": format_iso_time(entry.time_ms),
        }


def _iterate_claude_lines(recording: Recording) -> Iterator[bytes]:
    writer = _ClaudeWriter(recording)
    for entry in writer.source.order:
        last, lines = _write_claude_entry(writer, entry)
        writer.source.tool_ids[entry.id] = last
        yield from lines


def _write_claude_entry(writer: _ClaudeWriter, entry: Entry) -> tuple[str | None, Sequence[bytes]]:
    """Return the lines of ``entry``, and the uuid that what follows hangs on."""
    body, above = entry.body, writer.source.get_parent_tool_id(entry)
    if (
        isinstance(body, MessageEntry)
        and body.recording_envelope is not None
        and _has_claude_links(body.recording_envelope)
    ):
        return _copy_claude_lines(writer, entry, split_origin_lines(body.recording_envelope))
    if isinstance(body, MessageEntry | BranchSummaryEntry):
        uuid = make_stable_uuid(entry.id)
        return uuid, [_encode_claude_message(writer, entry, body.sized_message, uuid)]
    if isinstance(body, NoteEntry) and body.reason == COMPACT_BOUNDARY_NOTE:
        return _copy_claude_lines(writer, entry, body.raw.split(b"\n"))
    if isinstance(body, CompactionEntry) and not writer.source.get_note_before(entry, COMPACT_BOUNDARY_NOTE):
        return _encode_claude_compaction(writer, entry, body)
    return above, []


def _get_entry_links(entry: Entry) -> list[_ClaudeLink]:
    body = entry.body
    if isinstance(body, NoteEntry) and body.reason == COMPACT_BOUNDARY_NOTE:
        return [_CLAUDE_LINK.decode_or_default(line) for line in body.raw.split(b"\n")]
    if (
        isinstance(body, MessageEntry)
        and body.recording_envelope is not None
        and _has_claude_links(body.recording_envelope)
    ):
        return [
            _CLAUDE_LINK.decode_or_default(replace_bad_escapes(line))
            for line in split_origin_lines(body.recording_envelope)
        ]
    return []


def _has_claude_links(origin: Raw) -> bool:
    return b'"uuid"' in bytes(origin) and b'"parentUuid"' in bytes(origin)


def _copy_claude_lines(writer: _ClaudeWriter, entry: Entry, lines: Iterable[bytes]) -> tuple[str | None, list[bytes]]:
    """Return lines as they came; a link that would lead nowhere, to two lines or in a circle goes to the line above."""
    out: list[bytes] = []
    above = writer.source.get_parent_tool_id(entry)
    for line in lines:
        link = _CLAUDE_LINK.decode_or_default(replace_bad_escapes(line))
        field = "parentUuid" if link.logical_parent_uuid is None else "logicalParentUuid"
        parent = link.parent
        new = writer.source.get_stale_usage_field(entry)
        if parent is not None and not writer.is_valid_link(parent):
            new[field] = above
        uuid = link.uuid
        if uuid is None or uuid in writer.used_uuids:
            new["uuid"] = uuid = make_stable_uuid(f"{entry.id}-{len(out)}")
        writer.used_uuids.add(uuid)
        out.append(set_json_fields(line, new))
        above = uuid
    return above, out


def _encode_claude_message(writer: _ClaudeWriter, entry: Entry, sized_message: SizedMessage, uuid: str) -> bytes:
    """Return a message as a line of its own."""
    message = sized_message.message
    if message.role == "system":
        system_fields = {"subtype": "informational", "level": "info", "content": message.text, "holdfast": SYSTEM_MARK}
        return to_json(writer.make_common_fields(entry, "system", uuid) | system_fields)
    wire = _encode_wire_message(sized_message)
    if message.role != "assistant":
        return to_json(writer.make_common_fields(entry, "user", uuid) | {"message": wire})
    answer = writer.source.get_writable_answer(entry)
    api = {
        "id": f"msg_{uuid.replace('-', '')[:24]}",
        "type": "message",
        "role": "assistant",
        "model": writer.source.get_answer_model(entry) or "unknown",
        "content": _wrap_text_block(wire.get("content", [])),
        "stop_reason": answer.stop_reason or None,
        "stop_sequence": None,
        "usage": _encode_anthropic_usage(answer.usage),
    }
    return to_json(
        writer.make_common_fields(entry, "assistant", uuid)
        | {"message": api}
        | writer.source.get_stale_usage_field(entry)
    )


def _encode_anthropic_usage(usage: Usage) -> dict[str, Any]:
    """Return the usage of an answer as the Messages API tells it."""
    counts: dict[str, Any] = {
        "input_tokens": max(0, usage.input - usage.cache_read - usage.cache_write),
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": usage.output,
    }
    hour = usage.cache_write_1h
    cache_counts = {"ephemeral_5m_input_tokens": usage.cache_write - hour, "ephemeral_1h_input_tokens": hour}
    return counts | ({"cache_creation": cache_counts} if hour else {})


def _encode_wire_message(message: SizedMessage) -> dict[str, Any]:
    """Return the message as the Messages API has it, role and content: no transcript has cache breakpoints."""
    raw = bytes(message.raw) if message.api == API and message.raw is not None else None
    wire_messages = [raw] if raw is not None else anthropic.encode_message(strip_foreign_raw(message, API))
    message_fields: dict[str, Any] = (
        dict(decode_raw_fields(strip_message_breakpoints(bytes(wire_messages[0])))) if wire_messages else {}
    )
    role = "assistant" if message.message.role == "assistant" else "user"
    return {"role": role, "content": message_fields.get("content", [])}


def _wrap_text_block(content: object) -> object:
    text = bytes(content) if isinstance(content, Raw) else b""
    return [{"type": "text", "text": content}] if text.startswith(b'"') else content


def _encode_claude_compaction(
    writer: _ClaudeWriter, entry: Entry, body: CompactionEntry
) -> tuple[str | None, list[bytes]]:
    """Return a compaction as a boundary and a summary line."""
    boundary, summary = make_stable_uuid(f"{entry.id}+boundary"), make_stable_uuid(entry.id)
    kept_uuids = _get_kept_uuids(writer, entry)
    trigger = body.trigger if body.trigger == TRIGGER_MANUAL else TRIGGER_AUTO  # Claude Code knows these two words
    metadata: dict[str, Any] = {"trigger": trigger, "preTokens": body.tokens_before, "postTokens": body.tokens_after}
    if kept_uuids:
        metadata["preservedSegment"] = {"headUuid": kept_uuids[0], "anchorUuid": summary, "tailUuid": kept_uuids[-1]}
        metadata["preservedMessages"] = {"anchorUuid": summary, "uuids": kept_uuids, "allUuids": kept_uuids}
    head = writer.make_common_fields(entry, "system", boundary)
    head = {"parentUuid": None, "logicalParentUuid": head.pop("parentUuid")} | head
    head |= {"subtype": "compact_boundary", "content": "Conversation compacted", "isMeta": False, "level": "info"}
    text = (body.summary or Message("user")).text
    tail = writer.make_common_fields(entry, "user", summary) | {"parentUuid": boundary}
    tail |= {"message": {"role": "user", "content": text}, "isVisibleInTranscriptOnly": True, "isCompactSummary": True}
    return summary, [to_json(head | {"compactMetadata": metadata}), to_json(tail)]


def _get_kept_uuids(writer: _ClaudeWriter, entry: Entry) -> list[str]:
    """Return the uuids of the lines that hold the kept messages."""
    out: list[str] = []
    for kept_entry in writer.source.get_kept_messages(entry):
        uuids = [link.uuid for link in _get_entry_links(kept_entry) if link.uuid is not None]
        out += uuids or [uuid for uuid in [writer.source.tool_ids.get(kept_entry.id)] if uuid is not None]
    return out
