"""What a log holds and a form has no place for: told with every export, never lost in silence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from holdfast.formats.base import Recording, context, history, path
from holdfast.formats.common.lines import fields
from holdfast.formats.common.log import Call, Log, slot_of
from holdfast.formats.common.writing import redacted
from holdfast.formats.registry import TOOLS, Form
from holdfast.formats.request_bodies import NOTE
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, Part, Thinking, ToolCall, ToolResult
from holdfast.providers.registry import FORMS
from holdfast.state.entries import Entry, Note, Said

DATABASE = "opencode"
"""The form that is no text: it holds what ``opencode-json`` does, and the conversations of sub-agents."""


def held(recording: Recording) -> Note | None:
    """Return what is kept of the request body that the way to the leaf came from, if it came from one."""
    notes = (entry.body for entry in path(recording) if isinstance(entry.body, Note) and entry.body.reason == NOTE)
    return next((note for note in notes if note.data.get("api") in FORMS), None)


def left_out(recording: Recording, name: str) -> tuple[str, ...]:
    """Return a note on each thing for which a session in the form ``name`` of a tool has no place."""
    form = TOOLS["opencode-json"] if name == DATABASE else TOOLS[name]
    lost: Counter[str] = Counter()
    for entry in recording.entries:
        lost += _lost(entry, form) if recording.format != name or not _came(entry) else Counter()
    return (*_unplaced(recording, name, is_one=form.is_one and name != DATABASE), *told(lost))


def unsaid(recording: Recording) -> Iterator[str]:
    """Yield that a request lacks what every request has beside its messages, where nobody kept that."""
    frame = context(recording).frame
    if frame.tokens:
        yield f"system prompt, tools and settings, ~{frame.tokens:,} tokens: no messages, so the request has none"


def _unplaced(recording: Recording, name: str, *, is_one: bool) -> Iterator[str]:
    note = held(recording)
    own = {"model", FORMS[note.data["api"]].field} if note is not None else set()
    asked = fields(note.raw) if note is not None else {}
    named = [field for field, value in asked.items() if field not in own and bytes(value) not in (b"null", b"[]")]
    if named:
        yield f"{', '.join(named)}: a session of {name} has no place for what its request asked for"
    if recording.sidechains and is_one:
        yield f"{len(recording.sidechains):,} × the conversation of a sub-agent: a file of {name} holds one"


# -- what is said ------------------------------------------------------------------------------------------------------


def kinds(messages: Iterable[Message]) -> Counter[str]:
    """Return how often there is what not every form has a place for."""
    found: Counter[str] = Counter()
    for message in messages:
        found.update(kind for part in message.parts for kind in _kinds(part))
    return found


def told(lost: Counter[str]) -> tuple[str, ...]:
    """Return a note on each kind of part that has no place."""
    return tuple(f"{number:,} × {kind}: a line or nothing stands there" for kind, number in lost.items() if number > 0)


def _kinds(part: Part) -> Iterator[str]:
    if isinstance(part, Thinking):
        yield from () if redacted(part) else ("thinking",)
    elif isinstance(part, Media):
        yield part.kind
    elif isinstance(part, Opaque):
        yield from () if part.kind.startswith("message") else (part.kind,)
    elif isinstance(part, ToolResult):
        for inner in part.content:
            yield from _kinds(inner)


def _came(entry: Entry) -> bool:
    return isinstance(entry.body, Said) and entry.body.origin is not None


def _lost(entry: Entry, form: Form) -> Counter[str]:
    """Return what of a message is not read again where ``form`` holds that message alone."""
    body = entry.body
    before = kinds([body.slot.message]) if isinstance(body, Said) else Counter[str]()
    if not before or not isinstance(body, Said):
        return Counter()
    log, parent = Log(), None
    calls = tuple(ToolCall(one.call_id, one.name) for one in body.slot.message.results)
    if calls:
        parent = log.answer("calls", None, Said(slot_of(Message("assistant", calls), "", None)), Call("m"), None)
    leaf = log.add("message", parent, body)
    again = form.read(form.write(log.finish(Recording("holdfast", session="s", leaf=leaf))))
    return before - kinds(one.body.slot.message for one in history(again) if isinstance(one.body, Said))
