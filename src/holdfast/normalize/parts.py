"""Clean one message: drop or rewrite the parts that its API refuses.

All other parts, and messages without such parts, stay the same objects: that is how later code knows that their bytes
can be sent unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from operator import is_
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from holdfast.messages.equality import MESSAGE_FIELD_PREFIX, is_message_field
from holdfast.messages.message import Message, collect_media_in_messages, format_part_placeholder
from holdfast.messages.parts import Media, Opaque, Part, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.references import encode_call_arguments
from holdfast.messages.strip_foreign import get_opaque_text
from holdfast.normalize.correct_media import (
    MEDIA_BYTES_RULE,
    correct_media,
    explain_media_correction,
    rewrite_result_raw,
)
from holdfast.normalize.item_forms import correct_item_form, is_answer_only_item
from holdfast.normalize.returned_reasoning import REASONING_RULE, move_reasoning_field
from holdfast.normalize.tracked_messages import EditReason, TrackedMessage
from holdfast.state.dialect import Dialect

# Fields of a message beside its content that count as content: an answer may consist of one of them.
_CONTENT_FIELD_KINDS = frozenset({"message.refusal", "message.audio", "message.function_call"})
REFUSAL_RULE = "refusal"
"""Rule of the edits that send a refusal of the model's as text, where the API has no field or part for it."""
_REFUSAL_KINDS = frozenset({"message.refusal", "refusal"})
# Opaque pieces of a result that only record its unusual form. Another API gets no placeholder for them.
_FORM_ONLY_KINDS = frozenset({"functionResponse"})


def clean_messages(items: list[TrackedMessage], dialect: Dialect) -> list[TrackedMessage]:
    """Clean each message by itself; drop those that are left empty."""
    has_content = any(has_nonblank_content(item.message) for item in items)
    # An empty last answer is a prefill that some APIs go on with, but only after a conversation.
    prefill_index = len(items) - 1 if has_content else -1
    clean_items: list[TrackedMessage] = []
    for index, item in enumerate(items):
        clean_item = _clean_tracked_message(item, dialect, may_be_prefill=index == prefill_index)
        if clean_item is not None:
            clean_items.append(clean_item)
    return clean_items


def _clean_tracked_message(item: TrackedMessage, dialect: Dialect, *, may_be_prefill: bool) -> TrackedMessage | None:
    """Return the cleaned item: the same object if nothing changes, None if the message is left empty."""
    if may_be_prefill and is_empty_prefill(item.message, dialect):
        return item
    message = clean_message(item.message, dialect)
    if message is item.message and (message.parts or can_be_empty(message, dialect)):
        return item
    if not message.parts:
        return None
    role = item.message.role
    rules: set[str] = set()
    sent_ids = set(map(id, message.parts))
    has_told_refusal = False
    for part in item.message.parts:
        if role == "assistant" and _get_refusal_words(part):
            has_told_refusal = has_told_refusal or id(part) not in sent_ids
            continue
        clean = clean_part(part, dialect, role)
        if clean is part:
            continue
        is_moved_reasoning = type(part) is Thinking and clean is not None
        rules.add(REASONING_RULE if is_moved_reasoning else _RULE_BY_PART_TYPE[type(part)])
    reasons = _explain_media_corrections(item.message, dialect)
    if reasons:
        rules -= _MEDIA_RULES
    if has_told_refusal:
        problem = f"{dialect.provider or dialect.api} has no place for the model's refusal here"
        reasons.append((REFUSAL_RULE, f"{problem}; its words are sent as text"))
    why = f"{dialect.provider or dialect.api} does not accept these parts in this form"
    if not reasons or rules:
        reasons += [(rule, why) for rule in sorted(rules) or ["role"]]
    return replace(item, message=message, reasons=(*item.reasons, *reasons))


def _explain_media_corrections(message: Message, dialect: Dialect) -> list[EditReason]:
    reasons: list[EditReason] = []
    for media in collect_media_in_messages(message):
        why = explain_media_correction(media, dialect)
        if why:
            reasons.append((MEDIA_BYTES_RULE, why))
    return reasons


