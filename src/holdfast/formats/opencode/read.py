"""Sessions of opencode as a line of entries.

opencode keeps them as rows of a database and exports them as one JSON object; both are the same messages here. What is
read names each entry by the message, and by all that stands before it: where opencode changed a message later, a
branch begins there. The output of a tool stands in the result alone; its place in the origin is ``null``.

Not said, and kept as notes: the request for a compaction and its summary (which become a ``Compaction``), answers that
failed, parts of an unknown type. Results that opencode cleared are a ``Decision``. What was reverted is a branch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.errors import Unrecognised
from holdfast.formats.base import ABORTED, PAID, Problem, Recording
from holdfast.formats.common.lines import BOM, Shape, compact, fields, whole
from holdfast.formats.common.log import Call, Log, short, slot_of
from holdfast.formats.opencode.parts import (
    ENDED,
    INFO,
    PIECE,
    SILENT,
    TOLD_IN_WORDS,
    Info,
    Piece,
    Time,
    result_of,
    spoken,
    steps_of,
    usage_of,
)
from holdfast.formats.opencode.parts import whole as whole_number
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolResult
from holdfast.messages.size.tokens import measure
from holdfast.messages.sized_message import Slot
from holdfast.planning.stages.prune.shown import CLEARED
from holdfast.providers.common.json.raw_json import write
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import Compaction, Decision, Note, Said, Usage

FORMAT = API = "opencode"
NOTE = "opencode:"
"""How the reason of a note begins that keeps something of opencode's."""
CLEARING = "opencode"
"""The rule of the edits that say what opencode cleared."""
SESSION, MARKER, SUMMARY, MESSAGE = (f"{NOTE}{kind}" for kind in ("session", "compaction", "summary", "message"))
KEPT = frozenset({MARKER, SUMMARY, MESSAGE})
"""Reasons of the notes that are messages."""
PROVIDERS = {"anthropic": "anthropic", "openai": "openai-responses", "google": "gemini"}
"""opencode's names of providers whose API is known by them."""


class Stored(Struct, frozen=True):
    """A message as it is kept: an id, and the JSON of what stands about it and of its parts with theirs."""

    id: str
    info: bytes
    parts: tuple[tuple[str, bytes], ...] = ()


class Held(Struct, frozen=True):
    """A session as it is kept; ``info`` as opencode exports it. ``messages`` are asked for once, in order."""

    id: str
    info: bytes
    messages: Iterable[Stored]


class _Revert(Struct, frozen=True, rename={"message": "messageID", "part": "partID"}):
    message: str = ""
    part: str = ""


class About(Struct, rename={"parent": "parentID"}):
    """What is needed of what stands about a session."""

    id: str = ""
    parent: str = ""
    directory: str = ""
    title: str = ""
    time: Time = Time()
    revert: _Revert | None = None


class _Document(Struct):
    info: Raw = Raw()
    messages: list[Raw] = []


class _Message(Struct):
    info: Raw = Raw()
    parts: list[Raw] = []


class _Id(Struct):
    id: str = ""


ABOUT = Shape(About)
_DOCUMENT, _MESSAGE, _ID = Shape(_Document), Shape(_Message), Shape(_Id)
_STABLE = ("id", "slug", "version")
"""Fields about a session that nothing changes later."""
_OWNERS = ("sessionID", "messageID")
"""Fields that name what a message or a part lies in."""


def read(data: bytes) -> Recording:
    """Return the recording in ``data``, a session that opencode exported."""
    row = whole(data.removeprefix(BOM).strip(), _DOCUMENT)
    found = row.value or _Document()
    about = ABOUT.of(found.info)
    if not about.id:
        raise Unrecognised("the session has no id in its `info`; give what `opencode export` wrote")
    recorded = recording(Held(about.id, bytes(found.info), map(_stored, found.messages)))
    faults = (Problem(0, row.fault),) if row.fault else ()
    return replace(recorded, problems=(*faults, *recorded.problems))


def _stored(raw: Raw) -> Stored:
    found = _MESSAGE.of(raw)
    parts = tuple((_ID.of(part).id, bytes(part)) for part in found.parts)
    return Stored(_ID.of(found.info).id, bytes(found.info or raw), parts)


def recording(held: Held, sidechains: tuple[Recording, ...] = ()) -> Recording:
    """Return the recording of a session; ``sidechains`` are those of its sub-agents."""
    reading = _Reading(replace(held, info=compact(held.info)))
    for stored in held.messages:
        parts = tuple([(id_, compact(raw)) for id_, raw in stored.parts])
        reading.take(Stored(stored.id, compact(stored.info), parts))
    return replace(reading.finish(), sidechains=sidechains)


