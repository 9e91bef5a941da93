"""Cache of parsed request bodies: a client sends its whole history each time, and only the new end is parsed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, TypeAlias, TypeVar, TypeVarTuple

from anyio import CapacityLimiter, to_thread

from holdfast.engine.request_template import parse_and_measure_body
from holdfast.providers.requests.incremental import IndexedRequest, index_request, parse_appended_request
from holdfast.providers.requests.parsed_request import ParsedRequest

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
BodyKey: TypeAlias = tuple[bytes, bytes]
"""The beginning of a body, and the bytes before the end of its first half, which tell most bodies apart."""

THREAD_BYTES = 256 << 10
"""Size of a new body from which it is parsed in a thread.

Parsing one of this size takes about 5 ms, measured; for less, other requests can wait.
"""
MAX_BODIES = 256
"""Bodies that are kept: one for each branch in memory (``MAX_BRANCHES``)."""
MAX_BODY_BYTES = 256 << 20
"""Approximate memory of all kept bodies. An evicted body is parsed whole once more. Chosen by judgement."""
BYTES_PER_MESSAGE = 2_000
"""Memory that a parsed message was measured to take beside its own bytes."""
KEY_BYTES = 1_024
"""Length of the beginning by which a body is looked up: model, system prompt or first message differ within it."""


class _GrownBody(NamedTuple):
    """A body that continues a cached one."""

    key: BodyKey
    """Key of the cached body."""
    request: ParsedRequest
    unchanged_count: int
    """How many messages both have in common."""


class BodyCache:
    """The request bodies that were parsed last."""

    def __init__(self, max_bodies: int = MAX_BODIES, max_bytes: int = MAX_BODY_BYTES) -> None:
        self._max_bodies = max_bodies
        self._max_bytes = max_bytes
        self._bodies: OrderedDict[BodyKey, IndexedRequest] = OrderedDict()
        """In the order of last use; the newest is last."""
        self._bytes = 0
        self._reader = CapacityLimiter(1)
        """One thread only: several that compute at the same time hold up the event loop together."""

    async def parse_body(self, body: bytes, api: str) -> ParsedRequest:
        """Parse and measure ``body``; raise ``FormatError`` if it is no request."""
        grown = self._find_grown_body(body, api)
        if grown is None:
            old_key = None
            parsed_request, indexed_request = await self.run_off_loop(body, _parse_new_body, api)
        else:
            old_key = grown.key
            parsed_request = grown.request
            old_request = self._bodies[old_key]
            indexed_request = _locate_messages(parsed_request, api, old_request, grown.unchanged_count)
        if indexed_request is not None and indexed_request.message_ends:
            self._keep_body(indexed_request, old_key)
        return parsed_request

    async def run_off_loop(
        self,
        body: bytes,
        work: Callable[[bytes, *Arguments], T],
        *args: *Arguments,
    ) -> T:
        """Return ``work(body, *args)``, computed in a thread if the body is large, so that other requests go on."""
        if len(body) < THREAD_BYTES:
            return work(body, *args)
        return await to_thread.run_sync(work, body, *args, limiter=self._reader)

    def _find_grown_body(self, body: bytes, api: str) -> _GrownBody | None:
        """Return ``body`` as a continuation of a cached body, parsed, or None if it continues none."""
        beginning = body[:KEY_BYTES]
        # The newest first: a client most often continues the conversation that it sent last.
        for key, cached in reversed(self._bodies.items()):
            cached_beginning, half_end = key
            if cached_beginning != beginning or _get_half_end(cached, body) != half_end:
                continue
            appended = parse_appended_request(body, api, cached)
            if appended is not None:
                return _GrownBody(key, *appended)
        return None

    def _keep_body(self, indexed_request: IndexedRequest, old_key: BodyKey | None) -> None:
        """Cache ``indexed_request`` in place of the body that it continues, then evict the least recently used."""
        body = indexed_request.request.body
        new_key = (body[:KEY_BYTES], _get_half_end(indexed_request, body))
        for key in (old_key, new_key):
            if key is not None and key in self._bodies:
                self._bytes -= _estimate_body_memory(self._bodies.pop(key))
        self._bodies[new_key] = indexed_request
        self._bytes += _estimate_body_memory(indexed_request)
        while self._bodies and self._is_over_limit():
            _, evicted = self._bodies.popitem(last=False)
            self._bytes -= _estimate_body_memory(evicted)

    def _is_over_limit(self) -> bool:
        return len(self._bodies) > self._max_bodies or self._bytes > self._max_bytes


def _parse_new_body(body: bytes, api: str) -> tuple[ParsedRequest, IndexedRequest | None]:
    """Parse ``body`` and locate its messages."""
    parsed_request = parse_and_measure_body(body, api)
    return parsed_request, _locate_messages(parsed_request, api)


def _locate_messages(
    parsed_body: ParsedRequest,
    api: str,
    before: IndexedRequest | None = None,
    unchanged_count: int = 0,
) -> IndexedRequest | None:
    # A body of another API than its address says is forwarded, so there is no use in caching it.
    if parsed_body.api != api:
        return None
    return index_request(parsed_body, before, unchanged_count)


def _estimate_body_memory(entry: IndexedRequest) -> int:
    """Return about how many bytes of memory ``entry`` takes."""
    return len(entry.request.body) + BYTES_PER_MESSAGE * len(entry.request.messages)


def _get_half_end(entry: IndexedRequest, body: bytes) -> bytes:
    """Return the bytes of ``body`` before the place where the first half of ``entry`` ends.

    They equal those of ``entry`` if ``body`` continues it.
    """
    middle = (len(entry.message_ends) - 1) // 2
    end = entry.message_ends[middle]
    return body[max(0, end - 64) : end]
