"""One message: parts that its API refuses are gone or rewritten, all others are the same objects."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from operator import is_
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.messages.equality import MESSAGE_FIELD_PREFIX, is_message_field
from holdfast.messages.message import Message, format_part_placeholder
from holdfast.messages.parts import Media, Opaque, Part, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.references import encode_call_arguments
from holdfast.normalize.tracked_messages import TrackedMessage
from holdfast.state.dialect import Dialect

_CONTENT_FIELD_KINDS = frozenset({"message.refusal", "message.audio", "message.function_call"})
"""Such fields that say something: an answer may consist of one."""
_FORM_ONLY_KINDS = frozenset({"functionResponse"})
"""Opaque pieces of a result that only tell that it had another form than it should."""


def clean_messages(items: list[TrackedMessage], dialect: Dialect) -> list[TrackedMessage]:
    """Return the items with messages that their API takes, each for itself; one that is left empty is gone."""
    last = len(items) - 1 if any(has_nonblank_content(item.message) for item in items) else -1
    clean_items = (
        _clean_tracked_message(item, dialect, is_last_content=number == last) for number, item in enumerate(items)
    )
    return [item for item in clean_items if item is not None]


def _clean_tracked_message(item: TrackedMessage, dialect: Dialect, *, is_last_content: bool) -> TrackedMessage | None:
    if is_last_content and is_empty_prefill(item.message, dialect):
        return item
    message = clean_message(item.message, dialect)
    if message is item.message and (message.parts or can_be_empty(message, dialect)):
        return item
    if not message.parts:
        return None
    role = item.message.role
    rules = sorted(
        {_RULE_BY_PART_TYPE[type(part)] for part in item.message.parts if clean_part(part, dialect, role) is not part}
    )
    why = f"{dialect.api} does not take these parts as they stood"
    return replace(item, message=message, reasons=(*item.reasons, *[(rule, why) for rule in rules or ["role"]]))


def has_nonblank_content(message: Message) -> bool:
    """Return whether a message of a conversation holds anything but white space."""
    return message.role != "system" and any(not isinstance(p, Text) or p.text.strip() for p in message.parts)


def can_be_empty(message: Message, dialect: Dialect) -> bool:
    """Return whether ``message`` may stand without a part, wherever it stands."""
    return dialect.keeps_client_content or (dialect.allows_empty_messages and message.role != "assistant")


def is_empty_prefill(message: Message, dialect: Dialect) -> bool:
    """Return whether ``message``, the last one, is an answer without words yet, which this API goes on with."""
    if message.role != "assistant" or not dialect.allows_empty_last_answer:
        return False
    return not message.parts or (len(message.parts) == 1 and _is_empty_text(message.parts[0]))


def _is_empty_text(part: object) -> bool:
    return type(part) is Text and not part.text and part.raw is None


def clean_message(message: Message, dialect: Dialect) -> Message:
    """Return the message with refused parts gone or rewritten; the same object when nothing is wrong."""
    role, stood = message.role, message.parts
    if dialect.keeps_client_content:
        return _drop_foreign_signatures(message, dialect)
    for part in stood:
        if not is_ordinary_part(part, dialect, role):
            break
    else:
        return message
    if len(stood) == 1 and type(stood[0]) is Opaque and stood[0].kind == "message" and role != "assistant":
        return message
    parts = [clean_part(part, dialect, role) for part in stood]
    if role == "assistant":
        parts = _keep_reasoning_units(stood, parts) if dialect.binds_reasoning_to_next else parts
        parts = _drop_exclusive_parts(parts, dialect) if dialect.exclusive_kinds else parts
    if not _has_sendable_content(parts, dialect, role):
        return Message(role) if stood else message
    if all(map(is_, parts, stood)):
        return message
    return Message(role, tuple([part for part in parts if part is not None]))


def _drop_foreign_signatures(message: Message, dialect: Dialect) -> Message:
    """Return the message without what another model sealed; the same object where there is nothing such."""
    parts = [
        part
        if isinstance(part, Media | ToolResult) or can_send_signature(part.signature, dialect)
        else clean_part(part, dialect, "")
        for part in message.parts
    ]
    if all(map(is_, parts, message.parts)):
        return message
    return Message(message.role, tuple([part for part in parts if part is not None]))


def is_ordinary_part(part: Part, dialect: Dialect, role: str) -> bool:
    """Return whether a part is what most are, and fine: words, a result of nothing but words, or a call."""
    if type(part) is ToolResult:
        return role != "assistant" and bool(part.content) and all(map(is_unsigned_text, part.content))
    return _clean_call_part(part, dialect, role) is part if type(part) is ToolCall else is_unsigned_text(part)


def is_unsigned_text(part: Part) -> bool:
    """Return whether a part is words that any API takes of anybody."""
    return type(part) is Text and part.signature is None and bool(part.text) and not part.text.isspace()


def _has_sendable_content(parts: Sequence[Part | None], dialect: Dialect, role: str) -> bool:
    """Return whether something is left that may stand as a message of this role."""
    for part in parts:
        if part is None:
            continue
        if role != "assistant" and (dialect.allows_empty_text or not is_message_field(part)):
            return True
        if (
            role == "assistant"
            and (type(part) is not Thinking or dialect.allows_thinking_only)
            and not _is_metadata_only(part)
        ):
            return True
    return False


def _is_metadata_only(part: Part) -> bool:
    return isinstance(part, Opaque) and is_message_field(part) and part.kind not in _CONTENT_FIELD_KINDS


def _drop_exclusive_parts(parts: list[Part | None], dialect: Dialect) -> list[Part | None]:
    """Return the parts without those that may only stand alone, where others stand beside them."""
    content_indexes = [
        at for at, part in enumerate(parts) if isinstance(part, Text | Media | Opaque) and not is_message_field(part)
    ]
    single = [
        at for at in content_indexes if isinstance(part := parts[at], Opaque) and part.kind in dialect.exclusive_kinds
    ]
    if not single or len(content_indexes) == 1:
        return parts
    dropped_indexes = set(single[1:] if len(single) == len(content_indexes) else single)
    return [None if at in dropped_indexes else part for at, part in enumerate(parts)]


# -- thinking and what came of it --------------------------------------------------------------------------------------


def _keep_reasoning_units(original: Sequence[Part], parts: list[Part | None]) -> list[Part | None]:
    """Return the parts with thinking and the part behind it together or apart, never one half of the two."""
    out = list(parts)
    for index, old in enumerate(original):
        if type(old) is Thinking or index == 0 or type(original[index - 1]) is not Thinking:
            continue
        first = _find_thinking_start(original, index)
        if any(part is None for part in parts[first:index]):
            out[index] = strip_part_signature(parts[index])
        elif parts[index] is not None:
            continue
        out[first:index] = [None] * (index - first)
    first = _find_thinking_start(original, len(original))
    out[first:] = [None] * (len(original) - first)
    return out


def _find_thinking_start(parts: Sequence[Part], end: int) -> int:
    """Return where the thinking begins that ends at ``end``."""
    while end and type(parts[end - 1]) is Thinking:
        end -= 1
    return end


def strip_part_signature(part: Part | None) -> Part | None:
    """Return a part without the name that ties it to its thinking; one whose name cannot be taken off is gone."""
    if isinstance(part, Text | ToolCall):
        return replace(part, signature=None, raw=None)
    return None if isinstance(part, Opaque) else part


PartIndexes = dict[int, set[int]]
"""Places of parts, by the message they stand in."""


def drop_tracked_parts(
    items: Sequence[TrackedMessage], dropped: PartIndexes, dialect: Dialect, rule: str, why: str
) -> list[TrackedMessage]:
    """Return the items without the parts at the places ``dropped``; a message of which nothing is left goes too."""
    out = list(items)
    for index, places in dropped.items():
        out[index] = items[index].replace_message(
            drop_parts_with_thinking(items[index].message, places, dialect), rule, why
        )
    return [item for index, item in enumerate(out) if item.message.parts or index not in dropped]


def drop_parts_with_thinking(message: Message, dropped: Collection[int], dialect: Dialect) -> Message:
    """Return the message without the parts at the places ``dropped``, and without the thinking that they came of."""
    parts: list[Part | None] = [None if place in dropped else part for place, part in enumerate(message.parts)]
    if dialect.binds_reasoning_to_next:
        parts = _keep_reasoning_units(message.parts, parts)
    if not _has_sendable_content(parts, dialect, message.role):
        return Message(message.role)
    return Message(message.role, tuple(part for part in parts if part is not None))


# -- one part ----------------------------------------------------------------------------------------------------------


def clean_part(part: Part, dialect: Dialect, role: str) -> Part | None:
    """Return the part as it may be sent: itself, a rewritten one, or nothing."""
    return _CLEANERS[type(part)](part, dialect, role)


def can_send_signature(signature: ProviderSignature | None, dialect: Dialect) -> bool:
    """Return whether what carries ``signature`` may be sent as it is: nobody sealed it, or this API did for this
    model.
    """
    return signature is None or (signature.api == dialect.api and signature.model in {"", dialect.model})


def _clean_text_part(part: Text, dialect: Dialect, _role: str) -> Text | None:
    if not (dialect.allows_blank_text if part.text else dialect.allows_empty_text) and (
        not part.text or part.text.isspace()
    ):
        return None
    return part if part.signature is None or can_send_signature(part.signature, dialect) else Text(part.text)


def _clean_thinking_part(part: Thinking, dialect: Dialect, role: str) -> Thinking | None:
    has_own_signature = part.signature is not None and bool(part.text or part.signature.data or part.raw is not None)
    whole = has_own_signature or (dialect.binds_reasoning_to_next and part.raw is not None)
    return (
        part
        if whole
        and (role == "assistant" or dialect.allows_thinking_in_any_role)
        and can_send_signature(part.signature, dialect)
        else None
    )


def _clean_media_part(part: Media, dialect: Dialect, role: str) -> Part:
    return part if can_role_hold_media(part, dialect, role) else Text(format_part_placeholder(part))


def can_role_hold_media(part: Media, dialect: Dialect, role: str) -> bool:
    """Return whether a message of ``role`` may hold ``part``."""
    if role == "assistant" and not dialect.allows_media_from_model:
        return False
    if not part.source:
        return bool(dialect.media_types) and part.kind == "document" and not part.mime and part.raw is not None
    if not part.mime:
        return not part.size or part.source.startswith(("https://", "http://"))
    if not dialect.media_types:
        return True
    return part.mime in dialect.media_types and part.mime.startswith("image/") == (part.kind == "image")


def _clean_opaque_part(part: Opaque, dialect: Dialect, role: str) -> Part | None:
    if _is_opaque_accepted(part, dialect, role):
        return part
    return Text(format_part_placeholder(part)) if role == "user" else None


def _is_opaque_accepted(part: Opaque, dialect: Dialect, role: str) -> bool:
    kind = part.kind
    if part.raw is None or not can_send_signature(part.signature, dialect):
        return False
    if kind in dialect.refused_kinds or kind.startswith(_select_kind_prefixes(dialect.refused_kinds)):
        return False
    if kind.startswith(MESSAGE_FIELD_PREFIX):
        return True
    if role != "assistant" and kind.endswith(("_tool_use", "_tool_result")):
        return False
    if role != "assistant" and kind in dialect.exclusive_kinds:
        return False
    known_kinds = dialect.allowed_kinds_by_role.get("user" if role == "tool" else role)
    return known_kinds is None or kind in known_kinds


@lru_cache
def _select_kind_prefixes(kinds: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(kind for kind in kinds if kind.endswith("."))


def _clean_call_part(call: ToolCall, dialect: Dialect, role: str) -> ToolCall | None:
    if role != "assistant" or not call.id or not has_tool_name(call):
        return None
    name = encode_wire_tool_name(call.name, dialect)
    arguments_text = (
        encode_call_arguments(call)
        if dialect.arguments_are_objects and not _has_only_object_arguments((call.arguments,))
        else call.arguments
    )
    if name == call.name and arguments_text is call.arguments and can_send_signature(call.signature, dialect):
        return call
    signature = call.signature if can_send_signature(call.signature, dialect) else None
    return replace(call, name=name, arguments=arguments_text, signature=signature, raw=None)


def has_tool_name(call: ToolCall) -> bool:
    """Return whether a call says what is called; one that does not cannot be sent."""
    return bool(call.name) and not call.name.isspace()


def has_only_valid_calls(calls: Sequence[ToolCall], dialect: Dialect) -> bool:
    """Return whether all ``calls``, of answers, may be sent as they are, their ids aside; each name is judged once."""
    names, signatures = {call.name for call in calls}, {call.signature for call in calls}
    return (
        all(name == encode_wire_tool_name(name, dialect) and not name.isspace() for name in names)
        and all(can_send_signature(signature, dialect) for signature in signatures)
        and (not dialect.arguments_are_objects or _has_only_object_arguments(call.arguments for call in calls))
    )


_OBJECT_DECODER = msgspec.json.Decoder(dict[str, Any])
_ANY_JSON_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def _has_only_object_arguments(arguments: Iterable[str]) -> bool:
    try:
        for _ in map(_OBJECT_DECODER.decode, arguments):
            pass
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return False
    return True


def has_incomplete_arguments(call: ToolCall) -> bool:
    """Return whether the arguments of a call end before they are JSON: the answer that made it was interrupted."""
    if not call.arguments.lstrip().startswith(("{", "[", '"')):
        return False
    try:
        _ANY_JSON_DECODER.decode(call.arguments)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return True
    return False


def _clean_result_part(result: ToolResult, dialect: Dialect, role: str) -> ToolResult | None:
    if role == "assistant":
        return None
    content = [_clean_result_content(part, result, dialect) for part in result.content]
    empty = not (result.content or dialect.allows_empty_results or result.raw is None)
    if not empty and all(map(is_, content, result.content)):
        return result
    return replace(result, content=tuple(part for part in content if part is not None), raw=None)


def _clean_result_content(
    part: Text | Media | Opaque, result: ToolResult, dialect: Dialect
) -> Text | Media | Opaque | None:
    """Return a part of a result as it may be sent."""
    plain = not dialect.allows_media_in_results or (result.is_error and not dialect.allows_media_in_errors)
    if isinstance(part, Text):
        if not part.text and not dialect.allows_empty_text and (part.raw is not None or len(result.content) > 1):
            return None
        return part if can_send_signature(part.signature, dialect) else Text(part.text)
    if isinstance(part, Media):
        return Text(format_part_placeholder(part)) if plain or not can_role_hold_media(part, dialect, "tool") else part
    if not plain and part.kind not in dialect.refused_result_kinds and _is_opaque_accepted(part, dialect, "tool"):
        return part
    return None if part.kind in _FORM_ONLY_KINDS else Text(format_part_placeholder(part))


_CLEANERS: dict[type, Callable[[Any, Dialect, str], Part | None]] = {
    Text: _clean_text_part,
    Thinking: _clean_thinking_part,
    Media: _clean_media_part,
    Opaque: _clean_opaque_part,
    ToolCall: _clean_call_part,
    ToolResult: _clean_result_part,
}
_RULE_BY_PART_TYPE: dict[type, str] = {
    Text: "empty-text",
    Thinking: "thinking",
    Media: "media",
    Opaque: "foreign-part",
    ToolCall: "call",
    ToolResult: "result",
}
"""What an edit is called that takes out or rewrites a part."""
CLEANING_RULES = frozenset({"role", *_RULE_BY_PART_TYPE.values()})
"""Rules of the edits that a message needs for itself, whatever stands around it."""


# -- names -------------------------------------------------------------------------------------------------------------


def encode_wire_tool_name(name: str, dialect: Dialect) -> str:
    """Return a tool's name in the letters and length that its API takes."""
    return _map_tool_name(name, dialect.name_pattern, dialect.name_max)


_INVALID_NAME_CHARS = re.compile(r"[^a-zA-Z0-9_-]")


@lru_cache(maxsize=1 << 12)
def _map_tool_name(name: str, pattern: str, max_chars: int) -> str:
    if len(name) <= max_chars and re.fullmatch(pattern, name):
        return name
    safe = _INVALID_NAME_CHARS.sub("_", name)
    return (safe if re.fullmatch(pattern, safe) else f"_{safe}")[:max_chars]
