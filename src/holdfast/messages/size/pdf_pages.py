"""Count the pages of a PDF without a library, where that is certain.

A PDF is a list of numbered objects. Newer writers pack most of them into compressed *object streams*, which are opened
here. What cannot be read for certain counts as 0: encrypted object streams, damaged files, other compressions.
"""

from __future__ import annotations

import binascii
import re
import zlib
from collections.abc import Iterator

from holdfast.messages.text.memo import cache_by_text

_OBJECT_START = re.compile(rb"(?<!\d)(\d{1,10})\s+\d{1,5}\s+obj\b")
_PAGE = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
_PAGE_TREE = re.compile(rb"/Type\s*/Pages\b")
_PARENT = re.compile(rb"/Parent\b")
_COUNT = re.compile(rb"/Count\s+(\d{1,9})\b")
_OBJECT_STREAM = re.compile(rb"/Type\s*/ObjStm\b")
_OBJECT_STREAM_COUNT = re.compile(rb"/N\s+(\d{1,7})\b")
_OBJECT_STREAM_START = re.compile(rb"/First\s+(\d{1,9})\b")
_STREAM = re.compile(rb"\bstream\r?\n")
_MAX_INFLATED_BYTES = 16 * 1024 * 1024
"""Bytes that all object streams of a file may have when opened. The objects of 600 pages take about 200 kB; the bound
only stops files that are made to fill the memory."""


@cache_by_text(lambda _: 0)
def count_pdf_pages(data: str) -> int:
    """Return the number of pages of a PDF in base64, or 0 if it cannot be told for certain.

    Never more than the file has: page objects are counted by number, since an edited file has old versions of them too,
    and a page tree that says a smaller number is believed.
    """
    try:
        pdf = binascii.a2b_base64(data)
    except ValueError:
        return 0
    pages: set[int] = set()
    stated_count = 0
    for number, content in _iter_objects(pdf):
        if _PAGE.search(content):
            pages.add(number)
        elif _PAGE_TREE.search(content) and not _PARENT.search(content):
            count = _COUNT.search(content)
            # The last version of the root counts; a root without a number tells nothing.
            stated_count = int(count[1]) if count is not None else 0
    return min(len(pages), stated_count)


def _iter_objects(pdf: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and dictionary of each object, those in object streams too."""
    starts = list(_OBJECT_START.finditer(pdf))
    bytes_left = _MAX_INFLATED_BYTES
    for index, start in enumerate(starts):
        end = starts[index + 1].start() if index + 1 < len(starts) else len(pdf)
        stream = _STREAM.search(pdf, start.end(), end)
        content = pdf[start.end() : stream.start() if stream is not None else end]
        if stream is None or not _OBJECT_STREAM.search(content):
            yield int(start[1]), content
            continue
        inflated = _inflate(pdf[stream.end() : end], bytes_left)
        bytes_left -= len(inflated)
        yield from _iter_packed_objects(content, inflated)


def _inflate(packed: bytes, max_bytes: int) -> bytes:
    if max_bytes <= 0:
        return b""
    try:
        return zlib.decompressobj().decompress(packed, max_bytes)
    except zlib.error:
        return b""


def _iter_packed_objects(dictionary: bytes, inflated: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the objects of an opened object stream: pairs of number and place, from ``/First`` on the objects."""
    count, first = _OBJECT_STREAM_COUNT.search(dictionary), _OBJECT_STREAM_START.search(dictionary)
    if count is None or first is None:
        return
    head = inflated[: int(first[1])].split()
    pairs = head[: 2 * int(count[1])]
    if len(pairs) % 2 or not all(digits.isdigit() for digits in pairs):
        return
    numbers = [int(digits) for digits in pairs[::2]]
    places = [int(first[1]) + int(digits) for digits in pairs[1::2]]
    for index, number in enumerate(numbers):
        end = places[index + 1] if index + 1 < len(places) else len(inflated)
        yield number, inflated[places[index] : end]
