"""The list of messages and the system prompt in the form, and in the field, that this API has for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Raw

from holdfast.providers.api_spec import ApiSpec
from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.json.json_path import get_json_first_char
from holdfast.providers.common.json.lenient_json import read_json_items, read_json_text
from holdfast.providers.common.json.raw_json import decode_json_fields, encode_json, replace_json_fields
from holdfast.providers.fix.blocks import iter_replacement_blocks, wrap_in_list
from holdfast.providers.fix.fix_context import FixContext, RequestFix, build_request_fix
from holdfast.providers.fix.lost_text import SYSTEM_PROMPT_FIELDS
from holdfast.providers.rules.rule import Finding


def fix_message_list(body: bytes, work: FixContext, errors: Sequence[Finding]) -> tuple[bytes, list[RequestFix]]:
    """Return the body with a list as its list of messages, and the system prompt where it belongs."""
    edits: list[RequestFix] = []
    for step in (_wrap_messages, _rewrite_system_prompt, _move_foreign_system_prompt, _hoist_system_messages):
        body, new_edits = step(body, work.spec, errors)
        edits += new_edits
    return body, edits


# -- the list ----------------------------------------------------------------------------------------------------------


def _wrap_messages(body: bytes, spec: ApiSpec, _errors: Sequence[Finding]) -> tuple[bytes, list[RequestFix]]:
    """Return the body with messages in a list: one alone, a bare text, and lists inside the list too."""
    raw_fields = parse_body_fields(body)
    raw = raw_fields.get(spec.messages_field)
    kind = get_json_first_char(raw)
    if raw is None or kind not in ("[", "{", '"') or (kind == '"' and spec.accepts_plain_text):
        return body, []
    raws = read_json_items(raw) if kind == "[" else [raw]
    flat = _flatten_lists(raws)
    if kind == "[" and len(flat) == len(raws) and not any(get_json_first_char(element) == "[" for element in raws):
        return body, []
    why = f"the messages stand in one list: {len(flat)} of them"
    return replace_json_fields(body, raw_fields, {spec.messages_field: encode_json(flat)}), [
        RequestFix("form", why, f"$.{spec.messages_field}")
    ]


def _flatten_lists(raws: Sequence[Raw]) -> list[Raw]:
    """Return the elements with those of lists among them in their place."""
    waiting, out = list(reversed(raws)), []
    while waiting:
        element = waiting.pop()
        if get_json_first_char(element) == "[":
            waiting += reversed(read_json_items(element))
        else:
            out.append(element)
    return out


# -- the system prompt -------------------------------------------------------------------------------------------------


def _rewrite_system_prompt(body: bytes, spec: ApiSpec, errors: Sequence[Finding]) -> tuple[bytes, list[RequestFix]]:
    """Return the body with a system prompt that is refused written as this API writes it."""
    raw_fields = parse_body_fields(body)
    name = next((name for name in spec.system_fields if name in raw_fields), None)
    own_errors = [error for error in errors if name is not None and error.path.startswith(f"$.{name}")]
    if name is None or not own_errors:
        return body, []
    new = _encode_system_prompt(spec, _parse_system_blocks(spec, raw_fields[name]))
    return replace_json_fields(body, raw_fields, {name: new}), [
        build_request_fix(own_errors[0], f"written as {spec.display_name} has it")
    ]


def _parse_system_blocks(spec: ApiSpec, raw: Raw) -> list[Raw]:
    """Return what a system prompt of any form says, as blocks of this API."""
    if get_json_first_char(raw) == "{":
        raw_fields = decode_json_fields(raw)
        inner = next((raw_fields[key] for key in ("parts", "content") if key in raw_fields), None)
        raw = inner if inner is not None else raw
    return [
        new
        for element in wrap_in_list(raw)
        if get_json_first_char(element) != "n"
        for new in iter_replacement_blocks(element, spec, "system")
    ]


def _encode_system_prompt(spec: ApiSpec, blocks: Sequence[Raw]) -> bytes:
    return encode_json({spec.shape.content_field: blocks} if spec.shape.content_field != "content" else blocks)


def _move_foreign_system_prompt(
    body: bytes, spec: ApiSpec, errors: Sequence[Finding]
) -> tuple[bytes, list[RequestFix]]:
    """Return the body with the system prompt of another API's field in the place that this one has for it."""
    paths = {error.path: error for error in errors}
    edits = []
    for name in SYSTEM_PROMPT_FIELDS:
        raw_fields = parse_body_fields(body)
        error = paths.get(f"$.{name}")
        if (
            error is None
            or name in spec.system_fields
            or name not in raw_fields
            or not error.rule.endswith(".foreign-field")
        ):
            continue
        blocks = _parse_system_blocks(spec, raw_fields.pop(name))
        body = encode_json(_append_system_blocks(raw_fields, spec, blocks))
        edits.append(build_request_fix(error, f"what it says stands where {spec.display_name} has it"))
    return body, edits


