"""The usage of an answer: the last call of the model, and all that is paid for.

Anthropic's top level is the sum over the calls of the model behind one answer (server-side tools make several) and
leaves out compactions and advisors; ``iterations`` has them one by one. The last ``message`` (or ``fallback_message``)
of them is what the window holds; a ``compaction`` never is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Raw

from holdfast.providers.common.json.lenient_json import read_json_fields, read_json_items, read_json_text
from holdfast.state.entries import Usage

UsageParser = Callable[[Mapping[str, Raw]], Usage]
"""Reads the counts of one usage; missing ones are zero."""

_CONVERSATION_ITERATIONS = ("message", "fallback_message")
"""Iterations whose prompt is the conversation."""


def read_usage_pair(raw: bytes | Raw | None, parse_usage: UsageParser) -> tuple[Usage | None, Usage | None]:
    """Return the tokens of the last call, and of all that is paid for: the same where nothing is told of single calls.

    None without any count. ``raw`` is the usage of an answer, ``parse_usage`` reads it as its API has it.
    """
    fields = read_json_fields(raw)
    if not _has_counts(fields):
        return None, None
    top, calls = parse_usage(fields), _list_iterations(fields)
    if not calls:
        return top, top
    own = [call for call in calls if read_json_text(call.get("type")) in _CONVERSATION_ITERATIONS]
    paid = [
        top,
        *(parse_usage(call) for call in calls if read_json_text(call.get("type")) not in _CONVERSATION_ITERATIONS),
    ]
    details = {key: fields[key] for key in ("output_tokens_details",) if key in fields and len(own) == 1}
    total = Usage(*(sum(getattr(call, name) for call in paid) for name in Usage.__struct_fields__))
    return parse_usage(own[-1] | details) if own else top, total


def _has_counts(fields: Mapping[str, Raw]) -> bool:
    """Return whether there is any number in a usage."""
    return any(bytes(raw)[:1].isdigit() for raw in fields.values())


def _list_iterations(fields: Mapping[str, Raw]) -> list[dict[str, Raw]]:
    """Return the single calls behind an answer, where the usage has them."""
    return [call for raw in read_json_items(fields.get("iterations")) if (call := read_json_fields(raw))]
