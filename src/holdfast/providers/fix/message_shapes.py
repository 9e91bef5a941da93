"""Reshape single messages: a role that the API knows, content under the right key, ids as strings.

Only messages that the validator refuses are touched, and only as long as none of their words is lost.
"""

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
    decode_fields_if_object,
    encode_raw,
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
"""Role names of other APIs and frameworks; any name that is not here is taken for a user's."""
_CALL_TYPES = frozenset({"function_call", "custom_tool_call"})
_OUTPUT_TYPES = frozenset({"function_call_output", "custom_tool_call_output"})
_ID_FIELDS = ("id", "tool_use_id", "call_id", "tool_call_id")
# A quick test on the bytes of a message, so that only messages with such an id are parsed for one.
_NUMERIC_ID = re.compile(rb'"(?:id|tool_use_id|call_id|tool_call_id)"\s*:\s*-?\d')


def reshape_messages(body: bytes, context: FixContext, errors: Sequence[Finding]) -> tuple[bytes, list[RequestFix]]:
    """Rewrite each message that is refused in the form of its API, and remove those that hold nothing."""
    spec = context.spec
    raw_fields = parse_body_fields(body)
    raws = read_json_items(raw_fields.get(spec.messages_field))
    first_errors = _get_first_errors(JsonTree(Raw(body)), spec.messages_field, errors)
    new_messages = []
    fixes = []
    for index, raw in enumerate(raws):
        path = f"$.{spec.messages_field}[{index}]"
        new: Raw | None = raw
        if index in first_errors:
            new = _keep_if_text_lost(raw, _reshape_message(raw, spec))
        if new is not None and (index in first_errors or _NUMERIC_ID.search(raw)):
            new = _stringify_message_ids(new)
        if new != raw:
            error = first_errors.get(index) or Finding("ids", "error", path, "the id is not a string")
            fixes.append(build_request_fix(error, f"rewritten in the form of {spec.display_name}"))
        if new is None:
            continue
        new, dropped_fields = _drop_unreadable_fields(new, spec)
        if dropped_fields:
            fixes.append(RequestFix("form", f"{', '.join(dropped_fields)} cannot be read: left out", path))
        new_messages.append(new)
    if not fixes:
        return body, []
    return replace_json_fields(body, raw_fields, {spec.messages_field: encode_json(new_messages)}), fixes


def _get_first_errors(tree: JsonTree, messages_field: str, errors: Sequence[Finding]) -> dict[int, Finding]:
    """Return the first error inside of each message, by the index of the message."""
    first_errors: dict[int, Finding] = {}
    for error in errors:
        if error.path.startswith(f"$.{messages_field}["):
            steps = tree.parse_path(error.path)
            if len(steps) > 1 and isinstance(steps[1], int):
                first_errors.setdefault(steps[1], error)
    return first_errors


def _keep_if_text_lost(raw: Raw, reshaped: Raw | None) -> Raw | None:
    """Return ``reshaped``, or the message as it was if a word of it is missing there.

    Tool messages are not checked, because reshaping turns their output into other text on purpose.
    """
    role = read_json_text(decode_fields_if_object(raw).get("role"))
    if reshaped is None or role in ("tool", "function"):
        return reshaped
    texts_before = set(iter_block_texts(msgspec.json.decode(raw)))
    texts_after = set(iter_block_texts(msgspec.json.decode(reshaped)))
    if any(text.strip() for text in texts_before - texts_after):
        return raw
    return reshaped


def _drop_unreadable_fields(raw: Raw, spec: ApiSpec) -> tuple[Raw, list[str]]:
    """Return a message without the fields that make it undecodable, and the names of those fields.

    If role, type or content is the cause, the message is returned as it is.
    """
    if get_json_first_char(raw) != "{" or _is_decodable(raw, spec):
        return raw, []
    raw_fields = decode_json_fields(raw)
    core_fields = {}
    for key, value in raw_fields.items():
        if key in ("role", "type", spec.shape.content_field):
            core_fields[key] = value
    if not _is_decodable(encode_json(core_fields), spec):
        return raw, []
    # One field at a time beside the core: the decoder stops at the first bad one and does not say which others are.
    dropped = []
    for key in raw_fields:
        if not _is_decodable(encode_json({**core_fields, key: raw_fields[key]}), spec):
            dropped.append(key)
    return encode_raw({key: value for key, value in raw_fields.items() if key not in dropped}), dropped


