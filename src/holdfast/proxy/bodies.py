"""Bodies that come again and again: each is read once, and then what it grew by."""

from __future__ import annotations

from collections import OrderedDict

from holdfast.runtime.requests import opened
from holdfast.wire.grown import Known, grown, known
from holdfast.wire.lens import Lens

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
        self._held: OrderedDict[tuple[bytes, bytes], Known] = OrderedDict()
        """By how they begin, and how their first half ends; the last used is the last."""
        self._bytes = 0

    def read(self, body: bytes, api: str) -> Lens:
        """Return ``body`` opened and measured; ``FormatError`` for what is none."""
        found = self._grown(body, api)
        before, (lens, same) = found if found is not None else (None, (opened(body, api), 0))
        now = known(lens, before, same) if lens.api == api else None
        if now is not None and now.ends:
            self._hold(now, before)
        return lens

    def _grown(self, body: bytes, api: str) -> tuple[Known, tuple[Lens, int]] | None:
        """Return the body that this one grew out of, and what it is now."""
        start = body[:BEGINNING]
        for (beginning, _), before in reversed(self._held.items()):
            if beginning == start and _stands(before, body):
                lens = grown(body, api, before)
                if lens is not None:
                    return before, lens
        return None

    def _hold(self, now: Known, before: Known | None) -> None:
        """Hold ``now`` in place of what it grew out of."""
        for one in (before, now):
            if one is not None and (old := self._held.pop(_place(one), None)) is not None:
                self._bytes -= _size(old)
        self._held[_place(now)] = now
        self._bytes += _size(now)
        while self._held and (len(self._held) > self._most or self._bytes > self._most_bytes):
            _, old = self._held.popitem(last=False)
            self._bytes -= _size(old)


def _size(one: Known) -> int:
    """Return about how much memory ``one`` takes."""
    return len(one.lens.body) + OF_A_SLOT * len(one.lens.slots)


def _place(one: Known) -> tuple[bytes, bytes]:
    """Return by what a body is held: how it begins, and how its first half ends, which tells most of them apart."""
    return one.lens.body[:BEGINNING], _half(one, one.lens.body)


def _half(one: Known, body: bytes) -> bytes:
    end = one.ends[(len(one.ends) - 1) // 2]
    return body[max(0, end - 64) : end]


def _stands(one: Known, body: bytes) -> bool:
    """Whether ``body`` may have grown out of ``one``: its first half ends alike."""
    return _half(one, body) == _half(one, one.lens.body)
