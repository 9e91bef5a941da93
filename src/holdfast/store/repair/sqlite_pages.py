"""The rows in the pages of an SQLite file, read without SQLite, so that damaged inner pages do not matter.

Pages, cells and records are those of SQLite's file format, version 3. Bytes that do not fit the format are skipped.

SQLite's own tool for this is ``.recover`` of its command line program, which containers and many machines lack.
Debian's 3.40.1 has it, but it stops with an error also on an intact store, and on every file whose first page is
damaged; the library behind Python's ``sqlite3`` there has no table ``sqlite_dbpage`` to do the same with. Without
this module, damage to the first page or to an inner page of the tree would cost every entry of a store.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.store.sql.database import PAGE_BYTES

SQLITE_MAGIC = b"SQLite format 3\x00"
TABLE_LEAF = 0x0D
"""Type of a page with rows of a table."""
_WAL_HEADER_BYTES, _WAL_FRAME_HEADER_BYTES = 32, 24
"""Sizes of the header of a write-ahead log, and of the header of each page in it."""
_INTEGER_SIZES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
"""Size of an integer in bytes, by its type in the record."""
_FIRST_TEXT_TYPE = 12
"""First type of texts and blobs, whose length follows from the type."""
_FLOAT_TYPE = 7
_CONSTANT_TYPES = {0: None, 8: 0, 9: 1}
"""Values that follow from the type alone."""
RowValues = tuple[Any, ...]


class SqlitePages:
    """The pages of the database at ``path``; newer versions in its write-ahead log take precedence."""

    def __init__(self, path: Path) -> None:
        self._data = path.read_bytes()
        wal_path = path.with_name(f"{path.name}-wal")
        self._wal = wal_path.read_bytes() if wal_path.exists() else b""
        self.size = self._read_page_size()
        if self._data.startswith(SQLITE_MAGIC):
            reserved_bytes = sum(self._data[20:21])
        else:
            reserved_bytes = 0
        self._usable = self.size - reserved_bytes
        self._newest = self._find_log_pages()
        """Offset in the write-ahead log of each page that is in it, by page number."""

    def iter_rows(self) -> Iterator[tuple[int, RowValues]]:
        """Yield number and values of every readable row, in no particular order. Free pages are left out."""
        free = self._find_free_pages()
        count = max([len(self._data) // self.size, *self._newest])
        # Every page, not those of a tree: a damaged inner page would hide all pages below it.
        for number in range(1, count + 1):
            if number not in free:
                yield from self._iter_page_rows(number)

    def _read_page_size(self) -> int:
        """Return the page size in the header, or ours if the header is damaged."""
        if not self._data.startswith(SQLITE_MAGIC):
            return PAGE_BYTES
        size = int.from_bytes(self._data[16:18], "big")
        if size == 1:
            size = 65_536  # the field has two bytes
        is_power_of_two = not size & (size - 1)
        return size if size >= 512 and is_power_of_two else PAGE_BYTES

    def _find_log_pages(self) -> dict[int, int]:
        """Return the offsets of the committed pages in the write-ahead log, by page number."""
        offsets: dict[int, int] = {}
        pending: dict[int, int] = {}
        salt = self._wal[16:24]
        frame_bytes = self.size + _WAL_FRAME_HEADER_BYTES
        for frame in range(_WAL_HEADER_BYTES, len(self._wal) - frame_bytes + 1, frame_bytes):
            number, commit = struct.unpack_from(">II", self._wal, frame)
            # A log is reused from its start, so old frames follow the new ones; they have another salt.
            if self._wal[frame + 8 : frame + 16] != salt:
                break  # from an earlier use of the log
            pending[number] = frame + _WAL_FRAME_HEADER_BYTES
            if commit:  # pages of a transaction that was not committed do not count
                offsets |= pending
        return offsets

    def _get_page(self, number: int) -> memoryview:
        """Return the bytes of a page, or none if there is no such page."""
        if number in self._newest:
            offset = self._newest[number]
            return memoryview(self._wal)[offset : offset + self.size]
        if number <= 0:
            return memoryview(b"")
        offset = (number - 1) * self.size
        return memoryview(self._data)[offset : offset + self.size]

    def _find_free_pages(self) -> set[int]:
        """Return the numbers of free pages, which hold deleted rows."""
        # SQLite does not wipe what it deletes. Free pages are listed on trunk pages, which form a chain.
        free: set[int] = set()
        trunk = _read_uint32(self._get_page(1), 32)
        while trunk and trunk not in free:
            free.add(trunk)
            page = self._get_page(trunk)
            # A damaged count must not lead beyond the page.
            leaf_count = min(_read_uint32(page, 4), self.size // 4 - 2)
            for index in range(leaf_count):
                free.add(_read_uint32(page, 8 + 4 * index))
            trunk = _read_uint32(page, 0)
        return free

    def _iter_page_rows(self, number: int) -> Iterator[tuple[int, RowValues]]:
        page = self._get_page(number)
        header = 100 if number == 1 else 0  # the file's own header comes first
        if len(page) < self.size or page[header] != TABLE_LEAF:
            return
        (cell_count,) = struct.unpack_from(">H", page, header + 3)
        # A damaged count must not lead beyond the page; a cell has four bytes at least.
        for index in range(min(cell_count, self.size // 4)):
            (offset,) = struct.unpack_from(">H", page, header + 8 + 2 * index)
            try:
                yield self._read_cell(page, offset)
            except (IndexError, ValueError, struct.error):
                continue  # one damaged cell does not cost the others of its page

    def _read_cell(self, page: memoryview, offset: int) -> tuple[int, RowValues]:
        """Return number and values of the row in a cell.

        Raises IndexError, ValueError or struct.error if the bytes are not a cell.
        """
        length, offset = _read_varint(page, offset)
        row_number, offset = _read_varint(page, offset)
        # Larger than both files: not a payload, and reading it as one would follow any overflow chain to its end.
        if length > len(self._data) + len(self._wal):
            raise ValueError
        local_length = self._get_local_length(length)
        payload = bytes(page[offset : offset + local_length])
        if local_length < length:
            payload += self._read_overflow(_read_uint32(page, offset + local_length), length - local_length)
        if len(payload) != length:
            raise ValueError
        return row_number, tuple(_iter_values(payload))

    def _get_local_length(self, length: int) -> int:
        """Return how many bytes of a payload are on the page itself (file format, 1.6)."""
        # The constants are those of the file format for leaves of tables.
        max_local = self._usable - 35
        min_local = (self._usable - 12) * 32 // 255 - 23
        if length <= max_local:
            return length
        local_length = min_local + (length - min_local) % (self._usable - 4)
        return local_length if local_length <= max_local else min_local

    def _read_overflow(self, number: int, length: int) -> bytes:
        pieces: list[bytes] = []
        while length > 0 and number:
            page = self._get_page(number)
            # The first four bytes are the number of the next page.
            piece_length = min(length, self._usable - 4)
            piece = bytes(page[4 : 4 + piece_length])
            if not piece:
                break
            pieces.append(piece)
            length -= len(piece)
            number = _read_uint32(page, 0)
        return b"".join(pieces)


def _read_uint32(page: memoryview, offset: int) -> int:
    return int.from_bytes(page[offset : offset + 4], "big")


def _read_varint(data: memoryview | bytes, offset: int) -> tuple[int, int]:
    """Return the number at ``offset``, and the offset after it."""
    value = 0
    for index in range(8):
        byte = data[offset + index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, offset + index + 1
    value = value << 8 | data[offset + 8]
    if value >> 63:
        value -= 1 << 64
    return value, offset + 9


def _iter_values(payload: bytes) -> Iterator[Any]:
    """Yield the values of a record: first all types, then all values."""
    header_end, offset = _read_varint(payload, 0)
    value_offset = header_end
    while offset < header_end:
        kind, offset = _read_varint(payload, offset)
        value, size = _read_value(kind, payload, value_offset)
        yield value
        value_offset += size
    if value_offset != len(payload):
        raise ValueError


def _read_value(kind: int, payload: bytes, offset: int) -> tuple[Any, int]:
    """Return a value of type ``kind`` and its size in bytes."""
    if kind >= _FIRST_TEXT_TYPE:
        size = (kind - _FIRST_TEXT_TYPE) // 2
        raw = payload[offset : offset + size]
        if len(raw) != size:
            raise ValueError
        is_text = kind % 2 == 1
        if is_text:
            return raw.decode(), size
        return raw, size
    if kind in _INTEGER_SIZES:
        size = _INTEGER_SIZES[kind]
        raw = payload[offset : offset + size]
        return int.from_bytes(raw, "big", signed=True), size
    if kind == _FLOAT_TYPE:
        return struct.unpack_from(">d", payload, offset)[0], 8
    if kind not in _CONSTANT_TYPES:
        raise ValueError
    return _CONSTANT_TYPES[kind], 0
