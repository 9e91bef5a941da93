"""Change the options that the model of a request refuses, where there is one right way to do so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.json.raw_json import decode_json_value, encode_json
from holdfast.providers.common.option_changes import apply_option_changes
from holdfast.providers.fix.fix_context import FixContext, RequestFix
from holdfast.providers.rules.rule import Finding


def fit_options_to_model(body: bytes, context: FixContext, errors: Sequence[Finding]) -> tuple[bytes, list[RequestFix]]:
    """Make the changes that the model needs and that cure an error in ``body``; other fields keep their bytes."""
    spec = context.spec
    find_changes = spec.options.find_model_changes
    if find_changes is None or context.keeps_model_options:
        return body, []
    raw_fields = parse_body_fields(body)
    fields = {key: decode_json_value(raw) for key, raw in raw_fields.items() if key != spec.messages_field}
    broken_rules = {error.rule for error in errors}
    changes = []
    for change in find_changes(fields, context.model, context.version):
        if f"{spec.api}.{change.rule}" in broken_rules:
            changes.append(change)
    if not changes:
        return body, []
    changed_fields = apply_option_changes(fields, changes)
    new_body: dict[str, Any] = dict(raw_fields)
    for change in changes:
        key = change.path.partition(".")[0]
        if key in changed_fields:
            new_body[key] = changed_fields[key]
        else:
            new_body.pop(key, None)
    fixes = [RequestFix(f"{spec.api}.{change.rule}", change.note, f"$.{change.path}") for change in changes]
    return encode_json(new_body), fixes
