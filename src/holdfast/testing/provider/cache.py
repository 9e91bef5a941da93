"""The prompt cache of the strict provider: the tokens that a request reads and writes by the rules of its API.

The ledger keeps digests of prefixes. A request reads the longest prefix that an earlier one wrote, as far back as the
rules let it look, and writes its own. The ledger shares no code with the planner, whose caching it proves.
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
    """The caching rules of one API for one model."""

    minimum: int
    """Tokens of the shortest prefix that is cached."""
    needs_breakpoints: bool = False
    """Whether only prefixes up to an explicit breakpoint are cached (Anthropic)."""
    step: int = 1
    """Without breakpoints: the number of read tokens is a multiple of this one."""
    ttl: float = 300.0
    """Seconds an entry lives after its last use."""
    lookback: int = 20
    """Blocks that are searched for an entry, from a breakpoint backwards and including its own."""
    reports_writes: bool = False
    """Whether writes are reported and charged. An automatic cache then keeps whole requests and not pieces of them."""


class CacheTokens(Struct, frozen=True):
    """Tokens of one request that were read from the cache and written to it."""

    read_tokens: int = 0
    write: int = 0
    """All written tokens."""
    write_1h: int = 0
    """Those of ``write`` that are kept for an hour."""


# Minimum tokens by model, from the same page; the first pattern that matches counts.
_CLAUDE_MINIMUMS = (
    (512, re.compile(r"opus-5(?!-5|\.5)|(fable|mythos)-5[-.][12]")),
    (2048, re.compile(r"opus-4[-.]7|mythos|haiku-3|3-5-haiku|fable-5")),
    (4096, re.compile(r"opus-4[-.][56]|haiku-4[-.]5")),
)
_CLAUDE_DEFAULT_MINIMUM = 1024
"""Minimum of models that Anthropic's prompt caching page (2026-11) does not list."""
_CHARGING_GPT = re.compile(r"gpt-(?:5[.-](?:[6-9]|\d\d)|[6-9]|\d\d)")
"""Models from gpt-5.6 on: writes are charged, and entries live for half an hour (OpenAI's prompt caching guide)."""
_GEMINI_FLASH_MINIMUM, _GEMINI_PRO_MINIMUM = 1024, 4096
"""Minimum tokens of implicit caching (Gemini's caching page)."""


def get_cache_rules(api: str, model: str, minimum: int | None = None) -> ProviderCacheRules:
    """Return the caching rules of ``api`` for ``model``; ``minimum`` replaces the model's own."""
    model_rules = _get_default_cache_rules(api, model.lower())
    if minimum is None:
        return model_rules
    return msgspec.structs.replace(model_rules, minimum=minimum)


def _get_default_cache_rules(api: str, model: str) -> ProviderCacheRules:
    if api == "anthropic":
        min_tokens = _CLAUDE_DEFAULT_MINIMUM
        for tokens, pattern in _CLAUDE_MINIMUMS:
            if pattern.search(model):
                min_tokens = tokens
                break
        return ProviderCacheRules(min_tokens, needs_breakpoints=True, reports_writes=True)
    if api == "gemini":
        min_tokens = _GEMINI_FLASH_MINIMUM if "flash" in model else _GEMINI_PRO_MINIMUM
        return ProviderCacheRules(min_tokens)
    if _CHARGING_GPT.search(model):
        return ProviderCacheRules(1024, ttl=1800.0, reports_writes=True)
    return ProviderCacheRules(1024, step=128)


