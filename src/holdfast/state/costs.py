"""What calls of models cost, those too that are no answer of a session: what summaries cost is noted in its log."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from holdfast.state.codec.reading import convert
from holdfast.state.entries import Body, Note, Usage
from holdfast.state.target import Prices

SUMMARY = "a model wrote a summary"
"""Reason of a note that tells what that cost."""
MILLION = 1_000_000
HOUR = 2.0
"""The price of writing for an hour, in input prices (Anthropic's prompt caching page: the same for every model)."""


class Paid(NamedTuple):
    """A call that no answer tells of: to whom, and the tokens of it."""

    api: str
    model: str
    usage: Usage


def dollars(usage: Usage, prices: Prices) -> float:
    """Return what one call cost."""
    plain = max(0, usage.input - usage.cache_read - usage.cache_write)
    hour = usage.cache_write_1h
    written = (usage.cache_write - hour) * prices.write + hour * HOUR * prices.input
    return (plain * prices.input + usage.cache_read * prices.read + written + usage.output * prices.output) / MILLION


def broken(prices: Prices, *, is_hour: bool) -> float:
    """Return what writing a million tokens into the cache costs more than reading them; for an hour it costs more."""
    return (HOUR * prices.input if is_hour else prices.write) - prices.read


def known_dollars(usage: Usage, prices: Prices) -> float | None:
    """Return what one call cost; nothing where nobody told the prices, which are another model's then."""
    return None if prices.assumed else dollars(usage, prices)


def share(part: float, whole: float) -> float:
    """Return how much of a whole a part is; nothing of what is nothing."""
    return part / whole if whole else 0.0


def noted(call: Paid) -> Note:
    """Return the note of a ``call`` for a summary."""
    return Note(SUMMARY, data={"api": call.api, "model": call.model, **msgspec.to_builtins(call.usage)})


def paid(body: Body) -> Paid | None:
    """Return the call that an entry notes; nothing where it is no such note."""
    if not isinstance(body, Note) or body.reason != SUMMARY:
        return None
    try:
        return Paid(str(body.data.get("api")), str(body.data.get("model")), convert(body.data, Usage))
    except msgspec.ValidationError:
        return None
