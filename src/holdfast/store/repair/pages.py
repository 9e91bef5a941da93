"""Rows of a table as they lie in the pages of an SQLite file, read without SQLite: no tree has to lead to them.

The form of pages, cells and records is that of SQLite's file format, version 3. What does not fit it is passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.store.sql.database import PAGE

MAGIC = b"SQLite format 3\x00"
LEAF = 0x0D
"""Kind of a page that holds rows of a table."""
_HEADER, _FRAME = 32, 24
"""Bytes of the header of a write-ahead log, and of one page in it."""
_INTEGERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
"""Bytes of an integer, by the kind that a record gives it."""
_TEXT = 12
"""The first kind of a text or blob: how long it is follows from the kind."""
_FLOAT = 7
_FIXED = {0: None, 8: 0, 9: 1}
"""Values that a kind alone tells."""
Values = tuple[Any, ...]


class Pages:
    """The pages of the database at ``path``, those of its write-ahead log before its own."""

    def __init__(self, path: Path) -> None:
        self._data = path.read_bytes()
        log = path.with_name(f"{path.name}-wal")
        self._log = log.read_bytes() if log.exists() else b""
        self.size = self._page_size()
        self._usable = self.size - (sum(self._data[20:21]) if self._data.startswith(MAGIC) else 0)
        self._newest = self._in_log()

    def rows(self) -> Iterator[tuple[int, Values]]:
        """Yield the number and the values of every row that can be read, in no order; free pages are left out."""
        free = self._free()
        count = max([len(self._data) // self.size, *self._newest])
        for number in range(1, count + 1):
            if number not in free:
                yield from self._leaf(number)

    def _page_size(self) -> int:
        told = int.from_bytes(self._data[16:18], "big") if self._data.startswith(MAGIC) else 0
        size = 65_536 if told == 1 else told
        return size if size >= 512 and not size & (size - 1) else PAGE

    def _in_log(self) -> dict[int, int]:
        """Return where the committed pages of the write-ahead log begin, by their numbers."""
        found: dict[int, int] = {}
        pending: dict[int, int] = {}
        salt = self._log[16:24]
        for at in range(_HEADER, len(self._log) - self.size - _FRAME + 1, self.size + _FRAME):
            number, commit = struct.unpack_from(">II", self._log, at)
            if self._log[at + 8 : at + 16] != salt:
                break
            pending[number] = at + _FRAME
            if commit:
                found |= pending
        return found

    def _page(self, number: int) -> memoryview:
        """Return the bytes of a page; none where there is no such page."""
        if number in self._newest:
            at = self._newest[number]
            return memoryview(self._log)[at : at + self.size]
        at = (number - 1) * self.size
        return memoryview(self._data)[at : at + self.size] if number > 0 else memoryview(b"")

    def _free(self) -> set[int]:
        """Return the pages that are free: what lies there was deleted."""
        free: set[int] = set()
        trunk = _number(self._page(1), 32)
        while trunk and trunk not in free:
            free.add(trunk)
            page = self._page(trunk)
            count = min(_number(page, 4), self.size // 4 - 2)
            free.update(_number(page, 8 + 4 * place) for place in range(count))
            trunk = _number(page, 0)
        return free

    def _leaf(self, number: int) -> Iterator[tuple[int, Values]]:
        page = self._page(number)
        start = 100 if number == 1 else 0
        if len(page) < self.size or page[start] != LEAF:
            return
        (count,) = struct.unpack_from(">H", page, start + 3)
        for place in range(min(count, self.size // 4)):
            (at,) = struct.unpack_from(">H", page, start + 8 + 2 * place)
            try:
                yield self._cell(page, at)
            except (IndexError, ValueError, struct.error):
                continue

    def _cell(self, page: memoryview, at: int) -> tuple[int, Values]:
        """Return the row of a cell; raises what slicing and decoding raise where there is none."""
        length, at = _varint(page, at)
        row, at = _varint(page, at)
        if length > len(self._data) + len(self._log):
            raise ValueError
        local = self._local(length)
        payload = bytes(page[at : at + local])
        if local < length:
            payload += self._overflow(_number(page, at + local), length - local)
        if len(payload) != length:
            raise ValueError
        return row, tuple(_values(payload))

    def _local(self, length: int) -> int:
        """Return how many bytes of a payload lie on the page itself."""
        most, least = self._usable - 35, (self._usable - 12) * 32 // 255 - 23
        if length <= most:
            return length
        kept = least + (length - least) % (self._usable - 4)
        return kept if kept <= most else least

    def _overflow(self, number: int, length: int) -> bytes:
        pieces: list[bytes] = []
        while length > 0 and number:
            page = self._page(number)
            pieces.append(bytes(page[4 : 4 + min(length, self._usable - 4)]))
            if not pieces[-1]:
                break
            length -= len(pieces[-1])
            number = _number(page, 0)
        return b"".join(pieces)


def _number(page: memoryview, at: int) -> int:
    return int.from_bytes(page[at : at + 4], "big")


def _varint(data: memoryview | bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at ``at``, and where it ends."""
    value = 0
    for place in range(8):
        byte = data[at + place]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + place + 1
    value = value << 8 | data[at + 8]
    return value - (1 << 64) if value >> 63 else value, at + 9


def _values(payload: bytes) -> Iterator[Any]:
    """Yield the values of a record."""
    end, at = _varint(payload, 0)
    held = end
    while at < end:
        kind, at = _varint(payload, at)
        value, size = _value(kind, payload, held)
        yield value
        held += size
    if held != len(payload):
        raise ValueError


def _value(kind: int, payload: bytes, at: int) -> tuple[Any, int]:
    """Return a value and how many bytes it takes."""
    if kind >= _TEXT:
        size = (kind - _TEXT) // 2
        raw = payload[at : at + size]
        if len(raw) != size:
            raise ValueError
        return (raw.decode() if kind % 2 else raw), size
    if kind in _INTEGERS:
        size = _INTEGERS[kind]
        return int.from_bytes(payload[at : at + size], "big", signed=True), size
    if kind == _FLOAT:
        return struct.unpack_from(">d", payload, at)[0], 8
    if kind not in _FIXED:
        raise ValueError
    return _FIXED[kind], 0