def has_nonblank_content(message: Message) -> bool:
    """Return whether a message, not of the system, holds anything but white space."""
    return message.role != "system" and any(not isinstance(p, Text) or p.text.strip() for p in message.parts)


def can_be_empty(message: Message, dialect: Dialect) -> bool:
    """Return whether ``message`` may be sent without parts, wherever it stands."""
    return dialect.keeps_client_content or (dialect.allows_empty_messages and message.role != "assistant")


def is_empty_prefill(message: Message, dialect: Dialect) -> bool:
    """Return whether ``message``, the last one, is an answer without words that this API goes on with."""
    if message.role != "assistant" or not dialect.allows_empty_last_answer:
        return False
    if not message.parts:
        return True
    return len(message.parts) == 1 and _is_empty_text(message.parts[0])


def _is_empty_text(part: object) -> bool:
    return type(part) is Text and not part.text and part.raw is None


def clean_message(message: Message, dialect: Dialect) -> Message:
    """Drop or rewrite the parts of ``message`` that the API refuses; return the same object if it refuses none."""
    if dialect.keeps_client_content:
        return _drop_foreign_signatures(message, dialect)
    role, original_parts = message.role, message.parts
    # The common case first, with nothing built: this runs for each message of each request.
    for part in original_parts:
        if not is_ordinary_part(part, dialect, role):
            break
    else:
        return message
    if role != "assistant" and _is_unreadable(original_parts):
        return message
    # Without the items that only answers have, reasoning before one of them belongs to what comes after it.
    sendable_parts = [part for part in original_parts if not is_answer_only_item(part, dialect)]
    parts = [clean_part(part, dialect, role) for part in sendable_parts]
    if role == "assistant":
        if dialect.binds_reasoning_to_next:
            parts = _keep_reasoning_units(sendable_parts, parts)
        if dialect.exclusive_kinds:
            parts = _drop_exclusive_parts(parts, dialect)
    if not _has_sendable_content(parts, dialect, role):
        return Message(role) if original_parts else message
    if len(parts) == len(original_parts) and all(map(is_, parts, original_parts)):
        return message
    return Message(role, tuple([part for part in parts if part is not None]))


def _is_unreadable(parts: Sequence[Part]) -> bool:
    """Return whether the parts are a whole message that could not be parsed: it is sent as the client wrote it."""
    return len(parts) == 1 and type(parts[0]) is Opaque and parts[0].kind == "message"


def _drop_foreign_signatures(message: Message, dialect: Dialect) -> Message:
    """Drop or rewrite parts that another model signed; return the same object if there are no such parts."""
    parts: list[Part | None] = []
    for part in message.parts:
        is_refused_refusal = message.role == "assistant" and _is_refused_refusal(part, dialect)
        if isinstance(part, Media | ToolResult) or (
            can_send_signature(part.signature, dialect) and not is_refused_refusal
        ):
            parts.append(part)
        else:
            parts.append(clean_part(part, dialect, message.role if is_refused_refusal else ""))
    if all(map(is_, parts, message.parts)):
        return message
    return Message(message.role, tuple([part for part in parts if part is not None]))


def _is_refused_refusal(part: Part, dialect: Dialect) -> bool:
    """Return whether ``part`` is a refusal in a field that the server is known not to have."""
    return type(part) is Opaque and part.kind in dialect.refused_kinds and bool(_get_refusal_words(part))


def is_ordinary_part(part: Part, dialect: Dialect, role: str) -> bool:
    """Return whether a part is of the most common kinds and valid: text, a result of text alone, or a call."""
    if type(part) is ToolResult:
        if role == "assistant" or not part.content or _has_refused_name(part, dialect):
            return False
        return all(map(is_unsigned_text, part.content))
    if type(part) is ToolCall:
        return _clean_call_part(part, dialect, role) is part
    return is_unsigned_text(part)


def refuses_result_names(dialect: Dialect) -> bool:
    """Return whether a result may not carry the name of its tool, as no message may have one."""
    return "message.name" in dialect.refused_kinds


def _has_refused_name(result: ToolResult, dialect: Dialect) -> bool:
    return bool(result.name) and result.raw is not None and refuses_result_names(dialect)


