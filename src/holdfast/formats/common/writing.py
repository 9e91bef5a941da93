"""What every writer needs of a log: its entries in an order for a file, and the facts that belong together."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from holdfast.formats.base import PAID, Recording, path
from holdfast.formats.common.lines import UNREADABLE, Shape
from holdfast.messages.message import Message, placeholder
from holdfast.messages.parts import Opaque, Part, Text, Thinking, ToolResult
from holdfast.messages.sized_message import Slot
from holdfast.state.entries import Answer, BranchSummary, Compaction, Decision, Entry, Note, Request, Said, Usage

_LIST = Decoder(list[Raw])


class Source:
    """A log to be written: what belongs to which message, and what was written for which entry."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.known = {entry.id: entry for entry in recording.entries}
        self.order = _leaf_last(recording)
        self._answers = {entry.parent: entry.body for entry in self.order if isinstance(entry.body, Answer)}
        self._short = _short(self.order)
        self.written: dict[str | None, str | None] = {None: None}
        """For each entry the tool's id that what follows it hangs on."""

    def above(self, entry: Entry) -> str | None:
        """Return the tool's id of what ``entry`` hangs on."""
        return self.written.get(entry.parent)

    def answer(self, entry: Entry) -> Answer:
        """Return the usage of a model's answer; none where it is that of a request that showed less than is written.

        Lines of a tool tell what that tool sent, whatever was decided here.
        """
        answer, body = self._answers.get(entry.id) or Answer(basis=""), entry.body
        if not self._short[entry.id] or (isinstance(body, Said) and body.origin is not None):
            return answer
        return replace(answer, usage=Usage())

    def mark(self, entry: Entry) -> dict[str, Any]:
        """Return the field that an answer has in a tool's file where its request showed other words than are there."""
        return {"holdfast": PAID} if self.answer(entry).basis == PAID else {}

    def model(self, entry: Entry) -> str:
        """Return the model that gave an answer."""
        asked = self.known.get(entry.parent or "")
        told = asked.body.model if asked is not None and isinstance(asked.body, Request) else ""
        return told or self.recording.model

    def note(self, entry: Entry, reason: str) -> bytes:
        """Return what the note before ``entry`` keeps, if there is one for ``reason``."""
        before = self.known.get(entry.parent or "")
        found = before.body if before is not None else None
        return found.raw if isinstance(found, Note) and found.reason == reason else b""

    def kept(self, entry: Entry) -> list[Entry]:
        """Return the messages that compaction ``entry`` kept, in order."""
        body = entry.body
        said = [one for one in path(self.recording, entry.id) if isinstance(one.body, Said | BranchSummary)]
        return said[body.keep :] if isinstance(body, Compaction) else []


def _short(order: Sequence[Entry]) -> dict[str | None, int]:
    """Return where the last edit ends that is in force at each entry; 0 where none is, as behind a compaction of it."""
    ends: dict[str | None, int] = {None: 0}
    for entry in order:
        end, body = ends.get(entry.parent, 0), entry.body
        if isinstance(body, Compaction) and end <= body.keep:
            end = 0
        edits = body.edits if isinstance(body, Decision | Compaction) else ()
        ends[entry.id] = max([end, *(edit.span.stop for edit in edits)])
    return ends


def without_later(recording: Recording) -> Recording:
    """Return ``recording`` without what hangs on its leaf: for tools that go on from the newest message."""
    later: set[str | None] = {recording.leaf}
    kept = []
    for entry in recording.entries:
        if entry.parent is not None and entry.parent in later:
            later.add(entry.id)
        else:
            kept.append(entry)
    return replace(recording, entries=tuple(kept))


def _leaf_last(recording: Recording) -> list[Entry]:
    """Return the entries, parents first, so that the leaf comes last: tools go on from the end of a file."""
    entries = list(recording.entries)
    way = {entry.id for entry in path(recording)}
    if not entries or not way or entries[-1].id in way:
        return entries
    known = {entry.id: entry for entry in entries}
    done: dict[str, Entry] = {}
    for entry in [entry for entry in entries if entry.id not in way] + [entry for entry in entries if entry.id in way]:
        trail: list[Entry] = []
        above: Entry | None = entry
        while above is not None and above.id not in done:
            trail.append(above)
            above = known.get(above.parent or "")
        done.update((one.id, one) for one in reversed(trail))
    return list(done.values())


def lines_of(origin: Raw) -> list[bytes]:
    """Return the lines that an entry came from."""
    text = bytes(origin)
    if not text.startswith(b"["):
        return [text]
    try:
        return [bytes(line) for line in _LIST.decode(text)]
    except UNREADABLE:  # half a surrogate pair in one of them: the standard library finds where they part
        return _parted(text)


def _parted(text: bytes) -> list[bytes]:
    """Return the objects of a list by counting brackets outside of strings."""
    out, depth, start, quoted, index = [], 0, 0, False, 0
    while index < len(text):
        char = text[index]
        if quoted:
            index += char == 0x5C  # a backslash takes the next byte with it
            quoted = char != 0x22
        elif char == 0x22:
            quoted = True
        elif char in b"{[":
            depth += 1
            start = index if depth == 2 else start
        elif char in b"}]":
            depth -= 1
            if depth == 1:
                out.append(text[start : index + 1])
        index += 1
    return out


def bare(slot: Slot, api: str) -> Message:
    """Return the message of ``slot`` for another API: no part keeps bytes that only its own API understands."""
    message = slot.message
    if slot.api == api:
        return message
    parts = [part for part in map(_bare, message.parts) if part is not None]
    return Message(message.role, tuple(parts))


def _bare(part: Part) -> Part | None:
    if isinstance(part, Opaque):
        return None if part.kind.startswith("message") else Text(placeholder(part))
    if isinstance(part, ToolResult):
        inner = tuple([one for one in map(_bare, part.content) if one is not None])
        return replace(part, content=inner, raw=None)
    return part if isinstance(part, Thinking) and redacted(part) else replace(part, raw=None)


def redacted(part: Thinking) -> str:
    """Return what stands for thinking that its provider shows to nobody, which is no signature; nothing of other."""
    found = _BLOCK.of(part.raw) if part.raw is not None else _Block()
    return found.data if found.type == "redacted_thinking" else ""


class _Block(Struct):
    type: str = ""
    data: str = ""


_BLOCK = Shape(_Block)


def uuid_of(text: str) -> str:
    """Return ``text`` if it has the form of a UUID, else one made of its digest: the same for the same text."""
    if len(text) == 36 and [len(piece) for piece in text.split("-")] == [8, 4, 4, 4, 12]:
        return text
    digits = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:]}"
