"""The contents and cost of each request of a run, as the provider counted them."""

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
    """Totals over all requests of a run."""

    tokens: int = 0
    """Input and output tokens, as the provider counted them."""
    usd: float = 0.0
    cache_hit: float = 0.0
    """Share of the input tokens that were read from the cache."""
    largest: int = 0
    """Tokens of the largest request."""


class RequestTally:
    """Records each request that a provider received as a ``RequestPoint``."""

    def __init__(self, provider: Provider, prices: Prices) -> None:
        self.points: list[RequestPoint] = []
        self.output = 0
        self._provider = provider
        self._prices = prices
        # The provider's own tokenizer: the picture must show the figures by which requests are refused.
        self._counter = RequestCounter(count_word_pieces, provider.settings.factor)

    def add_request(self, event: str = "", summary: Collection[str] = ()) -> None:
        """Record the newest request; ``event`` names the decision before it, ``summary`` has the texts of a summary."""
        request = self._provider.requests[-1]
        number = len(self.points)
        kinds = self._count_kinds(request, summary)
        if not isinstance(request.reply, ModelAnswer):
            # A refused request costs nothing and uses no cache, but the picture shows its size.
            self.points.append(RequestPoint(number, request.tokens, kinds, CacheUse(0, 0, 0), 0.0))
            return
        used = request.reply.usage
        hit = CacheUse(used.cache_read, used.cache_write, used.input)
        usd = price_request(hit, used.output, self._prices)
        self.output += used.output
        self.points.append(RequestPoint(number, request.tokens, kinds, hit, usd, event))

    def compute_totals(self) -> RunTotals:
        """Return the totals of the answered requests."""
        input_tokens = read_tokens = largest = 0
        usd = 0.0
        for point in self.points:
            input_tokens += point.hit.total
            read_tokens += point.hit.read
            usd += point.usd
            if point.hit.total:
                largest = max(largest, point.tokens)
        return RunTotals(
            tokens=input_tokens + self.output,
            usd=usd,
            cache_hit=divide_or_zero(read_tokens, input_tokens),
            largest=largest,
        )

    def _count_kinds(self, request: JudgedRequest, summary: Collection[str]) -> dict[str, int]:
        """Return the tokens of a request's blocks by kind."""
        body = msgspec.json.decode(request.incoming.body)
        tokens_by_kind: Counter[str] = Counter()
        for block in split_into_blocks(request.incoming.api, body):
            tokens = BLOCK_OVERHEAD + self._counter.count_text(block.rendering.text)
            tokens_by_kind[_classify_demo_block(block, summary)] += tokens
        return dict(tokens_by_kind)


def _classify_demo_block(block: PromptBlock, summary: Collection[str]) -> str:
    if block.section != "messages":
        return "setup"
    if block.kind in _RESULT_BLOCK_TYPES:
        return "results"
    return "summary" if block.rendering.text in summary else block.role
