"""One message: parts that its API refuses are gone or rewritten, all others are the same objects."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from operator import is_
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.messages.equality import BESIDE, is_beside
from holdfast.messages.message import Message, placeholder
from holdfast.messages.parts import Media, Opaque, Part, Seal, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.references import object_text
from holdfast.normalize.items import Item
from holdfast.state.dialect import Dialect

_TELLS = frozenset({"message.refusal", "message.audio", "message.function_call"})
"""Such fields that say something: an answer may consist of one."""
_FORM = frozenset({"functionResponse"})
"""Opaque pieces of a result that only tell that it had another form than it should."""


def clean(items: list[Item], dialect: Dialect) -> list[Item]:
    """Return the items with messages that their API takes, each for itself; one that is left empty is gone."""
    last = len(items) - 1 if any(tells(item.message) for item in items) else -1
    found = (_clean(item, dialect, end=number == last) for number, item in enumerate(items))
    return [item for item in found if item is not None]


def _clean(item: Item, dialect: Dialect, *, end: bool) -> Item | None:
    if end and may_be_empty(item.message, dialect):
        return item
    message = clean_message(item.message, dialect)
    if message is item.message and (message.parts or may_hold_nothing(message, dialect)):
        return item
    if not message.parts:
        return None
    role = item.message.role
    rules = sorted({_RULES[type(part)] for part in item.message.parts if clean_part(part, dialect, role) is not part})
    why = f"{dialect.api} does not take these parts as they stood"
    return replace(item, message=message, reasons=(*item.reasons, *[(rule, why) for rule in rules or ["role"]]))


def tells(message: Message) -> bool:
    """Return whether a message of a conversation holds anything but white space."""
    return message.role != "system" and any(not isinstance(p, Text) or p.text.strip() for p in message.parts)


def may_hold_nothing(message: Message, dialect: Dialect) -> bool:
    """Return whether ``message`` may stand without a part, wherever it stands."""
    return dialect.as_written or (dialect.empty_messages and message.role != "assistant")


def may_be_empty(message: Message, dialect: Dialect) -> bool:
    """Return whether ``message``, the last one, is an answer without words yet, which this API goes on with."""
    if message.role != "assistant" or not dialect.empty_end:
        return False
    return not message.parts or (len(message.parts) == 1 and _is_plain_empty(message.parts[0]))


def _is_plain_empty(part: object) -> bool:
    return type(part) is Text and not part.text and part.raw is None


def clean_message(message: Message, dialect: Dialect) -> Message:
    """Return the message with refused parts gone or rewritten; the same object when nothing is wrong."""
    role, stood = message.role, message.parts
    if dialect.as_written:
        return _unsealed(message, dialect)
    for part in stood:
        if not is_plain(part, dialect, role):
            break
    else:
        return message
    if len(stood) == 1 and type(stood[0]) is Opaque and stood[0].kind == "message" and role != "assistant":
        return message
    parts = [clean_part(part, dialect, role) for part in stood]
    if role == "assistant":
        parts = _whole_units(stood, parts) if dialect.reasoning_units else parts
        parts = _alone(parts, dialect) if dialect.alone else parts
    if not _says(parts, dialect, role):
        return Message(role) if stood else message
    if all(map(is_, parts, stood)):
        return message
    return Message(role, tuple([part for part in parts if part is not None]))


def _unsealed(message: Message, dialect: Dialect) -> Message:
    """Return the message without what another model sealed; the same object where there is nothing such."""
    parts = [
        part if isinstance(part, Media | ToolResult) or may_go(part.seal, dialect) else clean_part(part, dialect, "")
        for part in message.parts
    ]
    if all(map(is_, parts, message.parts)):
        return message
    return Message(message.role, tuple([part for part in parts if part is not None]))


def is_plain(part: Part, dialect: Dialect, role: str) -> bool:
    """Return whether a part is what most are, and fine: words, a result of nothing but words, or a call."""
    if type(part) is ToolResult:
        return role != "assistant" and bool(part.content) and all(map(is_said, part.content))
    return _call(part, dialect, role) is part if type(part) is ToolCall else is_said(part)


def is_said(part: Part) -> bool:
    """Return whether a part is words that any API takes of anybody."""
    return type(part) is Text and part.seal is None and bool(part.text) and not part.text.isspace()


def _says(parts: Sequence[Part | None], dialect: Dialect, role: str) -> bool:
    """Return whether something is left that may stand as a message of this role."""
    for part in parts:
        if part is None:
            continue
        if role != "assistant" and (dialect.empty_text or not is_beside(part)):
            return True
        if role == "assistant" and (type(part) is not Thinking or dialect.thinking_alone) and not _says_nothing(part):
            return True
    return False


def _says_nothing(part: Part) -> bool:
    return isinstance(part, Opaque) and is_beside(part) and part.kind not in _TELLS


def _alone(parts: list[Part | None], dialect: Dialect) -> list[Part | None]:
    """Return the parts without those that may only stand alone, where others stand beside them."""
    told = [at for at, part in enumerate(parts) if isinstance(part, Text | Media | Opaque) and not is_beside(part)]
    single = [at for at in told if isinstance(part := parts[at], Opaque) and part.kind in dialect.alone]
    if not single or len(told) == 1:
        return parts
    gone = set(single[1:] if len(single) == len(told) else single)
    return [None if at in gone else part for at, part in enumerate(parts)]


# -- thinking and what came of it --------------------------------------------------------------------------------------


def _whole_units(stood: Sequence[Part], parts: list[Part | None]) -> list[Part | None]:
    """Return the parts with thinking and the part behind it together or apart, never one half of the two."""
    out = list(parts)
    for index, old in enumerate(stood):
        if type(old) is Thinking or index == 0 or type(stood[index - 1]) is not Thinking:
            continue
        first = _run(stood, index)
        if any(part is None for part in parts[first:index]):
            out[index] = unnamed(parts[index])
        elif parts[index] is not None:
            continue
        out[first:index] = [None] * (index - first)
    first = _run(stood, len(stood))
    out[first:] = [None] * (len(stood) - first)
    return out


def _run(parts: Sequence[Part], end: int) -> int:
    """Return where the thinking begins that ends at ``end``."""
    while end and type(parts[end - 1]) is Thinking:
        end -= 1
    return end


def unnamed(part: Part | None) -> Part | None:
    """Return a part without the name that ties it to its thinking; one whose name cannot be taken off is gone."""
    if isinstance(part, Text | ToolCall):
        return replace(part, seal=None, raw=None)
    return None if isinstance(part, Opaque) else part


Places = dict[int, set[int]]
"""Places of parts, by the message they stand in."""


def left_out(items: Sequence[Item], gone: Places, dialect: Dialect, rule: str, why: str) -> list[Item]:
    """Return the items without the parts at the places ``gone``; a message of which nothing is left goes too."""
    out = list(items)
    for index, places in gone.items():
        out[index] = items[index].changed(without(items[index].message, places, dialect), rule, why)
    return [item for index, item in enumerate(out) if item.message.parts or index not in gone]


def without(message: Message, gone: Collection[int], dialect: Dialect) -> Message:
    """Return the message without the parts at the places ``gone``, and without the thinking that they came of."""
    parts: list[Part | None] = [None if place in gone else part for place, part in enumerate(message.parts)]
    if dialect.reasoning_units:
        parts = _whole_units(message.parts, parts)
    if not _says(parts, dialect, message.role):
        return Message(message.role)
    return Message(message.role, tuple(part for part in parts if part is not None))


# -- one part ----------------------------------------------------------------------------------------------------------


def clean_part(part: Part, dialect: Dialect, role: str) -> Part | None:
    """Return the part as it may be sent: itself, a rewritten one, or nothing."""
    return _CLEAN[type(part)](part, dialect, role)


def may_go(seal: Seal | None, dialect: Dialect) -> bool:
    """Return whether what carries ``seal`` may be sent as it is: nobody sealed it, or this API did for this model."""
    return seal is None or (seal.api == dialect.api and seal.model in {"", dialect.model})


def _text(part: Text, dialect: Dialect, _role: str) -> Text | None:
    if not (dialect.blank_text if part.text else dialect.empty_text) and (not part.text or part.text.isspace()):
        return None
    return part if part.seal is None or may_go(part.seal, dialect) else Text(part.text)


def _thinking(part: Thinking, dialect: Dialect, role: str) -> Thinking | None:
    sealed = part.seal is not None and bool(part.text or part.seal.data or part.raw is not None)
    whole = sealed or (dialect.reasoning_units and part.raw is not None)
    return part if whole and (role == "assistant" or dialect.thinking_by_all) and may_go(part.seal, dialect) else None


def _media(part: Media, dialect: Dialect, role: str) -> Part:
    return part if may_show(part, dialect, role) else Text(placeholder(part))


def may_show(part: Media, dialect: Dialect, role: str) -> bool:
    """Return whether a message of ``role`` may hold ``part``."""
    if role == "assistant" and not dialect.media_from_model:
        return False
    if not part.source:
        return bool(dialect.media) and part.kind == "document" and not part.mime and part.raw is not None
    if not part.mime:
        return not part.size or part.source.startswith(("https://", "http://"))
    if not dialect.media:
        return True
    return part.mime in dialect.media and part.mime.startswith("image/") == (part.kind == "image")


def _opaque(part: Opaque, dialect: Dialect, role: str) -> Part | None:
    if _is_taken(part, dialect, role):
        return part
    return Text(placeholder(part)) if role == "user" else None


def _is_taken(part: Opaque, dialect: Dialect, role: str) -> bool:
    kind = part.kind
    if part.raw is None or not may_go(part.seal, dialect):
        return False
    if kind in dialect.refused or kind.startswith(_beginnings(dialect.refused)):
        return False
    if kind.startswith(BESIDE):
        return True
    if role != "assistant" and kind.endswith(("_tool_use", "_tool_result")):
        return False
    if role != "assistant" and kind in dialect.alone:
        return False
    known = dialect.taken.get("user" if role == "tool" else role)
    return known is None or kind in known


@lru_cache
def _beginnings(kinds: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(kind for kind in kinds if kind.endswith("."))


def _call(call: ToolCall, dialect: Dialect, role: str) -> ToolCall | None:
    if role != "assistant" or not call.id or not names_tool(call):
        return None
    name = wire_name(call.name, dialect)
    said = object_text(call) if dialect.object_arguments and not _are_objects((call.arguments,)) else call.arguments
    if name == call.name and said is call.arguments and may_go(call.seal, dialect):
        return call
    seal = call.seal if may_go(call.seal, dialect) else None
    return replace(call, name=name, arguments=said, seal=seal, raw=None)


def names_tool(call: ToolCall) -> bool:
    """Return whether a call says what is called; one that does not cannot be sent."""
    return bool(call.name) and not call.name.isspace()


def calls_fit(calls: Sequence[ToolCall], dialect: Dialect) -> bool:
    """Return whether all ``calls``, of answers, may be sent as they are, their ids aside; each name is judged once."""
    names, seals = {call.name for call in calls}, {call.seal for call in calls}
    return (
        all(name == wire_name(name, dialect) and not name.isspace() for name in names)
        and all(may_go(seal, dialect) for seal in seals)
        and (not dialect.object_arguments or _are_objects(call.arguments for call in calls))
    )


_OBJECT = msgspec.json.Decoder(dict[str, Any])
_ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def _are_objects(arguments: Iterable[str]) -> bool:
    try:
        for _ in map(_OBJECT.decode, arguments):
            pass
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return False
    return True


def is_cut_off(call: ToolCall) -> bool:
    """Return whether the arguments of a call end before they are JSON: the answer that made it was interrupted."""
    if not call.arguments.lstrip().startswith(("{", "[", '"')):
        return False
    try:
        _ANY.decode(call.arguments)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return True
    return False


def _result(result: ToolResult, dialect: Dialect, role: str) -> ToolResult | None:
    if role == "assistant":
        return None
    content = [_inner(part, result, dialect) for part in result.content]
    empty = not (result.content or dialect.empty_results or result.raw is None)
    if not empty and all(map(is_, content, result.content)):
        return result
    return replace(result, content=tuple(part for part in content if part is not None), raw=None)


def _inner(part: Text | Media | Opaque, result: ToolResult, dialect: Dialect) -> Text | Media | Opaque | None:
    """Return a part of a result as it may be sent."""
    plain = not dialect.media_in_results or (result.is_error and not dialect.media_in_errors)
    if isinstance(part, Text):
        if not part.text and not dialect.empty_text and (part.raw is not None or len(result.content) > 1):
            return None
        return part if may_go(part.seal, dialect) else Text(part.text)
    if isinstance(part, Media):
        return Text(placeholder(part)) if plain or not may_show(part, dialect, "tool") else part
    if not plain and part.kind not in dialect.refused_in_results and _is_taken(part, dialect, "tool"):
        return part
    return None if part.kind in _FORM else Text(placeholder(part))


_CLEAN: dict[type, Callable[[Any, Dialect, str], Part | None]] = {
    Text: _text,
    Thinking: _thinking,
    Media: _media,
    Opaque: _opaque,
    ToolCall: _call,
    ToolResult: _result,
}
_RULES: dict[type, str] = {
    Text: "empty-text",
    Thinking: "thinking",
    Media: "media",
    Opaque: "foreign-part",
    ToolCall: "call",
    ToolResult: "result",
}
"""What an edit is called that takes out or rewrites a part."""
OWN = frozenset({"role", *_RULES.values()})
"""Rules of the edits that a message needs for itself, whatever stands around it."""


# -- names -------------------------------------------------------------------------------------------------------------


def wire_name(name: str, dialect: Dialect) -> str:
    """Return a tool's name in the letters and length that its API takes."""
    return _wire_name(name, dialect.name_pattern, dialect.name_max)


_ODD = re.compile(r"[^a-zA-Z0-9_-]")


@lru_cache(maxsize=1 << 12)
def _wire_name(name: str, pattern: str, most: int) -> str:
    if len(name) <= most and re.fullmatch(pattern, name):
        return name
    safe = _ODD.sub("_", name)
    return (safe if re.fullmatch(pattern, safe) else f"_{safe}")[:most]
