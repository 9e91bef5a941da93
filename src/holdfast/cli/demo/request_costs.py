"""What each request of a run was made of and cost, as the provider saw it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import msgspec
from msgspec import Struct

from holdfast.replay.cache import CacheUse, price_request
from holdfast.replay.measure import RequestPoint
from holdfast.state.costs import divide_or_zero
from holdfast.state.target import Prices
from holdfast.testing.provider import ModelAnswer, Provider
from holdfast.testing.provider.checks.token_counter import BLOCK_OVERHEAD, RequestCounter, count_word_pieces
from holdfast.testing.provider.provider import JudgedRequest
from holdfast.testing.provider.request_pieces import PromptBlock, split_into_blocks

_RESULT_BLOCK_TYPES = frozenset({"tool_result", "function_call_output"})


class RunTotals(Struct, frozen=True):
    """All requests of a run together."""

    tokens: int = 0
    """Input and output, as the provider counted them."""
    usd: float = 0.0
    cache_hit: float = 0.0
    """Share of the input tokens that were read from the cache."""
    largest: int = 0
    """Tokens of the largest request."""


class RequestTally:
    """The requests that a provider took, one ``RequestPoint`` each; ``scale`` weighs what they are made of."""

    def __init__(self, provider: Provider, prices: Prices) -> None:
        self.points: list[RequestPoint] = []
        self.output = 0
        self._provider, self._prices, self._scale = (
            provider,
            prices,
            RequestCounter(count_word_pieces, provider.settings.factor),
        )

    def add_request(self, event: str = "", summary: Collection[str] = ()) -> None:
        """Add the newest request; ``event`` is what was decided before it, ``summary`` the texts that are a summary."""
        request = self._provider.requests[-1]
        if not isinstance(request.reply, ModelAnswer):
            self.points.append(
                RequestPoint(
                    len(self.points), request.tokens, self._count_kinds(request, summary), CacheUse(0, 0, 0), 0.0
                )
            )
            return
        used = request.reply.usage
        hit = CacheUse(used.cache_read, used.cache_write, used.input)
        usd = price_request(hit, used.output, self._prices)
        self.output += used.output
        self.points.append(
            RequestPoint(len(self.points), request.tokens, self._count_kinds(request, summary), hit, usd, event)
        )

    def compute_totals(self) -> RunTotals:
        """Return the figures of all requests that were answered."""
        input_ = sum(point.hit.total for point in self.points)
        read_tokens = sum(point.hit.read for point in self.points)
        largest = max((point.tokens for point in self.points if point.hit.total), default=0)
        usd = sum(point.usd for point in self.points)
        return RunTotals(input_ + self.output, usd, divide_or_zero(read_tokens, input_), largest)

    def _count_kinds(self, request: JudgedRequest, summary: Collection[str]) -> dict[str, int]:
        body = msgspec.json.decode(request.incoming.body)
        out: Counter[str] = Counter()
        for block in split_into_blocks(request.incoming.api, body):
            out[_classify_demo_block(block, summary)] += BLOCK_OVERHEAD + self._scale.count_text(block.rendering.text)
        return dict(out)


def _classify_demo_block(block: PromptBlock, summary: Collection[str]) -> str:
    if block.section != "messages":
        return "frame"
    if block.kind in _RESULT_BLOCK_TYPES:
        return "results"
    return "summary" if block.rendering.text in summary else block.role
