"""OpenAI Responses: encode messages as items of ``input``.

``items`` describes how items are decoded. The ``id`` of an item refers to something the server made: it is sent with
its original bytes, and is dropped when the item is written anew or the reasoning before it is gone. Parts without a
form in Responses are left out (another API's thinking) or replaced by a placeholder.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from holdfast.messages.message import Message, Role, format_part_placeholder
from holdfast.messages.parts import Media, Opaque, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.normalize.result_matching import is_synthetic_result
from holdfast.providers.common.block_alignment import get_call_identity
from holdfast.providers.common.json.raw_json import (
    JsonBytes,
    decode_json,
    decode_json_fields,
    encode_json,
    overlay_fields,
)
from holdfast.providers.common.media import build_data_url, format_text_document
from holdfast.providers.openai_responses.items import (
    API_NAME,
    ARGUMENT_FIELD_BY_CALL,
    INNER_KIND_PREFIX,
    TEXT_PART_TYPES,
    build_message_from_items,
    decode_item,
    decode_message,
    decode_model_item,
    get_item_role,
    group_items_by_message,
    split_response_items,
    strip_list_brackets,
)

__all__ = [
    "API_NAME",
    "adapt_outputs_to_calls",
    "decode_message",
    "encode_message",
    "group_items_by_message",
    "strip_list_brackets",
]

_CONTENT_DECODER: Decoder[str | list[Raw] | None] = Decoder(str | list[Raw] | None)
_NON_FUNCTION_CALLS = frozenset(ARGUMENT_FIELD_BY_CALL) - {"function_call"}


class _ItemType(Struct):
    type: str = ""
    call_id: str | None = None


_ITEM_TYPE_DECODER = Decoder(_ItemType)


class _OldPart(NamedTuple):
    """A part as it was before the edit, with the item that held it: item ``number`` of its group."""

    number: int
    item: Raw
    part: Part


def encode_message(message: Message, base: Raw | None = None) -> list[bytes]:
    """Encode ``message`` as items, or none if nothing in it can be sent.

    A part with ``raw`` is sent as those bytes. One without is written anew over the item that it replaces in ``base``:
    fields that the part does not describe stay, the ``id`` is dropped.
    """
    if len(message.parts) == 1:
        part = message.parts[0]
        if type(part) is Opaque and part.kind == "message":
            return [] if part.raw is None else [bytes(part.raw)]
    # Nothing was edited after all. The old items are sent unchanged, ids included.
    if base is not None and decode_message(base) == message:
        return [bytes(raw) for raw in split_response_items(strip_list_brackets(base))]
    old_parts = [] if base is None else _decode_base_parts(base)
    if message.role == "assistant":
        return list(_encode_assistant_items(message.parts, old_parts))
    results = message.results
    old_results = []
    for old_part in old_parts:
        if type(old_part.part) is ToolResult:
            old_results.append(old_part)
    items = []
    for result, old_result in zip(results, _match_old_parts(results, old_results), strict=True):
        items.append(_encode_output(result, old_result))
    other_parts = [part for part in message.parts if type(part) is not ToolResult]
    if other_parts or not results:
        has_base_message = bool(old_parts) and not results
        items.append(_encode_input_message(message.role, other_parts, base if has_base_message else None))
    return items


# -- old parts ---------------------------------------------------------------------------------------------------------


def _decode_base_parts(base: Raw) -> list[_OldPart]:
    """Decode the parts of a message, each with the item that holds it."""
    old_parts: list[_OldPart] = []
    for number, raw in enumerate(split_response_items(strip_list_brackets(base))):
        item = decode_item(raw)
        if get_item_role(item) == "assistant":
            parts = decode_model_item(item, raw)
        else:
            parts = build_message_from_items([(item, raw)]).parts
        old_parts += [_OldPart(number, raw, part) for part in parts]
    return old_parts


def _match_old_parts(parts: Sequence[Part], old_parts: Sequence[_OldPart]) -> list[_OldPart | None]:
    """Return the old part that each part replaces or is, or None for a new part.

    With as many old parts, they match by order; else by bytes if a part has any, and by the id of its call if not.
    """
    if len(parts) == len(old_parts):
        return list(old_parts)
    candidates_by_key: dict[object, list[_OldPart]] = defaultdict(list)
    for old_part in reversed(old_parts):  # so that ``pop`` takes the first of several equal ones
        candidates_by_key[_get_match_key(old_part.part, by_id=False)].append(old_part)
        candidates_by_key[_get_match_key(old_part.part, by_id=True)].append(old_part)
    matches: list[_OldPart | None] = []
    for part in parts:
        candidates = candidates_by_key.get(_get_match_key(part, by_id=part.raw is None))
        matches.append(candidates.pop() if candidates else None)
    return matches


def _get_match_key(part: Part, *, by_id: bool) -> object:
    if not by_id:
        return None if part.raw is None else bytes(part.raw)
    return get_call_identity(part)


# -- items of the model ------------------------------------------------------------------------------------------------


def _encode_assistant_items(parts: Sequence[Part], old_parts: Sequence[_OldPart]) -> Iterator[bytes]:
    """Yield the items of an assistant message; neighbouring content parts of one message item stay together."""
    unbound_items = _find_items_without_reasoning(parts, old_parts)
    owned_parts: list[tuple[_Owner, Part, _OldPart | None]] = []
    for part, old_part in zip(parts, _match_old_parts(parts, old_parts), strict=True):
        if _can_send_in_answer(part):
            owner = _get_owning_item(part, old_part, len(owned_parts))
            owned_parts.append((owner, part, old_part))
    for owner, run in groupby(owned_parts, key=lambda entry: entry[0]):
        pairs = [(part, old_part) for _, part, old_part in run]
        part, old_part = pairs[0]
        if owner.is_content_part:
            yield _encode_message_item(pairs, old_parts, unbound_items)
        elif part.raw is not None:
            is_unbound = old_part is not None and old_part.number in unbound_items
            yield _encode_kept_item(part.raw, drop_id=is_unbound)
        else:
            yield encode_json(_build_item(part, old_part))


def _can_send_in_answer(part: Part) -> bool:
    """Return whether this API has a form for ``part`` in an answer."""
    if isinstance(part, Thinking) and part.raw is None:
        if part.signature is None or part.signature.api != API_NAME:
            return False
        return bool(part.signature.data)
    if isinstance(part, Opaque):
        return part.raw is not None
    return not isinstance(part, ToolResult)


class _Owner(NamedTuple):
    """The item that a part of an answer belongs to; neighbouring parts with equal owners form one item."""

    is_content_part: bool
    """Whether the part is a content part of a message item, and not an item itself."""
    number: int
    """Of a content part, the number of its old item, or -1 for a new one; else the index of the part, so that the
    owners of any two items differ."""


def _get_owning_item(part: Part, old_part: _OldPart | None, index: int) -> _Owner:
    """Return the item that ``part``, at ``index`` in its message, belongs to."""
    is_inner_opaque = isinstance(part, Opaque) and part.kind.startswith(INNER_KIND_PREFIX)
    if not isinstance(part, Text | Media) and not is_inner_opaque:
        return _Owner(is_content_part=False, number=index)
    if part.raw is not None and _is_message_item(part.raw):
        return _Owner(is_content_part=False, number=index)
    if old_part is not None and _is_message_item(old_part.item):
        return _Owner(is_content_part=True, number=old_part.number)
    return _Owner(is_content_part=True, number=-1)


def _is_message_item(raw: Raw) -> bool:
    """Return whether ``raw`` is a whole message item and not a content part of one."""
    try:
        kind = _ITEM_TYPE_DECODER.decode(raw).type
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return kind in ("message", "")


def _find_items_without_reasoning(parts: Sequence[Part], old_parts: Sequence[_OldPart]) -> frozenset[int]:
    """Return the numbers of the items that must lose their ids because the reasoning before them is gone.

    The server knows by its id that an item belongs to reasoning, and answers 400 ("was provided without its required
    'reasoning' item") if that is missing.
    """
    kept_reasoning = set()
    for part in parts:
        if type(part) is Thinking and part.raw is not None:
            kept_reasoning.add(bytes(part.raw))
    unbound_items: set[int] = set()
    has_lost_reasoning = False
    follows_reasoning = False
    for old_part in old_parts:
        is_reasoning = type(old_part.part) is Thinking
        if is_reasoning:
            raw = old_part.part.raw
            is_lost = raw is None or bytes(raw) not in kept_reasoning
            # Reasoning items in a row are one unit with the item after them: one of them lost breaks it.
            has_lost_reasoning = is_lost or (has_lost_reasoning and follows_reasoning)
        elif has_lost_reasoning:
            unbound_items.add(old_part.number)
        follows_reasoning = is_reasoning
    return frozenset(unbound_items)


def _encode_kept_item(raw: Raw, *, drop_id: bool) -> bytes:
    """Return the bytes of an item, without its id if ``drop_id``."""
    if not drop_id or b'"id"' not in bytes(raw):
        return bytes(raw)
    fields = decode_json_fields(raw)
    fields.pop("id", None)
    return encode_json(fields)


def _encode_message_item(
    pairs: Sequence[tuple[Part, _OldPart | None]], old_parts: Sequence[_OldPart], unbound_items: frozenset[int]
) -> bytes:
    """Encode a message item with these content parts, over the old item if they come from one."""
    known_parts = [old_part for _, old_part in pairs if old_part is not None]
    first_old = known_parts[0] if known_parts else None
    if first_old is None or not _is_message_item(first_old.item):
        content = [_encode_answer_part(part, None) for part, _ in pairs]
        return encode_json({"type": "message", "role": "assistant", "content": content})
    old_raws = []
    for old_part in old_parts:
        if old_part.number == first_old.number:
            old_raws.append(old_part.part.raw)
    if None not in old_raws and [part.raw for part, _ in pairs] == old_raws:
        return _encode_kept_item(first_old.item, drop_id=first_old.number in unbound_items)
    new_content = _encode_edited_content(pairs, decode_json_fields(first_old.item).get("content", Raw(b"[]")))
    return encode_json(_drop_item_id(overlay_fields(first_old.item, {"content": new_content})))


def _encode_edited_content(pairs: Sequence[tuple[Part, _OldPart | None]], old_content: Raw) -> Any:
    """Encode the content of an edited message item: a string if it was one, else a list of content parts."""
    first_part = pairs[0][0]
    if bytes(old_content).startswith(b'"') and len(pairs) == 1 and isinstance(first_part, Text):
        return first_part.text
    old_elements = _decode_content_list(old_content)
    # A single text was decoded with the bytes of its whole item, so its content part is only found here.
    single_element = old_elements[0] if len(old_elements) == 1 else None
    new_content = []
    for part, old_part in pairs:
        old_element = single_element
        if not old_element and old_part is not None:
            old_element = old_part.part.raw
        new_content.append(_encode_answer_part(part, old_element))
    return new_content


def _decode_content_list(content: Raw) -> list[Raw]:
    value = decode_json(_CONTENT_DECODER, content, "the content")
    return value if isinstance(value, list) else []


def _drop_item_id(item: dict[str, Any]) -> dict[str, Any]:
    item.pop("id", None)
    return item


def _encode_answer_part(part: Part, old_part: Raw | None) -> Any:
    """Encode a content part of the assistant's, over the content part it replaces."""
    if part.raw is not None:
        return part.raw
    text = ""
    if isinstance(part, Text):
        text = part.text
    elif isinstance(part, Media | Opaque):
        text = format_part_placeholder(part)
    if old_part is None or _get_part_type(old_part) not in TEXT_PART_TYPES:
        return {"type": "output_text", "text": text}
    # Both refer to positions in the old text.
    return overlay_fields(old_part, {"text": text}, ("annotations", "logprobs"))


def _build_item(part: Part, old_part: _OldPart | None) -> dict[str, Any]:
    """Build the item of a call, over the item it replaces, or of reasoning."""
    if isinstance(part, ToolCall):
        if old_part is not None and isinstance(old_part.part, ToolCall):
            return _build_call_item(part, old_part.item)
        return _build_call_item(part, None)
    item: dict[str, Any] = {"type": "reasoning"}
    signature_data = ""
    summary = []
    if isinstance(part, Thinking):
        signature_data = "" if part.signature is None else part.signature.data
        summary = [{"type": "summary_text", "text": part.text}] if part.text else []
    # A signature is either the id of a stored item or the encrypted content; only ids begin with ``rs_``.
    item["id" if signature_data.startswith("rs_") else "encrypted_content"] = signature_data
    item["summary"] = summary
    return item


def _build_call_item(part: ToolCall, old_item: Raw | None) -> dict[str, Any]:
    if old_item is None:
        return {"type": "function_call", "call_id": part.id, "name": part.name, "arguments": part.arguments}
    old_fields = decode_json_fields(old_item)
    kind = _ITEM_TYPE_DECODER.decode(old_item).type
    new_fields: dict[str, Any]
    if kind == "function_call":
        new_fields = {"type": kind, "call_id": part.id, "name": part.name, "arguments": part.arguments}
    else:
        argument_field = ARGUMENT_FIELD_BY_CALL.get(kind, "arguments")
        arguments = _encode_call_arguments(part.arguments, as_text=argument_field == "input")
        new_fields = {"type": kind, "call_id": part.id, argument_field: arguments}
        if "name" in old_fields:
            new_fields["name"] = part.name
    return _drop_item_id(old_fields | new_fields)


def _encode_call_arguments(arguments: str, *, as_text: bool) -> Raw:
    """Encode the arguments of a call that is not a function's: as JSON, or as a string of text."""
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return Raw(encode_json(arguments))
    if as_text and not isinstance(value, str):
        return Raw(encode_json(arguments))
    return Raw(arguments.encode())


# -- items of the client -----------------------------------------------------------------------------------------------


def _encode_input_message(role: Role, parts: Sequence[Part], base: Raw | None) -> bytes:
    """Encode everything but results as one message item, over the old item."""
    if base is None:
        old_fields = {}
    else:
        old_fields = decode_json_fields(split_response_items(strip_list_brackets(base))[0])
    old_content = old_fields.get("content", Raw(b"[]"))
    if bytes(old_content).startswith(b'"') and len(parts) == 1:
        part = parts[0]
        if isinstance(part, Text) and part.raw is None:
            return encode_json(old_fields | {"content": part.text})
    old_elements: Sequence[Raw | None] = _decode_content_list(old_content)
    if len(old_elements) != len(parts):
        old_elements = [None] * len(parts)
    content = []
    for part, old_element in zip(parts, old_elements, strict=True):
        element = _encode_input_part(part, old_element)
        if element is not None:
            content.append(element)
    if old_fields:
        return encode_json(old_fields | {"content": content})
    # OpenAI's name for the system role since o1.
    wire_role = "developer" if role == "system" else "user"
    return encode_json({"type": "message", "role": wire_role, "content": content})


def _encode_input_part(part: Part, old_part: Raw | None = None) -> Any:
    """Encode a content part that users and tools may send, or return None if Responses has no form for it."""
    if part.raw is not None:
        return part.raw
    if isinstance(part, Text):
        old_type = _get_part_type(old_part)
        if old_type in TEXT_PART_TYPES:
            return overlay_fields(old_part, {"type": old_type, "text": part.text})
        return {"type": "input_text", "text": part.text}
    if isinstance(part, Media):
        return _build_media_part(part) or {"type": "input_text", "text": format_part_placeholder(part)}
    if isinstance(part, Opaque):
        return {"type": "input_text", "text": format_part_placeholder(part)}
    return None


def _get_part_type(old_part: Raw | None) -> str:
    """Return the type of an old content part; empty without an old part, or if it has no type."""
    try:
        if old_part is None:
            return ""
        return _ITEM_TYPE_DECODER.decode(old_part).type
    except (msgspec.ValidationError, UnicodeDecodeError):
        return ""


def _build_media_part(part: Media) -> dict[str, Any] | None:
    """Build a content part that shows ``part``, or return None if Responses has no form for it."""
    source = build_data_url(part) or part.source
    if part.kind == "image":
        return {"type": "input_image", "file_id" if part.form == "file" else "image_url": source}
    if part.kind != "document":
        return None
    text = format_text_document(part)
    if text is not None:
        return {"type": "input_text", "text": text} if text else None
    if part.form == "url":
        return {"type": "input_file", "file_url": source}
    if part.form != "base64":
        return {"type": "input_file", "file_id": source}
    return {"type": "input_file", "filename": part.name or "document", "file_data": source}


def _encode_output(result: ToolResult, old_part: _OldPart | None) -> bytes:
    """Encode the output of a call, over the output it replaces."""
    if result.raw is not None:
        return bytes(result.raw)
    if old_part is None:
        new_item = {"type": "function_call_output", "call_id": result.call_id}
        return encode_json(new_item | {"output": _encode_output_content(result.content)})
    old_fields = decode_json_fields(old_part.item)
    if b"stdout" in bytes(old_fields.get("output", Raw(b""))):
        shell_output = _build_shell_output(result, _get_shell_outcome(old_fields["output"]))
        return encode_json(old_fields | {"call_id": result.call_id, "output": shell_output})
    id_field = "call_id" if "call_id" in old_fields else "id"  # a local shell's output may have only an ``id``
    new_fields = {id_field: result.call_id, "output": _encode_output_content(result.content)}
    return encode_json(old_fields | new_fields)


def _encode_output_content(content: Sequence[Text | Media | Opaque]) -> Any:
    if not content:
        return ""
    if len(content) == 1 and isinstance(content[0], Text) and content[0].raw is None:
        return content[0].text
    return [_encode_input_part(part) for part in content]


def _get_shell_outcome(output: Raw) -> Raw | None:
    """Return the outcome of the last command in a shell's output, or None without one."""
    chunks = _decode_content_list(output)
    return decode_json_fields(chunks[-1]).get("outcome") if chunks else None


def _build_shell_output(result: ToolResult, outcome: Raw | None = None) -> list[dict[str, Any]]:
    """Build the output of a shell: one chunk with the whole text, and how the command ended."""
    texts = []
    for part in result.content:
        if isinstance(part, Text):
            texts.append(part.text)
        else:
            texts.append(format_part_placeholder(part))
    final_outcome = outcome or {"type": "exit", "exit_code": int(result.is_error)}
    return [{"stdout": "\n".join(texts), "stderr": "", "outcome": final_outcome}]


# -- outputs of other kinds of calls -----------------------------------------------------------------------------------


def adapt_outputs_to_calls(groups: list[list[JsonBytes]]) -> list[list[JsonBytes]]:
    """Return the items of all messages, with each new ``function_call_output`` in the form that its call demands.

    An output encoded from a value (``bytes``; wire items are ``Raw``) does not know the kind of its call, which may
    also be a custom tool or a shell.
    """
    if not any(_is_new_function_output(wire) for group in groups for wire in group):
        return groups
    kind_by_call_id: dict[str, str] = {}
    adapted_groups: list[list[JsonBytes]] = []
    for group in groups:
        for wire in group:
            kind_by_call_id.update(_iter_call_types(bytes(wire)))
        adapted_group: list[JsonBytes] = []
        for wire in group:
            is_adapted = bool(kind_by_call_id) and _is_new_function_output(wire)
            if is_adapted:
                adapted_group.append(_adapt_output(bytes(wire), kind_by_call_id))
            else:
                adapted_group.append(wire)
        adapted_groups.append(adapted_group)
    return adapted_groups


def _is_new_function_output(encoded_item: JsonBytes) -> bool:
    return isinstance(encoded_item, bytes) and b'"function_call_output"' in encoded_item


def _iter_call_types(encoded_item: bytes) -> Iterator[tuple[str, str]]:
    """Yield id and type of each call in an item or group that is not a function's."""
    # A search for the names spares most items the decoding.
    if not any(kind.encode() in encoded_item for kind in _NON_FUNCTION_CALLS):
        return
    for item in map(decode_item, split_response_items(encoded_item)):
        if item.type in _NON_FUNCTION_CALLS and (item.call_id or item.id):
            yield item.call_id or item.id or "", item.type


def _adapt_output(encoded_item: bytes, kind_by_call_id: Mapping[str, str]) -> bytes:
    try:
        item = decode_item(encoded_item)
    except ValueError:
        return encoded_item
    kind = kind_by_call_id.get(item.call_id or "")
    if item.type != "function_call_output" or kind is None:
        return encoded_item
    fields: dict[str, Any] = decode_json_fields(encoded_item) | {"type": f"{kind}_output"}
    if kind == "local_shell_call":  # its output names the call by ``id``
        return encode_json({"id" if key == "call_id" else key: value for key, value in fields.items()})
    if kind == "shell_call":
        result = build_message_from_items([(item, Raw(encoded_item))]).results[0]
        # A function's output has no error flag. Only a result that a repair made up is known to be a failure.
        result = replace(result, is_error=is_synthetic_result(result))
        return encode_json(fields | {"output": _build_shell_output(result)})
    if kind == "apply_patch_call":
        fields["status"] = "failed"
    return encode_json(fields)
