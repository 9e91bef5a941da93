"""OpenAI Responses: compactions by the provider, asked for at ``/responses/compact`` or by a last input item."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.providers.api_spec import CompactionFormat
from holdfast.providers.common.compaction import COMPACTION_KIND, INSTRUCTED_PROMPT, JsonObject, NativeCompactionRequest
from holdfast.providers.common.json.raw_json import encode_json

_COMPACT_ENDPOINT_FIELDS = frozenset(
    {"model", "input", "instructions", "previous_response_id", "prompt_cache_key", "prompt_cache_options",
     "prompt_cache_retention", "service_tier", "image"}
)  # fmt: skip
"""Fields that ``/responses/compact`` takes (SDK 3.54)."""
_DELIVERY_FIELDS = frozenset({"stream", "stream_options", "background", "context_management"})
_COMPACTION_TRIGGER = {"type": "compaction_trigger"}


def _build_threshold_fields(tokens: int, _instructions: str, _pause: bool) -> JsonObject:
    return {"context_management": [{"type": COMPACTION_KIND, "compact_threshold": tokens}]}


def _build_compaction_request(fields: Mapping[str, Raw], instructions: str, in_band: bool) -> NativeCompactionRequest:
    instruction_fields = {"instructions": _append_instructions(fields, instructions)} if instructions else {}
    if in_band:
        kept_fields = {key: raw for key, raw in fields.items() if key not in _DELIVERY_FIELDS}
        input_items = [*_to_input_items(fields.get("input")), _COMPACTION_TRIGGER]
        return NativeCompactionRequest(
            "generate", encode_json({**kept_fields, **instruction_fields, "input": input_items})
        )
    kept_fields = {key: raw for key, raw in fields.items() if key in _COMPACT_ENDPOINT_FIELDS}
    return NativeCompactionRequest("compact", encode_json({**kept_fields, **instruction_fields}))


def _append_instructions(fields: Mapping[str, Raw], instructions: str) -> str:
    """Return the request's own instructions with those for the compaction behind them."""
    own = msgspec.json.decode(fields["instructions"]) if "instructions" in fields else None
    return "\n\n".join(
        [*([own] if isinstance(own, str) and own else []), INSTRUCTED_PROMPT.format(instructions=instructions)]
    )


def _to_input_items(raw: Raw | None) -> list[Any]:
    """Return the input as a list."""
    items = [] if raw is None else msgspec.json.decode(raw, type=str | list[Raw])
    return [{"role": "user", "content": items}] if isinstance(items, str) else list(items)


def _keep_item(item: Raw) -> Raw:
    return item


COMPACTION = CompactionFormat(
    1_000, _build_threshold_fields, _build_compaction_request, _keep_item, returns_history=True
)
"""Its page says under how many input tokens a threshold is refused. What comes back are the next input items, with the
user's messages."""
