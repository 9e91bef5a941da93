"""Writer of Claude Code transcripts.

Lines that came from a transcript are copied; only a link to a line that is not written (progress, hooks) is
changed, to the message before. Everything else is encoded anew. A compaction of ours becomes a ``compact_boundary``
line, which names the messages that were kept, and a summary line. Claude Code continues from the newest message, so
descendants of the leaf (after an undo) are not written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import Raw, Struct

from holdfast.formats.base import Recording
from holdfast.formats.claude_code.microcompact import MICROCOMPACT_NOTE
from holdfast.formats.claude_code.read import API, COMPACT_BOUNDARY_NOTE, QUEUED_MARK, SYSTEM_MARK
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
        """The link that counts: a compaction is linked by its logical parent."""
        if self.logical_parent_uuid is None:
            return self.parent_uuid
        return self.logical_parent_uuid


class _QueueLine(Struct):
    type: str = ""


_CLAUDE_LINK = LenientDecoder(_ClaudeLink)
_QUEUE_LINE = LenientDecoder(_QueueLine)


def write_claude_code(recording: Recording) -> bytes:
    """Return ``recording`` as JSON lines, the conversations of its sub-agents first."""
    lines: list[bytes] = []
    # The main conversation last: the tool continues from the end of the file.
    for conversation in (*recording.sidechains, recording):
        lines += _iterate_claude_lines(conversation)
    return b"".join(line + b"\n" for line in lines)


class _ClaudeWriter:
    """One conversation being written."""

    def __init__(self, recording: Recording) -> None:
        self.source = WritableRecording(drop_entries_after_leaf(recording))
        links: list[_ClaudeLink] = []
        for entry in self.source.order:
            links += _get_entry_links(entry)
        self.uuid_counts = Counter(link.uuid for link in links)
        """For each uuid, the number of copied lines that have it."""
        self.parents = {link.uuid: link.parent for link in links}
        self.used_uuids: set[str] = set()
        """Uuids written so far."""
        self.inserted_uuids: set[str | None] = set()
        """Uuids of lines written for words of the user that stood in no line with links: whatever follows them links to
        a line before them."""
        self._valid_links: set[str] = set()
        self._invalid_links: set[str] = set()

    def is_valid_link(self, uuid: str) -> bool:
        """Return whether a link to ``uuid`` may stay: it leads to one line, which is or will be linked to a root.

        Claude Code follows links without a check, so one that leads to two lines or in a circle must not be written.
        Each link is followed once; the results are kept.
        """
        trail: list[str] = []
        link: str | None = uuid
        while link is not None and self.uuid_counts[link] == 1:
            if link in self._valid_links or link in self.used_uuids:
                break
            if link in self._invalid_links:
                return False
            self._invalid_links.add(link)
            trail.append(link)
            link = self.parents[link]
        if link is None or self.uuid_counts[link] != 1:
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
        last_uuid, lines = _write_claude_entry(writer, entry)
        writer.source.tool_ids[entry.id] = last_uuid
        yield from lines


def _write_claude_entry(writer: _ClaudeWriter, entry: Entry) -> tuple[str | None, Sequence[bytes]]:
    """Return the uuid to which the next entry links, and the lines of ``entry``."""
    body = entry.body
    origin_lines = _get_claude_origin_lines(entry)
    if origin_lines:
        return _copy_claude_lines(writer, entry, origin_lines)
    if isinstance(body, MessageEntry | BranchSummaryEntry):
        uuid = make_stable_uuid(entry.id)
        if isinstance(body, MessageEntry) and _is_queued_prompt(body.recording_envelope):
            writer.inserted_uuids.add(uuid)
        return uuid, [_encode_claude_message(writer, entry, body.sized_message, uuid)]
    if isinstance(body, CompactionEntry) and not writer.source.get_note_before(entry, COMPACT_BOUNDARY_NOTE):
        return _encode_claude_compaction(writer, entry, body)
    return writer.source.get_parent_tool_id(entry), []


def _get_entry_links(entry: Entry) -> list[_ClaudeLink]:
    """Return the ids and links of the transcript lines that ``entry`` came from."""
    return [_CLAUDE_LINK.decode_or_default(replace_bad_escapes(line)) for line in _get_claude_origin_lines(entry)]


def _get_claude_origin_lines(entry: Entry) -> list[bytes]:
    """Return the transcript lines that ``entry`` came from, or an empty list if it came from elsewhere."""
    body = entry.body
    if isinstance(body, NoteEntry) and body.reason in (COMPACT_BOUNDARY_NOTE, MICROCOMPACT_NOTE):
        return body.raw.split(b"\n")
    origin = body.recording_envelope if isinstance(body, MessageEntry) else None
    if origin is not None and _has_claude_links(origin):
        return split_origin_lines(origin)
    return []


def _has_claude_links(origin: Raw) -> bool:
    return b'"uuid"' in bytes(origin) and b'"parentUuid"' in bytes(origin)


def _is_queued_prompt(origin: Raw | None) -> bool:
    """Return whether a message was read from the queue of the tool, and not from a line with links."""
    return origin is not None and _QUEUE_LINE.decode_or_default(origin).type in ("queue-operation", "attachment")


def _copy_claude_lines(writer: _ClaudeWriter, entry: Entry, lines: Iterable[bytes]) -> tuple[str | None, list[bytes]]:
    """Return the last uuid and the lines unchanged, except for invalid links and for uuids that are taken.

    A link that leads nowhere, to two lines or in a circle goes to the line before instead.
    """
    out: list[bytes] = []
    previous_uuid = writer.source.get_parent_tool_id(entry)
    for line in lines:
        link = _CLAUDE_LINK.decode_or_default(replace_bad_escapes(line))
        new_fields = writer.source.get_stale_usage_field(entry)
        is_behind_inserted = not out and previous_uuid in writer.inserted_uuids
        # A link to a line that was never written makes the tool load only what follows it (claude-code#46603).
        if is_behind_inserted or (link.parent is not None and not writer.is_valid_link(link.parent)):
            field = "parentUuid" if link.logical_parent_uuid is None else "logicalParentUuid"
            new_fields[field] = previous_uuid
        uuid = link.uuid
        if uuid is None or uuid in writer.used_uuids:
            uuid = make_stable_uuid(f"{entry.id}-{len(out)}")
            new_fields["uuid"] = uuid
        writer.used_uuids.add(uuid)
        out.append(set_json_fields(line, new_fields))
        previous_uuid = uuid
    return previous_uuid, out


def _encode_claude_message(
    writer: _ClaudeWriter,
    entry: Entry,
    sized_message: SizedMessage,
    uuid: str,
) -> bytes:
    """Return a message as a new line."""
    message = sized_message.message
    if message.role == "system":
        # The tool has no line for system messages; the mark lets our reader tell ours from its notices.
        system_fields = {"subtype": "informational", "level": "info", "content": message.text, "holdfast": SYSTEM_MARK}
        return to_json(writer.make_common_fields(entry, "system", uuid) | system_fields)
    wire = _encode_wire_message(sized_message)
    if message.role != "assistant":
        mark = {"holdfast": QUEUED_MARK} if uuid in writer.inserted_uuids else {}
        return to_json(writer.make_common_fields(entry, "user", uuid) | {"message": wire} | mark)
    answer = writer.source.get_writable_answer(entry)
    api_message = {
        "id": f"msg_{uuid.replace('-', '')[:24]}",
        "type": "message",
        "role": "assistant",
        "model": writer.source.get_answer_model(entry) or "unknown",
        "content": _wrap_text_block(wire.get("content", [])),
        "stop_reason": answer.stop_reason or None,
        "stop_sequence": None,
        "usage": _encode_anthropic_usage(answer.usage),
    }
    fields = writer.make_common_fields(entry, "assistant", uuid) | {"message": api_message}
    return to_json(fields | writer.source.get_stale_usage_field(entry))


def _encode_anthropic_usage(usage: Usage) -> dict[str, Any]:
    """Return the usage of an answer in the fields of the Messages API."""
    counts: dict[str, Any] = {
        # ``usage.input`` counts the cached tokens too, ``input_tokens`` does not.
        "input_tokens": max(0, usage.input - usage.cache_read - usage.cache_write),
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": usage.output,
    }
    hour_tokens = usage.cache_write_1h
    if hour_tokens:
        counts["cache_creation"] = {
            "ephemeral_5m_input_tokens": usage.cache_write - hour_tokens,
            "ephemeral_1h_input_tokens": hour_tokens,
        }
    return counts


def _encode_wire_message(message: SizedMessage) -> dict[str, Any]:
    """Return role and content of the message as in the Messages API, without cache breakpoints.

    The tool sets breakpoints when it sends; no transcript has any.
    """
    if message.api == API and message.raw is not None:
        wire_messages = [bytes(message.raw)]
    else:
        wire_messages = [bytes(wire) for wire in anthropic.encode_message(strip_foreign_raw(message, API))]
    content: object = []
    if wire_messages:
        content = decode_raw_fields(strip_message_breakpoints(wire_messages[0])).get("content", [])
    role = "assistant" if message.message.role == "assistant" else "user"
    return {"role": role, "content": content}


def _wrap_text_block(content: object) -> object:
    """Return content that is a plain string as a list of one text block: the tool expects blocks in answers."""
    is_string = isinstance(content, Raw) and bytes(content).startswith(b'"')
    return [{"type": "text", "text": content}] if is_string else content


def _encode_claude_compaction(
    writer: _ClaudeWriter,
    entry: Entry,
    body: CompactionEntry,
) -> tuple[str | None, list[bytes]]:
    """Return the summary's uuid, and a compaction as its two lines: boundary and summary."""
    boundary_uuid = make_stable_uuid(f"{entry.id}+boundary")
    summary_uuid = make_stable_uuid(entry.id)
    kept_uuids = _get_kept_uuids(writer, entry)
    # Claude Code knows only these two words; ours has more triggers.
    trigger = TRIGGER_MANUAL if body.trigger == TRIGGER_MANUAL else TRIGGER_AUTO
    metadata: dict[str, Any] = {"trigger": trigger, "preTokens": body.tokens_before, "postTokens": body.tokens_after}
    if kept_uuids:
        metadata["preservedSegment"] = {
            "headUuid": kept_uuids[0],
            "anchorUuid": summary_uuid,
            "tailUuid": kept_uuids[-1],
        }
        metadata["preservedMessages"] = {
            "anchorUuid": summary_uuid,
            "uuids": kept_uuids,
            "allUuids": kept_uuids,
        }
    boundary = writer.make_common_fields(entry, "system", boundary_uuid)
    # The tool starts a request at the first line without a parent; the history stays linked by the logical parent.
    boundary = {"parentUuid": None, "logicalParentUuid": boundary.pop("parentUuid")} | boundary
    boundary |= {"subtype": "compact_boundary", "content": "Conversation compacted", "isMeta": False, "level": "info"}
    boundary["compactMetadata"] = metadata
    text = (body.summary or Message("user")).text
    # Linked to the boundary: that is how the two lines are recognized as one compaction.
    summary = writer.make_common_fields(entry, "user", summary_uuid) | {"parentUuid": boundary_uuid}
    summary |= {
        "message": {"role": "user", "content": text},
        "isVisibleInTranscriptOnly": True,
        "isCompactSummary": True,
    }
    return summary_uuid, [to_json(boundary), to_json(summary)]


def _get_kept_uuids(writer: _ClaudeWriter, entry: Entry) -> list[str]:
    """Return the uuids of the lines that hold the kept messages."""
    kept_uuids: list[str] = []
    for kept_entry in writer.source.get_kept_messages(entry):
        uuids = [link.uuid for link in _get_entry_links(kept_entry) if link.uuid is not None]
        written_uuid = writer.source.tool_ids.get(kept_entry.id)
        # A message from elsewhere has no lines of its own; the line written for it has the uuid.
        if not uuids and written_uuid is not None:
            uuids = [written_uuid]
        kept_uuids += uuids
    return kept_uuids
