"""The provider's prompt cache, simulated on the requests that would have been sent.

A request is a frame and a list of blocks (one for each part of a message). Every prefix has a place in a tree of the
prefixes seen so far; the cache remembers at which places an entry was written, and when it was last used. Three kinds
of provider are told apart by ``CacheRules``:

- *explicit* (Anthropic): entries are written at the request's breakpoints, and each breakpoint looks back
  ``lookback`` blocks for an entry that an earlier request wrote;
- *stepped* (``automatic`` with a ``step``: OpenAI up to 5.5, Gemini): every prefix is an entry, read in whole steps;
- *implicit* (``automatic`` without a step: OpenAI from 5.6): the end of each request is one more breakpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import TypeAlias

import msgspec
from msgspec import Struct

from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, Part, ToolResult
from holdfast.messages.size.tokens import MESSAGE_OVERHEAD
from holdfast.replay.tokenizer import TextCounter, count_part_tokens
from holdfast.state.costs import compute_cost
from holdfast.state.entries import Usage
from holdfast.state.target import CacheRules, Prices

CacheBlock: TypeAlias = tuple[bytes, int]
"""Digest and tokens of one part of a request, or of its frame."""

SETUP_BREAKPOINT = -1
"""The breakpoint behind the frame; the others are positions of blocks."""


class CacheUse(Struct, frozen=True):
    """Where the input tokens of a request came from: the cache, new in the cache, or neither."""

    read: int
    write: int
    fresh: int

    @property
    def total(self) -> int:
        """All input tokens of the request."""
        return self.read + self.write + self.fresh


def price_request(hit: CacheUse, output: int, prices: Prices) -> float:
    """Return dollars for a request that met the cache as ``hit`` says and was answered with ``output`` tokens."""
    return compute_cost(Usage(hit.total, output, hit.read, hit.write), prices)


def compute_read_share(hits: Iterable[CacheUse]) -> float | None:
    """Return the share of all input tokens that was read from the cache; nothing where there were none."""
    met = list(hits)
    total = sum(hit.total for hit in met)
    return sum(hit.read for hit in met) / total if total else None


def make_cache_blocks(message: Message, counter: TextCounter) -> list[CacheBlock]:
    """Return the blocks of ``message``, one for each part; the first carries the overhead of the message."""
    part_blocks = [(_digest_part(message.role, part), count_part_tokens(part, counter)) for part in message.parts]
    first, tokens = part_blocks[0] if part_blocks else (message.role.encode(), 0)
    return [(first, tokens + MESSAGE_OVERHEAD), *part_blocks[1:]]


def _digest_part(role: str, part: Part) -> bytes:
    return blake2b(role.encode() + msgspec.msgpack.encode(_strip_wire_bytes(part)), digest_size=16).digest()


def _strip_wire_bytes(part: Part) -> Part:
    """Return ``part`` without its own wire bytes, which tell nothing more (but are all there is of an opaque part)."""
    if isinstance(part, Opaque):
        return part
    if isinstance(part, ToolResult):
        content = tuple(msgspec.structs.replace(inner, raw=_keep_opaque_raw(inner)) for inner in part.content)
        return msgspec.structs.replace(part, content=content, raw=None)
    return msgspec.structs.replace(part, raw=None)


def _keep_opaque_raw(part: Part) -> msgspec.Raw | None:
    return part.raw if isinstance(part, Opaque) else None


class SimulatedCache:
    """The state of one provider's cache for one conversation; requests go in by ``send_request``, in the order of
    time.
    """

    __slots__ = ("_blocks", "_chain", "_clock", "_frame", "_places", "_rules", "_used")

    def __init__(self, rules: CacheRules) -> None:
        self._rules = rules
        self._places: dict[tuple[int, bytes], int] = {}
        """The tree of prefixes: (place of the prefix before, digest of the next block) to place."""
        self._used: dict[int, int | None] = {}
        """Places that hold an entry, with the time of its last use in ms; nothing = not known."""
        self._clock: int | None = None
        self._frame: bytes = b""
        self._blocks: list[CacheBlock] = []
        self._chain: list[int] = []

    def send_request(
        self, request: Sequence[CacheBlock], setup_block: CacheBlock, breakpoints: Sequence[int], at: int | None
    ) -> CacheUse:
        """Return how ``request`` meets the cache, and remember it.

        ``breakpoints`` are positions of blocks behind which one stands, ``SETUP_BREAKPOINT`` behind the frame; ``at``
        is in ms, and a time that is not recorded counts as the time of the request before: a warm cache.
        """
        self._clock = at if at is not None else self._clock
        chain = self._locate_prefixes(list(request), setup_block[0])
        sums = list(accumulate((tokens for _, tokens in request), initial=setup_block[1]))
        if self._rules.is_automatic and self._rules.step_tokens > 0:
            return self._meet_prefix_steps(chain, sums)
        marks = {mark + 1 for mark in breakpoints if SETUP_BREAKPOINT <= mark < len(request)}
        if self._rules.is_automatic:
            marks.add(len(request))
        return self._meet_breakpoints(chain, sums, sorted(marks))

    def _locate_prefixes(self, request: list[CacheBlock], setup_digest: bytes) -> list[int]:
        """Return the place of each prefix of ``request``, beginning with the frame alone; cost is what is new."""
        common_count = _count_common_blocks(self._blocks, request) if setup_digest == self._frame and self._chain else 0
        chain = self._chain[: common_count + 1] if common_count else [self._get_place(0, setup_digest)]
        for digest, _ in request[common_count:]:
            chain.append(self._get_place(chain[-1], digest))
        self._frame, self._blocks, self._chain = setup_digest, request, chain
        return chain

    def _get_place(self, before: int, digest: bytes) -> int:
        return self._places.setdefault((before, digest), len(self._places) + 1)

    def _is_alive(self, position: int) -> bool:
        if position not in self._used:
            return False
        last = self._used[position]
        return last is None or self._clock is None or self._clock - last <= self._rules.ttl_seconds * 1000

    def _meet_breakpoints(self, chain: list[int], sums: list[int], marks: list[int]) -> CacheUse:
        """Meet a cache whose entries stand at breakpoints."""
        big = [mark for mark in marks if sums[mark] >= self._rules.min_prefix_tokens]
        hit_positions = [position for mark in big for position in self._iterate_live_entry(chain, mark)]
        for position in (*hit_positions, *big):
            self._used[chain[position]] = self._clock
        read_tokens = sums[max(hit_positions)] if hit_positions else 0
        written_tokens = max(read_tokens, sums[big[-1]]) if big else read_tokens
        return CacheUse(read_tokens, written_tokens - read_tokens, sums[-1] - written_tokens)

    def _iterate_live_entry(self, chain: list[int], mark: int) -> Iterator[int]:
        """Yield the newest living entry within the look-back of ``mark``, if there is one."""
        lookback = self._rules.lookback
        stop = -1 if lookback is None else max(-1, mark - lookback - 1)
        for position in range(mark, stop, -1):
            if self._is_alive(chain[position]):
                yield position
                return

    def _meet_prefix_steps(self, chain: list[int], sums: list[int]) -> CacheUse:
        """Meet a cache that keeps every prefix and is read in steps of tokens."""
        step, minimum = self._rules.step_tokens, self._rules.min_prefix_tokens
        position = next((p for p in range(len(chain) - 1, -1, -1) if self._is_alive(chain[p])), None)
        read_tokens = 0 if position is None else sums[position] // step * step
        read_tokens = read_tokens if read_tokens >= minimum else 0
        if sums[-1] >= minimum:
            self._used.update(dict.fromkeys(chain, self._clock))
        written_tokens = max(read_tokens, sums[-1] // step * step) if sums[-1] >= minimum else read_tokens
        return CacheUse(read_tokens, written_tokens - read_tokens, sums[-1] - written_tokens)


def _count_common_blocks(old: list[CacheBlock], new: list[CacheBlock]) -> int:
    """Return how many blocks two requests share at their start, by halving: slices compare at the speed of C."""
    low, high = 0, min(len(old), len(new))
    if old[:high] == new[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