def is_unsigned_text(part: Part) -> bool:
    """Return whether a part is text that any API takes from any role: unsigned and not blank."""
    return type(part) is Text and part.signature is None and bool(part.text) and not part.text.isspace()


def _has_sendable_content(parts: Sequence[Part | None], dialect: Dialect, role: str) -> bool:
    """Return whether one of ``parts``, as they are left after cleaning, may make up a message of this role."""
    for part in parts:
        if part is None:
            continue
        if role != "assistant":
            if dialect.allows_empty_text or not is_message_field(part):
                return True
        elif _is_answer_content(part, dialect):
            return True
    return False


def _is_answer_content(part: Part, dialect: Dialect) -> bool:
    """Return whether an answer may consist of ``part`` alone."""
    if type(part) is Thinking:
        return dialect.allows_thinking_only
    if type(part) is Text and not part.text:
        return dialect.allows_empty_answers
    return not _is_metadata_only(part)


def _is_metadata_only(part: Part) -> bool:
    return isinstance(part, Opaque) and is_message_field(part) and part.kind not in _CONTENT_FIELD_KINDS


def _drop_exclusive_parts(parts: list[Part | None], dialect: Dialect) -> list[Part | None]:
    """Drop parts that may only stand alone, if others stand beside them; of several such parts keep the first.

    A refusal is not dropped but becomes text, unless it only repeats the one that is kept.
    """
    content_indexes: list[int] = []
    exclusive_indexes: list[int] = []
    for index, part in enumerate(parts):
        if not isinstance(part, Text | Media | Opaque) or is_message_field(part):
            continue
        content_indexes.append(index)
        if isinstance(part, Opaque) and part.kind in dialect.exclusive_kinds:
            exclusive_indexes.append(index)
    if not exclusive_indexes or len(content_indexes) == 1:
        return parts
    stand_alone = len(exclusive_indexes) == len(content_indexes)
    all_words = {_get_refusal_words(parts[index]) for index in exclusive_indexes}
    keeps_first = stand_alone and len(all_words) == 1
    remaining_parts = list(parts)
    for index in exclusive_indexes:
        words = _get_refusal_words(parts[index])
        if keeps_first:
            remaining_parts[index] = parts[index] if index == exclusive_indexes[0] else None
        else:
            remaining_parts[index] = Text(words) if words else None
    return remaining_parts


# -- thinking and what came of it --------------------------------------------------------------------------------------


def _keep_reasoning_units(original: Sequence[Part], parts: list[Part | None]) -> list[Part | None]:
    """Keep thinking and the part after it together, or drop the thinking and unbind the part.

    OpenAI's Responses API refuses a reasoning item without the item that it led to, and that item, under its id,
    without its reasoning. ``parts`` are the ``original`` parts after cleaning, None where one was dropped.
    """
    kept = list(parts)
    for index, old_part in enumerate(original):
        follows_thinking = index > 0 and type(original[index - 1]) is Thinking
        if type(old_part) is Thinking or not follows_thinking:
            continue
        start = _find_thinking_start(original, index)
        lost_thinking = any(part is None for part in parts[start:index])
        if lost_thinking:
            kept[index] = strip_part_signature(parts[index])
        if lost_thinking or parts[index] is None:
            kept[start:index] = [None] * (index - start)
    # Thinking at the end led to nothing.
    start = _find_thinking_start(original, len(original))
    kept[start:] = [None] * (len(original) - start)
    return kept


def _find_thinking_start(parts: Sequence[Part], end: int) -> int:
    """Return the start of the run of thinking that ends before index ``end``; ``end`` if no thinking stands there."""
    while end and type(parts[end - 1]) is Thinking:
        end -= 1
    return end


def strip_part_signature(part: Part | None) -> Part | None:
    """Remove the signature that binds a part to its thinking; return None for opaque parts, which cannot be unbound."""
    if isinstance(part, Text | ToolCall):
        return replace(part, signature=None, raw=None)
    if isinstance(part, Opaque):
        return None
    return part


PartIndexes = dict[int, set[int]]
"""Indexes of parts in their message, by the message's index."""


