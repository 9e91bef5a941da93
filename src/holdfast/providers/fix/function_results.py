"""Results of functions in Chat's old form that do not say whose they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Raw

from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.json.json_path import get_json_first_char
from holdfast.providers.common.json.lenient_json import read_json_items, read_json_text
from holdfast.providers.common.json.raw_json import decode_json_fields, encode_json, replace_json_fields
from holdfast.providers.fix.fix_context import FixContext, RequestFix, build_request_fix
from holdfast.providers.rules.rule import Finding

_RULE_NAME = "openai-chat.legacy-result"


def name_function_results(body: bytes, work: FixContext, errors: Sequence[Finding]) -> tuple[bytes, list[RequestFix]]:
    """Return the body with each nameless result of a function under the name of the one call that waits for it.

    Where none does it is a tool's result without an id, which is tied to its call or told in words as those are.
    """
    edits_by_path = {
        error.path: build_request_fix(error, "it has that of the call that waits")
        for error in errors
        if error.rule == _RULE_NAME
    }
    if not edits_by_path:
        return body, []
    field, raw_fields = work.spec.messages_field, parse_body_fields(body)
    new = list(_iter_named_messages(read_json_items(raw_fields.get(field))))
    return replace_json_fields(body, raw_fields, {field: encode_json(new)}), list(edits_by_path.values())


def _iter_named_messages(raws: Sequence[Raw]) -> Iterator[Raw]:
    """Yield the messages; the open call is that of the last answer, until a function answers it."""
    name = ""
    for raw in raws:
        raw_fields = decode_json_fields(raw) if get_json_first_char(raw) == "{" else {}
        role = read_json_text(raw_fields.get("role"))
        nameless = role == "function" and not read_json_text(raw_fields.get("name"))
        yield (
            Raw(encode_json({**raw_fields, "name": name} if name else {**raw_fields, "role": "tool"}))
            if nameless
            else raw
        )
        if role in ("assistant", "function"):
            name = _get_called_function(raw_fields)


def _get_called_function(fields: Mapping[str, Raw]) -> str:
    """Return the name of the function that a message calls; nothing where it calls none."""
    call = fields.get("function_call", Raw(b"null"))
    return read_json_text(decode_json_fields(call).get("name")) if get_json_first_char(call) == "{" else ""
