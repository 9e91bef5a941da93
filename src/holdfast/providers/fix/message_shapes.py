"""Each message in the form of its API: readable, of a known role, its words under their own key, its ids strings."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
from msgspec import Raw

from holdfast.errors import FormatError
from holdfast.normalize.ids import mint_call_id
from holdfast.providers.api_spec import ApiSpec
from holdfast.providers.common.content_kinds import CALL_KIND, RESULT_KIND
from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.json.json_path import JsonTree, get_json_first_char
from holdfast.providers.common.json.lenient_json import read_json_items, read_json_text
from holdfast.providers.common.json.raw_json import (
    JsonBytes,
    decode_json_fields,
    decode_json_value,
    encode_json,
    replace_json_fields,
)
from holdfast.providers.fix.blocks import (
    build_text_block,
    find_block_text,
    get_text_block_type,
    iter_replacement_blocks,
    render_foreign_block,
    reshape_tool_output,
    wrap_in_list,
)
from holdfast.providers.fix.fix_context import FixContext, RequestFix, build_request_fix
from holdfast.providers.fix.lost_text import CONTENT_FIELDS, TEXT_BLOCK_TYPES, iter_block_texts
from holdfast.providers.foreign.foreign_blocks import classify_foreign_block
from holdfast.providers.registry import get_api_dialect
from holdfast.providers.rules.rule import Finding

_ROLE_ALIASES = {"assistant": "assistant", "model": "assistant", "ai": "assistant", "bot": "assistant",
             "system": "system", "developer": "system"}  # fmt: skip
"""Roles that others use, and whose they are; all others are the user's."""
_CALL_TYPES = frozenset({"function_call", "custom_tool_call"})
_OUTPUT_TYPES = frozenset({"function_call_output", "custom_tool_call_output"})
_ID_FIELDS = ("id", "tool_use_id", "call_id", "tool_call_id")
_NUMERIC_ID = re.compile(rb'"(?:id|tool_use_id|call_id|tool_call_id)"\s*:\s*-?\d')


def reshape_messages(body: bytes, work: FixContext, errors: Sequence[Finding]) -> tuple[bytes, list[RequestFix]]:
    """Return the body with each message that is refused in its API's form; the words in it stay."""
    spec, raw_fields = work.spec, parse_body_fields(body)
    raws = read_json_items(raw_fields.get(spec.messages_field))
    errors_by_message = _group_errors_by_message(JsonTree(Raw(body)), spec.messages_field, errors)
    new: list[Raw | None] = [*raws]
    edits = []
    for index, raw in enumerate(raws):
        if index in errors_by_message:
            new_message = _keep_if_text_lost(raw, _reshape_message(raw, spec))
            new[index] = None if new_message is None else _stringify_message_ids(new_message)
        elif _NUMERIC_ID.search(raw):
            new[index] = _stringify_message_ids(raw)
        if new[index] != raw:
            message_errors = errors_by_message.get(
                index, [Finding("ids", "error", f"$.{spec.messages_field}[{index}]", "an id is a string")]
            )
            edits += [
                build_request_fix(error, f"written as {spec.display_name} has it") for error in message_errors[:1]
            ]
        readable_message, odd = _drop_unreadable_fields(new[index], spec)
        if odd:
            new[index] = readable_message
            edits.append(
                RequestFix("form", f"{', '.join(odd)} cannot be read: left out", f"$.{spec.messages_field}[{index}]")
            )
    if not edits:
        return body, []
    return replace_json_fields(
        body, raw_fields, {spec.messages_field: encode_json([message for message in new if message is not None])}
    ), edits


def _group_errors_by_message(tree: JsonTree, field: str, errors: Sequence[Finding]) -> dict[int, list[Finding]]:
    """Return what is refused in each message."""
    errors_by_message: dict[int, list[Finding]] = {}
    for error in errors:
        steps = tree.parse_path(error.path) if error.path.startswith(f"$.{field}[") else ()
        if len(steps) > 1 and isinstance(steps[1], int):
            errors_by_message.setdefault(steps[1], []).append(error)
    return errors_by_message