def _append_system_blocks(fields: Mapping[str, Raw], spec: ApiSpec, blocks: Sequence[Raw]) -> dict[str, Any]:
    """Return the fields of a body with ``blocks`` at the end of its system prompt, or as its first message."""
    if spec.system_fields:
        name = next((name for name in spec.system_fields if name in fields), spec.system_fields[0])
        return {
            **fields,
            name: Raw(
                _encode_system_prompt(spec, [*_parse_system_blocks(spec, fields.get(name, Raw(b"[]"))), *blocks])
            ),
        }
    if spec.accepts_plain_text:
        words = [
            read_json_text(fields.get("instructions")),
            *(read_json_text(decode_json_fields(block).get("text")) for block in blocks),
        ]
        return {**fields, "instructions": "\n\n".join(word for word in words if word)}
    return {
        **fields,
        spec.messages_field: [{"role": "system", "content": blocks}, *read_json_items(fields.get(spec.messages_field))],
    }


def _hoist_system_messages(body: bytes, spec: ApiSpec, _errors: Sequence[Finding]) -> tuple[bytes, list[RequestFix]]:
    """Return the body with system messages that stand first in the field that is theirs, where there is one."""
    raw_fields = parse_body_fields(body)
    raws = read_json_items(raw_fields.get(spec.messages_field)) if spec.system_fields else []
    blocks: list[Raw] = []
    lead = 0
    while lead < len(raws) - 1 and (system_blocks := _get_system_message_blocks(raws[lead], spec)):
        blocks += system_blocks
        lead += 1
    if not lead:
        return body, []
    raw_fields[spec.messages_field] = Raw(encode_json(raws[lead:]))
    why = f"{lead} system message(s) at the start moved into {spec.system_fields[0]!r}"
    return encode_json(_append_system_blocks(raw_fields, spec, blocks)), [
        RequestFix("system", why, f"$.{spec.messages_field}[0]")
    ]


def _get_system_message_blocks(raw: Raw, spec: ApiSpec) -> list[Raw]:
    """Return the blocks of a system message that has words alone; none when it is no such message."""
    raw_fields = decode_json_fields(raw) if get_json_first_char(raw) == "{" else {}
    if read_json_text(raw_fields.get("role")).lower() not in {"system", "developer"}:
        return []
    content = next(
        (
            raw_fields[key]
            for key in ("content", "parts", "text")
            if get_json_first_char(raw_fields.get(key)) not in ("", "n")
        ),
        None,
    )
    blocks = (
        []
        if content is None
        else [new for block in wrap_in_list(content) for new in iter_replacement_blocks(block, spec, "system")]
    )
    words = [
        read_json_text(decode_json_fields(block).get("text")) if get_json_first_char(block) == "{" else ""
        for block in blocks
    ]
    return blocks if all(word.strip() for word in words) else []