def drop_tracked_parts(
    items: Sequence[TrackedMessage],
    dropped: PartIndexes,
    dialect: Dialect,
    rule: str,
    why: str,
) -> list[TrackedMessage]:
    """Drop the parts at the indexes ``dropped``, and messages that they leave empty."""
    remaining_items: list[TrackedMessage] = []
    for index, item in enumerate(items):
        if index not in dropped:
            remaining_items.append(item)
            continue
        message = drop_parts_with_thinking(item.message, dropped[index], dialect)
        if message.parts:
            remaining_items.append(item.replace_message(message, rule, why))
    return remaining_items


def drop_parts_with_thinking(message: Message, dropped: Collection[int], dialect: Dialect) -> Message:
    """Drop the parts at the indexes ``dropped``, and the thinking bound to them.

    The returned message is empty if no remaining part may be sent.
    """
    parts: list[Part | None] = list(message.parts)
    for index in dropped:
        parts[index] = None
    if dialect.binds_reasoning_to_next:
        parts = _keep_reasoning_units(message.parts, parts)
    if not _has_sendable_content(parts, dialect, message.role):
        return Message(message.role)
    return Message(message.role, tuple(part for part in parts if part is not None))


# -- one part ----------------------------------------------------------------------------------------------------------


def clean_part(part: Part, dialect: Dialect, role: str) -> Part | None:
    """Return the part as it may be sent: the same object, a rewritten one, or None if it must go."""
    return _CLEANERS[type(part)](part, dialect, role)


def can_send_signature(signature: ProviderSignature | None, dialect: Dialect) -> bool:
    """Return whether a part with ``signature`` may be sent as it is: it has none, or one of this API and model."""
    return signature is None or (signature.api == dialect.api and signature.model in {"", dialect.model})


def _clean_text_part(part: Text, dialect: Dialect, _role: str) -> Text | None:
    if not part.text:
        if not dialect.allows_empty_text:
            return None
    elif not dialect.allows_blank_text and part.text.isspace():
        return None
    if can_send_signature(part.signature, dialect):
        return part
    return Text(part.text)


def _clean_thinking_part(part: Thinking, dialect: Dialect, role: str) -> Part | None:
    """Return signed thinking of this model unchanged; anything else cannot be verified by its provider and goes."""
    if role != "assistant" and not dialect.allows_thinking_in_any_role:
        return None
    signature = part.signature
    is_signed = signature is not None and bool(part.text or signature.data or part.raw is not None)
    # A reasoning item may come without encrypted content; its bytes, with the id, are what the next item needs.
    is_bound_item = dialect.binds_reasoning_to_next and part.raw is not None
    if not (is_signed or is_bound_item):
        return None
    if not can_send_signature(signature, dialect):
        return None
    reasoning = move_reasoning_field(part, dialect)
    return None if reasoning is None else correct_item_form(reasoning, dialect)


def _clean_media_part(part: Media, dialect: Dialect, role: str) -> Media | Text:
    corrected = correct_media(part, dialect)
    if isinstance(corrected, Text) or can_role_hold_media(corrected, dialect, role):
        return corrected
    if role == "assistant" and part.form == "text" and part.source.strip():
        return Text(f"[{part.name}]\n{part.source}" if part.name else part.source)  # its words need no document
    placeholder = format_part_placeholder(part)
    if part.form == "url" and not _can_fetch_url(part.source, dialect):
        # The model may have a tool that can fetch it.
        placeholder = f"{placeholder} {part.source}"
    return Text(placeholder)


def can_role_hold_media(part: Media, dialect: Dialect, role: str) -> bool:
    """Return whether a message of ``role`` may hold ``part``."""
    if not dialect.allows_media or (role == "assistant" and not dialect.allows_media_from_model):
        return False
    if not part.source:
        # Only an Anthropic document of content blocks has no source; its raw bytes hold the content.
        is_block_document = part.kind == "document" and not part.mime and part.raw is not None
        return is_block_document and bool(dialect.media_types)
    if not part.mime:
        # Without a type only a URL or the id of an uploaded file may be sent; bytes without a type are refused.
        if part.form == "url" and not _can_fetch_url(part.source, dialect):
            return False
        is_url = part.source.startswith(("https://", "http://"))
        return is_url or not part.size
    if not dialect.media_types:
        return True
    is_kind_of_mime = part.mime.startswith("image/") == (part.kind == "image")
    return part.mime in dialect.media_types and is_kind_of_mime


