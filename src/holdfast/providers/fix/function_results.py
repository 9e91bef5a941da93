"""Name the results of functions in Chat's old form (role ``function``) that lack the function's name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Raw

from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.json.lenient_json import read_json_items, read_json_text
from holdfast.providers.common.json.raw_json import encode_json, replace_json_fields
from holdfast.providers.fix.blocks import decode_fields_if_object, encode_raw
from holdfast.providers.fix.fix_context import FixContext, RequestFix, build_request_fix
from holdfast.providers.rules.rule import Finding

_RULE_NAME = "openai-chat.legacy-result"


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