class CacheLedger:
    """The prefixes in the cache, as digests, with the time at which each expires."""

    def __init__(self) -> None:
        self._expires_at: dict[bytes, float] = {}
        self._ttls: dict[bytes, float] = {}

    def serve_request(
        self,
        request: ProviderRequest,
        blocks: Sequence[PromptBlock],
        sums: Sequence[int],
        cache_rules: ProviderCacheRules,
        now: float,
    ) -> CacheTokens:
        """Return the tokens that a request reads and writes, and cache its prefixes.

        ``sums[n]`` is the number of tokens of the first ``n`` blocks; ``now`` is in seconds.
        """
        if cache_rules.needs_breakpoints:
            prefixes = _digest_prefixes(request, blocks)
            breakpoints = _find_breakpoints(request, blocks)
            return self._serve_by_breakpoints(prefixes, breakpoints, sums, cache_rules, now)
        return self._serve_automatically(request, blocks, sums, cache_rules, now)

    # -- breakpoints ---------------------------------------------------------------------------------------------------

    def _serve_by_breakpoints(
        self,
        prefixes: list[bytes],
        breakpoints: dict[int, str],
        sums: Sequence[int],
        cache_rules: ProviderCacheRules,
        now: float,
    ) -> CacheTokens:
        newest_hit = -1
        for index in breakpoints:
            newest_hit = max(newest_hit, self._find_cached_prefix(prefixes, index, cache_rules, sums, now))
        read_tokens = 0
        if newest_hit >= 0:
            read_tokens = sums[newest_hit + 1]
            # Reading renews an entry, for the time that it was written with.
            self._keep_prefix(prefixes[newest_hit], self._ttls[prefixes[newest_hit]], now)
        end = end_1h = read_tokens
        for index, ttl in breakpoints.items():
            prefix_tokens = sums[index + 1]
            if prefix_tokens < cache_rules.minimum:
                continue
            ttl_seconds = _HOUR_SECONDS if ttl == "1h" else cache_rules.ttl
            self._keep_prefix(prefixes[index], ttl_seconds, now)
            end = max(end, prefix_tokens)
            if ttl == "1h":
                end_1h = max(end_1h, prefix_tokens)
        return CacheTokens(read_tokens, end - read_tokens, end_1h - read_tokens)

    def _find_cached_prefix(
        self,
        prefixes: list[bytes],
        index: int,
        cache_rules: ProviderCacheRules,
        sums: Sequence[int],
        now: float,
    ) -> int:
        """Return the newest block with a cached prefix, at most ``lookback`` blocks back from a breakpoint, or -1."""
        for candidate in range(index, max(-1, index - cache_rules.lookback), -1):
            is_cached = self._expires_at.get(prefixes[candidate], 0.0) > now
            if is_cached and sums[candidate + 1] >= cache_rules.minimum:
                return candidate
        return -1

    def _keep_prefix(self, prefix: bytes, ttl: float, now: float) -> None:
        """Cache a prefix for ``ttl`` seconds from now, unless it is cached for longer already."""
        if self._expires_at.get(prefix, 0.0) < now + ttl:
            self._expires_at[prefix] = now + ttl
            self._ttls[prefix] = ttl

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
        cached_tokens = 0
        for prefix, tokens in pieces:
            if self._expires_at.get(prefix, 0.0) > now:
                cached_tokens = max(cached_tokens, tokens)
        # Where writes are charged, the provider keeps only the prompt as a whole.
        kept_pieces = pieces[-1:] if cache_rules.reports_writes else pieces
        for prefix, _ in kept_pieces:
            self._keep_prefix(prefix, cache_rules.ttl, now)
        read_tokens = cached_tokens - cached_tokens % cache_rules.step
        if read_tokens < cache_rules.minimum:
            read_tokens = 0
        prompt_tokens = sums[-1]
        written_tokens = 0
        if cache_rules.reports_writes and prompt_tokens >= cache_rules.minimum:
            written_tokens = prompt_tokens - read_tokens
        return CacheTokens(read_tokens, written_tokens)


def _find_breakpoints(request: ProviderRequest, blocks: Sequence[PromptBlock]) -> dict[int, str]:
    """Return the breakpoints as ``5m`` or ``1h`` by the index of their block, in order.

    A ``cache_control`` at the top of the body is a breakpoint on the last block.
    """
    breakpoints = {index: block.marker for index, block in enumerate(blocks) if block.marker}
    automatic = request.body.get("cache_control")
    if isinstance(automatic, dict) and blocks:
        ttl = "1h" if automatic.get("ttl") == "1h" else "5m"
        breakpoints.setdefault(len(blocks) - 1, ttl)
    return dict(sorted(breakpoints.items()))


def _extend_digest(state: bytes, piece: bytes) -> bytes:
    return blake2b(state + piece, digest_size=16).digest()


def _make_cache_seed(request: ProviderRequest) -> bytes:
    """Return the digest that prefixes begin with: caches are apart by model and by OpenAI's ``prompt_cache_key``."""
    identity = f"{request.api} {request.model} {request.body.get('prompt_cache_key')}"
    return _extend_digest(identity.encode("utf-8", "replace"), b"")


_MESSAGE_CACHE_OPTIONS = ("tool_choice", "thinking", "output_config")
"""Options of the Messages API that invalidate cached messages, but not tools and system (prompt caching page)."""


def _digest_prefixes(request: ProviderRequest, blocks: Sequence[PromptBlock]) -> list[bytes]:
    """Return the digests of the prompt up to and including each block."""
    digest = _make_cache_seed(request)
    prefixes: list[bytes] = []
    previous_section = ""
    for block in blocks:
        if block.section == "messages" and previous_section != "messages":
            options = [request.body.get(name) for name in _MESSAGE_CACHE_OPTIONS]
            # Adding the first image anywhere invalidates the messages too.
            has_media = any(any_block.rendering.media for any_block in blocks)
            digest = _extend_digest(digest, msgspec.json.encode([options, has_media]))
        previous_section = block.section
        digest = _extend_digest(digest, block.key)
        prefixes.append(digest)
    return prefixes


# OpenAI's automatic cache matches in steps of 128 tokens, which are about 512 bytes of text.
_PIECE_BYTES = 512
"""Bytes of the pieces in which an automatic cache compares prompts."""


def _iterate_pieces(
    request: ProviderRequest,
    blocks: Sequence[PromptBlock],
    sums: Sequence[int],
) -> Iterator[tuple[bytes, int]]:
    """Yield the digest and the tokens of the prompt up to each piece, so that the equal part of a block is a hit."""
    digest = _make_cache_seed(request)
    for block, tokens_before, tokens_after in zip(blocks, sums, sums[1:], strict=False):
        size = len(block.key)
        block_tokens = tokens_after - tokens_before
        for start in range(0, size, _PIECE_BYTES):
            end = min(size, start + _PIECE_BYTES)
            piece = block.key[start:end]
            # The end of a block is marked, or "ab" + "c" would be the same prompt as "a" + "bc".
            if end == size:
                piece += b"."
            digest = _extend_digest(digest, piece)
            yield digest, tokens_before + block_tokens * end // size