def _can_fetch_url(url: str, dialect: Dialect) -> bool:
    return dialect.allows_media_urls or url.startswith(dialect.media_url_beginnings)


def _clean_opaque_part(part: Opaque, dialect: Dialect, role: str) -> Part | None:
    if _is_opaque_accepted(part, dialect, role):
        return correct_item_form(part, dialect)
    if role == "assistant" and (words := _get_refusal_words(part)):
        return Text(words)
    # A user's part is something that they attached; a line says so. Other roles' parts are provider data.
    return Text(format_part_placeholder(part)) if role == "user" else None


def _get_refusal_words(part: Part | None) -> str:
    """Return the words of a refusal, or an empty string for any other part."""
    if type(part) is not Opaque or part.kind not in _REFUSAL_KINDS:
        return ""
    words = get_opaque_text(part)
    return "" if words.isspace() else words


def _is_opaque_accepted(part: Opaque, dialect: Dialect, role: str) -> bool:
    if part.raw is None or not can_send_signature(part.signature, dialect):
        return False
    kind = part.kind
    if kind in dialect.refused_kinds or kind.startswith(_select_kind_prefixes(dialect.refused_kinds)):
        return False
    if kind.startswith(MESSAGE_FIELD_PREFIX):
        return dialect.message_field_kinds is None or kind in dialect.message_field_kinds
    if role != "assistant":
        is_server_tool_part = kind.endswith(("_tool_use", "_tool_result"))
        if is_server_tool_part or kind in dialect.exclusive_kinds:
            return False
    allowed_kinds = dialect.allowed_kinds_by_role.get("user" if role == "tool" else role)
    return allowed_kinds is None or kind in allowed_kinds


