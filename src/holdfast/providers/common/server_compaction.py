"""Compactions while a provider answers: the options that ask for them, and the beta features that they need.

At a threshold the provider compacts, or clears old tool results, by itself; a compaction that is sent back needs the
feature by which it was made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw

from holdfast.errors import ConfigError, raise_if_wrong_type
from holdfast.providers.common.json.raw_json import decode_json_fields

ANTHROPIC_API, RESPONSES_API = "anthropic", "openai-responses"
COMPACTION_KIND = "compaction"
"""What both APIs call the block, or item, that stands for what was said."""
ON_DEMAND_BETA, THRESHOLD_BETA, CONTEXT_EDITING_BETA = (
    "compact-2026-09-04",
    "compact-2026-01-12",
    "context-management-2025-06-27",
)
"""Beta features of the Messages API: a compaction when asked for, one at a threshold, and the clearing of results."""
MIN_THRESHOLD_TOKENS: Mapping[str, int] = {ANTHROPIC_API: 50_000, RESPONSES_API: 1_000}
"""Input tokens under which the providers refuse a threshold (their reference pages)."""
DEFAULT_CLEARING_TOKENS, DEFAULT_KEPT_TOOL_USES = 100_000, 3
"""Input tokens above which Anthropic clears results, and tool uses it keeps, where a request does not say."""

JsonObject: TypeAlias = dict[str, Any]


def build_server_compaction_fields(api: str, tokens: int, *, instructions: str = "", pause: bool = False) -> JsonObject:
    """Return the fields with which the provider compacts by itself above ``tokens`` input tokens.

    ``pause`` lets it stop behind the compaction (Anthropic alone); ``instructions`` take the place of its own prompt
    there. ``ConfigError`` for an API that cannot, and for a threshold that its provider refuses.
    """
    raise_if_wrong_type(ConfigError, api=(api, str), tokens=(tokens, int))
    min_tokens = MIN_THRESHOLD_TOKENS.get(api)
    if min_tokens is None:
        raise ConfigError(f"{api} has no compaction at a threshold; compact with a model, or make an extract")
    if tokens < min_tokens:
        raise ConfigError(f"{api} refuses a compaction threshold of {tokens:,} tokens; set {min_tokens:,} or more")
    if api == RESPONSES_API:
        return {"context_management": [{"type": COMPACTION_KIND, "compact_threshold": tokens}]}
    edit: JsonObject = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": tokens}}
    edit |= {"pause_after_compaction": True} if pause else {}
    edit |= {"instructions": instructions} if instructions.strip() else {}
    return {"context_management": {"edits": [edit]}}


def build_result_clearing_fields(
    tokens: int = DEFAULT_CLEARING_TOKENS,
    *,
    keep: int = DEFAULT_KEPT_TOOL_USES,
    at_least: int = 0,
    exclude: Iterable[str] = (),
    inputs: bool = False,
) -> JsonObject:
    """Return the fields with which Anthropic clears old tool results above ``tokens`` input tokens.

    The newest ``keep`` tool uses stay, and those of the tools in ``exclude``; nothing happens where fewer than
    ``at_least`` tokens would go. ``inputs`` clears the arguments of the calls too. What the client holds stays whole.
    """
    edit: JsonObject = {"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": tokens}}
    edit["keep"] = {"type": "tool_uses", "value": keep}
    edit |= {"clear_at_least": {"type": "input_tokens", "value": at_least}} if at_least else {}
    edit |= {"exclude_tools": list(exclude)} if exclude else {}
    edit |= {"clear_tool_inputs": True} if inputs else {}
    return {"context_management": {"edits": [edit]}}


def merge_context_edits(*options: JsonObject) -> JsonObject:
    """Return fields of ``build_server_compaction_fields`` and ``build_result_clearing_fields`` as one, in the order
    the provider wants.
    """
    for at, option in enumerate(options):
        if not isinstance(option, dict) or "edits" not in option.get("context_management", ()):
            raise ConfigError(
                f"options[{at}] has no edits of Anthropic's; give what build_result_clearing_fields(…) returns"
            )
    edits = [edit for option in options for edit in option["context_management"]["edits"]]
    return {"context_management": {"edits": sorted(edits, key=lambda edit: not edit["type"].startswith("clear_"))}}


# -- what later requests need ------------------------------------------------------------------------------------------

_BETA_BY_EDIT_PREFIX = {"compact_": THRESHOLD_BETA, "clear_": CONTEXT_EDITING_BETA}
_COMPACTION_BLOCK = re.compile(rb'"type"\s*:\s*"compaction"')
_BETA_HEADER = "anthropic-beta"


def find_required_betas(api: str, body: bytes) -> tuple[str, ...]:
    """Return the beta features that a body needs for what stands in it; nothing on other APIs than Anthropic's.

    A compaction made on demand needs its own as long as it is sent, one made at a threshold that of the threshold.
    """
    if api != ANTHROPIC_API or not (b'"compaction"' in body or b'"context_management"' in body):
        return ()
    raw_fields = decode_json_fields(body, "the body")
    edits = [
        beta
        for kind in _list_edit_types(raw_fields)
        for start, beta in _BETA_BY_EDIT_PREFIX.items()
        if kind.startswith(start)
    ]
    demand_betas = (
        [ON_DEMAND_BETA]
        if _has_compaction_request(raw_fields) or (_COMPACTION_BLOCK.search(body) and THRESHOLD_BETA not in edits)
        else []
    )
    return tuple(dict.fromkeys([*edits, *demand_betas]))


def add_beta_header(headers: Mapping[str, str], beta_features: Iterable[str]) -> dict[str, str]:
    """Return ``headers`` with the beta features that are ``beta_features`` beside those it asks for."""
    lower_headers = {name.lower(): value for name, value in headers.items()}
    request_betas = [name.strip() for name in lower_headers.get(_BETA_HEADER, "").split(",")]
    features = ",".join(dict.fromkeys([name for name in (*request_betas, *beta_features) if name]))
    return lower_headers | ({_BETA_HEADER: features} if features else {})


def _list_edit_types(fields: Mapping[str, Raw]) -> list[str]:
    options = msgspec.json.decode(fields["context_management"]) if "context_management" in fields else None
    edits = options.get("edits") if isinstance(options, dict) else None
    return [str(edit.get("type")) for edit in edits or () if isinstance(edit, dict)]


def _has_compaction_request(fields: Mapping[str, Raw]) -> bool:
    return COMPACTION_KIND in fields and bytes(fields[COMPACTION_KIND]) != b"null"
