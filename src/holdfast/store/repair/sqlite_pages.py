"""Rows of a table as they lie in the pages of an SQLite file, read without SQLite: no tree has to lead to them.

The form of pages, cells and records is that of SQLite's file format, version 3. What does not fit it is passed over.

SQLite's own salvage is ``.recover`` of its command line program, which containers and many machines lack. Debian's
3.40.1 has it and stops with an error on a sound store too, and on every file whose first page is damaged; the library
that Python's ``sqlite3`` loads there has no table ``sqlite_dbpage`` to do the same with. [M] Without this module a
damaged first page, or inner page of the tree, costs all entries that a store holds.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.store.sql.database import PAGE_BYTES

SQLITE_MAGIC = b"SQLite format 3\x00"
TABLE_LEAF = 0x0D
"""Kind of a page that holds rows of a table."""
_WAL_HEADER_BYTES, _WAL_FRAME_HEADER_BYTES = 32, 24
"""Bytes of the header of a write-ahead log, and of one page in it."""
_INTEGER_SIZES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
"""Bytes of an integer, by the kind that a record gives it."""
_FIRST_TEXT_TYPE = 12
"""The first kind of a text or blob: how long it is follows from the kind."""
_FLOAT_TYPE = 7
_CONSTANT_TYPES = {0: None, 8: 0, 9: 1}
"""Values that a kind alone tells."""
RowValues = tuple[Any, ...]


class SqlitePages:
    """The pages of the database at ``path``, those of its write-ahead log before its own."""

    def __init__(self, path: Path) -> None:
        self._data = path.read_bytes()
        log = path.with_name(f"{path.name}-wal")
        self._log = log.read_bytes() if log.exists() else b""
        self.size = self._read_page_size()
        self._usable = self.size - (sum(self._data[20:21]) if self._data.startswith(SQLITE_MAGIC) else 0)
        self._newest = self._find_log_pages()

    def iter_rows(self) -> Iterator[tuple[int, RowValues]]:
        """Yield the number and the values of every row that can be read, in no order; free pages are left out."""
        free = self._find_free_pages()
        count = max([len(self._data) // self.size, *self._newest])
        for number in range(1, count + 1):
            if number not in free:
                yield from self._iter_page_rows(number)

    def _read_page_size(self) -> int:
        raw_size = int.from_bytes(self._data[16:18], "big") if self._data.startswith(SQLITE_MAGIC) else 0
        size = 65_536 if raw_size == 1 else raw_size
        return size if size >= 512 and not size & (size - 1) else PAGE_BYTES

    def _find_log_pages(self) -> dict[int, int]:
        """Return where the committed pages of the write-ahead log begin, by their numbers."""
        offsets: dict[int, int] = {}
        pending: dict[int, int] = {}
        salt = self._log[16:24]
        for at in range(
            _WAL_HEADER_BYTES,
            len(self._log) - self.size - _WAL_FRAME_HEADER_BYTES + 1,
            self.size + _WAL_FRAME_HEADER_BYTES,
        ):
            number, commit = struct.unpack_from(">II", self._log, at)
            if self._log[at + 8 : at + 16] != salt:
                break
            pending[number] = at + _WAL_FRAME_HEADER_BYTES
            if commit:
                offsets |= pending
        return offsets

    def _get_page(self, number: int) -> memoryview:
        """Return the bytes of a page; none where there is no such page."""
        if number in self._newest:
            at = self._newest[number]
            return memoryview(self._log)[at : at + self.size]
        at = (number - 1) * self.size
        return memoryview(self._data)[at : at + self.size] if number > 0 else memoryview(b"")

    def _find_free_pages(self) -> set[int]:
        """Return the pages that are free: what lies there was deleted."""
        free: set[int] = set()
        trunk = _read_uint32(self._get_page(1), 32)
        while trunk and trunk not in free:
            free.add(trunk)
            page = self._get_page(trunk)
            count = min(_read_uint32(page, 4), self.size // 4 - 2)
            free.update(_read_uint32(page, 8 + 4 * place) for place in range(count))
            trunk = _read_uint32(page, 0)
        return free

    def _iter_page_rows(self, number: int) -> Iterator[tuple[int, RowValues]]:
        page = self._get_page(number)
        start = 100 if number == 1 else 0
        if len(page) < self.size or page[start] != TABLE_LEAF:
            return
        (count,) = struct.unpack_from(">H", page, start + 3)
        for place in range(min(count, self.size // 4)):
            (at,) = struct.unpack_from(">H", page, start + 8 + 2 * place)
            try:
                yield self._read_cell(page, at)
            except (IndexError, ValueError, struct.error):
                continue

    def _read_cell(self, page: memoryview, at: int) -> tuple[int, RowValues]:
        """Return the row of a cell; raises what slicing and decoding raise where there is none."""
        length, at = _read_varint(page, at)
        row, at = _read_varint(page, at)
        if length > len(self._data) + len(self._log):
            raise ValueError
        local = self._get_local_length(length)
        payload = bytes(page[at : at + local])
        if local < length:
            payload += self._read_overflow(_read_uint32(page, at + local), length - local)
        if len(payload) != length:
            raise ValueError
        return row, tuple(_iter_values(payload))

    def _get_local_length(self, length: int) -> int:
        """Return how many bytes of a payload lie on the page itself."""
        max_local, min_local = self._usable - 35, (self._usable - 12) * 32 // 255 - 23
        if length <= max_local:
            return length
        local_bytes = min_local + (length - min_local) % (self._usable - 4)
        return local_bytes if local_bytes <= max_local else min_local

    def _read_overflow(self, number: int, length: int) -> bytes:
        pieces: list[bytes] = []
        while length > 0 and number:
            page = self._get_page(number)
            pieces.append(bytes(page[4 : 4 + min(length, self._usable - 4)]))
            if not pieces[-1]:
                break
            length -= len(pieces[-1])
            number = _read_uint32(page, 0)
        return b"".join(pieces)


def _read_uint32(page: memoryview, at: int) -> int:
    return int.from_bytes(page[at : at + 4], "big")


def _read_varint(data: memoryview | bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at ``at``, and where it ends."""
    value = 0
    for place in range(8):
        byte = data[at + place]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + place + 1
    value = value << 8 | data[at + 8]
    return value - (1 << 64) if value >> 63 else value, at + 9


def _iter_values(payload: bytes) -> Iterator[Any]:
    """Yield the values of a record."""
    end, at = _read_varint(payload, 0)
    value_offset = end
    while at < end:
        kind, at = _read_varint(payload, at)
        value, size = _read_value(kind, payload, value_offset)
        yield value
        value_offset += size
    if value_offset != len(payload):
        raise ValueError


def _read_value(kind: int, payload: bytes, at: int) -> tuple[Any, int]:
    """Return a value and how many bytes it takes."""
    if kind >= _FIRST_TEXT_TYPE:
        size = (kind - _FIRST_TEXT_TYPE) // 2
        raw = payload[at : at + size]
        if len(raw) != size:
            raise ValueError
        return (raw.decode() if kind % 2 else raw), size
    if kind in _INTEGER_SIZES:
        size = _INTEGER_SIZES[kind]
        return int.from_bytes(payload[at : at + size], "big", signed=True), size
    if kind == _FLOAT_TYPE:
        return struct.unpack_from(">d", payload, at)[0], 8
    if kind not in _CONSTANT_TYPES:
        raise ValueError
    return _CONSTANT_TYPES[kind], 0