def _is_decodable(message: JsonBytes, spec: ApiSpec) -> bool:
    try:
        spec.decode_message(message)
    except FormatError:
        return False
    return True


# -- one message -------------------------------------------------------------------------------------------------------


def _reshape_message(raw: Raw, spec: ApiSpec) -> Raw | None:
    """Rewrite an element of the list as a message of this API, or return None if it holds nothing to say.

    A bare text becomes a user message. The same object is returned if nothing changes.
    """
    kind = get_json_first_char(raw)
    if kind != "{":
        text = read_json_text(raw) if kind == '"' else ""
        if not text.strip():
            return None
        return encode_raw(_build_single_block_message("user", build_text_block(text, spec, "user"), spec))
    raw_fields = decode_json_fields(raw)
    if spec.group_items is None:
        new_fields = _reshape_role_message(raw_fields, spec)
    else:
        new_fields = _reshape_item(raw_fields, spec)
    new_fields = stringify_numeric_ids(new_fields)
    return raw if new_fields == raw_fields else encode_raw(new_fields)


def _build_single_block_message(role: str, block: Raw, spec: ApiSpec) -> dict[str, object]:
    return {"role": role, spec.shape.content_field: [block]}


def _reshape_item(fields: dict[str, Raw], spec: ApiSpec) -> dict[str, Raw]:
    """Reshape an item of Responses: a text, call or output by its type, anything with a role as a message."""
    item_type = read_json_text(fields.get("type"))
    text = find_block_text(fields) if item_type in TEXT_BLOCK_TYPES else ""
    if text:  # a content block that stands alone in the list
        role = "assistant" if item_type == "output_text" else "user"
        block = build_text_block(text, spec, role)
        return {"type": Raw(b'"message"'), "role": encode_raw(role), "content": encode_raw([block])}
    if item_type in _CALL_TYPES and bytes(fields.get("call_id", b"null")) in (b"null", b'""'):
        call_id = read_json_text(fields.get("id"))
        if not call_id:
            call_id = mint_call_id(encode_json(fields).decode(), get_api_dialect(spec.api, ""))
        return {**fields, "call_id": encode_raw(call_id)}
    if item_type in _OUTPUT_TYPES and "output" in fields:
        return {"call_id": Raw(b'""'), **fields, "output": reshape_tool_output(fields["output"], spec)}
    has_message_fields = "role" in fields or any(key in fields for key in CONTENT_FIELDS)
    if item_type in ("", "message") and has_message_fields:
        return _reshape_role_message(fields, spec)
    return fields


def _reshape_role_message(fields: dict[str, Raw], spec: ApiSpec) -> dict[str, Raw]:
    """Reshape a message: a role that the API has, and all content under the API's own key."""
    new_fields = dict(fields)
    role = _choose_role(fields.get("role"), spec)
    if role is not None:
        new_fields["role"] = encode_raw(role)
    content_field = spec.shape.content_field
    own_content = new_fields.get(content_field)
    contents = []
    own_texts: set[str] | None = None
    if own_content is not None and get_json_first_char(own_content) != "n":
        contents.append(own_content)
        own_texts = set(iter_block_texts(msgspec.json.decode(own_content)))
    for key in CONTENT_FIELDS:
        if key == content_field or key not in new_fields:
            continue
        other_content = new_fields.pop(key)
        # Frameworks write the same words under two keys ("content" and "text"); they must not be said twice.
        if own_texts is not None and set(iter_block_texts(msgspec.json.decode(other_content))) <= own_texts:
            continue
        contents.append(other_content)
    if contents:
        block_role = read_json_text(new_fields.get("role")).replace("model", "assistant")
        new_fields[content_field] = _reshape_content(contents, spec, block_role)
    return new_fields


def _choose_role(raw: Raw | None, spec: ApiSpec) -> str | None:
    """Return the role to replace that of a message, or None if the API accepts it as it is."""
    role = read_json_text(raw)
    is_string = get_json_first_char(raw) == '"'
    may_be_absent = raw is None and "" in spec.shape.roles
    if role in spec.shape.roles and (is_string or may_be_absent):
        return None
    new_role = _ROLE_ALIASES.get(role.lower(), "user")
    if new_role == "assistant":
        new_role = spec.shape.assistant_role
    return new_role if new_role in spec.shape.roles else "user"


