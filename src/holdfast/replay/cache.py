"""Simulate the provider's prompt cache on the requests that would have been sent.

A request is a setup and a list of blocks (one for each part of a message). Every prefix has a place in a tree of all
prefixes seen so far; the cache remembers for which places it has an entry, and when each was last used. ``CacheRules``
describe three kinds of provider:

- *explicit* (Anthropic): entries are written at the request's breakpoints, and each breakpoint looks back ``lookback``
  blocks for an entry that an earlier request wrote;
- *stepped* (automatic with ``step_tokens``: OpenAI up to 5.5, Gemini): every prefix is an entry, read in whole steps;
- *implicit* (automatic without steps: OpenAI from 5.6): the end of each request is one more breakpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import TypeAlias

import msgspec
from msgspec import Struct

from holdfast.messages.message import Message
from holdfast.messages.parts import Part, strip_wire_bytes
from holdfast.messages.size.tokens import MESSAGE_OVERHEAD
from holdfast.replay.tokenizer import TextCounter, count_part_tokens
from holdfast.state.costs import compute_cost
from holdfast.state.entries import Usage
from holdfast.state.target import CacheRules, Prices

CacheBlock: TypeAlias = tuple[bytes, int]
"""Digest and tokens of one part of a request, or of its setup."""

SETUP_BREAKPOINT = -1
"""The breakpoint after the setup; all others are positions of blocks."""


class CacheUse(Struct, frozen=True):
    """How many input tokens of a request were read from the cache, written to it, or neither."""

    read: int
    write: int
    fresh: int

    @property
    def total(self) -> int:
        """All input tokens of the request."""
        return self.read + self.write + self.fresh


def price_request(cache_use: CacheUse, output: int, prices: Prices) -> float:
    """Return the cost in dollars of a request with that use of the cache and ``output`` tokens in its answer."""
    return compute_cost(Usage(cache_use.total, output, cache_use.read, cache_use.write), prices)


def compute_read_share(cache_uses: Iterable[CacheUse]) -> float | None:
    """Return the share of all input tokens that was read from the cache, or None without any input."""
    read_tokens = total_tokens = 0
    for cache_use in cache_uses:
        read_tokens += cache_use.read
        total_tokens += cache_use.total
    return read_tokens / total_tokens if total_tokens else None


def make_cache_blocks(message: Message, counter: TextCounter) -> list[CacheBlock]:
    """Return the blocks of ``message``, one for each part; the first one includes the overhead of the message."""
    if not message.parts:
        return [(message.role.encode(), MESSAGE_OVERHEAD)]
    blocks = []
    overhead = MESSAGE_OVERHEAD
    for part in message.parts:
        tokens = count_part_tokens(part, counter) + overhead
        blocks.append((_digest_part(message.role, part), tokens))
        overhead = 0
    return blocks


def _digest_part(role: str, part: Part) -> bytes:
    bare_part = strip_wire_bytes(part)
    try:
        content = msgspec.msgpack.encode(bare_part)
    except UnicodeEncodeError:
        # Half a surrogate, which tools leave when they cut a text; ``repr`` escapes it.
        content = repr(bare_part).encode()
    return blake2b(role.encode() + content, digest_size=16).digest()


class SimulatedCache:
    """The state of one provider's cache for one conversation; requests must be sent in the order of time."""

    __slots__ = ("_blocks", "_chain", "_clock", "_last_use", "_places", "_rules", "_setup_digest")

    def __init__(self, rules: CacheRules) -> None:
        self._rules = rules
        self._places: dict[tuple[int, bytes], int] = {}
        """The tree of prefixes: (place of the shorter prefix, digest of the next block) to place."""
        self._last_use: dict[int, int | None] = {}
        """Time of the last use, in ms, of each place with an entry; None if it is not known."""
        self._clock: int | None = None
        # The last request: most of the next one is equal, and need not be looked up again.
        self._setup_digest: bytes = b""
        self._blocks: list[CacheBlock] = []
        self._chain: list[int] = []

    def send_request(
        self,
        request: Sequence[CacheBlock],
        setup_block: CacheBlock,
        breakpoints: Sequence[int],
        at: int | None,
    ) -> CacheUse:
        """Send ``request`` through the cache and return its use of it.

        ``breakpoints`` are positions of blocks that a breakpoint follows; ``SETUP_BREAKPOINT`` follows the setup.
        ``at`` is the time in ms; without one it counts as that of the request before, with a warm cache.
        """
        if at is not None:
            self._clock = at
        setup_digest, setup_tokens = setup_block
        chain = self._locate_prefixes(list(request), setup_digest)
        prefix_tokens = list(accumulate((tokens for _, tokens in request), initial=setup_tokens))
        if self._rules.is_automatic and self._rules.step_tokens > 0:
            return self._use_prefix_steps(chain, prefix_tokens)
        marks = set()
        for position in breakpoints:
            if SETUP_BREAKPOINT <= position < len(request):
                # Index 0 of the chain is the setup alone, so all positions move by one.
                marks.add(position + 1)
        if self._rules.is_automatic:
            marks.add(len(request))
        return self._use_breakpoints(chain, prefix_tokens, sorted(marks))

    def _locate_prefixes(self, request: list[CacheBlock], setup_digest: bytes) -> list[int]:
        """Return the place of each prefix of ``request``, beginning with the setup alone.

        The cost is proportional to the blocks that the request before did not have.
        """
        common_count = 0
        if setup_digest == self._setup_digest and self._chain:
            common_count = _count_common_blocks(self._blocks, request)
        if common_count:
            chain = self._chain[: common_count + 1]
        else:
            chain = [self._get_place(0, setup_digest)]
        for digest, _ in request[common_count:]:
            chain.append(self._get_place(chain[-1], digest))
        self._setup_digest = setup_digest
        self._blocks = request
        self._chain = chain
        return chain

    def _get_place(self, before: int, digest: bytes) -> int:
        return self._places.setdefault((before, digest), len(self._places) + 1)

    def _is_alive(self, place: int) -> bool:
        """Return whether there is an entry at ``place`` that has not expired."""
        if place not in self._last_use:
            return False
        last_use = self._last_use[place]
        if last_use is None or self._clock is None:
            return True
        return self._clock - last_use <= self._rules.ttl_seconds * 1000

    def _use_breakpoints(self, chain: list[int], prefix_tokens: list[int], marks: list[int]) -> CacheUse:
        """Return the use of a cache with entries at breakpoints (``marks``), and refresh and write entries."""
        cacheable_marks = [mark for mark in marks if prefix_tokens[mark] >= self._rules.min_prefix_tokens]
        hits: list[int] = []
        for mark in cacheable_marks:
            hit = self._find_live_entry(chain, mark)
            if hit is not None:
                hits.append(hit)
        # Reading an entry renews its lifetime, as writing does.
        for position in (*hits, *cacheable_marks):
            self._last_use[chain[position]] = self._clock
        read_tokens = prefix_tokens[max(hits)] if hits else 0
        cached_tokens = read_tokens
        if cacheable_marks:
            cached_tokens = max(read_tokens, prefix_tokens[cacheable_marks[-1]])
        return CacheUse(read_tokens, cached_tokens - read_tokens, prefix_tokens[-1] - cached_tokens)

    def _find_live_entry(self, chain: list[int], mark: int) -> int | None:
        """Return the position of the longest live prefix within the look-back of ``mark``, or None."""
        lookback = self._rules.lookback
        stop = -1 if lookback is None else max(-1, mark - lookback - 1)
        for position in range(mark, stop, -1):
            if self._is_alive(chain[position]):
                return position
        return None

    def _use_prefix_steps(self, chain: list[int], prefix_tokens: list[int]) -> CacheUse:
        """Return the use of a cache that keeps every prefix and is read in steps of tokens, and write entries."""
        step = self._rules.step_tokens
        minimum = self._rules.min_prefix_tokens
        total = prefix_tokens[-1]
        read_tokens = 0
        for position in range(len(chain) - 1, -1, -1):
            if self._is_alive(chain[position]):
                read_tokens = prefix_tokens[position] // step * step
                break
        if read_tokens < minimum:
            read_tokens = 0
        cached_tokens = read_tokens
        if total >= minimum:
            self._last_use.update(dict.fromkeys(chain, self._clock))
            # Only whole steps are kept, so the last tokens are always fresh.
            cached_tokens = max(read_tokens, total // step * step)
        return CacheUse(read_tokens, cached_tokens - read_tokens, total - cached_tokens)


def _count_common_blocks(old: list[CacheBlock], new: list[CacheBlock]) -> int:
    """Return how many blocks two requests share at their start, by bisection: comparing slices is fast."""
    low = 0
    high = min(len(old), len(new))
    if old[:high] == new[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
