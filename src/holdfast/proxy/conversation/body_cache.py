"""Bodies that come again and again: each is read once, and then what it grew by."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias, TypeVar, TypeVarTuple

from anyio import CapacityLimiter, to_thread

from holdfast.engine.request_template import parse_and_measure_body
from holdfast.providers.requests.incremental import IndexedRequest, index_request, parse_appended_request
from holdfast.providers.requests.request_body import ParsedRequest

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
BodyKey: TypeAlias = tuple[bytes, bytes]
"""How a body begins, and how its first half ends, which tells most of them apart."""

THREAD_BYTES = 256 << 10
"""[M] Bytes of a new body that take about 5 ms: what is smaller is read at once."""
MAX_BODIES = 256
"""[H] Bodies that are held: as many as there are branches."""
MAX_BODY_BYTES = 256 << 20
"""[H] Bytes that they may have together, about."""
BYTES_PER_MESSAGE = 2_000
"""Bytes of memory that an opened message takes beside its own. [M]"""
KEY_BYTES = 1_024
"""Bytes by which a body is looked up."""


class BodyCache:
    """The last bodies that were read."""

    def __init__(self, max_entries: int = MAX_BODIES, most_bytes: int = MAX_BODY_BYTES) -> None:
        self._most, self._most_bytes = max_entries, most_bytes
        self._held: OrderedDict[BodyKey, IndexedRequest] = OrderedDict()
        """The last used is the last."""
        self._bytes = 0
        self._reader = CapacityLimiter(1)
        """Threads that compute beside each other hold up the loop together: one does not."""

    async def parse_body(self, body: bytes, api: str) -> ParsedRequest:
        """Return ``body`` opened and measured; ``FormatError`` for what is none."""
        match = self._find_grown_body(body, api)
        if match is None:
            before, (parsed_request, now) = None, await self.run_off_loop(body, _parse_new_body, api)
        else:
            before, (parsed_request, unchanged_count) = match
            now = _locate_messages(parsed_request, api, self._held[before], unchanged_count)
        if now is not None and now.message_ends:
            self._keep_body(now, before)
        return parsed_request

    async def run_off_loop(self, body: bytes, work: Callable[[bytes, *Arguments], T], *args: *Arguments) -> T:
        """Return what ``work`` makes of ``body``: in a thread where it is large, so that nobody else waits."""
        if len(body) < THREAD_BYTES:
            return work(body, *args)
        return await to_thread.run_sync(work, body, *args, limiter=self._reader)

    def _find_grown_body(self, body: bytes, api: str) -> tuple[BodyKey, tuple[ParsedRequest, int]] | None:
        """Return where the body is held that this one grew out of, and what it is now."""
        start = body[:KEY_BYTES]
        for (beginning, half), before in reversed(self._held.items()):
            if beginning == start and _get_half_end(before, body) == half:
                parsed_request = parse_appended_request(body, api, before)
                if parsed_request is not None:
                    return (beginning, half), parsed_request
        return None

    def _keep_body(self, now: IndexedRequest, before: BodyKey | None) -> None:
        """Hold ``now`` in place of what it grew out of."""
        place = (now.request.body[:KEY_BYTES], _get_half_end(now, now.request.body))
        for key in (before, place):
            if key is not None and (old := self._held.pop(key, None)) is not None:
                self._bytes -= _estimate_body_memory(old)
        self._held[place] = now
        self._bytes += _estimate_body_memory(now)
        while self._held and (len(self._held) > self._most or self._bytes > self._most_bytes):
            _, old = self._held.popitem(last=False)
            self._bytes -= _estimate_body_memory(old)


def _parse_new_body(body: bytes, api: str) -> tuple[ParsedRequest, IndexedRequest | None]:
    """Return ``body`` opened, and where its messages stand."""
    parsed_request = parse_and_measure_body(body, api)
    return parsed_request, _locate_messages(parsed_request, api)


def _locate_messages(
    parsed_body: ParsedRequest, api: str, before: IndexedRequest | None = None, unchanged_count: int = 0
) -> IndexedRequest | None:
    return index_request(parsed_body, before, unchanged_count) if parsed_body.api == api else None


def _estimate_body_memory(entry: IndexedRequest) -> int:
    """Return about how much memory ``entry`` takes."""
    return len(entry.request.body) + BYTES_PER_MESSAGE * len(entry.request.messages)


def _get_half_end(entry: IndexedRequest, body: bytes) -> bytes:
    """Return what ``body`` has where the first half of ``entry`` ends: the same, where it grew out of that."""
    end = entry.message_ends[(len(entry.message_ends) - 1) // 2]
    return body[max(0, end - 64) : end]
