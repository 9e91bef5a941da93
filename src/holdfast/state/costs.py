"""What model calls cost, and the notes by which a session's log remembers the calls that no answer entry records."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from holdfast.state.codec.reading import convert_value
from holdfast.state.entries import EntryBody, NoteEntry, Usage
from holdfast.state.target import Prices

NOTE_SUMMARY_COST = "a model wrote a summary"
"""Reason of a note that records what a summary written by a model cost."""
TOKENS_PER_PRICE = 1_000_000
HOUR_WRITE_FACTOR = 2.0
"""Price of a cache write for an hour, in input prices (Anthropic's prompt caching page: the same for every model)."""


class SummaryCall(NamedTuple):
    """A model call that has no answer entry: where it went, and its usage."""

    api: str
    model: str
    usage: Usage


class CostParts(NamedTuple):
    """The cost of one call in dollars, by what was paid for."""

    fresh_input: float
    """Input that was neither read from the cache nor written to it."""
    cache_read: float
    cache_write: float
    output: float


def split_cost(usage: Usage, prices: Prices) -> CostParts:
    """Return the cost of one call in dollars, by what was paid for."""
    uncached_tokens = max(0, usage.input - usage.cache_read - usage.cache_write)
    hour_write_tokens = usage.cache_write_1h
    short_write_tokens = usage.cache_write - hour_write_tokens
    write_cost = short_write_tokens * prices.cache_write + hour_write_tokens * HOUR_WRITE_FACTOR * prices.input
    return CostParts(
        fresh_input=uncached_tokens * prices.input / TOKENS_PER_PRICE,
        cache_read=usage.cache_read * prices.cache_read / TOKENS_PER_PRICE,
        cache_write=write_cost / TOKENS_PER_PRICE,
        output=usage.output * prices.output / TOKENS_PER_PRICE,
    )


def compute_cost(usage: Usage, prices: Prices) -> float:
    """Return the cost of one call in dollars."""
    return sum(split_cost(usage, prices))


def compute_cache_break_cost(prices: Prices, *, is_hour: bool) -> float:
    """Return how many dollars more it costs to write a million tokens into the cache than to read them from it."""
    if is_hour:
        write_price = HOUR_WRITE_FACTOR * prices.input
    else:
        write_price = prices.cache_write
    return write_price - prices.cache_read


def compute_known_cost(usage: Usage, prices: Prices) -> float | None:
    """Return the cost of one call in dollars, or None if the prices are only assumed from another model."""
    return None if prices.is_assumed else compute_cost(usage, prices)


def divide_or_zero(part: float, whole: float) -> float:
    """Return ``part / whole``, or 0 if ``whole`` is 0."""
    return part / whole if whole else 0.0


def build_summary_cost_note(call: SummaryCall) -> NoteEntry:
    """Build the note that records the ``call`` for a summary."""
    return NoteEntry(NOTE_SUMMARY_COST, data={"api": call.api, "model": call.model, **msgspec.to_builtins(call.usage)})


def read_summary_cost_note(body: EntryBody) -> SummaryCall | None:
    """Return the call that an entry's body records, or None if it is no such note or cannot be decoded."""
    if not isinstance(body, NoteEntry) or body.reason != NOTE_SUMMARY_COST:
        return None
    try:
        return SummaryCall(
            str(body.data.get("api")),
            str(body.data.get("model")),
            convert_value(body.data, Usage),
        )
    except msgspec.ValidationError:
        return None
