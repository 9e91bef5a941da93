"""A recording, or the entries of a log, in the form of a tool or as a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.formats import claude_write, codex_write, gemini_cli_write, opencode_write, pi_write
from holdfast.formats.base import Recording, context, path, recording_of
from holdfast.formats.bodies import NOTE
from holdfast.formats.lines import fields
from holdfast.model.entries import Entry, Note, Request
from holdfast.model.messages import Message
from holdfast.model.parts import Thinking
from holdfast.model.projected import patched, project
from holdfast.model.slots import Slot
from holdfast.policy.projection import repair_projection
from holdfast.wire import anthropic
from holdfast.wire.apis import APIS, FORMS
from holdfast.wire.breakpoints import MOST, in_frame, newest
from holdfast.wire.lens import system_field, wires
from holdfast.wire.splice import write as to_json

MAX_TOKENS = 4_096
"""The answer's limit in a body for the Messages API, which asks for one, where the log has none."""


def write(what: Recording | Iterable[Entry], format_: str) -> bytes:
    """Return a log in the form ``format_``.

    The names of tools give the log: what came from that tool as it came, the rest written anew, our compactions as the
    tool's own. The names of the APIs give the request that the leaf's context makes.
    Raises ``FormatError`` for another name.
    """
    recording = what if isinstance(what, Recording) else recording_of(what)
    writer = WRITERS.get(format_)
    if writer is None:
        raise FormatError(f"there is no format {format_!r} to write; there are {', '.join(WRITERS)}")
    return writer(recording)


def body(recording: Recording, api: str) -> bytes:
    """Return the request that the context at the leaf makes, as a body that ``api`` takes: repaired as for sending.

    Of cache breakpoints that messages were said with, the newest stay that one request may have.
    """
    form, branch, envelope = FORMS[api], context(recording), _envelope(recording, api)
    repairs, _ = repair_projection(branch, form.dialect(_model(recording, envelope)))
    slots = patched(project(branch), repairs)
    if api == anthropic.API and not _thinks(envelope):
        slots = [*slots[:-1], *(_unthinking(slot) for slot in slots[-1:])]
        slots = [slot for slot in slots if slot.message.parts]
    room = MOST - len(in_frame(envelope))
    if form.system and not any(envelope.get(name) for name in form.system):
        words = [slot.message.text for slot in slots if slot.message.role == "system"]
        slots = [slot for slot in slots if slot.message.role != "system"]
        envelope |= system_field(form, ["\n\n".join(words)] if words else [])
    if not slots:
        raise FormatError("there is no message at the leaf, so there is no request to write; give a session with words")
    shown = newest(wires(form, slots), room) if form.markers else wires(form, slots)
    messages = [Raw(bytes(wire)) for group in shown for wire in group]
    return to_json(envelope | {form.field: messages})


def _envelope(recording: Recording, api: str) -> dict[str, Any]:
    """Return the fields beside the messages: those of the body that was imported, else the least there must be."""
    way = path(recording)
    for entry in way:
        note = entry.body
        if isinstance(note, Note) and note.reason == NOTE and note.data.get("api") == api:
            return dict(fields(note.raw))
    if not FORMS[api].named:
        return {}
    models = [entry.body.model for entry in way if isinstance(entry.body, Request) and entry.body.model]
    envelope: dict[str, Any] = {"model": recording.model or (models[-1] if models else "unknown")}
    return envelope | ({"max_tokens": MAX_TOKENS} if api == anthropic.API else {})


def _model(recording: Recording, envelope: Mapping[str, Any]) -> str:
    """Return the model that a body names, in whatever form it has the name, or the one that answered."""
    named = envelope.get("model", recording.model)
    return named if isinstance(named, str) else bytes(named).decode("utf-8", "replace").strip('"')


def _thinks(envelope: Mapping[str, Any]) -> bool:
    """Return whether a body for the Messages API turns thinking on."""
    told = fields(envelope["thinking"]) if "thinking" in envelope else {}
    return bytes(told.get("type", Raw(b'"disabled"'))) != b'"disabled"'


def _unthinking(slot: Slot) -> Slot:
    """Return the last slot of a request as one without thinking, which may not end a request, if it is an answer."""
    parts = tuple([part for part in slot.message.parts if not isinstance(part, Thinking)])
    if slot.message.role != "assistant" or len(parts) == len(slot.message.parts):
        return slot
    return replace(slot, message=Message("assistant", parts), raw=None, base=slot.raw or slot.base)


WRITERS: Mapping[str, Callable[[Recording], bytes]] = {
    "claude-code": claude_write.write,
    "codex": codex_write.write,
    "gemini-cli": gemini_cli_write.write,
    "opencode-json": opencode_write.write,
    "pi": pi_write.write,
    **{api: partial(body, api=api) for api in APIS},
}
"""Every form a log can be written in."""
