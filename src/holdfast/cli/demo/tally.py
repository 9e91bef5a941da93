"""What each request of a run was made of and cost, as the provider saw it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import msgspec
from msgspec import Struct

from holdfast.replay.cache import Hit, cost
from holdfast.replay.measure import Point
from holdfast.state.costs import share
from holdfast.state.target import Prices
from holdfast.testing.provider import Answered, Provider
from holdfast.testing.provider.blocks import Block, blocks
from holdfast.testing.provider.judge.counting import PER_BLOCK, Scale, words
from holdfast.testing.provider.provider import Judged

_RESULTS = frozenset({"tool_result", "function_call_output"})


class Totals(Struct, frozen=True):
    """All requests of a run together."""

    tokens: int = 0
    """Input and output, as the provider counted them."""
    usd: float = 0.0
    cache_hit: float = 0.0
    """Share of the input tokens that were read from the cache."""
    largest: int = 0
    """Tokens of the largest request."""


class Tally:
    """The requests that a provider took, one ``Point`` each; ``scale`` weighs what they are made of."""

    def __init__(self, provider: Provider, prices: Prices) -> None:
        self.points: list[Point] = []
        self.output = 0
        self._provider, self._prices, self._scale = provider, prices, Scale(words, provider.settings.factor)

    def add(self, event: str = "", summary: Collection[str] = ()) -> None:
        """Add the newest request; ``event`` is what was decided before it, ``summary`` the texts that are a summary."""
        judged = self._provider.requests[-1]
        if not isinstance(judged.reply, Answered):
            self.points.append(Point(len(self.points), judged.tokens, self._kinds(judged, summary), Hit(0, 0, 0), 0.0))
            return
        used = judged.reply.usage
        hit = Hit(used.cache_read, used.cache_write, used.input)
        usd = cost(hit, used.output, self._prices)
        self.output += used.output
        self.points.append(Point(len(self.points), judged.tokens, self._kinds(judged, summary), hit, usd, event))

    def totals(self) -> Totals:
        """Return the figures of all requests that were answered."""
        input_ = sum(point.hit.total for point in self.points)
        read = sum(point.hit.read for point in self.points)
        largest = max((point.tokens for point in self.points if point.hit.total), default=0)
        usd = sum(point.usd for point in self.points)
        return Totals(input_ + self.output, usd, share(read, input_), largest)

    def _kinds(self, judged: Judged, summary: Collection[str]) -> dict[str, int]:
        body = msgspec.json.decode(judged.asked.body)
        out: Counter[str] = Counter()
        for block in blocks(judged.asked.api, body):
            out[_kind(block, summary)] += PER_BLOCK + self._scale.text(block.rendering.text)
        return dict(out)


def _kind(block: Block, summary: Collection[str]) -> str:
    if block.section != "messages":
        return "frame"
    if block.kind in _RESULTS:
        return "results"
    return "summary" if block.rendering.text in summary else block.role