def _reshape_content(contents: Sequence[Raw], spec: ApiSpec, role: str) -> Raw:
    """Merge the contents of one message: a single text stays a text if the API allows it, anything else is a list."""
    if len(contents) == 1:
        if get_json_first_char(contents[0]) == '"' and get_text_block_type(spec, role):
            return contents[0]
        if role in ("tool", "function"):
            return reshape_tool_output(contents[0], spec)
    blocks = [block for content in contents for block in wrap_in_list(content)]
    new_blocks = []
    for block in blocks:
        for new_block in iter_replacement_blocks(block, spec, role):
            if spec.supports_cache_control:
                reshaped_block = _reshape_result(new_block, spec)
            else:
                reshaped_block = new_block
            new_blocks.append(_render_unreadable_result(reshaped_block, spec, role))
    is_unchanged_list = len(contents) == 1 and get_json_first_char(contents[0]) == "[" and new_blocks == blocks
    return contents[0] if is_unchanged_list else encode_raw(new_blocks)


def _render_unreadable_result(block: Raw, spec: ApiSpec, role: str) -> Raw:
    """Turn a call or result that this API's reader cannot decode into text; return any other block as it is.

    An assistant's calls are left to normalization, which drops malformed ones.
    """
    if get_json_first_char(block) != "{" or role == "assistant":
        return block
    origin = classify_foreign_block(decode_json_value(block))
    is_own_call_or_result = (
        origin is not None and origin.content_kind in (CALL_KIND, RESULT_KIND) and spec.api in origin.apis
    )
    if not is_own_call_or_result:
        return block
    message = spec.decode_message(encode_json(_build_single_block_message("user", block, spec)))
    if message.results or message.calls:
        return block
    return build_text_block(render_foreign_block(decode_json_fields(block)), spec, role)


def _reshape_result(block: Raw, spec: ApiSpec) -> Raw:
    """Reshape a block of Anthropic's: string ids, an output of text or blocks, and ``is_error`` only as a boolean."""
    raw_fields = decode_json_fields(block)
    block_type = read_json_text(raw_fields.get("type"))
    if "tool" in block_type:
        new_fields = stringify_numeric_ids(raw_fields)
    else:
        new_fields = dict(raw_fields)
    if "is_error" in new_fields and get_json_first_char(new_fields["is_error"]) not in "tfn":
        del new_fields["is_error"]
    if block_type == "tool_result" and "content" in raw_fields:
        new_fields["content"] = reshape_tool_output(raw_fields["content"], spec)
    return block if new_fields == raw_fields else encode_raw(new_fields)


# -- ids ---------------------------------------------------------------------------------------------------------------


def stringify_numeric_ids(fields: dict[str, Raw]) -> dict[str, Raw]:
    """Return a copy of the fields of an object in which ids that are numbers are strings of the same digits."""
    new_fields = dict(fields)
    for key in _ID_FIELDS:
        if key in fields and get_json_first_char(fields[key]) in "-0123456789":
            new_fields[key] = encode_raw(bytes(fields[key]).decode())
    return new_fields


def _stringify_message_ids(raw: Raw) -> Raw:
    """Return a message with string ids: its own, those of its calls and those of its blocks."""
    raw_fields = decode_fields_if_object(raw)
    new_fields = stringify_numeric_ids(raw_fields)
    for key in ("content", "tool_calls"):
        if get_json_first_char(raw_fields.get(key)) == "[":
            blocks = read_json_items(raw_fields[key])
            new_blocks = [_stringify_block_ids(block) for block in blocks]
            if new_blocks != blocks:
                new_fields[key] = encode_raw(new_blocks)
    return raw if new_fields == raw_fields else encode_raw(new_fields)


def _stringify_block_ids(raw: Raw) -> Raw:
    raw_fields = decode_fields_if_object(raw)
    # Only calls and results have ids that an API wants as strings.
    is_call_or_result = "tool" in read_json_text(raw_fields.get("type")) or "function" in raw_fields
    if not is_call_or_result:
        return raw
    new_fields = stringify_numeric_ids(raw_fields)
    return raw if new_fields == raw_fields else encode_raw(new_fields)
