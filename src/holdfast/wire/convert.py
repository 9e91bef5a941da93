"""A request of one API as a request of another: what it says, what it asks for, and what was left behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.model.messages import Message, media_of, placeholder
from holdfast.model.parts import Opaque, Thinking
from holdfast.model.slots import Slot
from holdfast.wire import asked as asking
from holdfast.wire.apis import form_of
from holdfast.wire.asked import Asked
from holdfast.wire.foreign import native
from holdfast.wire.lens import Lens, body, open_body
from holdfast.wire.splice import spliced, write


def convert(request: bytes, to: str, model: str = "", *, api: str | None = None) -> tuple[bytes, tuple[str, ...]]:
    """Return ``request`` as a body of the API ``to``, and a note on each thing that has no form there.

    ``model`` is the one to name, empty for the body's own. The messages are translated one by one and not repaired. A
    body that is one of ``to`` already keeps its bytes. Raises ``Unrecognised`` and ``FormatError`` as ``open_body``.
    """
    form, lens = form_of(to), open_body(request, api)
    if lens.api == to:
        named = {"model": write(model)} if form.named and model not in ("", lens.model) else {}
        return (spliced(request, lens.fields, named) if named else request), ()
    asked = asking.read(lens.api, lens.fields, form_of(lens.api).field)
    said = [Message.of("system", words) for words in asked.system if words]
    said += [native(slot.message, to) for slot in lens.slots]
    options, lost = asking.write(to, asked)
    slots = [Slot(message) for message in said if message.parts]
    out = body(to, model or lens.model, slots, frame_fields=options)
    return out, (*_left_out(lens, to), *_unasked(asked), *lost)


def _left_out(lens: Lens, to: str) -> list[str]:
    """Return a note on each kind of part that stays behind."""
    messages = [slot.message for slot in lens.slots]
    gone: Counter[str] = Counter()
    for message in messages:
        gone.update(_kinds(message))
    notes = [f"{number} × {kind}" for kind, number in gone.items()]
    if to in _MUTE and (failed := sum(result.is_error for message in messages for result in message.results)):
        notes.append(f"{failed} × the mark that a tool failed: its words stay")
    if to == "openai-chat" and (shown := _media_in_results(messages)):
        notes.append(f"{shown} × media in a tool's result: a line that names it stays")
    return notes


_MUTE = frozenset({"openai-chat", "openai-responses"})
"""APIs that have no mark for a result that is an error."""


def _kinds(message: Message) -> list[str]:
    out = ["thinking: sealed by another API" for part in message.parts if isinstance(part, Thinking)]
    for part in message.parts:
        if isinstance(part, Opaque):
            own = part.kind == "message" or part.kind.startswith("message.")
            out.append(f"{part.kind}: left out" if own else f"{part.kind}: {placeholder(part)!r} stands there")
    return out


def _media_in_results(messages: Sequence[Message]) -> int:
    inside = [Message("tool", message.results) for message in messages if message.results]
    return sum(len(media_of(message)) for message in inside)


def _unasked(asked: Asked) -> list[str]:
    """Return a note on each tool and field that has no form elsewhere."""
    tools = [
        f"the tool {kind or 'without a type'}: only functions of the client's have a form there"
        for kind in asked.others
    ]
    return tools + [f"the field {name}: left out" for name in asked.left]
