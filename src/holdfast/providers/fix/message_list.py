"""Bring the list of messages and the system prompt into the form and the field that this API has for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Raw

from holdfast.providers.api_spec import ApiSpec
from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.json.json_path import get_json_first_char
from holdfast.providers.common.json.lenient_json import read_json_items, read_json_text
from holdfast.providers.common.json.raw_json import decode_json_fields, encode_json, replace_json_fields
from holdfast.providers.fix.blocks import decode_fields_if_object, encode_raw, iter_replacement_blocks, wrap_in_list
from holdfast.providers.fix.fix_context import FixContext, RequestFix, build_request_fix
from holdfast.providers.fix.lost_text import SYSTEM_PROMPT_FIELDS
from holdfast.providers.rules.rule import Finding


def fix_message_list(body: bytes, context: FixContext, errors: Sequence[Finding]) -> tuple[bytes, list[RequestFix]]:
    """Make the messages a flat list, and move the system prompt to where this API has it."""
    fixes: list[RequestFix] = []
    # The last two steps append, so the system prompt reads: its own field, other APIs' fields, leading system messages.
    for step in (_wrap_messages, _rewrite_system_prompt, _move_foreign_system_prompt, _hoist_system_messages):
        body, new_fixes = step(body, context.spec, errors)
        fixes += new_fixes
    return body, fixes


# -- the list ----------------------------------------------------------------------------------------------------------


def _wrap_messages(body: bytes, spec: ApiSpec, _errors: Sequence[Finding]) -> tuple[bytes, list[RequestFix]]:
    """Put a single message or a bare text in a list, and flatten lists inside the list."""
    raw_fields = parse_body_fields(body)
    raw = raw_fields.get(spec.messages_field)
    kind = get_json_first_char(raw)
    if raw is None or kind not in ("[", "{", '"') or (kind == '"' and spec.accepts_plain_text):
        return body, []
    raws = read_json_items(raw) if kind == "[" else [raw]
    if kind == "[" and not any(get_json_first_char(element) == "[" for element in raws):
        return body, []
    messages = _flatten_lists(raws)
    why = f"the messages are now in one list of {len(messages)}"
    new_body = replace_json_fields(body, raw_fields, {spec.messages_field: encode_json(messages)})
    return new_body, [RequestFix("form", why, f"$.{spec.messages_field}")]


def _flatten_lists(raws: Sequence[Raw]) -> list[Raw]:
    """Return ``raws`` with every list among them, at any depth, replaced by its elements."""
    waiting = list(reversed(raws))
    elements = []
    while waiting:
        element = waiting.pop()
        if get_json_first_char(element) == "[":
            waiting += reversed(read_json_items(element))
        else:
            elements.append(element)
    return elements


# -- the system prompt -------------------------------------------------------------------------------------------------


def _rewrite_system_prompt(body: bytes, spec: ApiSpec, errors: Sequence[Finding]) -> tuple[bytes, list[RequestFix]]:
    """Rewrite a system prompt in the right field if the API refuses its form."""
    raw_fields = parse_body_fields(body)
    present_fields = [name for name in spec.system_fields if name in raw_fields]
    if not present_fields:
        return body, []
    field = present_fields[0]
    first_error = next((error for error in errors if error.path.startswith(f"$.{field}")), None)
    if first_error is None:
        return body, []
    system_prompt = _encode_system_prompt(spec, _parse_system_blocks(spec, raw_fields[field]))
    new_body = replace_json_fields(body, raw_fields, {field: system_prompt})
    return new_body, [build_request_fix(first_error, f"rewritten in the form of {spec.display_name}")]


def _parse_system_blocks(spec: ApiSpec, raw: Raw) -> list[Raw]:
    """Return the blocks of a system prompt of any API as blocks of this one."""
    raw_fields = decode_fields_if_object(raw)
    for key in ("parts", "content"):
        if key in raw_fields:
            raw = raw_fields[key]
            break
    blocks: list[Raw] = []
    for element in wrap_in_list(raw):
        blocks += iter_replacement_blocks(element, spec, "system")
    return blocks


def _encode_system_prompt(spec: ApiSpec, blocks: Sequence[Raw]) -> bytes:
    # Gemini's system prompt is a content without a role ({"parts": […]}), Anthropic's a list of blocks.
    has_content_object = spec.shape.content_field != "content"
    return encode_json({spec.shape.content_field: blocks} if has_content_object else blocks)


def _move_foreign_system_prompt(
    body: bytes, spec: ApiSpec, errors: Sequence[Finding]
) -> tuple[bytes, list[RequestFix]]:
    """Move a system prompt out of another API's field into the place that this API has for it."""
    errors_by_path = {error.path: error for error in errors}
    fixes = []
    for field in SYSTEM_PROMPT_FIELDS:
        error = errors_by_path.get(f"$.{field}")
        if error is None or field in spec.system_fields or not error.rule.endswith(".foreign-field"):
            continue
        raw_fields = parse_body_fields(body)
        if field not in raw_fields:
            continue
        blocks = _parse_system_blocks(spec, raw_fields.pop(field))
        body = encode_json(_append_system_blocks(raw_fields, spec, blocks))
        fixes.append(build_request_fix(error, f"moved to where {spec.display_name} has its system prompt"))
    return body, fixes


