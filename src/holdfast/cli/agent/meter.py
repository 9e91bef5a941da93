"""The cost of a session so far, and how full its context is, on one line."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from holdfast.config import Catalog
from holdfast.engine.session import Report
from holdfast.messages.text.counts import format_count
from holdfast.reports.requests.request_size import format_tokens
from holdfast.state.costs import compute_known_cost, divide_or_zero, read_summary_cost_note
from holdfast.state.entries import AnswerEntry, Entry, Usage
from holdfast.state.target import Prices


class SessionCost(Struct, frozen=True):
    """Tokens of all answers, as the provider counted them, and of all summaries that models wrote; and dollars.

    ``usd`` is None as soon as one of the models has no known price.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    usd: float | None = 0.0

    def add_call(self, usage: Usage, prices: Prices) -> SessionCost:
        """Return the sum with one more call."""
        call_dollars = compute_known_cost(usage, prices)
        # A sum without one of its calls would look like the whole cost, so one unknown price makes it unknown.
        total_dollars = None
        if self.usd is not None and call_dollars is not None:
            total_dollars = self.usd + call_dollars
        return SessionCost(
            input=self.input + usage.input,
            output=self.output + usage.output,
            cache_read=self.cache_read + usage.cache_read,
            cache_write=self.cache_write + usage.cache_write,
            usd=total_dollars,
        )

    @property
    def cache_hit(self) -> float:
        """The share of the input that was read from the cache."""
        return divide_or_zero(self.cache_read, self.input)


def sum_costs(entries: Iterable[Entry], prices: Prices, catalog: Catalog) -> SessionCost:
    """Sum the cost of answers at ``prices``, and of summaries at the prices of the models that wrote them."""
    total = SessionCost()
    for entry in entries:
        if isinstance(entry.body, AnswerEntry):
            total = total.add_call(entry.body.usage, prices)
        elif (call := read_summary_cost_note(entry.body)) is not None:
            total = total.add_call(call.usage, catalog.get_prices(call.api, call.model))
    return total


def format_cost_status(report: Report, cost: SessionCost) -> str:
    """Format on one line how full the context is and the money spent."""
    full = f"context {format_tokens(report.tokens)} of {report.window:,} tokens ({format_window_fill(report)})"
    compactions = format_count(report.compaction_count, "compaction")
    money = "price unknown" if cost.usd is None else f"${cost.usd:,.4f}"
    return f"{full} · {compactions} · cache {cost.cache_hit:.0%} · {money}"


def format_window_fill(report: Report) -> str:
    """Return the share of the window that the next request takes, or that it must be reduced before it is sent."""
    if report.window_share <= 1:
        return f"{report.window_share:.0%}"
    return "over the window: will be reduced before sending"