@lru_cache
def _select_kind_prefixes(kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Return the entries of ``kinds`` that end in a dot: they stand for all kinds that begin with them."""
    return tuple(kind for kind in kinds if kind.endswith("."))


def _clean_call_part(call: ToolCall, dialect: Dialect, role: str) -> ToolCall | None:
    if role != "assistant" or not call.id or not has_tool_name(call):
        return None
    name = encode_wire_tool_name(call.name, dialect)
    arguments_text = call.arguments
    if dialect.arguments_are_objects and not _has_only_object_arguments((call.arguments,)):
        arguments_text = encode_call_arguments(call)
    has_valid_signature = can_send_signature(call.signature, dialect)
    if name == call.name and arguments_text is call.arguments and has_valid_signature:
        return call
    signature = call.signature if has_valid_signature else None
    return replace(
        call,
        name=name,
        arguments=arguments_text,
        signature=signature,
        raw=None,
    )


def has_tool_name(call: ToolCall) -> bool:
    """Return whether a call names a tool; a call that does not cannot be sent."""
    return bool(call.name) and not call.name.isspace()


def has_only_valid_calls(calls: Sequence[ToolCall], dialect: Dialect) -> bool:
    """Return whether all ``calls``, made by the assistant, may be sent as they are, their ids aside."""
    # A long history has many calls of few tools, so distinct names and signatures are checked and not each call's.
    for name in {call.name for call in calls}:
        if name.isspace() or name != encode_wire_tool_name(name, dialect):
            return False
    signatures = {call.signature for call in calls}
    if not all(can_send_signature(signature, dialect) for signature in signatures):
        return False
    return not dialect.arguments_are_objects or _has_only_object_arguments(call.arguments for call in calls)


_OBJECT_DECODER = msgspec.json.Decoder(dict[str, Any])
_RAW_FIELDS_DECODER = msgspec.json.Decoder(dict[str, Raw])
_ANY_JSON_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def _has_only_object_arguments(arguments: Iterable[str]) -> bool:
    """Return whether each of ``arguments`` is the JSON text of an object."""
    try:
        for text in arguments:
            _OBJECT_DECODER.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return False
    return True


def has_incomplete_arguments(call: ToolCall) -> bool:
    """Return whether the arguments of a call begin like JSON but end too early, as in an interrupted answer."""
    if not call.arguments.lstrip().startswith(("{", "[", '"')):
        return False
    try:
        _ANY_JSON_DECODER.decode(call.arguments)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return True
    return False


def _clean_result_part(result: ToolResult, dialect: Dialect, role: str) -> ToolResult | None:
    """Return the result as it may be sent; the same object if its content is accepted."""
    if role == "assistant":
        return None
    if _has_refused_name(result, dialect) and result.raw is not None:
        result = replace(result, name="", raw=_remove_name(result.raw))
    clean_content = [_clean_result_content(part, result, dialect) for part in result.content]
    is_refused_empty = not result.content and not dialect.allows_empty_results and result.raw is not None
    if not is_refused_empty and all(map(is_, clean_content, result.content)):
        return result
    # Without its raw bytes an empty result is encoded as an empty text, which the API takes.
    remaining_content = tuple(part for part in clean_content if part is not None)
    return replace(result, content=remaining_content, raw=rewrite_result_raw(result, clean_content))


def _remove_name(raw: Raw) -> Raw:
    """Return the JSON of a result without its field ``name``; all other fields keep their bytes."""
    fields = _RAW_FIELDS_DECODER.decode(raw)
    fields.pop("name", None)
    return Raw(msgspec.json.encode(fields))


def _clean_result_content(
    part: Text | Media | Opaque, result: ToolResult, dialect: Dialect
) -> Text | Media | Opaque | None:
    """Return one part of a result's content as it may be sent, or None if it must go."""
    if isinstance(part, Text):
        is_droppable = part.raw is not None or len(result.content) > 1
        if not part.text and not dialect.allows_empty_text and is_droppable:
            return None
        if can_send_signature(part.signature, dialect):
            return part
        return Text(part.text)

    is_text_only = not dialect.allows_media_in_results or (result.is_error and not dialect.allows_media_in_errors)
    if isinstance(part, Media):
        return Text(format_part_placeholder(part)) if is_text_only else _clean_media_part(part, dialect, "tool")
    may_hold_kind = not is_text_only and part.kind not in dialect.refused_result_kinds
    if may_hold_kind and _is_opaque_accepted(part, dialect, "tool"):
        return part
    if part.kind in _FORM_ONLY_KINDS:
        return None
    return Text(format_part_placeholder(part))


_CLEANERS: dict[type, Callable[[Any, Dialect, str], Part | None]] = {
    Text: _clean_text_part,
    Thinking: _clean_thinking_part,
    Media: _clean_media_part,
    Opaque: _clean_opaque_part,
    ToolCall: _clean_call_part,
    ToolResult: _clean_result_part,
}
# The rule of the edit that drops or rewrites a part, by the part's type.
_RULE_BY_PART_TYPE: dict[type, str] = {
    Text: "empty-text",
    Thinking: "thinking",
    Media: "media",
    Opaque: "foreign-part",
    ToolCall: "call",
    ToolResult: "result",
}
_MEDIA_RULES = frozenset({_RULE_BY_PART_TYPE[Media], _RULE_BY_PART_TYPE[ToolResult]})
CLEANING_RULES = frozenset({"role", MEDIA_BYTES_RULE, REASONING_RULE, REFUSAL_RULE, *_RULE_BY_PART_TYPE.values()})
"""Rules of the edits that clean a message by itself, whatever stands around it."""


# -- names -------------------------------------------------------------------------------------------------------------


def encode_wire_tool_name(name: str, dialect: Dialect) -> str:
    """Return a tool's name in the characters and length that the API takes."""
    return _map_tool_name(name, dialect.name_pattern, dialect.name_max)


_INVALID_NAME_CHARS = re.compile(r"[^a-zA-Z0-9_-]")


@lru_cache(maxsize=1 << 12)
def _map_tool_name(name: str, pattern: str, max_chars: int) -> str:
    if len(name) <= max_chars and re.fullmatch(pattern, name):
        return name
    safe_name = _INVALID_NAME_CHARS.sub("_", name)
    if not re.fullmatch(pattern, safe_name):  # some APIs want a letter or underscore first
        safe_name = f"_{safe_name}"
    if not re.fullmatch(pattern, safe_name):  # others a letter
        safe_name = f"t{safe_name}"
    return safe_name[:max_chars]