class _Reading:
    """The fold over the messages of a session: a log in the making, and where it stands."""

    def __init__(self, held: Held) -> None:
        self.about = ABOUT.of(held.info)
        self.log = Log()
        kept = {key: value for key, value in fields(held.info).items() if key in _STABLE}
        at = self.about.time.at or None
        self.tip = self.log.add(held.id, None, Note(SESSION, write(kept | {"id": held.id})), at)
        self.leaf: str | None = None
        """Where the conversation stood before what was reverted."""
        self.id = held.id
        self.model = self.api = ""
        self.markers: dict[str, Piece] = {}
        """Requests for a compaction, by the id of their message."""
        self.first: dict[str, int] = {}
        """The first slot of each message."""
        self.cleared: list[tuple[int, Edit]] = []
        """Results that were cleared, and when: not yet told."""

    def take(self, stored: Stored) -> None:
        """Append what one message says."""
        if not fields(stored.info):
            self._damaged(f"message {stored.id}", stored.info)
            return
        info = INFO.of(stored.info)
        self._clear(info.time.at)
        revert = self.about.revert
        if revert is not None and self.leaf is None and stored.id == revert.message:
            self._step_back(stored, info, revert.part)
        self._message(stored, info)

    def _message(self, stored: Stored, info: Info) -> None:
        pieces = [PIECE.of(raw) for _, raw in stored.parts]
        self.first.setdefault(stored.id, self.log.depth[self.tip])
        for (id_, raw), piece in zip(stored.parts, pieces, strict=True):
            self._look_at(stored, id_, raw, piece)
        if info.role == "user":
            self._user(stored, info, pieces)
        elif info.role == "assistant":
            self._assistant(stored, info, pieces)
        else:
            self.log.problem(0, f"message {stored.id} has the role {info.role!r}; it is kept as a note")
            self._note(MESSAGE, stored, info)

    def finish(self) -> Recording:
        """Return what was collected."""
        self._clear(None)
        self.log.skipped = +self.log.skipped
        about = self.about
        leaf = self.tip if self.leaf is None else self.leaf
        return self.log.finish(
            Recording(FORMAT, self.id, about.directory, about.title, self.model, self.api, leaf=leaf)
        )

    def _step_back(self, stored: Stored, info: Info, part: str) -> None:
        """Take the leaf to what stands before a message, or before a part of it, that was reverted."""
        before = tuple([pair for pair in stored.parts if part and pair[0] < part])
        tip = self.tip
        if before:
            self._message(replace(stored, parts=before), info)
        self.leaf, self.tip = self.tip, tip

    def _add(self, name: str, body: Note | Said | Compaction | Decision, told: bytes | str, at: int = 0) -> None:
        """Append an entry named after ``name`` and all that stands before it."""
        text = told if isinstance(told, str) else told.decode(errors="replace")
        self.tip = self.log.add(f"{name}+{short(f'{self.tip}|{text}')}", self.tip, body, at or None)

    def _note(self, reason: str, stored: Stored, info: Info) -> None:
        """Append a message that is not said."""
        raw = _document(stored, stored.parts, drop=("summary",) if info.role == "user" else ())
        self.log.skipped[reason.removeprefix(NOTE)] += 1
        self._add(stored.id, Note(reason, raw), raw, info.time.at)

    def _damaged(self, what: str, raw: bytes) -> None:
        self.log.problem(0, f"{what} is no JSON object; it is kept as a note")
        self._add("damaged", Note(f"{NOTE}damaged", raw, {"what": what}), raw)

    def _look_at(self, stored: Stored, id_: str, raw: bytes, piece: Piece) -> None:
        """Count a part that nobody said, and keep one of an unknown type."""
        if not fields(raw):
            self._damaged(f"part {id_} of message {stored.id}", raw)
        elif piece.type in SILENT or piece.mime in TOLD_IN_WORDS or piece.ignored:
            self.log.skipped[piece.type] += piece.type != "compaction"  # its message is counted
        elif piece.type not in ("text", "reasoning", "tool", "file"):
            self.log.skipped[piece.type or "part without a type"] += 1
            self._add(id_ or stored.id, Note(f"{NOTE}{piece.type}", raw), raw)

    def _user(self, stored: Stored, info: Info, pieces: Sequence[Piece]) -> None:
        self.model = info.model.model or self.model
        marker = next((piece for piece in pieces if piece.type == "compaction"), None)
        if marker is not None:
            self.markers[stored.id] = marker
            self._note(MARKER, stored, info)
            return
        slot = slot_of(Message("user", spoken(pieces)), API, None)
        self._said(stored.id, slot, _document(stored, stored.parts), info)

    def _said(self, name: str, slot: Slot, origin: bytes | None, info: Info) -> None:
        said = Said(slot, None if origin is None else Raw(origin))
        self._add(name, said, slot.digest.hex(), info.time.at)

    def _assistant(self, stored: Stored, info: Info, pieces: Sequence[Piece]) -> None:
        self.model = info.model_id or self.model
        self.api = PROVIDERS.get(info.provider, self.api)
        is_summary = bytes(info.summary) == b"true"
        failed = info.error is not None and not (info.error.name == "MessageAbortedError" and spoken(pieces))
        if is_summary and not failed and info.finish and info.parent in self.markers:
            self._note(SUMMARY, stored, info)
            self._compaction(stored, info, pieces)
        elif is_summary or failed:
            self._note(MESSAGE, stored, info)
        else:
            for number, places in enumerate(steps_of(pieces)):
                own = replace(stored, parts=tuple([stored.parts[at] for at in places]))
                self._step(own, info, [pieces[at] for at in places], number)

    def _compaction(self, stored: Stored, info: Info, pieces: Sequence[Piece]) -> None:
        marker = self.markers[info.parent]
        summary = measure(Message.of("user", "\n\n".join(piece.text for piece in pieces if piece.type == "text")))
        depth = self.log.depth[self.tip]
        body = Compaction(
            keep=self.first.get(marker.tail or "", depth),
            summary=summary.message,
            size=summary.size,
            trigger="auto" if marker.auto else "manual",
            by="model",
        )
        self._add(f"{stored.id}+compaction", body, f"{body.keep}", info.time.at)

    def _step(self, stored: Stored, info: Info, pieces: Sequence[Piece], number: int) -> None:
        """Append one answer of the model and what its calls gave."""
        parts = spoken(pieces, info.model_id)
        done = [piece for piece in pieces if piece.type == "tool" and piece.state.status in ENDED]
        slot = slot_of(Message("assistant", parts), API, None)
        call = _call(info, pieces)
        name = f"{stored.id}-{number}" if number else stored.id
        name = f"{name}+{short(f'{self.tip}|{slot.digest.hex()}|{call}')}"
        kept = [(id_, _emptied(raw, piece)) for (id_, raw), piece in zip(stored.parts, pieces, strict=True)]
        said = Said(slot, Raw(_document(stored, kept)))
        self.tip = self.log.answer(name, self.tip, said, call, info.time.at or None)
        if done:
            self._results(name, info, done)

    def _results(self, name: str, info: Info, done: Sequence[Piece]) -> None:
        results = tuple([result_of(piece) for piece in done])
        place = self.log.depth[self.tip]
        self._said(f"{name}+results", slot_of(Message("tool", results), API, None), None, info)
        for number, (piece, result) in enumerate(zip(done, results, strict=True)):
            at = piece.state.time.compacted
            if at is not None:
                self.cleared.append((whole_number(at), _clearing(place, number, result)))

    def _clear(self, now: int | None) -> None:
        """Append what was cleared before ``now``, as decisions: one for each moment."""
        due = sorted((pair for pair in self.cleared if now is None or pair[0] < now), key=lambda pair: pair[0])
        self.cleared = [pair for pair in self.cleared if pair not in due]
        for at in dict.fromkeys(at for at, _ in due):
            edits = tuple([edit for when, edit in due if when == at])
            spans = " ".join(f"{edit.span.start}.{edit.span.part}" for edit in edits)
            self._add("cleared", Decision(edits), spans, at)


