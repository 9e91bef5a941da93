"""A message in several APIs' forms, read piece by piece, each by whose it is.

People put one API's pictures into another's messages, and the calls of one beside the words of another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.messages.message import Message, Role
from holdfast.messages.parts import Media, Opaque, Part, Text, Thinking, ToolResult
from holdfast.messages.strip_foreign import native
from holdfast.providers.common.foreign.foreign_blocks import CALL, RESULT, THINKING, Kind, Strange, kind_of
from holdfast.providers.common.json.json_path import opens
from holdfast.providers.common.json.lenient_json import items_of, text_of
from holdfast.providers.common.json.raw_json import fields, value, write
from holdfast.providers.convert import changes
from holdfast.providers.fix.blocks import as_list, block_of, given, told
from holdfast.providers.fix.message_shapes import numbered
from holdfast.providers.fix.word_guard import HOLDERS
from holdfast.providers.gemini import messages as gemini
from holdfast.providers.registry import FORMS, Form

_CHAT = "openai-chat"
_NONE = Raw(b"null")
_SPEAKERS: dict[str, Role] = {
    "assistant": "assistant", "model": "assistant", "ai": "assistant", "bot": "assistant",
    "system": "system", "developer": "system", "tool": "tool", "function": "tool",
}  # fmt: skip
"""Roles of all APIs, and whose they are; all others are the user's."""


class Read(Struct):
    """A message as values, its bytes where nothing in it is foreign, and a note on each thing that was left behind."""

    message: Message
    raw: Raw | None = None
    lost: tuple[str, ...] = ()
    base: Raw | None = None
    """The message that it is written over, where what stands beside the blocks is this API's own."""


# -- one message -------------------------------------------------------------------------------------------------------


def read(raw: Raw, form: Form, signs: Sequence[Strange]) -> Read:
    """Return one element of a list of messages, in which ``signs`` are foreign; of an unreadable one its bytes."""
    try:
        if not signs:
            return Read(form.decode(raw), raw)
        new = _anew(raw, form)
        own = form.markers and all(path.startswith(".content[") for path, _ in signs)
        return replace(new, base=_spoken_by(raw, new.message.role)) if own else new
    except FormatError:
        return Read(Message("system"), raw)


def _spoken_by(raw: Raw, role: Role) -> Raw:
    return Raw(write({**fields(raw), "role": "user" if role == "tool" else role}))


def _anew(raw: Raw, form: Form) -> Read:
    """Return a message in which something is foreign, or an item or a block that stands in the place of one."""
    held = fields(raw)
    alone = None if "role" in held else _kind(raw)
    if alone is not None:
        role: Role = "assistant" if alone.what in (CALL, THINKING) else "user"
        parts, lost = _parts([raw], form, role)
        return Read(Message(role, parts), lost=lost)
    role = _SPEAKERS.get(text_of(held.get("role")).lower(), "user")
    if role == "tool" and "parts" not in held:
        parts, lost = _parts(_given(held.get("content", _NONE), form), form, role)
        return Read(Message(role, _answering(held, parts)), lost=lost)
    parts, lost = _parts([one for key in HOLDERS for one in as_list(held.get(key, _NONE))], form, role)
    beside = _beside(held, form)
    thought = tuple(part for part in beside if isinstance(part, Thinking))
    return Read(Message(role, (*thought, *parts, *beside[len(thought) :])), lost=lost)


def _given(content: Raw, form: Form) -> list[Raw]:
    """Return what a tool message of Chat holds: results that stand in it as they are, or what the tool gave back."""
    blocks = as_list(content)
    kinds = [kind.what for kind in map(_kind, blocks) if kind is not None]
    return blocks if RESULT in kinds else as_list(given(content, form))


