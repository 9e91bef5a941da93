"""Anthropic Messages: compactions and clearing by the provider, and the beta features that they need.

A compaction is asked for by a field of the body. At a threshold the provider compacts, or clears old tool results, by
itself; a compaction that is sent back needs the feature by which it was made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.errors import ConfigError
from holdfast.providers.api_spec import CompactionFormat
from holdfast.providers.common.compaction import (
    COMPACTION_KIND,
    INSTRUCTED_PROMPT,
    JsonObject,
    NativeCompactionRequest,
    add_beta_header,
)
from holdfast.providers.common.json.raw_json import decode_json_fields, encode_json

ON_DEMAND_BETA, THRESHOLD_BETA, CONTEXT_EDITING_BETA = (
    "compact-2026-09-04",
    "compact-2026-01-12",
    "context-management-2025-06-27",
)
"""Beta features of the Messages API: a compaction when asked for, one at a threshold, and the clearing of results."""
DEFAULT_CLEARING_TOKENS, DEFAULT_KEPT_TOOL_USES = 100_000, 3
"""Input tokens above which Anthropic clears results, and tool uses it keeps, where a request does not say."""

_ANSWER_SHAPING_FIELDS = frozenset({"context_management", "stop_sequences", "output_format", "stream", COMPACTION_KIND})
"""Fields of the Messages API that only shape an answer, and are refused beside a compaction; its own goes with them."""
_BETA_BY_EDIT_PREFIX = {"compact_": THRESHOLD_BETA, "clear_": CONTEXT_EDITING_BETA}
_COMPACTION_BLOCK = re.compile(rb'"type"\s*:\s*"compaction"')


# -- at a threshold ----------------------------------------------------------------------------------------------------


def _build_threshold_fields(tokens: int, instructions: str, pause: bool) -> JsonObject:
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


# -- on demand ---------------------------------------------------------------------------------------------------------


def _build_compaction_request(fields: Mapping[str, Raw], instructions: str, _in_band: bool) -> NativeCompactionRequest:
    body: JsonObject = {key: raw for key, raw in fields.items() if key not in _ANSWER_SHAPING_FIELDS}
    for key in {"tool_choice", "output_config", "fallbacks"} & body.keys():
        value = _strip_answer_shaping(key, msgspec.json.decode(body.pop(key)))
        body |= {key: value} if value else {}
    instruction_fields = {"instructions": INSTRUCTED_PROMPT.format(instructions=instructions)} if instructions else {}
    return NativeCompactionRequest(
        "generate",
        encode_json({**body, COMPACTION_KIND: {"type": "summarize", **instruction_fields}}),
        add_beta_header({}, [ON_DEMAND_BETA]),
    )


def _strip_answer_shaping(key: str, value: Any) -> Any:
    """Return an option without what only shapes an answer: forced calls, and its format."""
    if key == "fallbacks":
        return [_strip_fallback_format(fallback) for fallback in value] if isinstance(value, list) else value
    if not isinstance(value, dict):
        return value
    if key == "tool_choice":
        return None if value.get("type") in {"any", "tool"} else value
    return {name: inner for name, inner in value.items() if name != "format"}


def _strip_fallback_format(fallback: Any) -> Any:
    output_config = fallback.get("output_config") if isinstance(fallback, dict) else None
    return (
        fallback | {"output_config": _strip_answer_shaping("output_config", output_config)}
        if output_config
        else fallback
    )


def _wrap_in_assistant_message(block: Raw) -> Raw:
    """Return a block as a message of the assistant's."""
    return Raw(encode_json({"role": "assistant", "content": [block]}))


# -- what later requests need ------------------------------------------------------------------------------------------


def _find_required_betas(body: bytes) -> tuple[str, ...]:
    """Return the beta features that a body needs for what stands in it.

    A compaction made on demand needs its own as long as it is sent, one made at a threshold that of the threshold.
    """
    if b'"compaction"' not in body and b'"context_management"' not in body:
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


def _list_edit_types(fields: Mapping[str, Raw]) -> list[str]:
    options = msgspec.json.decode(fields["context_management"]) if "context_management" in fields else None
    edits = options.get("edits") if isinstance(options, dict) else None
    return [str(edit.get("type")) for edit in edits or () if isinstance(edit, dict)]


def _has_compaction_request(fields: Mapping[str, Raw]) -> bool:
    return COMPACTION_KIND in fields and bytes(fields[COMPACTION_KIND]) != b"null"


COMPACTION = CompactionFormat(
    50_000, _build_threshold_fields, _build_compaction_request, _wrap_in_assistant_message, _find_required_betas
)
"""Its page says under how many input tokens a threshold is refused. What comes back is the block alone."""