def _clearing(slot: int, part: int, result: ToolResult) -> Edit:
    """Return the edit that shows what opencode shows of a result that it cleared."""
    short_ = ToolResult(result.call_id, result.name, (Text(CLEARED),), result.is_error)
    saves = measure(Message("tool", (result,))).size - measure(Message("tool", (short_,))).size
    return Edit(Span(slot, slot + 1, part), (short_,), CLEARING, "opencode cleared it", saves)


def _call(info: Info, pieces: Sequence[Piece]) -> Call:
    """Return what is recorded of a model call: by its last ``step-finish``, else by the message."""
    ends = [piece for piece in pieces if piece.type == "step-finish"]
    if info.error is not None or not (ends or info.finish):
        return Call(info.model_id, Usage(), ABORTED)
    usage = usage_of(ends[-1].tokens if ends else info.tokens)
    stop = ends[-1].reason if ends else info.finish
    return Call(info.model_id, usage, stop, is_paid=info.holdfast == PAID)


def _document(stored: Stored, parts: Sequence[tuple[str, bytes]], drop: tuple[str, ...] = ()) -> bytes:
    """Return a message as one object; who owns it is left out, and parts that are no JSON."""
    info = _named(stored.info, stored.id, (*_OWNERS, *drop))
    return write({"info": info, "parts": [_named(raw, id_, _OWNERS) for id_, raw in parts if fields(raw)]})


def _named(raw: bytes, id_: str, drop: tuple[str, ...]) -> dict[str, object]:
    """Return the fields of an object without those of ``drop``, its id the last: so a database and an export agree."""
    found: dict[str, object] = {key: value for key, value in fields(raw).items() if key not in drop}
    named = found.pop("id", id_)
    return found | ({"id": named} if named else {})


def _emptied(raw: bytes, piece: Piece) -> bytes:
    """Return a part without the output of its tool, which stands in the result."""
    if piece.type != "tool" or piece.state.output is None:
        return raw
    found = fields(raw)
    return write(found | {"state": fields(found["state"]) | {"output": None}})
