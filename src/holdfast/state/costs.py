"""What calls of models cost, those too that are no answer of a session: what summaries cost is noted in its log."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from holdfast.state.codec.reading import convert_value
from holdfast.state.entries import EntryBody, NoteEntry, Usage
from holdfast.state.target import Prices

NOTE_SUMMARY_COST = "a model wrote a summary"
"""Reason of a note that tells what that cost."""
TOKENS_PER_PRICE = 1_000_000
HOUR_WRITE_FACTOR = 2.0
"""The price of writing for an hour, in input prices (Anthropic's prompt caching page: the same for every model)."""


class SummaryCall(NamedTuple):
    """A call that no answer tells of: to whom, and the tokens of it."""

    api: str
    model: str
    usage: Usage


def compute_cost(usage: Usage, prices: Prices) -> float:
    """Return what one call cost."""
    plain = max(0, usage.input - usage.cache_read - usage.cache_write)
    hour = usage.cache_write_1h
    write_cost = (usage.cache_write - hour) * prices.cache_write + hour * HOUR_WRITE_FACTOR * prices.input
    return (
        plain * prices.input + usage.cache_read * prices.cache_read + write_cost + usage.output * prices.output
    ) / TOKENS_PER_PRICE


def compute_cache_break_cost(prices: Prices, *, is_hour: bool) -> float:
    """Return what writing a million tokens into the cache costs more than reading them; for an hour it costs more."""
    return (HOUR_WRITE_FACTOR * prices.input if is_hour else prices.cache_write) - prices.cache_read


def compute_known_cost(usage: Usage, prices: Prices) -> float | None:
    """Return what one call cost; nothing where nobody told the prices, which are another model's then."""
    return None if prices.is_assumed else compute_cost(usage, prices)


def divide_or_zero(part: float, whole: float) -> float:
    """Return how much of a whole a part is; nothing of what is nothing."""
    return part / whole if whole else 0.0


def build_summary_cost_note(call: SummaryCall) -> NoteEntry:
    """Return the note of a ``call`` for a summary."""
    return NoteEntry(NOTE_SUMMARY_COST, data={"api": call.api, "model": call.model, **msgspec.to_builtins(call.usage)})


def read_summary_cost_note(body: EntryBody) -> SummaryCall | None:
    """Return the call that an entry notes; nothing where it is no such note."""
    if not isinstance(body, NoteEntry) or body.reason != NOTE_SUMMARY_COST:
        return None
    try:
        return SummaryCall(str(body.data.get("api")), str(body.data.get("model")), convert_value(body.data, Usage))
    except msgspec.ValidationError:
        return None
