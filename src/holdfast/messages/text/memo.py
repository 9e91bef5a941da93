"""Remember what a function of a text gave, for the texts it was asked for last, within a number of bytes.

``functools.lru_cache`` counts entries, and one text may have megabytes. cachetools' ``LRUCache`` bounds bytes but is
not safe between threads: it needs a lock, which the pure packages may not import, and with it a hit takes twice as long
(0.6 µs, not 0.3) and this file is no shorter. [M]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, update_wrapper
from sys import getsizeof
from typing import Generic, TypeVar

T = TypeVar("T")

DEFAULT_CACHE_BYTES = 16 << 20
"""Bytes that one function remembers: what an extract reads of a head of 160,000 tokens takes some 6 MB [M]."""

CACHE_ENTRY_BYTES = 256
"""Bytes that holding one value takes beside it and its text. [M]"""


class CachedTextFunction(Generic[T]):
    """A pure function of a text that remembers what it gave, together within ``most`` bytes.

    ``size`` tells about how many bytes a value takes; its text is counted too. They are held in two halves: when the
    younger is full it becomes the older, which is forgotten, and what is asked for again is young again. What alone
    takes more than a half is made anew each time. Threads may use it at once: what is lost between them is made again.
    """

    def __init__(self, make: Callable[[str], T], size: Callable[[T], int], max_bytes: int) -> None:
        self._make, self._size, self._half = make, size, max_bytes // 2
        self.cache_clear()
        update_wrapper(self, make)

    def cache_clear(self) -> None:
        """Forget all."""
        self._young: dict[str, tuple[T, int]] = {}
        self._old: dict[str, tuple[T, int]] = {}
        self._bytes = 0

    def __call__(self, text: str) -> T:
        """Return what the function gives for ``text``."""
        entry = self._young.get(text)
        if entry is None:
            entry = self._old.get(text) or self._compute_value(text)
            self._store_value(text, *entry)
        return entry[0]

    def _compute_value(self, text: str) -> tuple[T, int]:
        value = self._make(text)
        return value, self._size(value) + getsizeof(text) + CACHE_ENTRY_BYTES

    def _store_value(self, text: str, value: T, size: int) -> None:
        if size > self._half:
            return
        if self._bytes + size > self._half:
            self._young, self._old, self._bytes = {}, self._young, 0
        self._young[text] = value, size
        self._bytes += size


def cache_by_text(
    size: Callable[[T], int], max_bytes: int = DEFAULT_CACHE_BYTES
) -> Callable[[Callable[[str], T]], CachedTextFunction[T]]:
    """Return what makes a function of a text remember within ``max_bytes`` bytes what it gave, of ``size`` bytes
    each.
    """
    return partial(CachedTextFunction, size=size, max_bytes=max_bytes)