def _append_system_blocks(fields: Mapping[str, Raw], spec: ApiSpec, blocks: Sequence[Raw]) -> dict[str, Any]:
    """Return the fields of a body with ``blocks`` added to its system prompt.

    They go after what is in the system field, or into ``instructions`` (Responses), or become the first message
    (Chat Completions).
    """
    if spec.system_fields:
        field = next((name for name in spec.system_fields if name in fields), spec.system_fields[0])
        own_blocks = _parse_system_blocks(spec, fields.get(field, Raw(b"[]")))
        system_prompt = _encode_system_prompt(spec, [*own_blocks, *blocks])
        return {**fields, field: Raw(system_prompt)}
    if spec.accepts_plain_text:
        texts = [read_json_text(fields.get("instructions"))]
        for block in blocks:
            texts.append(read_json_text(decode_json_fields(block).get("text")))
        return {**fields, "instructions": "\n\n".join(filter(None, texts))}
    system_message = {"role": "system", "content": blocks}
    messages = read_json_items(fields.get(spec.messages_field))
    return {**fields, spec.messages_field: [system_message, *messages]}


def _hoist_system_messages(body: bytes, spec: ApiSpec, _errors: Sequence[Finding]) -> tuple[bytes, list[RequestFix]]:
    """Move system messages at the start of the list into the system field, if the API has one."""
    if not spec.system_fields:
        return body, []
    raw_fields = parse_body_fields(body)
    raws = read_json_items(raw_fields.get(spec.messages_field))
    blocks: list[Raw] = []
    hoisted_count = 0
    for raw in raws[:-1]:  # the last message stays: no API takes an empty list
        system_blocks = _get_system_message_blocks(raw, spec)
        if not system_blocks:
            break
        blocks += system_blocks
        hoisted_count += 1
    if not hoisted_count:
        return body, []
    raw_fields[spec.messages_field] = encode_raw(raws[hoisted_count:])
    why = f"{hoisted_count} system message(s) at the start moved into {spec.system_fields[0]!r}"
    new_body = encode_json(_append_system_blocks(raw_fields, spec, blocks))
    return new_body, [RequestFix("system", why, f"$.{spec.messages_field}[0]")]


def _get_system_message_blocks(raw: Raw, spec: ApiSpec) -> list[Raw]:
    """Return the blocks of a system message that holds only text, or an empty list for any other message."""
    raw_fields = decode_fields_if_object(raw)
    if read_json_text(raw_fields.get("role")).lower() not in {"system", "developer"}:
        return []
    content = None
    for key in ("content", "parts", "text"):
        if get_json_first_char(raw_fields.get(key)) not in ("", "n"):
            content = raw_fields[key]
            break
    blocks: list[Raw] = []
    for block in wrap_in_list(content) if content is not None else ():
        blocks += iter_replacement_blocks(block, spec, "system")
    for block in blocks:
        if not read_json_text(decode_fields_if_object(block).get("text")).strip():
            return []
    return blocks
