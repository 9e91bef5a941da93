"""A request of one API as a request of another: what it says, what it asks for, and what was left behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.messages.message import Message, media_of, placeholder, result_text
from holdfast.messages.parts import Media, Opaque, Part, Thinking, ToolResult
from holdfast.messages.sized_message import Slot
from holdfast.messages.strip_foreign import is_of_message, native, words_of
from holdfast.normalize.items import Item
from holdfast.normalize.result_media import shown_behind
from holdfast.normalize.roles import GO_ON
from holdfast.providers.common import request_options as asking
from holdfast.providers.common.json.raw_json import spliced, write
from holdfast.providers.common.request_options import Asked
from holdfast.providers.common.tool_names import fitting, renamed
from holdfast.providers.openai_chat.messages import as_seen
from holdfast.providers.recognize import body_fields, recognise
from holdfast.providers.registry import Form, form_of
from holdfast.providers.request_body import Lens, body, open_body
from holdfast.state.codec.reading import decoder


def convert(request: bytes, to: str, model: str = "", *, api: str | None = None) -> tuple[bytes, tuple[str, ...]]:
    """Return ``request`` as a body of the API ``to``, and a note on each thing that has no form there.

    ``model`` is the one to name, empty for the body's own. The messages are translated one by one and not repaired. A
    body that is one of ``to`` already keeps its bytes. Raises ``Unrecognised`` and ``FormatError`` as ``open_body``,
    and ``FormatError`` where a part of the history is not in the body but with the provider.
    """
    form, found = form_of(to), body_fields(request)
    api = api or recognise(found)
    if api == to:
        named = model and form.named and bytes(found.get("model", b"")) != write(model)
        return (spliced(request, found, {"model": write(model)}) if named else request), ()
    lens = open_body(request, api)
    _whole(lens)
    asked = asking.read(lens.api, lens.fields, form_of(lens.api).field)
    said, notes = _said(lens, asked, form)
    asked, said, new = _named(asked, said, form, model or lens.model)
    options, lost = asking.write(to, asked)
    out = body(to, model or lens.model, [Slot(one) for one in said if one.parts], frame_fields=options)
    return out, (*_left_out(lens, to), *notes, *new, *_unasked(asked), *lost)


# -- what is not in the body -------------------------------------------------------------------------------------------


_ELSEWHERE = {
    "openai-responses": ("previous_response_id", "conversation"),
    "gemini": ("cachedContent", "cached_content"),
}
"""Fields by which a body refers to history that its provider holds."""


def _whole(lens: Lens) -> None:
    """Raise ``FormatError`` where what was said is not in the body but with the provider."""
    stored = () if lens.slots or lens.api != "openai-responses" else ("prompt",)
    names = (*_ELSEWHERE.get(lens.api, ()), *stored)
    set_ = [key for key in names if bytes(lens.fields.get(key, b"null")) not in (b"null", b'""')]
    kinds = [part for slot in lens.slots for part in slot.message.parts if isinstance(part, Opaque)]
    referred = lens.api == "openai-responses" and any(_is_reference(part) for part in kinds)
    if set_ or referred:
        where = f"the field {set_[0]!r}" if set_ else "an item_reference"
        raise FormatError(
            f"{where} refers to history that lies with the provider, so it cannot be sent elsewhere; put the messages"
            " themselves into the request, then convert it"
        )


class _Kind(msgspec.Struct):
    type: str = ""


def _is_reference(part: Opaque) -> bool:
    try:
        return part.raw is not None and decoder(_Kind).decode(part.raw).type == "item_reference"
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


# -- what is said ------------------------------------------------------------------------------------------------------


def _said(lens: Lens, asked: Asked, form: Form) -> tuple[list[Message], list[str]]:
    """Return the messages as the other API says them, the system prompt first, and what was done to them."""
    said = [Message.of("system", words) for words in asked.system if words]
    said += [native(slot.message, form.api, lens.api) for slot in lens.slots]
    said, notes = carried(said, form)
    if form.system and said and all(message.role == "system" for message in said):
        said.append(Message.of("user", GO_ON))
        notes.append(f"a user's message was added, since one must stand there: {GO_ON!r}")
    return said, [*notes, *unshown(said, form)]


def carried(messages: Sequence[Message], form: Form) -> tuple[list[Message], list[str]]:
    """Return the messages with the media of results behind each batch of these, and a note on how many moved.

    That is for Chat, whose results hold words alone.
    """
    results = [result for message in messages for result in message.results] if form.api == "openai-chat" else []
    moved = sum(isinstance(part, Media) and _is_seen(part) for result in results for part in result.content)
    if not moved:
        return list(messages), []
    items = [Item(at, at + 1, message) for at, message in enumerate(messages)]
    told = f"{moved} × media in a tool's result: a user shows it behind the results"
    return [item.message for item in shown_behind(items, _is_seen, {})], [told]


def _is_seen(part: Media) -> bool:
    """Return whether Chat has a form for ``part`` but a line."""
    return as_seen(part) is not None


def unshown(said: Sequence[Message], form: Form) -> list[str]:
    """Return a note on each kind of media for which this API has no form but a line."""
    gone: Counter[str] = Counter()
    for message in said:
        gone.update(_line(part) for part in media_of(message) if not _is_shown(part, message, form))
    return [f"{number} × {line}" for line, number in gone.items()]


def _line(part: Media) -> str:
    return f"{part.kind}: {placeholder(part)!r} stands there"


def _is_shown(part: Media, message: Message, form: Form) -> bool:
    """Return whether ``part`` is written as itself where it stands in ``message``."""
    held: Part = part if part in message.parts else ToolResult("a", "a", (part,))
    for raw in form.encode(Message(message.role, (held,)), None):
        made = form.decode(raw)
        if placeholder(part) in (made.text, *(result_text(result) for result in made.results)):
            return False
    return True


def _named(asked: Asked, said: list[Message], form: Form, model: str) -> tuple[Asked, list[Message], list[str]]:
    """Return all with the names of tools that this API takes, the same everywhere, and a note on each new one."""
    told = [tool.name for tool in asked.tools]
    told += [call.name for message in said for call in message.calls]
    told += [result.name for message in said for result in message.results]
    names = fitting([*told, asked.chosen], form.dialect(model))
    if not names:
        return asked, said, []
    tools = tuple([replace(tool, name=names.get(tool.name, tool.name)) for tool in asked.tools])
    asked = replace(asked, tools=tools, chosen=names.get(asked.chosen, asked.chosen))
    notes = [f"the tool {old!r} is named {new!r} there" for old, new in names.items()]
    return asked, [renamed(message, names) for message in said], notes


# -- what is left behind -----------------------------------------------------------------------------------------------


def _left_out(lens: Lens, to: str) -> list[str]:
    """Return a note on each kind of part that stays behind."""
    messages = [slot.message for slot in lens.slots]
    gone: Counter[str] = Counter()
    for before in messages:
        gone.update(changes(before, native(before, to, lens.api)))
    notes = [f"{number} × {kind}" for kind, number in gone.items()]
    if to in _MUTE and (failed := sum(result.is_error for message in messages for result in message.results)):
        notes.append(f"{failed} × the mark that a tool failed: its words stay")
    return notes


_MUTE = frozenset({"openai-chat", "openai-responses"})
"""APIs that have no mark for a result that is an error."""


def changes(before: Message, after: Message) -> Iterator[str]:
    """Yield a line for each part of a message that is not as it was."""
    stays = Counter(media_of(after))
    for part in _all_parts(before):
        if isinstance(part, Thinking):
            yield "thinking: sealed by another API"
        elif isinstance(part, Opaque):
            own = is_of_message(part)
            instead = "its words stay" if words_of(part) else f"{placeholder(part)!r} stands there"
            yield f"{part.kind}: {'left out' if own else instead}"
        elif isinstance(part, Media) and not stays[_bare(part)]:
            yield _line(part)


def _bare(part: Media) -> Media:
    """Return media without the bytes it came in."""
    return replace(part, raw=None)


def _all_parts(message: Message) -> Iterator[Part]:
    for part in message.parts:
        yield part
        if isinstance(part, ToolResult):
            yield from part.content


def _unasked(asked: Asked) -> list[str]:
    """Return a note on each tool and field that has no form elsewhere."""
    tools = [
        f"the tool {kind or 'without a type'}: only functions of the client's have a form there"
        for kind in asked.others
    ]
    return tools + [f"the field {name}: left out" for name in asked.left]
