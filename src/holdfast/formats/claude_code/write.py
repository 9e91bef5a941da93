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
from holdfast.formats.claude_code.read import API, LINES, OURS
from holdfast.formats.common.lines import Shape, clean, edited, fields, iso
from holdfast.formats.common.writing import Source, bare, lines_of, uuid_of, without_later
from holdfast.messages.message import Message
from holdfast.messages.sized_message import Slot
from holdfast.providers.anthropic import messages as anthropic
from holdfast.providers.anthropic.cache_control import unmarked
from holdfast.providers.common.json.raw_json import write as to_json
from holdfast.state.entries import AUTO, MANUAL, BranchSummary, Compaction, Entry, Note, Said, Usage


class _Link(Struct, rename="camel"):
    uuid: str | None = None
    parent_uuid: str | None = None
    logical_parent_uuid: str | None = None

    @property
    def parent(self) -> str | None:
        """The link that counts: a compaction's is the logical one."""
        return self.parent_uuid if self.logical_parent_uuid is None else self.logical_parent_uuid


_LINK = Shape(_Link)


def write(recording: Recording) -> bytes:
    """Return ``recording`` with its sub-agents' conversations, which stand first, as JSON lines."""
    lines = [line for chain in (*recording.sidechains, recording) for line in _lines(chain)]
    return b"".join(line + b"\n" for line in lines)


class _Writer:
    """One conversation being written."""

    def __init__(self, recording: Recording) -> None:
        self.source = Source(without_later(recording))
        links = [link for entry in self.source.order for link in _links(entry)]
        self.there = Counter(link.uuid for link in links)
        """How many of the lines that go out as they came have a uuid."""
        self.parents = {link.uuid: link.parent for link in links}
        self.used: set[str] = set()
        """The uuids written so far."""
        self._sound: set[str] = set()
        self._loose: set[str] = set()

    def stands(self, uuid: str) -> bool:
        """Return whether a link to ``uuid`` may stay: it means one line, written already or to be hung on one that is.

        So no link leads to two lines or in a circle. Each link is followed once.
        """
        trail: list[str] = []
        at: str | None = uuid
        while at is not None and self.there[at] == 1 and at not in self._sound and at not in self.used:
            if at in self._loose:
                return False
            self._loose.add(at)
            trail.append(at)
            at = self.parents[at]
        if at is None or self.there[at] != 1:
            return False
        self._loose.difference_update(trail)
        self._sound.update(trail)
        return True

    def common(self, entry: Entry, kind: str, uuid: str) -> dict[str, Any]:
        """Return the fields that every line has."""
        recording = self.source.recording
        return {
            "parentUuid": self.source.above(entry),
            "isSidechain": False,
            "userType": "external",
            "cwd": recording.cwd,
            "sessionId": uuid_of(recording.session),
            "version": "2.0.0",
            "gitBranch": "",
            "type": kind,
            "uuid": uuid,
            "timestamp": iso(entry.at),
        }


def _lines(recording: Recording) -> Iterator[bytes]:
    writer = _Writer(recording)
    for entry in writer.source.order:
        last, lines = _entry(writer, entry)
        writer.source.written[entry.id] = last
        yield from lines


def _entry(writer: _Writer, entry: Entry) -> tuple[str | None, Sequence[bytes]]:
    """Return the lines of ``entry``, and the uuid that what follows hangs on."""
    body, above = entry.body, writer.source.above(entry)
    if isinstance(body, Said) and body.origin is not None and _is_ours(body.origin):
        return _as_it_came(writer, entry, lines_of(body.origin))
    if isinstance(body, Said | BranchSummary):
        uuid = uuid_of(entry.id)
        return uuid, [_said(writer, entry, body.slot, uuid)]
    if isinstance(body, Note) and body.reason == LINES:
        return _as_it_came(writer, entry, body.raw.split(b"\n"))
    if isinstance(body, Compaction) and not writer.source.note(entry, LINES):
        return _compaction(writer, entry, body)
    return above, []


def _links(entry: Entry) -> list[_Link]:
    body = entry.body
    if isinstance(body, Note) and body.reason == LINES:
        return [_LINK.of(line) for line in body.raw.split(b"\n")]
    if isinstance(body, Said) and body.origin is not None and _is_ours(body.origin):
        return [_LINK.of(clean(line)) for line in lines_of(body.origin)]
    return []


def _is_ours(origin: Raw) -> bool:
    return b'"uuid"' in bytes(origin) and b'"parentUuid"' in bytes(origin)


