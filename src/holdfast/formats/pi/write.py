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
from holdfast.formats.common.lines import clean, edited, fields, iso
from holdfast.formats.common.writing import Source, bare
from holdfast.formats.pi.messages import APIS, MESSAGE, encode_message
from holdfast.formats.pi.read import API, LINE, NOTE
from holdfast.messages.message import Message
from holdfast.messages.sized_message import Slot
from holdfast.providers.common.json.raw_json import write as to_json
from holdfast.state.entries import BranchSummary, Compaction, Entry, Label, Note, Said

VERSION = 3


def write(recording: Recording) -> bytes:
    """Return ``recording`` as JSON lines, the header first; sub-agents' conversations have no place in the file."""
    source = Source(recording)
    return b"".join(line + b"\n" for line in (_header(source), *_lines(source)))


def _header(source: Source) -> bytes:
    recording = source.recording
    for entry in source.order:
        if isinstance(entry.body, Note) and entry.body.reason == f"{NOTE}session":
            version = LINE.of(clean(entry.body.raw)).version or 1
            return edited(entry.body.raw, {"version": max(version, VERSION)})
    at = next((entry.at for entry in source.order if entry.at is not None), None)
    head = {"type": "session", "version": VERSION, "id": recording.session or "session", "timestamp": iso(at)}
    return to_json(head | {"cwd": recording.cwd})


def _lines(source: Source) -> Iterator[bytes]:
    last: str | None = None
    for entry in source.order:
        above = source.above(entry)
        source.written[entry.id] = above
        for line in _entry(source, entry):
            source.written[entry.id] = last = LINE.of(clean(line)).id or source.written[entry.id]
            yield line
    leaf = source.known.get(source.recording.leaf or "")
    if leaf is not None and source.written.get(leaf.id) not in (None, last):
        told = {"type": "custom", "id": f"{leaf.id}-leaf", "parentId": source.written[leaf.id]}
        yield to_json(told | {"timestamp": iso(leaf.at), "customType": "holdfast.leaf", "data": None})


def _entry(source: Source, entry: Entry) -> Iterator[bytes]:
    """Yield the lines of ``entry``, each behind the one before."""
    body, above = entry.body, source.above(entry)
    if isinstance(body, Said) and body.slot.api == API and body.origin is not None:
        yield edited(_as_it_came(bytes(body.origin), entry.id, above), source.mark(entry))
    elif isinstance(body, Said):
        yield from _said(source, entry, body.slot)
    elif isinstance(body, Note):
        kind = body.reason.removeprefix(NOTE)
        if body.reason.startswith(NOTE) and kind not in ("session", "compaction", "branch_summary"):
            yield _as_it_came(body.raw, entry.id, above)
    elif isinstance(body, Compaction):
        yield _compaction(source, entry, body)
    elif isinstance(body, BranchSummary):
        told = {"fromId": body.source, "summary": body.slot.message.text}
        line = source.note(entry, f"{NOTE}branch_summary")
        yield _as_it_came(line, entry.id, above) if line else to_json(_head(source, entry, "branch_summary") | told)
    elif isinstance(body, Label):
        told = {"targetId": source.written.get(body.target) or body.target}
        yield to_json(_head(source, entry, "label") | told | ({"label": body.name} if body.name else {}))


def _as_it_came(line: bytes, id_: str, above: str | None) -> bytes:
    """Return a line of a pi session with its place in the tree, untouched if it has that place."""
    if b'"hookMessage"' in line and MESSAGE.of(message := LINE.of(clean(line)).message).role == "hookMessage":
        line = edited(line, {"message": fields(message) | {"role": "custom"}})
    return edited(line, {"id": id_, "parentId": above})


def _head(source: Source, entry: Entry, kind: str) -> dict[str, Any]:
    return {"type": kind, "id": entry.id, "parentId": source.above(entry), "timestamp": iso(entry.at)}


def _said(source: Source, entry: Entry, slot: Slot) -> Iterator[bytes]:
    """Yield a message as lines: one for each tool result, one for the rest."""
    above, id_ = source.above(entry), entry.id
    for number, message in enumerate(encode_message(bare(slot, API))):
        id_ = entry.id if not number else f"{entry.id}-{number}"
        told = message | (_answered(source, entry, slot) if slot.message.role == "assistant" else {})
        head = _head(source, entry, "message") | {"id": id_, "parentId": above}
        yield to_json(head | {"message": told | {"timestamp": entry.at or 0}} | source.mark(entry))
        above = id_


def _answered(source: Source, entry: Entry, slot: Slot) -> dict[str, Any]:
    """Return what pi records of a model call."""
    answer = source.answer(entry)
    usage = answer.usage
    api = source.recording.api or slot.api
    fresh = max(0, usage.input - usage.cache_read - usage.cache_write)
    cost = dict.fromkeys(("input", "output", "cacheRead", "cacheWrite", "total"), 0)
    told = {"input": fresh, "output": usage.output, "cacheRead": usage.cache_read, "cacheWrite": usage.cache_write}
    return {
        "api": next((theirs for theirs, ours in APIS.items() if ours == api), api),
        "provider": "",
        "model": source.model(entry),
        "usage": told | {"totalTokens": usage.input + usage.output, "cost": cost},
        "stopReason": _STOPS.get(answer.stop, answer.stop) or ("toolUse" if slot.message.calls else "stop"),
    }


_STOPS = {"end_turn": "stop", "stop_sequence": "stop", "tool_use": "toolUse", "max_tokens": "length", "synthetic": ""}
"""Stop reasons of the Messages API in pi's words."""


def _compaction(source: Source, entry: Entry, body: Compaction) -> bytes:
    """Return a compaction as pi's line; it names itself as the first kept entry where nothing was kept."""
    kept = source.kept(entry)
    first = source.written.get(kept[0].id) if kept else entry.id
    line = source.note(entry, f"{NOTE}compaction")
    if line:
        old: dict[str, Raw] = fields(clean(line))
        index = old.pop("firstKeptEntryIndex", None)
        if index is not None:
            line = to_json(old | {"firstKeptEntryId": first})
        return _as_it_came(line, entry.id, source.above(entry))
    text = (body.summary or Message("user")).text
    told = {"summary": text, "firstKeptEntryId": first, "tokensBefore": body.before, "fromHook": True}
    return to_json(_head(source, entry, "compaction") | told)
