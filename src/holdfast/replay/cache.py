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
from holdfast.replay.tokenizer import Counter, part_tokens
from holdfast.state.costs import dollars
from holdfast.state.entries import Usage
from holdfast.state.target import CacheRules, Prices

Block: TypeAlias = tuple[bytes, int]
"""Digest and tokens of one part of a request, or of its frame."""

FRAME = -1
"""The breakpoint behind the frame; the others are positions of blocks."""


class Hit(Struct, frozen=True):
    """Where the input tokens of a request came from: the cache, new in the cache, or neither."""

    read: int
    write: int
    fresh: int

    @property
    def total(self) -> int:
        """All input tokens of the request."""
        return self.read + self.write + self.fresh


def cost(hit: Hit, output: int, prices: Prices) -> float:
    """Return dollars for a request that met the cache as ``hit`` says and was answered with ``output`` tokens."""
    return dollars(Usage(hit.total, output, hit.read, hit.write), prices)


def read_share(hits: Iterable[Hit]) -> float | None:
    """Return the share of all input tokens that was read from the cache; nothing where there were none."""
    met = list(hits)
    total = sum(hit.total for hit in met)
    return sum(hit.read for hit in met) / total if total else None


def blocks(message: Message, counter: Counter) -> list[Block]:
    """Return the blocks of ``message``, one for each part; the first carries the overhead of the message."""
    found = [(_digest(message.role, part), part_tokens(part, counter)) for part in message.parts]
    first, tokens = found[0] if found else (message.role.encode(), 0)
    return [(first, tokens + MESSAGE_OVERHEAD), *found[1:]]


def _digest(role: str, part: Part) -> bytes:
    return blake2b(role.encode() + msgspec.msgpack.encode(_bare(part)), digest_size=16).digest()


def _bare(part: Part) -> Part:
    """Return ``part`` without its own wire bytes, which tell nothing more (but are all there is of an opaque part)."""
    if isinstance(part, Opaque):
        return part
    if isinstance(part, ToolResult):
        content = tuple(msgspec.structs.replace(inner, raw=_kept(inner)) for inner in part.content)
        return msgspec.structs.replace(part, content=content, raw=None)
    return msgspec.structs.replace(part, raw=None)


def _kept(part: Part) -> msgspec.Raw | None:
    return part.raw if isinstance(part, Opaque) else None


class Cache:
    """The state of one provider's cache for one conversation; requests go in by ``send``, in the order of time."""

    __slots__ = ("_blocks", "_chain", "_clock", "_frame", "_places", "_rules", "_used")

    def __init__(self, rules: CacheRules) -> None:
        self._rules = rules
        self._places: dict[tuple[int, bytes], int] = {}
        """The tree of prefixes: (place of the prefix before, digest of the next block) to place."""
        self._used: dict[int, int | None] = {}
        """Places that hold an entry, with the time of its last use in ms; nothing = not known."""
        self._clock: int | None = None
        self._frame: bytes = b""
        self._blocks: list[Block] = []
        self._chain: list[int] = []

    def send(self, request: Sequence[Block], frame: Block, breakpoints: Sequence[int], at: int | None) -> Hit:
        """Return how ``request`` meets the cache, and remember it.

        ``breakpoints`` are positions of blocks behind which one stands, ``FRAME`` behind the frame; ``at`` is in ms,
        and a time that is not recorded counts as the time of the request before: a warm cache.
        """
        self._clock = at if at is not None else self._clock
        chain = self._extend(list(request), frame[0])
        sums = list(accumulate((tokens for _, tokens in request), initial=frame[1]))
        if self._rules.automatic and self._rules.step > 0:
            return self._stepped(chain, sums)
        marks = {mark + 1 for mark in breakpoints if FRAME <= mark < len(request)}
        if self._rules.automatic:
            marks.add(len(request))
        return self._marked(chain, sums, sorted(marks))

    def _extend(self, request: list[Block], frame: bytes) -> list[int]:
        """Return the place of each prefix of ``request``, beginning with the frame alone; cost is what is new."""
        same = _common(self._blocks, request) if frame == self._frame and self._chain else 0
        chain = self._chain[: same + 1] if same else [self._place(0, frame)]
        for digest, _ in request[same:]:
            chain.append(self._place(chain[-1], digest))
        self._frame, self._blocks, self._chain = frame, request, chain
        return chain

    def _place(self, before: int, digest: bytes) -> int:
        return self._places.setdefault((before, digest), len(self._places) + 1)

    def _alive(self, place: int) -> bool:
        if place not in self._used:
            return False
        last = self._used[place]
        return last is None or self._clock is None or self._clock - last <= self._rules.ttl * 1000

    def _marked(self, chain: list[int], sums: list[int], marks: list[int]) -> Hit:
        """Meet a cache whose entries stand at breakpoints."""
        big = [mark for mark in marks if sums[mark] >= self._rules.minimum]
        found = [position for mark in big for position in self._behind(chain, mark)]
        for position in (*found, *big):
            self._used[chain[position]] = self._clock
        read = sums[max(found)] if found else 0
        written = max(read, sums[big[-1]]) if big else read
        return Hit(read, written - read, sums[-1] - written)

    def _behind(self, chain: list[int], mark: int) -> Iterator[int]:
        """Yield the newest living entry within the look-back of ``mark``, if there is one."""
        lookback = self._rules.lookback
        stop = -1 if lookback is None else max(-1, mark - lookback - 1)
        for position in range(mark, stop, -1):
            if self._alive(chain[position]):
                yield position
                return

    def _stepped(self, chain: list[int], sums: list[int]) -> Hit:
        """Meet a cache that keeps every prefix and is read in steps of tokens."""
        step, minimum = self._rules.step, self._rules.minimum
        position = next((p for p in range(len(chain) - 1, -1, -1) if self._alive(chain[p])), None)
        read = 0 if position is None else sums[position] // step * step
        read = read if read >= minimum else 0
        if sums[-1] >= minimum:
            self._used.update(dict.fromkeys(chain, self._clock))
        written = max(read, sums[-1] // step * step) if sums[-1] >= minimum else read
        return Hit(read, written - read, sums[-1] - written)


def _common(old: list[Block], new: list[Block]) -> int:
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
