"""Name the results of functions in Chat's old form (role ``function``), and make their content one text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Raw

from holdfast.messages.old_calls import OLD_RESULT_ROLE, join_result_texts
from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.json.lenient_json import read_json_items, read_json_text
from holdfast.providers.common.json.raw_json import decode_json_value, encode_json, replace_json_fields
from holdfast.providers.fix.blocks import decode_fields_if_object, encode_raw
from holdfast.providers.fix.fix_context import FixContext, RequestFix, build_request_fix
from holdfast.providers.rules.rule import Finding

_RULE_NAME = "openai-chat.legacy-result"
_PARTS_RULE_NAME = "openai-chat.parts"


def name_function_results(
    body: bytes, context: FixContext, errors: Sequence[Finding]
) -> tuple[bytes, list[RequestFix]]:
    """Give each nameless function result the name of the one call that waits for it.

    A result without a waiting call becomes a tool result without an id; later steps tie that to its call or turn it
    into text.
    """
    edits_by_path = {}
    for error in errors:
        if error.rule == _RULE_NAME:
            edits_by_path[error.path] = build_request_fix(error, "set to that of the open call")
    if not edits_by_path:
        return body, []
    messages_field = context.spec.messages_field
    raw_fields = parse_body_fields(body)
    new_messages = list(_iter_named_messages(read_json_items(raw_fields.get(messages_field))))
    new_body = replace_json_fields(body, raw_fields, {messages_field: encode_json(new_messages)})
    return new_body, list(edits_by_path.values())


def _iter_named_messages(raws: Sequence[Raw]) -> Iterator[Raw]:
    """Yield the messages, with names for function results.

    The old form allows one call in an answer, so the waiting call is that of the last answer until a result follows.
    """
    waiting_function = ""
    for raw in raws:
        raw_fields = decode_fields_if_object(raw)
        role = read_json_text(raw_fields.get("role"))
        if role != "function" or read_json_text(raw_fields.get("name")):
            yield raw
        elif waiting_function:
            yield encode_raw({**raw_fields, "name": waiting_function})
        else:
            yield encode_raw({**raw_fields, "role": "tool"})
        if role in ("assistant", "function"):
            waiting_function = _get_called_function(raw_fields)


def _get_called_function(fields: Mapping[str, Raw]) -> str:
    """Return the name of the function that a message calls, or an empty string if it calls none."""
    call_fields = decode_fields_if_object(fields.get("function_call"))
    return read_json_text(call_fields.get("name"))


def join_function_contents(
    body: bytes, context: FixContext, errors: Sequence[Finding]
) -> tuple[bytes, list[RequestFix]]:
    """Make one text of the parts of a function's result: the old form has only a string."""
    messages_field = context.spec.messages_field
    faults = [error for error in errors if error.rule == _PARTS_RULE_NAME]
    if not faults:
        return body, []
    raw_fields = parse_body_fields(body)
    new_messages: list[Raw] = []
    fixes: list[RequestFix] = []
    for index, raw in enumerate(read_json_items(raw_fields.get(messages_field))):
        message_fields = decode_fields_if_object(raw)
        path = f"$.{messages_field}[{index}].content"
        fault = next((error for error in faults if error.path.startswith(f"{path}[")), None)
        if fault is None or read_json_text(message_fields.get("role")) != OLD_RESULT_ROLE:
            new_messages.append(raw)
            continue
        text = join_result_texts(decode_json_value(message_fields["content"]))
        new_messages.append(encode_raw({**message_fields, "content": text}))
        fixes.append(build_request_fix(fault, "sent as one text", path))
    if not fixes:
        return body, []
    return replace_json_fields(body, raw_fields, {messages_field: encode_json(new_messages)}), fixes
