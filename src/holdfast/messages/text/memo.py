"""What a function gives for a text, remembered: for the last texts it was asked for, within so many bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, update_wrapper
from sys import getsizeof
from typing import Generic, TypeVar

T = TypeVar("T")

KNOWN_BYTES = 16 << 20
"""Bytes that one function remembers: what an extract reads of a head of 160,000 tokens takes some 6 MB [M]."""

ENTRY_BYTES = 256
"""Bytes that holding one value takes beside it and its text. [M]"""


class Remembered(Generic[T]):
    """A pure function of a text that remembers what it gave, together within ``most`` bytes.

    ``size`` tells about how many bytes a value takes; its text is counted too. They are held in two halves: when the
    younger is full it becomes the older, which is forgotten, and what is asked for again is young again. What alone
    takes more than a half is made anew each time. Threads may use it at once: what is lost between them is made again.
    """

    def __init__(self, make: Callable[[str], T], size: Callable[[T], int], most: int) -> None:
        self._make, self._size, self._half = make, size, most // 2
        self.cache_clear()
        update_wrapper(self, make)

    def cache_clear(self) -> None:
        """Forget all."""
        self._young: dict[str, tuple[T, int]] = {}
        self._old: dict[str, tuple[T, int]] = {}
        self._bytes = 0

    def __call__(self, text: str) -> T:
        """Return what the function gives for ``text``."""
        found = self._young.get(text)
        if found is None:
            found = self._old.get(text) or self._made(text)
            self._hold(text, *found)
        return found[0]

    def _made(self, text: str) -> tuple[T, int]:
        value = self._make(text)
        return value, self._size(value) + getsizeof(text) + ENTRY_BYTES

    def _hold(self, text: str, value: T, size: int) -> None:
        if size > self._half:
            return
        if self._bytes + size > self._half:
            self._young, self._old, self._bytes = {}, self._young, 0
        self._young[text] = value, size
        self._bytes += size


def remembered(size: Callable[[T], int], most: int = KNOWN_BYTES) -> Callable[[Callable[[str], T]], Remembered[T]]:
    """Return what makes a function of a text remember within ``most`` bytes what it gave, of ``size`` bytes each."""
    return partial(Remembered, size=size, most=most)
