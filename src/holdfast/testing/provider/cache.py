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

from holdfast.testing.provider.parse_request import ProviderRequest
from holdfast.testing.provider.request_pieces import PromptBlock

_HOUR_SECONDS = 3600.0


class ProviderCacheRules(Struct, frozen=True):
    """How one API caches for one model."""

    minimum: int
    """Tokens of the shortest prefix that is kept."""
    needs_breakpoints: bool = False
    """Only where a breakpoint stands (Anthropic); else by itself."""
    step: int = 1
    """Without breakpoints: what is read comes in steps of so many tokens."""
    ttl: float = 300.0
    """Seconds after the last use."""
    lookback: int = 20
    """Blocks looked back from a breakpoint, itself among them."""
    reports_writes: bool = False
    """Whether writes are reported (and charged); a cache by itself then keeps whole requests, no pieces of them."""


class CacheTokens(Struct, frozen=True):
    """Tokens of one request that came from the cache and that went into it."""

    read_tokens: int = 0
    write: int = 0
    write_1h: int = 0


_CLAUDE_MINIMUMS = (
    (512, re.compile(r"opus-5(?!-5|\.5)|(fable|mythos)-5[-.][12]")),
    (2048, re.compile(r"opus-4[-.]7|mythos|haiku-3|3-5-haiku|fable-5")),
    (4096, re.compile(r"opus-4[-.][56]|haiku-4[-.]5")),
)
_CLAUDE_DEFAULT_MINIMUM = 1024
"""Minimum by model, Anthropic's prompt caching page of 2026-11; what it does not list has the usual 1,024."""
_CHARGING_GPT = re.compile(r"gpt-(?:5[.-](?:[6-9]|\d\d)|[6-9]|\d\d)")
"""From gpt-5.6 writes are charged and entries live half an hour (OpenAI's prompt caching guide)."""
_GEMINI_FLASH_MINIMUM, _GEMINI_PRO_MINIMUM = 1024, 4096
"""Minimum of implicit caching (Gemini's caching page)."""


def get_cache_rules(api: str, model: str, minimum: int | None = None) -> ProviderCacheRules:
    """Return how ``api`` caches for ``model``; ``minimum`` replaces the model's own."""
    model_rules = _get_default_cache_rules(api, model.lower())
    return model_rules if minimum is None else msgspec.structs.replace(model_rules, minimum=minimum)


def _get_default_cache_rules(api: str, model: str) -> ProviderCacheRules:
    if api == "anthropic":
        min_tokens = next(
            (tokens for tokens, pattern in _CLAUDE_MINIMUMS if pattern.search(model)), _CLAUDE_DEFAULT_MINIMUM
        )
        return ProviderCacheRules(min_tokens, needs_breakpoints=True, reports_writes=True)
    if api == "gemini":
        return ProviderCacheRules(_GEMINI_FLASH_MINIMUM if "flash" in model else _GEMINI_PRO_MINIMUM)
    if _CHARGING_GPT.search(model):
        return ProviderCacheRules(1024, ttl=1800.0, reports_writes=True)
    return ProviderCacheRules(1024, step=128)