def _answering(held: Mapping[str, Raw], parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Return what a tool message of Chat holds: results that stand in it, or itself as one."""
    if any(isinstance(part, ToolResult) for part in parts):
        return parts
    inner = tuple(part for part in parts if isinstance(part, Text | Media | Opaque))
    if len(inner) == 1 and isinstance(inner[0], Text):
        inner = (Text(inner[0].text),)
    return (ToolResult(text_of(numbered(dict(held)).get("tool_call_id")), text_of(held.get("name")), inner),)


def _beside(held: Mapping[str, Raw], form: Form) -> tuple[Part, ...]:
    """Return what stands beside the content of a message of Chat, thinking first; elsewhere that is its calls."""
    chat = FORMS[_CHAT]
    if form.api == _CHAT:
        rest = {key: raw for key, raw in held.items() if key not in HOLDERS}
        known = text_of(held.get("role")) in ("user", "assistant", "system", "developer")
        return chat.decode(write(rest if known else {**rest, "role": "assistant"})).parts
    calls = items_of(held.get("tool_calls"))
    if opens(held.get("function_call")) == "{":
        name = text_of(fields(held["function_call"]).get("name"))
        calls.append(Raw(write({"id": f"{name}#1", "type": "function", "function": held["function_call"]})))
    return native(chat.decode(write({"role": "assistant", "tool_calls": calls})), form.api, _CHAT).parts


def apart(one: Read) -> list[Read]:
    """Return a message, and behind it as one of its own what tools gave back that stood in an answer."""
    results = one.message.results
    if one.raw is not None or one.message.role != "assistant" or not results:
        return [one]
    rest = tuple(part for part in one.message.parts if not isinstance(part, ToolResult))
    told = Read(Message("tool", results), lost=() if rest else one.lost)
    return [replace(one, message=Message("assistant", rest)), told] if rest else [told]


# -- its pieces --------------------------------------------------------------------------------------------------------


def _parts(blocks: Sequence[Raw], form: Form, role: Role) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    """Return the elements of a content as parts, and a note on each that could not be brought along.

    All of one API's are read together, for what has no id is named by its place among them.
    """
    owned = [pair for block in blocks for pair in _owned(block, form, role)]
    found: list[tuple[Part, ...]] = [()] * len(owned)
    lost: list[str] = []
    for api in dict.fromkeys(owner for owner, _ in owned):
        places = [index for index, (owner, _) in enumerate(owned) if owner == api]
        for index, parts in zip(places, _decoded([owned[index][1] for index in places], api), strict=True):
            found[index], more = _brought(parts, api, form)
            lost += more
    return tuple(part for parts in found for part in parts), tuple(lost)


def _owned(block: Raw, form: Form, role: Role) -> Iterator[tuple[str, Raw]]:
    """Yield whose an element is, and itself; a call that nobody but the assistant may make is told in words."""
    kind = _kind(block)
    if kind is None or (kind.what == CALL and role != "assistant"):
        yield from ((form.api, one) for one in block_of(block, form, role))
    else:
        owner = _reader(kind, form)
        yield owner, _readable(block, FORMS[owner])


def _kind(raw: Raw) -> Kind | None:
    return kind_of(value(raw))


def _reader(kind: Kind, form: Form) -> str:
    """Return the API whose reader takes what is of this kind: this one's, where it knows it."""
    return form.api if form.api in kind.apis else kind.apis[0]


def _readable(block: Raw, form: Form) -> Raw:
    """Return an element with what a tool gave back as text or blocks, ids that are strings, addresses in an object.

    One that has all that already keeps its bytes.
    """
    stood = fields(block)
    held = numbered(dict(stood))
    if form.api == _CHAT and opens(held.get("image_url")) == '"':
        held["image_url"] = Raw(write({"url": held["image_url"]}))
    held |= {key: given(held[key], form) for key in ("content", "output") if key in held}
    return block if held == stood else Raw(write(held))


def _decoded(raws: Sequence[Raw], api: str) -> list[tuple[Part, ...]]:
    """Return the parts that each of some elements of one API's is; an item of Responses stands for itself."""
    form = FORMS[api]
    if api == "openai-responses":
        items = [raw if _is_item(raw) else Raw(write({"role": "user", "content": [raw]})) for raw in raws]
        return [form.decode(item).parts for item in items]
    key = "parts" if form.field == "contents" else "content"
    return [(part,) for part in form.decode(write({"role": "user", key: raws})).parts]


def _is_item(raw: Raw) -> bool:
    kind = _kind(raw)
    return kind is not None and kind.what in (CALL, RESULT, THINKING)


def _brought(parts: Sequence[Part], api: str, form: Form) -> tuple[tuple[Part, ...], list[str]]:
    """Return parts of one API as another may say them, and a note on each thing that it may not."""
    found = [_with_inner(part, form) for part in parts]
    lost = [note for _, notes in found for note in notes]
    said = Message("user", tuple(part for part, _ in found))
    if api == form.api:
        return said.parts, lost
    said = Message("user", tuple(map(_in_words, said.parts)))
    new = native(said, form.api, api)
    return new.parts, [*lost, *changes(said, new)]


def _in_words(part: Part) -> Part:
    """Return a call or a result that cannot be read as what it says; any other part as it is."""
    kind = _kind(part.raw) if isinstance(part, Opaque) and part.raw is not None else None
    if kind is None or part.raw is None or kind.what not in (CALL, RESULT):
        return part
    return Text(told(fields(part.raw)))


def _with_inner(part: Part, form: Form) -> tuple[Part, list[str]]:
    """Return a result with each thing in it read by its own API's reader, and notes; any other part as it is."""
    if not isinstance(part, ToolResult):
        return part, []
    found = [_inner(one, form) for one in part.content]
    content = tuple(one for parts, _ in found for one in parts if isinstance(one, Text | Media | Opaque))
    same = content == part.content
    return (part if same else replace(part, content=content, raw=None)), [note for _, notes in found for note in notes]


def _inner(part: Text | Media | Opaque, form: Form) -> tuple[tuple[Part, ...], list[str]]:
    if isinstance(part, Opaque) and part.kind == "functionResponse" and form.api != gemini.API:
        return (), []  # it only tells that the words beside it were no object
    raw = part.raw if isinstance(part, Opaque) else None
    if raw is None or opens(raw) != "{":
        return (part,), []
    kind = _kind(raw)
    if kind is None:
        text = text_of(fields(raw).get("text"))
        return ((Text(text),) if text else (part,)), []
    owner = _reader(kind, form)
    return _brought(_decoded([raw], owner)[0], owner, form)
