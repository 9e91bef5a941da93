"""A recording, or the entries of a log, in the form of a tool or as a request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.formats.base import Recording, context, path, recording_of
from holdfast.formats.common.lines import fields
from holdfast.formats.losses import held, kinds, left_out, told, unsaid
from holdfast.formats.registry import TOOLS
from holdfast.messages.message import Message
from holdfast.messages.parts import Thinking
from holdfast.messages.sized_message import Slot
from holdfast.normalize.projection import repair_projection
from holdfast.providers.anthropic import messages as anthropic
from holdfast.providers.anthropic.cache_control import MOST, in_frame, newest
from holdfast.providers.common.json.raw_json import write as to_json
from holdfast.providers.convert import convert
from holdfast.providers.fix import mend
from holdfast.providers.registry import APIS, FORMS
from holdfast.providers.request_body import slots_of, system_field, wires
from holdfast.state.branch.view import patched, project
from holdfast.state.entries import Entry, Note, Request

MAX_TOKENS = 4_096
"""The answer's limit in a body for the Messages API, which asks for one, where the log has none."""


class Written(Struct, frozen=True):
    """A log in some form, and a note on each thing that has no place there."""

    data: bytes
    left_out: tuple[str, ...] = ()


def write(what: Recording | Iterable[Entry], format_: str) -> bytes:
    """Return a log in the form ``format_``, as ``written`` does."""
    return written(what if isinstance(what, Recording) else recording_of(what), format_).data


def written(recording: Recording, format_: str) -> Written:
    """Return a log in the form ``format_``.

    The names of tools give the log: what came from that tool as it came, the rest written anew, our compactions as the
    tool's own. The names of the APIs give the request that the leaf's context makes.
    Raises ``FormatError`` for another name.
    """
    if format_ in FORMS:
        return request(recording, format_)
    if format_ not in TOOLS:
        raise FormatError(f"there is no format {format_!r} to write; there are {', '.join(WRITERS)}")
    return Written(TOOLS[format_].write(recording), left_out(recording, format_))


def request(recording: Recording, api: str) -> Written:
    """Return the request that the context at the leaf makes, as a body that ``api`` takes: repaired as for sending.

    A session that came as a request of another API is that request, converted.
    """
    note = held(recording)
    theirs = api if note is None else note.data["api"]
    body, lost = _body(recording, theirs, note)
    if theirs != api:
        made, notes = convert(body, api, recording.model, api=theirs)
        return Written(mend(made, api).body, (*notes, *told(lost)))
    return Written(body, (*(unsaid(recording) if note is None else ()), *told(lost)))


def _body(recording: Recording, api: str, note: Note | None) -> tuple[bytes, Counter[str]]:
    """Return the request as a body of ``api``, and what its messages lack; the newest cache breakpoints stay."""
    form, branch, envelope = FORMS[api], context(recording), _envelope(recording, api, note)
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
    said = project(branch), slots_of(form, Raw(to_json(messages)))
    before, after = (kinds(slot.message for slot in one) for one in said)
    return to_json(envelope | {form.field: messages}), before - after


def _envelope(recording: Recording, api: str, note: Note | None) -> dict[str, Any]:
    """Return the fields beside the messages: those of the body that was imported, else the least there must be."""
    if note is not None:
        return dict(fields(note.raw))
    if not FORMS[api].named:
        return {}
    models = [entry.body.model for entry in path(recording) if isinstance(entry.body, Request) and entry.body.model]
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


WRITERS = (*TOOLS, *APIS)
"""Every form a log can be written in."""