def _keep_if_text_lost(raw: Raw, reshaped: Raw | None) -> Raw | None:
    """Return ``reshaped``, or the message as it stood if a word of it went; what a tool gave back is told elsewhere."""
    if reshaped is None or (
        get_json_first_char(raw) == "{" and read_json_text(decode_json_fields(raw).get("role")) in ("tool", "function")
    ):
        return reshaped
    before, after = (set(iter_block_texts(msgspec.json.decode(message))) for message in (raw, reshaped))
    return raw if any(text.strip() for text in before - after) else reshaped


def _drop_unreadable_fields(raw: Raw | None, spec: ApiSpec) -> tuple[Raw | None, list[str]]:
    """Return a message without the fields for which it cannot be read, and their names; itself where others are."""
    if raw is None or get_json_first_char(raw) != "{" or _is_decodable(raw, spec):
        return raw, []
    raw_fields = decode_json_fields(raw)
    core = {key: value for key, value in raw_fields.items() if key in ("role", "type", spec.shape.content_field)}
    if not _is_decodable(encode_json(core), spec):
        return raw, []
    odd = [key for key, value in raw_fields.items() if not _is_decodable(encode_json({**core, key: value}), spec)]
    return Raw(encode_json({key: value for key, value in raw_fields.items() if key not in odd})), odd


def _is_decodable(message: JsonBytes, spec: ApiSpec) -> bool:
    try:
        spec.decode_message(message)
    except FormatError:
        return False
    return True


# -- one message -------------------------------------------------------------------------------------------------------


def _reshape_message(raw: Raw, spec: ApiSpec) -> Raw | None:
    """Return a message in its API's form, nothing for what is none; the very same when nothing is to be done."""
    kind = get_json_first_char(raw)
    if kind != "{":
        text = read_json_text(raw) if kind == '"' else ""
        return (
            Raw(encode_json(_build_single_block_message("user", build_text_block(text, spec, "user"), spec)))
            if text.strip()
            else None
        )
    raw_fields = decode_json_fields(raw)
    shape = _reshape_role_message if spec.group_items is None else _reshape_item
    new = stringify_numeric_ids(shape(raw_fields, spec))
    return raw if new == raw_fields else Raw(encode_json(new))


def _build_single_block_message(role: str, block: Raw, spec: ApiSpec) -> dict[str, object]:
    return {"role": role, spec.shape.content_field: [block]}


def _reshape_item(fields: dict[str, Raw], spec: ApiSpec) -> dict[str, Raw]:
    """Return an item of Responses: a message by its role, words as a message, an output as text, a call with an id."""
    kind = read_json_text(fields.get("type"))
    if kind in TEXT_BLOCK_TYPES and (text := find_block_text(fields)):
        role = "assistant" if kind == "output_text" else "user"
        block = build_text_block(text, spec, role)
        return {"type": Raw(b'"message"'), "role": Raw(encode_json(role)), "content": Raw(encode_json([block]))}
    if kind in _CALL_TYPES and bytes(fields.get("call_id", b"null")) in (b"null", b'""'):
        id_ = read_json_text(fields.get("id")) or mint_call_id(
            encode_json(fields).decode(), get_api_dialect(spec.api, "")
        )
        return {**fields, "call_id": Raw(encode_json(id_))}
    if kind in _OUTPUT_TYPES and "output" in fields:
        return {"call_id": Raw(b'""'), **fields, "output": reshape_tool_output(fields["output"], spec)}
    if kind in ("", "message") and ("role" in fields or any(key in fields for key in CONTENT_FIELDS)):
        return _reshape_role_message(fields, spec)
    return fields


def _reshape_role_message(fields: dict[str, Raw], spec: ApiSpec) -> dict[str, Raw]:
    """Return a message of a known role with its words under the key that is theirs."""
    key, role_name = spec.shape.content_field, read_json_text(fields.get("role"))
    new = dict(fields)
    odd = get_json_first_char(fields.get("role")) not in ('"', "" if "" in spec.shape.roles else '"')
    if odd or role_name not in spec.shape.roles:
        speaker = _ROLE_ALIASES.get(role_name.lower(), "user")
        speaker = spec.shape.assistant_role if speaker == "assistant" else speaker
        new["role"] = Raw(encode_json(speaker if speaker in spec.shape.roles else "user"))
    role = read_json_text(new.get("role")).replace("model", "assistant")
    own = new.get(key)
    other_keys = [name for name in CONTENT_FIELDS if name != key and name in new]
    added = [new.pop(name) for name in other_keys]
    if own is not None and get_json_first_char(own) not in ("n", ""):
        known_texts = set(iter_block_texts(msgspec.json.decode(own)))
        added = [raw for raw in added if not set(iter_block_texts(msgspec.json.decode(raw))) <= known_texts]
        added = [own, *added]
    if added:
        new[key] = _reshape_content(added, spec, role)
    return new


