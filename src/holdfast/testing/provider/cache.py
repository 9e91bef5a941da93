"""The prompt cache of the strict provider: what a request reads and writes, by the rules of its API.

The ledger knows prefixes by digest alone. A request reads the longest prefix that an earlier one left, where the rules
let it look, and leaves its own. It counts with the tokens it is given and shares nothing with what plans for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from hashlib import blake2b

import msgspec
from msgspec import Struct

from holdfast.testing.provider.blocks import Block
from holdfast.testing.provider.reading import Request

_HOUR = 3600.0


class Rules(Struct, frozen=True):
    """How one API caches for one model."""

    minimum: int
    """Tokens of the shortest prefix that is kept."""
    marked: bool = False
    """Only where a breakpoint stands (Anthropic); else by itself."""
    step: int = 1
    """Without breakpoints: what is read comes in steps of so many tokens."""
    ttl: float = 300.0
    """Seconds after the last use."""
    lookback: int = 20
    """Blocks looked back from a breakpoint, itself among them."""
    writes: bool = False
    """Whether writes are reported (and charged); a cache by itself then keeps whole requests, no pieces of them."""


class Hit(Struct, frozen=True):
    """Tokens of one request that came from the cache and that went into it."""

    read: int = 0
    write: int = 0
    write_1h: int = 0


_CLAUDE = (
    (512, re.compile(r"opus-5(?!-5|\.5)|(fable|mythos)-5[-.][12]")),
    (2048, re.compile(r"opus-4[-.]7|mythos|haiku-3|3-5-haiku|fable-5")),
    (4096, re.compile(r"opus-4[-.][56]|haiku-4[-.]5")),
)
_CLAUDE_ELSE = 1024
"""Minimum by model, Anthropic's prompt caching page of 2026-11; what it does not list has the usual 1,024."""
_NEW_GPT = re.compile(r"gpt-(?:5[.-](?:[6-9]|\d\d)|[6-9]|\d\d)")
"""From gpt-5.6 writes are charged and entries live half an hour (OpenAI's prompt caching guide)."""
_GEMINI_FLASH, _GEMINI_PRO = 1024, 4096
"""Minimum of implicit caching (Gemini's caching page)."""


def rules(api: str, model: str, minimum: int | None = None) -> Rules:
    """Return how ``api`` caches for ``model``; ``minimum`` replaces the model's own."""
    found = _rules(api, model.lower())
    return found if minimum is None else msgspec.structs.replace(found, minimum=minimum)


def _rules(api: str, model: str) -> Rules:
    if api == "anthropic":
        least = next((tokens for tokens, pattern in _CLAUDE if pattern.search(model)), _CLAUDE_ELSE)
        return Rules(least, marked=True, writes=True)
    if api == "gemini":
        return Rules(_GEMINI_FLASH if "flash" in model else _GEMINI_PRO)
    if _NEW_GPT.search(model):
        return Rules(1024, ttl=1800.0, writes=True)
    return Rules(1024, step=128)