class CacheLedger:
    """The prefixes that are in the cache, each until some time."""

    def __init__(self) -> None:
        """Begin empty."""
        self._until: dict[bytes, float] = {}
        self._spans: dict[bytes, float] = {}

    def serve_request(
        self,
        request: ProviderRequest,
        blocks: Sequence[PromptBlock],
        sums: Sequence[int],
        cache_rules: ProviderCacheRules,
        now: float,
    ) -> CacheTokens:
        """Return what the request reads and writes, and keep its prefixes; ``sums[n]`` = tokens of ``n`` blocks."""
        if cache_rules.needs_breakpoints:
            return self._serve_by_breakpoints(
                _digest_prefixes(request, blocks), _find_breakpoints(request, blocks), sums, cache_rules, now
            )
        return self._serve_automatically(request, blocks, sums, cache_rules, now)

    # -- breakpoints ---------------------------------------------------------------------------------------------------

    def _serve_by_breakpoints(
        self,
        prefixes: list[bytes],
        marks: dict[int, str],
        sums: Sequence[int],
        cache_rules: ProviderCacheRules,
        now: float,
    ) -> CacheTokens:
        last_hit = max(
            (at for mark in marks for at in self._iterate_cached_prefix(prefixes, mark, cache_rules, sums, now)),
            default=-1,
        )
        end = hour = start = 0 if last_hit < 0 else sums[last_hit + 1]
        if last_hit >= 0:
            self._keep_prefix(prefixes[last_hit], self._spans[prefixes[last_hit]], now)
        for mark, ttl in marks.items():
            if sums[mark + 1] < cache_rules.minimum:
                continue
            self._keep_prefix(prefixes[mark], _HOUR_SECONDS if ttl == "1h" else cache_rules.ttl, now)
            end = max(end, sums[mark + 1])
            hour = max(hour, sums[mark + 1]) if ttl == "1h" else hour
        return CacheTokens(start, end - start, hour - start)

    def _iterate_cached_prefix(
        self, prefixes: list[bytes], mark: int, cache_rules: ProviderCacheRules, sums: Sequence[int], now: float
    ) -> Iterator[int]:
        """Yield the newest prefix in the cache at most ``lookback`` blocks back from a breakpoint."""
        for at in range(mark, max(-1, mark - cache_rules.lookback), -1):
            if self._until.get(prefixes[at], 0.0) > now and sums[at + 1] >= cache_rules.minimum:
                yield at
                return

    def _keep_prefix(self, prefix: bytes, ttl: float, now: float) -> None:
        """Keep a prefix for ``ttl`` seconds from now, or for as long as it is kept already."""
        if self._until.get(prefix, 0.0) < now + ttl:
            self._until[prefix], self._spans[prefix] = now + ttl, ttl

    # -- automatic -----------------------------------------------------------------------------------------------------

    def _serve_automatically(
        self,
        request: ProviderRequest,
        blocks: Sequence[PromptBlock],
        sums: Sequence[int],
        cache_rules: ProviderCacheRules,
        now: float,
    ) -> CacheTokens:
        pieces = list(_iterate_pieces(request, blocks, sums))
        cached_tokens = max((tokens for prefix, tokens in pieces if self._until.get(prefix, 0.0) > now), default=0)
        for prefix, _ in pieces[-1:] if cache_rules.reports_writes else pieces:
            self._keep_prefix(prefix, cache_rules.ttl, now)
        read_tokens = cached_tokens - cached_tokens % cache_rules.step
        read_tokens = read_tokens if read_tokens >= cache_rules.minimum else 0
        write_tokens = sums[-1] - read_tokens if cache_rules.reports_writes and sums[-1] >= cache_rules.minimum else 0
        return CacheTokens(read_tokens, write_tokens)


def _find_breakpoints(request: ProviderRequest, blocks: Sequence[PromptBlock]) -> dict[int, str]:
    """Return the blocks where a breakpoint stands, and for how long; the automatic one is the last block."""
    marks = {at: block.marker for at, block in enumerate(blocks) if block.marker}
    top = request.body.get("cache_control")
    if isinstance(top, dict) and blocks:
        marks.setdefault(len(blocks) - 1, "1h" if top.get("ttl") == "1h" else "5m")
    return dict(sorted(marks.items()))


def _extend_digest(state: bytes, piece: bytes) -> bytes:
    return blake2b(state + piece, digest_size=16).digest()


def _make_cache_seed(request: ProviderRequest) -> bytes:
    """Return the digest of what makes a cache of its own: the model, and OpenAI's key for routing."""
    return _extend_digest(
        f"{request.api} {request.model} {request.body.get('prompt_cache_key')}".encode("utf-8", "replace"), b""
    )


_MESSAGE_CACHE_OPTIONS = ("tool_choice", "thinking", "output_config")
"""Options of the Messages API that the cached messages depend on, not tools and system (prompt caching page)."""


def _digest_prefixes(request: ProviderRequest, blocks: Sequence[PromptBlock]) -> list[bytes]:
    """Return the digest of the prompt up to and with each block."""
    state, out, section = _make_cache_seed(request), list[bytes](), ""
    for block in blocks:
        if block.section == "messages" != section:
            options = [request.body.get(name) for name in _MESSAGE_CACHE_OPTIONS]
            state = _extend_digest(
                state, msgspec.json.encode([options, any(any_block.rendering.media for any_block in blocks)])
            )
        section = block.section
        state = _extend_digest(state, block.key)
        out.append(state)
    return out


_PIECE_BYTES = 512
"""Bytes of the pieces that an automatic cache compares, some 128 tokens."""


def _iterate_pieces(
    request: ProviderRequest, blocks: Sequence[PromptBlock], sums: Sequence[int]
) -> Iterator[tuple[bytes, int]]:
    """Yield the digest of the prompt and its tokens, piece by piece, so that half an equal block is read too."""
    state = _make_cache_seed(request)
    for block, before, after in zip(blocks, sums, sums[1:], strict=False):
        size = len(block.key)
        for start in range(0, size, _PIECE_BYTES):
            end = min(size, start + _PIECE_BYTES)
            state = _extend_digest(state, block.key[start:end] + (b"." if end == size else b""))
            yield state, before + (after - before) * end // size
