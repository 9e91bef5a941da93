"""Bodies that come again and again: each is read once, and then what it grew by."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias, TypeVar, TypeVarTuple

from anyio import CapacityLimiter, to_thread

from holdfast.engine.requests import opened
from holdfast.providers.common.json.incremental import Known, grown, known
from holdfast.providers.request_body import Lens

T = TypeVar("T")
Given = TypeVarTuple("Given")
Place: TypeAlias = tuple[bytes, bytes]
"""How a body begins, and how its first half ends, which tells most of them apart."""

LARGE = 256 << 10
"""[M] Bytes of a new body that take about 5 ms: what is smaller is read at once."""
MOST = 256
"""[H] Bodies that are held: as many as there are branches."""
MOST_BYTES = 256 << 20
"""[H] Bytes that they may have together, about."""
OF_A_SLOT = 2_000
"""Bytes of memory that an opened message takes beside its own. [M]"""
BEGINNING = 1_024
"""Bytes by which a body is looked up."""


class Bodies:
    """The last bodies that were read."""

    def __init__(self, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._held: OrderedDict[Place, Known] = OrderedDict()
        """The last used is the last."""
        self._bytes = 0
        self._reader = CapacityLimiter(1)
        """Threads that compute beside each other hold up the loop together: one does not."""

    async def read(self, body: bytes, api: str) -> Lens:
        """Return ``body`` opened and measured; ``FormatError`` for what is none."""
        found = self._grown(body, api)
        if found is None:
            before, (lens, now) = None, await self.aside(body, _new, api)
        else:
            before, (lens, same) = found
            now = _placed(lens, api, self._held[before], same)
        if now is not None and now.ends:
            self._hold(now, before)
        return lens

    async def aside(self, body: bytes, work: Callable[[bytes, *Given], T], *given: *Given) -> T:
        """Return what ``work`` makes of ``body``: in a thread where it is large, so that nobody else waits."""
        if len(body) < LARGE:
            return work(body, *given)
        return await to_thread.run_sync(work, body, *given, limiter=self._reader)

    def _grown(self, body: bytes, api: str) -> tuple[Place, tuple[Lens, int]] | None:
        """Return where the body is held that this one grew out of, and what it is now."""
        start = body[:BEGINNING]
        for (beginning, half), before in reversed(self._held.items()):
            if beginning == start and _half(before, body) == half:
                lens = grown(body, api, before)
                if lens is not None:
                    return (beginning, half), lens
        return None

    def _hold(self, now: Known, before: Place | None) -> None:
        """Hold ``now`` in place of what it grew out of."""
        place = (now.lens.body[:BEGINNING], _half(now, now.lens.body))
        for one in (before, place):
            if one is not None and (old := self._held.pop(one, None)) is not None:
                self._bytes -= _size(old)
        self._held[place] = now
        self._bytes += _size(now)
        while self._held and (len(self._held) > self._most or self._bytes > self._most_bytes):
            _, old = self._held.popitem(last=False)
            self._bytes -= _size(old)


def _new(body: bytes, api: str) -> tuple[Lens, Known | None]:
    """Return ``body`` opened, and where its messages stand."""
    lens = opened(body, api)
    return lens, _placed(lens, api)


def _placed(lens: Lens, api: str, before: Known | None = None, same: int = 0) -> Known | None:
    return known(lens, before, same) if lens.api == api else None


def _size(one: Known) -> int:
    """Return about how much memory ``one`` takes."""
    return len(one.lens.body) + OF_A_SLOT * len(one.lens.slots)


def _half(one: Known, body: bytes) -> bytes:
    """Return what ``body`` has where the first half of ``one`` ends: the same, where it grew out of that."""
    end = one.ends[(len(one.ends) - 1) // 2]
    return body[max(0, end - 64) : end]
