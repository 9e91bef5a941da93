"""Cache the results of a function of a text, within a number of bytes.

``functools.lru_cache`` counts entries, and one text may have megabytes. cachetools' ``LRUCache`` bounds bytes but is
not safe between threads. It needs a lock, which the pure packages may not import; measured with one, a hit takes twice
as long (0.6 µs, not 0.3), and this file would be no shorter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, update_wrapper
from sys import getsizeof
from typing import Concatenate, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_CACHE_BYTES = 16 << 20
"""Bytes that one function caches. An extract of a head of 160,000 tokens was measured to need some 6 MB."""

CACHE_ENTRY_BYTES = 256
"""Memory of one cache entry beside its value and its text, as measured."""


class CachedTextFunction(Generic[T]):
    """A pure function of a text that caches its results, in at most ``max_bytes`` together.

    ``size`` returns about how many bytes a value takes; its text is counted too. The cache has two generations. When
    the young one is full it becomes the old one, and the previous old one is dropped; an entry that is used again
    becomes young again. A result that takes more than half of the bytes is not cached. Threads may call it at the same
    time: an entry lost between them is only computed again.
    """

    def __init__(
        self,
        make: Callable[[str], T],
        size: Callable[[T], int],
        max_bytes: int,
    ) -> None:
        self._make = make
        self._size = size
        self._half = max_bytes // 2
        self.cache_clear()
        update_wrapper(self, make)

    def cache_clear(self) -> None:
        """Drop all cached results."""
        self._young: dict[str, tuple[T, int]] = {}
        self._old: dict[str, tuple[T, int]] = {}
        self._bytes = 0

    def __call__(self, text: str) -> T:
        """Return the function's result for ``text``."""
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
    """Decorate a function of a text so that it caches its results; ``size`` returns the bytes of one result."""
    return partial(CachedTextFunction, size=size, max_bytes=max_bytes)


class CachedObjectFunction(Generic[P, T]):
    """A pure function of one or more immutable objects that caches its results by the objects' identities.

    A message has no text that stands for all of it, and hashing its parts takes as long as many results. The cache
    keeps the objects alive, so no others can get their identities meanwhile; ``size`` is called with the result and
    the objects, and counts all of them. Bytes, generations and threads are as in ``CachedTextFunction``.
    """

    def __init__(self, make: Callable[P, T], size: Callable[Concatenate[T, P], int], max_bytes: int) -> None:
        self._make = make
        self._size = size
        self._half = max_bytes // 2
        self.cache_clear()
        update_wrapper(self, make)

    def cache_clear(self) -> None:
        """Drop all cached results."""
        self._young: dict[tuple[int, ...], tuple[tuple[object, ...], T, int]] = {}
        self._old: dict[tuple[int, ...], tuple[tuple[object, ...], T, int]] = {}
        self._bytes = 0

    def __call__(self, *objects: P.args, **no_names: P.kwargs) -> T:
        """Return the function's result for ``objects``, which are given by position."""
        key = tuple(map(id, objects))
        entry = self._young.get(key)
        if entry is None:
            entry = self._old.get(key)
            if entry is None:
                value = self._make(*objects, **no_names)
                entry = objects, value, self._size(value, *objects, **no_names) + CACHE_ENTRY_BYTES
            self._store_entry(key, entry)
        return entry[1]

    def _store_entry(self, key: tuple[int, ...], entry: tuple[tuple[object, ...], T, int]) -> None:
        size = entry[2]
        if size > self._half:
            return
        if self._bytes + size > self._half:
            self._young, self._old, self._bytes = {}, self._young, 0
        self._young[key] = entry
        self._bytes += size


def cache_by_identity(
    size: Callable[Concatenate[T, P], int], max_bytes: int = DEFAULT_CACHE_BYTES
) -> Callable[[Callable[P, T]], CachedObjectFunction[P, T]]:
    """Decorate a function of immutable objects so that it caches its results; ``size`` returns their bytes."""
    return partial(CachedObjectFunction, size=size, max_bytes=max_bytes)
