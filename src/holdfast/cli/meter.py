"""What a session cost so far, and how full its context is, on one line."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from holdfast.cli.terminal import many
from holdfast.model.entries import Answer, Entry, Usage
from holdfast.model.target import Prices
from holdfast.runtime.session import Report


class Spent(Struct, frozen=True):
    """Tokens of all answers as the provider counted them."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0

    def plus(self, usage: Usage) -> Spent:
        """Return it with one answer more."""
        return Spent(
            self.input + usage.input,
            self.output + usage.output,
            self.cache_read + usage.cache_read,
            self.cache_write + usage.cache_write,
        )

    @property
    def cache_hit(self) -> float:
        """The share of the input that came out of the cache."""
        return self.cache_read / self.input if self.input else 0.0

    def dollars(self, prices: Prices) -> float:
        """Return what that cost."""
        plain = max(0, self.input - self.cache_read - self.cache_write)
        told = plain * prices.input + self.cache_read * prices.read + self.cache_write * prices.write
        return (told + self.output * prices.output) / 1_000_000


def spent(entries: Iterable[Entry]) -> Spent:
    """Return what the answers among ``entries`` cost."""
    total = Spent()
    for entry in entries:
        if isinstance(entry.body, Answer):
            total = total.plus(entry.body.usage)
    return total


def status(report: Report, cost: Spent, prices: Prices) -> str:
    """Return how full the context is and what was spent, on one line."""
    full = f"context {report.tokens:,} of {report.window:,} tokens ({report.share:.0%})"
    made = many(report.compactions, "compaction")
    return f"{full} · {made} · cache {cost.cache_hit:.0%} · ${cost.dollars(prices):,.4f}"
