"""A recording, or the entries of a log, in the form of a tool or as a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.formats import claude_write, codex_write, pi_write
from holdfast.formats.base import Recording, context, path, recording_of
from holdfast.formats.bodies import NOTE
from holdfast.formats.lines import fields
from holdfast.formats.writing import bare
from holdfast.model.branch import patched, project
from holdfast.model.dialect import Dialect
from holdfast.model.entries import Entry, Note, Request
from holdfast.model.messages import Message
from holdfast.model.parts import Thinking
from holdfast.model.slots import Slot
from holdfast.policy.projection import repair_projection
from holdfast.wire import anthropic, openai_chat
from holdfast.wire.splice import write as to_json

MAX_TOKENS = 4_096
"""The answer's limit in a body for the Messages API, which asks for one, where the log has none."""
_ENCODE: Mapping[str, Callable[[Message, Raw | None], list[bytes]]] = {
    anthropic.API: anthropic.encode,
    openai_chat.API: openai_chat.encode,
}


_DIALECT: Mapping[str, Callable[[str], Dialect]] = {
    anthropic.API: anthropic.dialect,
    openai_chat.API: openai_chat.dialect,
}


def write(what: Recording | Iterable[Entry], format_: str) -> bytes:
    """Return a log in the form ``format_``.

    ``claude-code``, ``codex`` and ``pi`` give the log: lines of that tool as they came, the rest written anew, our
    compactions as the tool's own. ``anthropic`` and ``openai-chat`` give the request that the leaf's context makes.
    Raises ``FormatError`` for another name.
    """
    recording = what if isinstance(what, Recording) else recording_of(what)
    writer = WRITERS.get(format_)
    if writer is None:
        raise FormatError(f"there is no format {format_!r} to write; there are {', '.join(WRITERS)}")
    return writer(recording)


def body(recording: Recording, api: str) -> bytes:
    """Return the request that the context at the leaf makes, as a body that ``api`` takes: repaired as for sending."""
    branch, envelope = context(recording), _envelope(recording, api)
    repairs, _ = repair_projection(branch, _DIALECT[api](_model(envelope)))
    slots = patched(project(branch), repairs)
    if api == anthropic.API and not _thinks(envelope):
        slots = [*slots[:-1], *(_unthinking(slot) for slot in slots[-1:])]
        slots = [slot for slot in slots if slot.message.parts]
    system: list[Slot] = []
    if api == anthropic.API and not envelope.get("system"):
        system = [slot for slot in slots if slot.message.role == "system"]
        slots = [slot for slot in slots if slot.message.role != "system"]
    if not slots:
        raise FormatError("there is no message at the leaf, so there is no request to write; give a session with words")
    if system:
        envelope["system"] = "\n\n".join(slot.message.text for slot in system)
    messages = [Raw(wire) for slot in slots for wire in _wire(slot, api)]
    return to_json(envelope | {"messages": messages})


def _envelope(recording: Recording, api: str) -> dict[str, Any]:
    """Return the fields beside the messages: those of the body that was imported, else the least there must be."""
    way = path(recording)
    for entry in way:
        note = entry.body
        if isinstance(note, Note) and note.reason == NOTE and note.data.get("api") == api:
            return dict(fields(note.raw))
    models = [entry.body.model for entry in way if isinstance(entry.body, Request) and entry.body.model]
    envelope: dict[str, Any] = {"model": recording.model or (models[-1] if models else "unknown")}
    return envelope | ({"max_tokens": MAX_TOKENS} if api == anthropic.API else {})


def _model(envelope: Mapping[str, Any]) -> str:
    """Return the model that a body names, in whatever form it has the name."""
    named = envelope.get("model", "")
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


def _wire(slot: Slot, api: str) -> list[bytes]:
    if slot.api == api and slot.raw is not None:
        return [bytes(slot.raw)]
    return _ENCODE[api](bare(slot, api), slot.base if slot.api == api else None)


WRITERS: Mapping[str, Callable[[Recording], bytes]] = {
    "claude-code": claude_write.write,
    "codex": codex_write.write,
    "pi": pi_write.write,
    anthropic.API: lambda recording: body(recording, anthropic.API),
    openai_chat.API: lambda recording: body(recording, openai_chat.API),
}
"""Every form a log can be written in."""
