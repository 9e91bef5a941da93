"""OpenAI Responses: compaction by the provider, at ``/responses/compact`` or by a last input item."""

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
"""Fields that ``/responses/compact`` accepts (SDK 3.54)."""
# Fields about the delivery of an answer, and automatic compaction; neither makes sense for a compaction on demand.
_DELIVERY_FIELDS = frozenset({"stream", "stream_options", "background", "context_management"})
_COMPACTION_TRIGGER = {"type": "compaction_trigger"}


def _build_threshold_fields(tokens: int, _instructions: str, _pause: bool) -> JsonObject:
    return {"context_management": [{"type": COMPACTION_KIND, "compact_threshold": tokens}]}


def _build_compaction_request(fields: Mapping[str, Raw], instructions: str, in_band: bool) -> NativeCompactionRequest:
    if in_band:
        body: dict[str, Any] = {}
        for key, raw in fields.items():
            if key not in _DELIVERY_FIELDS:
                body[key] = raw
    else:
        body = {key: raw for key, raw in fields.items() if key in _COMPACT_ENDPOINT_FIELDS}
    if instructions:
        body["instructions"] = _append_instructions(fields, instructions)
    if not in_band:
        return NativeCompactionRequest("compact", encode_json(body))
    body["input"] = [*_to_input_items(fields.get("input")), _COMPACTION_TRIGGER]
    return NativeCompactionRequest("generate", encode_json(body))


def _append_instructions(fields: Mapping[str, Raw], instructions: str) -> str:
    """Return the request's own instructions followed by those for the compaction."""
    # The request has one field for both.
    if "instructions" in fields:
        own_instructions = msgspec.json.decode(fields["instructions"])
    else:
        own_instructions = None
    compaction_prompt = INSTRUCTED_PROMPT.format(instructions=instructions)
    if isinstance(own_instructions, str) and own_instructions:
        return f"{own_instructions}\n\n{compaction_prompt}"
    return compaction_prompt


def _to_input_items(raw: Raw | None) -> list[Any]:
    """Return the input as a list of items; a plain string becomes a user message."""
    if raw is None:
        return []
    value = msgspec.json.decode(raw, type=str | list[Raw])
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    return list(value)


def _keep_item(item: Raw) -> Raw:
    return item


COMPACTION = CompactionFormat(
    1_000,
    _build_threshold_fields,
    _build_compaction_request,
    _keep_item,
    returns_history=True,
)
"""1,000 tokens is the lowest threshold that the documentation allows. A compaction on demand returns the next input
items, user messages included."""
