"""Add an output limit where the API requires one and the request has none."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw

from holdfast.providers.anthropic.options import DEFAULT_MAX_TOKENS
from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.json.json_path import JsonTree
from holdfast.providers.common.json.raw_json import encode_json, replace_json_fields
from holdfast.providers.fix.fix_context import FixContext, RequestFix
from holdfast.providers.fix.replacements import read_whole_number
from holdfast.providers.rules.rule import Finding

_RULE_NAME, _MAX_TOKENS_PATH = "anthropic.required", "$.max_tokens"


def add_missing_max_tokens(body: bytes, _work: FixContext, errors: Sequence[Finding]) -> tuple[bytes, list[RequestFix]]:
    """Add ``max_tokens`` to a body that lacks it: our default for the answer, on top of its thinking budget."""
    is_missing = any(error.rule == _RULE_NAME and error.path == _MAX_TOKENS_PATH for error in errors)
    if not is_missing:
        return body, []
    # Anthropic counts thinking in max_tokens, and refuses a budget that is not below it.
    raw_budget = JsonTree(Raw(body)).get_raw(("thinking", "budget_tokens"))
    max_tokens = DEFAULT_MAX_TOKENS + read_whole_number(raw_budget)
    changes = {"max_tokens": encode_json(max_tokens)}
    fixed_body = replace_json_fields(body, parse_body_fields(body), changes)
    why = f"max_tokens is set to {max_tokens}, because the API requires it"
    return fixed_body, [RequestFix(_RULE_NAME, why, _MAX_TOKENS_PATH)]