def _reshape_content(contents: Sequence[Raw], spec: ApiSpec, role: str) -> Raw:
    """Return the content of a message: a text where that is all and may stand so, else blocks."""
    if len(contents) == 1 and get_json_first_char(contents[0]) == '"' and get_text_block_type(spec, role):
        return contents[0]
    if len(contents) == 1 and role in ("tool", "function"):
        return reshape_tool_output(contents[0], spec)
    old = [old_block for raw in contents for old_block in wrap_in_list(raw)]
    new = [block for old_block in old for block in iter_replacement_blocks(old_block, spec, role)]
    if spec.supports_cache_control:
        new = [_reshape_result(block, spec) for block in new]
    new = [_render_unreadable_result(block, spec, role) for block in new]
    return (
        contents[0]
        if len(contents) == 1 and get_json_first_char(contents[0]) == "[" and new == old
        else Raw(encode_json(new))
    )


def _render_unreadable_result(block: Raw, spec: ApiSpec, role: str) -> Raw:
    """Return what a user says in place of a result that cannot be read; any other block as it is."""
    kind = (
        classify_foreign_block(decode_json_value(block))
        if get_json_first_char(block) == "{" and role != "assistant"
        else None
    )
    if kind is None or kind.content_kind not in (CALL_KIND, RESULT_KIND) or spec.api not in kind.apis:
        return block
    message = spec.decode_message(encode_json(_build_single_block_message("user", block, spec)))
    return (
        block
        if message.results or message.calls
        else build_text_block(render_foreign_block(decode_json_fields(block)), spec, role)
    )


def _reshape_result(block: Raw, spec: ApiSpec) -> Raw:
    """Return a block with string ids, what a tool gave back as text or blocks, and a mark of failure that is one."""
    raw_fields = decode_json_fields(block)
    new = stringify_numeric_ids(raw_fields) if "tool" in read_json_text(raw_fields.get("type")) else raw_fields
    new = {key: raw for key, raw in new.items() if key != "is_error" or get_json_first_char(raw) in "tfn"}
    if read_json_text(raw_fields.get("type")) == "tool_result" and "content" in raw_fields:
        inner = reshape_tool_output(raw_fields["content"], spec)
        new = new if inner == raw_fields["content"] else {**new, "content": inner}
    return block if new == raw_fields else Raw(encode_json(new))


# -- ids ---------------------------------------------------------------------------------------------------------------


def stringify_numeric_ids(fields: dict[str, Raw]) -> dict[str, Raw]:
    """Return the fields of an object with ids that are numbers as strings."""
    numbers = {
        key: fields[key] for key in _ID_FIELDS if key in fields and get_json_first_char(fields[key]) in "-0123456789"
    }
    return fields | {key: Raw(encode_json(bytes(raw).decode())) for key, raw in numbers.items()}


def _stringify_message_ids(raw: Raw) -> Raw:
    """Return a message with string ids: its own, those of its calls and its blocks."""
    raw_fields = decode_json_fields(raw) if get_json_first_char(raw) == "{" else {}
    new = stringify_numeric_ids(raw_fields)
    for key in ("content", "tool_calls"):
        if get_json_first_char(raw_fields.get(key)) == "[":
            old = read_json_items(raw_fields[key])
            inner = [_stringify_block_ids(block) for block in old]
            new = new if inner == old else {**new, key: Raw(encode_json(inner))}
    return raw if new == raw_fields else Raw(encode_json(new))


def _stringify_block_ids(raw: Raw) -> Raw:
    raw_fields = decode_json_fields(raw) if get_json_first_char(raw) == "{" else {}
    new = (
        stringify_numeric_ids(raw_fields)
        if "tool" in read_json_text(raw_fields.get("type")) or "function" in raw_fields
        else raw_fields
    )
    return raw if new == raw_fields else Raw(encode_json(new))
