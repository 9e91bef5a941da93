"""Read the two usages of an answer: that of the last model call, and that of all calls that are paid for.

One answer of Anthropic can take several model calls (server-side tools, compaction). The top level of its usage is the
sum over the calls of the conversation and leaves out compactions and advisors; ``iterations`` lists all calls. The last
``message`` (or ``fallback_message``) among them shows what the window holds. Mixing the two up breaks both the
overflow trigger and the cost model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from msgspec import Raw

from holdfast.providers.common.json.lenient_json import read_json_fields, read_json_items, read_json_text
from holdfast.state.entries import Usage

UsageParser = Callable[[Mapping[str, Raw]], Usage]
"""Reads the counts of one usage object; missing ones are zero."""

_CONVERSATION_ITERATIONS = ("message", "fallback_message")
"""Types of iterations that had the conversation as their prompt."""


class UsagePair(NamedTuple):
    """The usages of an answer, both None if it reports no counts."""

    window: Usage | None
    """The last model call: the tokens that the window holds."""
    billed: Usage | None
    """All model calls that are paid for."""


def read_usage_pair(raw: bytes | Raw | None, parse_usage: UsageParser) -> UsagePair:
    """Read both usages out of ``raw``, the usage of an answer, with ``parse_usage`` of its API.

    They are equal if the usage has no single calls, and None if it has no counts at all.
    """
    fields = read_json_fields(raw)
    if not _has_counts(fields):
        return UsagePair(None, None)
    top_usage = parse_usage(fields)
    calls = _list_iterations(fields)
    if not calls:
        return UsagePair(top_usage, top_usage)
    conversation_calls: list[dict[str, Raw]] = []
    billed_usages = [top_usage]
    for call in calls:
        if read_json_text(call.get("type")) in _CONVERSATION_ITERATIONS:
            conversation_calls.append(call)
        else:
            billed_usages.append(parse_usage(call))
    billed_usage = Usage(*(sum(getattr(usage, name) for usage in billed_usages) for name in Usage.__struct_fields__))
    if not conversation_calls:
        return UsagePair(top_usage, billed_usage)
    last_call = conversation_calls[-1]
    # Details (the reasoning share) stand only at the top level, and belong to the last call only if it is the one call.
    if len(conversation_calls) == 1 and "output_tokens_details" in fields:
        last_call = {**last_call, "output_tokens_details": fields["output_tokens_details"]}
    return UsagePair(parse_usage(last_call), billed_usage)


def _has_counts(fields: Mapping[str, Raw]) -> bool:
    """Return whether a usage has any number; some servers send one with only nulls."""
    return any(bytes(raw)[:1].isdigit() for raw in fields.values())


def _list_iterations(fields: Mapping[str, Raw]) -> list[dict[str, Raw]]:
    """List the single model calls of a usage; the list is empty if it does not report them."""
    calls = [read_json_fields(raw) for raw in read_json_items(fields.get("iterations"))]
    return [call for call in calls if call]