class Ledger:
    """The prefixes that are in the cache, each until some time."""

    def __init__(self) -> None:
        """Begin empty."""
        self._until: dict[bytes, float] = {}
        self._spans: dict[bytes, float] = {}

    def serve(self, request: Request, blocks: Sequence[Block], sums: Sequence[int], ruled: Rules, now: float) -> Hit:
        """Return what the request reads and writes, and keep its prefixes; ``sums[n]`` = tokens of ``n`` blocks."""
        if ruled.marked:
            return self._by_markers(_prefixes(request, blocks), _breakpoints(request, blocks), sums, ruled, now)
        return self._by_itself(request, blocks, sums, ruled, now)

    # -- breakpoints ---------------------------------------------------------------------------------------------------

    def _by_markers(
        self, prefixes: list[bytes], marks: dict[int, str], sums: Sequence[int], ruled: Rules, now: float
    ) -> Hit:
        read = max((at for mark in marks for at in self._seen(prefixes, mark, ruled, sums, now)), default=-1)
        end = hour = start = 0 if read < 0 else sums[read + 1]
        if read >= 0:
            self._keep(prefixes[read], self._spans[prefixes[read]], now)
        for mark, ttl in marks.items():
            if sums[mark + 1] < ruled.minimum:
                continue
            self._keep(prefixes[mark], _HOUR if ttl == "1h" else ruled.ttl, now)
            end = max(end, sums[mark + 1])
            hour = max(hour, sums[mark + 1]) if ttl == "1h" else hour
        return Hit(start, end - start, hour - start)

    def _seen(self, prefixes: list[bytes], mark: int, ruled: Rules, sums: Sequence[int], now: float) -> Iterator[int]:
        """Yield the newest prefix in the cache at most ``lookback`` blocks back from a breakpoint."""
        for at in range(mark, max(-1, mark - ruled.lookback), -1):
            if self._until.get(prefixes[at], 0.0) > now and sums[at + 1] >= ruled.minimum:
                yield at
                return

    def _keep(self, prefix: bytes, ttl: float, now: float) -> None:
        """Keep a prefix for ``ttl`` seconds from now, or for as long as it is kept already."""
        if self._until.get(prefix, 0.0) < now + ttl:
            self._until[prefix], self._spans[prefix] = now + ttl, ttl

    # -- automatic -----------------------------------------------------------------------------------------------------

    def _by_itself(
        self, request: Request, blocks: Sequence[Block], sums: Sequence[int], ruled: Rules, now: float
    ) -> Hit:
        pieces = list(_pieces(request, blocks, sums))
        known = max((tokens for prefix, tokens in pieces if self._until.get(prefix, 0.0) > now), default=0)
        for prefix, _ in pieces[-1:] if ruled.writes else pieces:
            self._keep(prefix, ruled.ttl, now)
        read = known - known % ruled.step
        read = read if read >= ruled.minimum else 0
        written = sums[-1] - read if ruled.writes and sums[-1] >= ruled.minimum else 0
        return Hit(read, written)


def _breakpoints(request: Request, blocks: Sequence[Block]) -> dict[int, str]:
    """Return the blocks where a breakpoint stands, and for how long; the automatic one is the last block."""
    marks = {at: block.marker for at, block in enumerate(blocks) if block.marker}
    top = request.body.get("cache_control")
    if isinstance(top, dict) and blocks:
        marks.setdefault(len(blocks) - 1, "1h" if top.get("ttl") == "1h" else "5m")
    return dict(sorted(marks.items()))


def _step(state: bytes, piece: bytes) -> bytes:
    return blake2b(state + piece, digest_size=16).digest()


def _start(request: Request) -> bytes:
    """Return the digest of what makes a cache of its own: the model, and OpenAI's key for routing."""
    return _step(
        f"{request.api} {request.model} {request.body.get('prompt_cache_key')}".encode("utf-8", "replace"), b""
    )


_OF_MESSAGES = ("tool_choice", "thinking", "output_config")
"""Options of the Messages API that the cached messages depend on, not tools and system (prompt caching page)."""


def _prefixes(request: Request, blocks: Sequence[Block]) -> list[bytes]:
    """Return the digest of the prompt up to and with each block."""
    state, out, section = _start(request), list[bytes](), ""
    for block in blocks:
        if block.section == "messages" != section:
            options = [request.body.get(name) for name in _OF_MESSAGES]
            state = _step(state, msgspec.json.encode([options, any(one.rendering.media for one in blocks)]))
        section = block.section
        state = _step(state, block.key)
        out.append(state)
    return out


_PIECE = 512
"""Bytes of the pieces that an automatic cache compares, some 128 tokens."""


def _pieces(request: Request, blocks: Sequence[Block], sums: Sequence[int]) -> Iterator[tuple[bytes, int]]:
    """Yield the digest of the prompt and its tokens, piece by piece, so that half an equal block is read too."""
    state = _start(request)
    for block, before, after in zip(blocks, sums, sums[1:], strict=False):
        size = len(block.key)
        for start in range(0, size, _PIECE):
            end = min(size, start + _PIECE)
            state = _step(state, block.key[start:end] + (b"." if end == size else b""))
            yield state, before + (after - before) * end // size
