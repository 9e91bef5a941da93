"""What a session cost so far, and how full its context is, on one line."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress

from msgspec import Struct

from holdfast.cli.paying import dollars, paid
from holdfast.cli.sizing import about
from holdfast.cli.terminal import many
from holdfast.config import Catalog
from holdfast.errors import HoldfastError
from holdfast.model.entries import Answer, Entry, Usage
from holdfast.model.target import Prices
from holdfast.runtime.replies import Incoming
from holdfast.runtime.session import Report
from holdfast.runtime.upstream import Reply, Sent, Upstream


class Spent(Struct, frozen=True):
    """Tokens of all answers as the provider counted them, and of all summaries that models wrote; and the dollars."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    usd: float = 0.0

    def plus(self, usage: Usage, prices: Prices) -> Spent:
        """Return it with one call more."""
        return Spent(
            self.input + usage.input,
            self.output + usage.output,
            self.cache_read + usage.cache_read,
            self.cache_write + usage.cache_write,
            self.usd + dollars(usage, prices),
        )

    @property
    def cache_hit(self) -> float:
        """The share of the input that came out of the cache."""
        return self.cache_read / self.input if self.input else 0.0


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
    full = f"context {about(report.tokens)} of {report.window:,} tokens ({report.share:.0%})"
    made = many(report.compactions, "compaction")
    return f"{full} · {made} · cache {cost.cache_hit:.0%} · ${cost.usd:,.4f}"


class Metered:
    """An upstream that keeps what its answers cost until that is taken."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._costs: list[Usage] = []

    @asynccontextmanager
    async def send(self, sent: Sent) -> AsyncIterator[Reply]:
        """Return the reply to ``sent``; once it was read, what it cost is kept."""
        pieces: list[bytes] = []
        async with self._upstream.send(sent) as reply:
            yield Reply(reply.status, reply.headers, _told(reply.chunks, pieces), reply.raw, reply.secrets)
            with suppress(HoldfastError):
                self._costs.append(await _cost(Reply(reply.status, reply.headers, _again(pieces)), sent))

    def take(self) -> list[Usage]:
        """Return what is kept, and keep it no longer."""
        taken, self._costs = self._costs, []
        return taken


async def _told(chunks: AsyncIterable[bytes], pieces: list[bytes]) -> AsyncIterator[bytes]:
    """Yield ``chunks``, each in ``pieces`` too."""
    async for chunk in chunks:
        pieces.append(chunk)
        yield chunk


async def _again(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def _cost(reply: Reply, sent: Sent) -> Usage:
    incoming = Incoming(reply, sent)
    async for _ in incoming.events():
        pass
    answer = incoming.answer()
    return answer.spent or answer.asked or Usage()
