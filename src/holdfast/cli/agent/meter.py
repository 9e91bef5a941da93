"""What a session cost so far, and how full its context is, on one line."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from holdfast.cli.output.terminal import many
from holdfast.cli.reports.request_size import about
from holdfast.config import Catalog
from holdfast.engine.session import Report
from holdfast.state.costs import known_dollars, paid, share
from holdfast.state.entries import Answer, Entry, Usage
from holdfast.state.target import Prices


class Spent(Struct, frozen=True):
    """Tokens of all answers as the provider counted them, and of all summaries that models wrote; and the dollars.

    Of a model whose prices nobody told these are not known, and no sum with them is.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    usd: float | None = 0.0

    def plus(self, usage: Usage, prices: Prices) -> Spent:
        """Return it with one call more."""
        more = known_dollars(usage, prices)
        return Spent(
            self.input + usage.input,
            self.output + usage.output,
            self.cache_read + usage.cache_read,
            self.cache_write + usage.cache_write,
            None if self.usd is None or more is None else self.usd + more,
        )

    @property
    def cache_hit(self) -> float:
        """The share of the input that came out of the cache."""
        return share(self.cache_read, self.input)


def spent(entries: Iterable[Entry], prices: Prices, catalog: Catalog) -> Spent:
    """Return what the answers among ``entries`` cost at ``prices``, and the summaries at those of their own models."""
    total = Spent()
    for entry in entries:
        if isinstance(entry.body, Answer):
            total = total.plus(entry.body.usage, prices)
        elif (call := paid(entry.body)) is not None:
            total = total.plus(call.usage, catalog.prices(call.api, call.model))
    return total


def status(report: Report, cost: Spent) -> str:
    """Return how full the context is and what was spent, on one line."""
    full = f"context {about(report.tokens)} of {report.window:,} tokens ({filled(report)})"
    made = many(report.compactions, "compaction")
    money = "price not known" if cost.usd is None else f"${cost.usd:,.4f}"
    return f"{full} · {made} · cache {cost.cache_hit:.0%} · {money}"


def filled(report: Report) -> str:
    """Return how much of the window the next request takes; where it is over it, that it does not go out so."""
    return f"{report.share:.0%}" if report.share <= 1 else "over the window: made smaller before it is sent"
