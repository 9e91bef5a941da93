"""Anthropic Messages: compaction and result clearing by the provider, and the beta features they need.

A field of the body asks for either. Above a threshold the provider compacts, or clears old tool results, on its own. A
compaction that is sent back needs the beta feature by which it was made.
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

ON_DEMAND_BETA = "compact-2026-09-04"
"""Beta feature for a compaction on demand."""
THRESHOLD_BETA = "compact-2026-01-12"
"""Beta feature for a compaction at a threshold."""
CONTEXT_EDITING_BETA = "context-management-2025-06-27"
"""Beta feature for the clearing of tool results."""
DEFAULT_CLEARING_TOKENS = 100_000
"""Input tokens above which results are cleared: Anthropic's own default."""
DEFAULT_KEPT_TOOL_USES = 3
"""Newest tool uses that are never cleared: Anthropic's own default."""

_ANSWER_SHAPING_FIELDS = frozenset({"context_management", "stop_sequences", "output_format", "stream", COMPACTION_KIND})
"""Fields that are refused beside a compaction, since they shape an answer and there will be none; and the compaction
field itself, which is set anew. Anthropic's SDK drops the same ones."""
_BETA_BY_EDIT_PREFIX = {"compact_": THRESHOLD_BETA, "clear_": CONTEXT_EDITING_BETA}
_COMPACTION_BLOCK = re.compile(rb'"type"\s*:\s*"compaction"')


# -- at a threshold ----------------------------------------------------------------------------------------------------


def _build_threshold_fields(tokens: int, instructions: str, pause: bool) -> JsonObject:
    edit: JsonObject = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": tokens}}
    if pause:
        edit["pause_after_compaction"] = True
    if instructions.strip():
        edit["instructions"] = instructions
    return {"context_management": {"edits": [edit]}}


def build_result_clearing_fields(
    tokens: int = DEFAULT_CLEARING_TOKENS,
    *,
    keep: int = DEFAULT_KEPT_TOOL_USES,
    at_least: int = 0,
    exclude: Iterable[str] = (),
    inputs: bool = False,
) -> JsonObject:
    """Build the fields that make Anthropic clear old tool results above ``tokens`` input tokens.

    The newest ``keep`` tool uses and all those of the tools in ``exclude`` stay. No result is cleared unless at least
    ``at_least`` tokens would go. ``inputs`` clears the arguments of the calls too. The client's own messages stay
    whole.
    """
    edit: JsonObject = {"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": tokens}}
    edit["keep"] = {"type": "tool_uses", "value": keep}
    if at_least:
        edit["clear_at_least"] = {"type": "input_tokens", "value": at_least}
    if exclude:
        edit["exclude_tools"] = list(exclude)
    if inputs:
        edit["clear_tool_inputs"] = True
    return {"context_management": {"edits": [edit]}}


def merge_context_edits(*options: JsonObject) -> JsonObject:
    """Merge fields of ``build_server_compaction_fields`` and ``build_result_clearing_fields``.

    Raises ``ConfigError`` if one of ``options`` has no edits.
    """
    edits = []
    for index, option in enumerate(options):
        if not isinstance(option, dict) or "edits" not in option.get("context_management", ()):
            raise ConfigError(
                f"options[{index}] has no edits of Anthropic's; give what build_result_clearing_fields(…) returns"
            )
        edits += option["context_management"]["edits"]
    # Anthropic wants clearing edits before a compaction.
    return {"context_management": {"edits": sorted(edits, key=lambda edit: not edit["type"].startswith("clear_"))}}


# -- on demand ---------------------------------------------------------------------------------------------------------


def _build_compaction_request(fields: Mapping[str, Raw], instructions: str, _in_band: bool) -> NativeCompactionRequest:
    body: JsonObject = {}
    for key, raw in fields.items():
        if key not in _ANSWER_SHAPING_FIELDS:
            body[key] = raw
    # These shape an answer in part only, so the rest of them stays.
    for key in {"tool_choice", "output_config", "fallbacks"} & body.keys():
        value = _strip_answer_shaping(key, msgspec.json.decode(body.pop(key)))
        if value:
            body[key] = value
    compaction = {"type": "summarize"}
    if instructions:
        compaction["instructions"] = INSTRUCTED_PROMPT.format(instructions=instructions)
    body[COMPACTION_KIND] = compaction
    return NativeCompactionRequest(
        "generate",
        encode_json(body),
        add_beta_header({}, [ON_DEMAND_BETA]),
    )


def _strip_answer_shaping(key: str, value: Any) -> Any:
    """Return the value of an option without settings that only shape an answer: forced calls and the answer format."""
    if key == "fallbacks":
        if isinstance(value, list):
            return [_strip_fallback_format(fallback) for fallback in value]
        return value
    if not isinstance(value, dict):
        return value
    if key == "tool_choice":
        is_forced = value.get("type") in {"any", "tool"}
        return None if is_forced else value
    return {name: inner for name, inner in value.items() if name != "format"}


def _strip_fallback_format(fallback: Any) -> Any:
    if isinstance(fallback, dict):
        output_config = fallback.get("output_config")
    else:
        output_config = None
    if not output_config:
        return fallback
    return fallback | {"output_config": _strip_answer_shaping("output_config", output_config)}


def _wrap_in_assistant_message(block: Raw) -> Raw:
    """Wrap a compaction block in an assistant message."""
    return Raw(encode_json({"role": "assistant", "content": [block]}))


# -- beta features -----------------------------------------------------------------------------------------------------


def _find_required_betas(body: bytes) -> tuple[str, ...]:
    """Return the beta features that the content of ``body`` needs.

    A compaction made on demand needs its beta for as long as it is sent back; one made at a threshold needs the beta of
    the threshold, which its request asks for anyway.
    """
    # This runs for every request, so most bodies are left undecoded.
    if b'"compaction"' not in body and b'"context_management"' not in body:
        return ()
    raw_fields = decode_json_fields(body, "the body")
    betas = []
    for edit_type in _list_edit_types(raw_fields):
        for prefix, beta in _BETA_BY_EDIT_PREFIX.items():
            if edit_type.startswith(prefix):
                betas.append(beta)
    # A block does not say how it was made. Without a threshold in the same request, it was made on demand.
    has_on_demand_block = _COMPACTION_BLOCK.search(body) is not None and THRESHOLD_BETA not in betas
    if _has_compaction_request(raw_fields) or has_on_demand_block:
        betas.append(ON_DEMAND_BETA)
    return tuple(dict.fromkeys(betas))


def _list_edit_types(fields: Mapping[str, Raw]) -> list[str]:
    if "context_management" not in fields:
        return []
    options = msgspec.json.decode(fields["context_management"])
    edits = options.get("edits") if isinstance(options, dict) else None
    edit_types: list[str] = []
    for edit in edits or ():
        if isinstance(edit, dict):
            edit_types.append(str(edit.get("type")))
    return edit_types


def _has_compaction_request(fields: Mapping[str, Raw]) -> bool:
    return COMPACTION_KIND in fields and bytes(fields[COMPACTION_KIND]) != b"null"


COMPACTION = CompactionFormat(
    50_000,
    _build_threshold_fields,
    _build_compaction_request,
    _wrap_in_assistant_message,
    _find_required_betas,
)
"""50,000 input tokens is the lowest threshold that the documentation allows. A compaction on demand returns its block
alone."""
