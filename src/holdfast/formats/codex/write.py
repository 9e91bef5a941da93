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

from holdfast.formats.base import NO_STEP, Recording, path
from holdfast.formats.codex.items import API, encode_items
from holdfast.formats.codex.read import NOTE
from holdfast.formats.common.lines import iso
from holdfast.formats.common.writing import Source, bare, lines_of, uuid_of
from holdfast.messages.message import Message
from holdfast.messages.sized_message import Slot
from holdfast.providers.common.json.raw_json import write as to_json
from holdfast.state.entries import BranchSummary, Compaction, Entry, Note, Said, Usage

HEAD = f"{NOTE}session_meta"


def write(recording: Recording) -> bytes:
    """Return ``recording`` as JSON lines, ``session_meta`` first."""
    said = [entry for entry in recording.entries if isinstance(entry.body, Said)]
    way = {entry.id for entry in path(recording)}
    whole = any(isinstance(entry.body, Said) and _came(entry.body) for entry in said) and said[-1].id in way
    shown = recording if whole else replace(recording, entries=tuple(path(recording)))
    writer = _Writer(Source(shown))
    return b"".join(line + b"\n" for line in (_header(writer.source), *writer.lines()))


def _came(body: Said) -> bool:
    return body.slot.api == API and body.origin is not None


def _header(source: Source) -> bytes:
    for entry in source.order:
        if isinstance(entry.body, Note) and entry.body.reason == HEAD:
            return entry.body.raw
    at = iso(next((entry.at for entry in source.order if entry.at is not None), None))
    id_ = uuid_of(source.recording.session)
    told = {"id": id_, "timestamp": at, "cwd": source.recording.cwd, "originator": "holdfast", "cli_version": "0"}
    return _line(at, "session_meta", told | {"source": "exec", "instructions": None})


def _line(at: str, kind: str, payload: object, more: Mapping[str, object] = MappingProxyType({})) -> bytes:
    return to_json({"timestamp": at, "type": kind, "payload": payload, **more})


class _Writer:
    """A rollout being written: the model in force and the tokens so far."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.model = ""
        self.total = Usage()

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of every entry."""
        for entry in self.source.order:
            body = entry.body
            if isinstance(body, Said | BranchSummary):
                yield from self._said(entry, body)
            elif isinstance(body, Note) and body.reason.startswith(NOTE) and body.reason != HEAD:
                yield body.raw
            elif isinstance(body, Compaction) and not self.source.note(entry, f"{NOTE}compacted"):
                yield self._compacted(entry, body)

    def _said(self, entry: Entry, body: Said | BranchSummary) -> Iterator[bytes]:
        at, is_answer = iso(entry.at), body.slot.message.role == "assistant"
        model = self.source.model(entry) if is_answer else ""
        if model and model != self.model:
            self.model = model
            yield _line(at, "turn_context", {"cwd": self.source.recording.cwd, "model": model})
        if isinstance(body, Said) and _came(body) and body.origin is not None:
            yield from lines_of(body.origin)
        else:
            for item in _items(body.slot):
                yield _line(at, "response_item", Raw(item))
        if is_answer:
            yield _line(at, "event_msg", self._told(entry), self.source.mark(entry))

    def _told(self, entry: Entry) -> dict[str, Any]:
        """Return the event that ends an answer: its usage, that it was cut off, or that it is complete."""
        answer = self.source.answer(entry)
        if answer.stop in NO_STEP:
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
        info = {"total_token_usage": _tokens(self.total), "last_token_usage": _tokens(new)}
        return {"type": "token_count", "info": info, "rate_limits": None}

    def _compacted(self, entry: Entry, body: Compaction) -> bytes:
        """Return a compaction with the new history: system messages, the summary, what was kept."""
        summary = body.summary or Message("user")
        before = [one for one in path(self.source.recording, entry.id) if isinstance(one.body, Said)]
        pinned = [one for one in before if isinstance(one.body, Said) and one.body.slot.message.role == "system"]
        kept = self.source.kept(entry)
        items = [item for one in pinned if one not in kept for item in _items_of(one)]
        items += encode_items(summary)
        items += [item for one in kept for item in _items_of(one)]
        told = {"message": summary.text, "replacement_history": [Raw(item) for item in items]}
        return _line(iso(entry.at), "compacted", told)


def _items_of(entry: Entry) -> list[bytes]:
    body = entry.body
    return _items(body.slot) if isinstance(body, Said | BranchSummary) else []


def _items(slot: Slot) -> list[bytes]:
    """Return the items that say what ``slot`` says."""
    if slot.api == API and slot.raw is not None:
        return lines_of(slot.raw)
    return encode_items(bare(slot, API))


def _tokens(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.input,
        "cached_input_tokens": usage.cache_read,
        "cache_write_input_tokens": usage.cache_write,
        "output_tokens": usage.output,
        "reasoning_output_tokens": 0,
        "total_tokens": usage.input + usage.output,
    }