def _as_it_came(writer: _Writer, entry: Entry, lines: Iterable[bytes]) -> tuple[str | None, list[bytes]]:
    """Return lines as they came; a link that would lead nowhere, to two lines or in a circle goes to the line above."""
    out: list[bytes] = []
    above = writer.source.above(entry)
    for line in lines:
        link = _LINK.of(clean(line))
        field = "parentUuid" if link.logical_parent_uuid is None else "logicalParentUuid"
        parent = link.parent
        new = writer.source.mark(entry)
        if parent is not None and not writer.stands(parent):
            new[field] = above
        uuid = link.uuid
        if uuid is None or uuid in writer.used:
            new["uuid"] = uuid = uuid_of(f"{entry.id}-{len(out)}")
        writer.used.add(uuid)
        out.append(edited(line, new))
        above = uuid
    return above, out


def _said(writer: _Writer, entry: Entry, slot: Slot, uuid: str) -> bytes:
    """Return a message as a line of its own."""
    message = slot.message
    if message.role == "system":
        told = {"subtype": "informational", "level": "info", "content": message.text, "holdfast": OURS}
        return to_json(writer.common(entry, "system", uuid) | told)
    wire = _wire(slot)
    if message.role != "assistant":
        return to_json(writer.common(entry, "user", uuid) | {"message": wire})
    answer = writer.source.answer(entry)
    api = {
        "id": f"msg_{uuid.replace('-', '')[:24]}",
        "type": "message",
        "role": "assistant",
        "model": writer.source.model(entry) or "unknown",
        "content": _as_blocks(wire.get("content", [])),
        "stop_reason": answer.stop or None,
        "stop_sequence": None,
        "usage": _counts(answer.usage),
    }
    return to_json(writer.common(entry, "assistant", uuid) | {"message": api} | writer.source.mark(entry))


def _counts(usage: Usage) -> dict[str, Any]:
    """Return the usage of an answer as the Messages API tells it."""
    told: dict[str, Any] = {
        "input_tokens": max(0, usage.input - usage.cache_read - usage.cache_write),
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": usage.output,
    }
    hour = usage.cache_write_1h
    kept = {"ephemeral_5m_input_tokens": usage.cache_write - hour, "ephemeral_1h_input_tokens": hour}
    return told | ({"cache_creation": kept} if hour else {})


def _wire(slot: Slot) -> dict[str, Any]:
    """Return the message as the Messages API has it, role and content: no transcript has cache breakpoints."""
    raw = bytes(slot.raw) if slot.api == API and slot.raw is not None else None
    encoded = [raw] if raw is not None else anthropic.encode(bare(slot, API))
    found: dict[str, Any] = dict(fields(unmarked(bytes(encoded[0])))) if encoded else {}
    role = "assistant" if slot.message.role == "assistant" else "user"
    return {"role": role, "content": found.get("content", [])}


def _as_blocks(content: object) -> object:
    text = bytes(content) if isinstance(content, Raw) else b""
    return [{"type": "text", "text": content}] if text.startswith(b'"') else content


def _compaction(writer: _Writer, entry: Entry, body: Compaction) -> tuple[str | None, list[bytes]]:
    """Return a compaction as a boundary and a summary line."""
    boundary, summary = uuid_of(f"{entry.id}+boundary"), uuid_of(entry.id)
    kept = _kept(writer, entry)
    trigger = body.trigger if body.trigger == MANUAL else AUTO  # Claude Code knows these two words
    told: dict[str, Any] = {"trigger": trigger, "preTokens": body.before, "postTokens": body.after}
    if kept:
        told["preservedSegment"] = {"headUuid": kept[0], "anchorUuid": summary, "tailUuid": kept[-1]}
        told["preservedMessages"] = {"anchorUuid": summary, "uuids": kept, "allUuids": kept}
    head = writer.common(entry, "system", boundary)
    head = {"parentUuid": None, "logicalParentUuid": head.pop("parentUuid")} | head
    head |= {"subtype": "compact_boundary", "content": "Conversation compacted", "isMeta": False, "level": "info"}
    text = (body.summary or Message("user")).text
    tail = writer.common(entry, "user", summary) | {"parentUuid": boundary}
    tail |= {"message": {"role": "user", "content": text}, "isVisibleInTranscriptOnly": True, "isCompactSummary": True}
    return summary, [to_json(head | {"compactMetadata": told}), to_json(tail)]


def _kept(writer: _Writer, entry: Entry) -> list[str]:
    """Return the uuids of the lines that hold the kept messages."""
    out: list[str] = []
    for one in writer.source.kept(entry):
        uuids = [link.uuid for link in _links(one) if link.uuid is not None]
        out += uuids or [uuid for uuid in [writer.source.written.get(one.id)] if uuid is not None]
    return out
