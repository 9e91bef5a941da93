"""JSON lines, one by one: what decodes, what had to be mended, what is damaged. Nothing is raised, nothing is lost."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Generic, TypeVar, get_type_hints
from zlib import crc32

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from holdfast.errors import FormatError
from holdfast.providers.common.json.raw_json import write
from holdfast.state.codec.reading import decoder

T = TypeVar("T", bound=Struct)

BOM = b"\xef\xbb\xbf"
_FIELDS, _ELEMENTS = Decoder(dict[str, Raw]), Decoder(list[Raw])
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises when the bytes are not what they should be."""


class Shape(Generic[T]):
    """A struct to decode lines into. A field of another type than expected counts as absent, the others stand."""

    def __init__(self, kind: type[T]) -> None:
        self.kind = kind
        self.decode = decoder(kind).decode

    def fit(self, raw: bytes | Raw) -> T:
        """Return ``raw`` decoded; raises what msgspec raises when it is no JSON object."""
        try:
            return self.decode(raw)
        except msgspec.ValidationError:
            return self._pieces(_FIELDS.decode(raw))

    def of(self, raw: bytes | Raw) -> T:
        """Return ``raw`` decoded, or a struct of defaults when it is no JSON object."""
        try:
            return self.fit(raw)
        except UNREADABLE:
            return self.kind()

    @cached_property
    def _types(self) -> dict[str, Any]:
        return get_type_hints(self.kind)

    def _pieces(self, found: dict[str, Raw]) -> T:
        values = {}
        for field in msgspec.structs.fields(self.kind):
            value = found.get(field.encode_name)
            if value is not None:
                try:
                    values[field.name] = decoder(self._types[field.name]).decode(value)
                except UNREADABLE:
                    continue
        return self.kind(**values)


class Row(Struct, Generic[T], frozen=True):
    """One line. ``value`` is nothing when the line is damaged; ``fault`` says what is wrong with it."""

    number: int
    """Counted from 1."""
    raw: bytes
    """The line as it stands in the file."""
    clean: bytes
    """The same as JSON that every decoder takes: the line itself, or with lone surrogates replaced."""
    value: T | None
    fault: str = ""
    start: int = 0
    """Where the line begins in the file, in bytes."""


class LineFile:
    """A file of lines that is read once in order, and later in places, so that its words need not be held.

    ``read_lines`` yields every line from the first on, with the line feed at its end; ``read_at`` returns so many bytes
    (second argument) from a place on (first argument), fewer at the end of the file.
    """

    def __init__(self, read_lines: Callable[[], Iterator[bytes]], read_at: Callable[[int, int], bytes]) -> None:
        self.read_lines = read_lines
        self.read_at = read_at
        self._marks = array("I")
        """A checksum of each line: where a file is written over, another line may stand in the same place."""

    def mark(self, number: int, line: bytes) -> None:
        """Note what line ``number`` holds, which is read in order; whoever reads from the first on begins anew."""
        del self._marks[number - 1 :]
        self._marks.append(crc32(line))

    def read_again(self, number: int, start: int, length: int, shape: Shape[T]) -> Row[T]:
        """Return the line that has ``length`` bytes from ``start`` on.

        Raises ``FormatError`` where it is another line by now, and ``RecursionError`` where it is nested too deeply to
        be decoded from here.
        """
        line = self.read_at(start, length)
        if crc32(line) != self._marks[number - 1]:
            raise FormatError(f"line {number} was changed while the file was read; import the file again")
        row = _read_row(number, line, shape, start, last=False)
        if row.value is None:
            raise RecursionError(row.fault)
        return row


def split(data: bytes | LineFile) -> Iterator[tuple[int, bytes]]:
    r"""Yield the lines that are not blank with their numbers. Only ``\n`` ends a line; a ``\r`` before it goes."""
    return ((number, bare) for number, _start, bare, _is_ended in _lines_in(data))


def rows(data: bytes | LineFile, shape: Shape[T]) -> Iterator[Row[T]]:
    """Yield every line of ``data`` decoded into ``shape``, damaged ones with the reason."""
    for number, start, line, is_ended in _lines_in(data):
        yield _read_row(number, line, shape, start, last=not is_ended)


def _read_row(number: int, line: bytes, shape: Shape[T], start: int, *, last: bool) -> Row[T]:
    try:
        if not line.isascii():
            line.decode()  # msgspec does not look into what it leaves raw
        return Row(number, line, line, shape.fit(line), start=start)
    except UNREADABLE as error:
        return _mended(number, line, shape, error, last=last, start=start)


def _lines_in(data: bytes | LineFile) -> Iterator[tuple[int, int, bytes, bool]]:
    r"""Yield number, start, bytes and whether a ``\n`` ends it of every line that is not blank; a BOM goes."""
    start = 0
    for number, line in enumerate(_cut_lines(data) if isinstance(data, bytes) else data.read_lines(), 1):
        is_ended = line.endswith(b"\n")
        bare = line.removesuffix(b"\n").removesuffix(b"\r")
        begin, start = start, start + len(line)
        if number == 1 and bare.startswith(BOM):
            bare, begin = bare.removeprefix(BOM), len(BOM)
        if isinstance(data, LineFile):
            data.mark(number, bare)
        if bare and not bare.isspace():
            yield number, begin, bare, is_ended


def _cut_lines(data: bytes) -> Iterator[bytes]:
    """Yield the lines of ``data`` one by one: a list of all would hold the file a second time."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start) + 1 or len(data)
        yield data[start:end]
        start = end


def whole(data: bytes, shape: Shape[T]) -> Row[T]:
    """Return ``data`` as one row, however many lines it has."""
    try:
        if not _is_utf8(data):
            data.decode()
        return Row(1, data, data, shape.fit(data))
    except UNREADABLE as error:
        return _mended(1, data, shape, error, last=False)


def _mended(number: int, line: bytes, shape: Shape[T], error: Exception, *, last: bool, start: int = 0) -> Row[T]:
    """Return a line that msgspec refused: read by the standard library if that can, else as damaged."""
    try:
        clean = write(json.loads(line))
        value = shape.fit(clean)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return Row(number, line, line, None, _reason(line, error, last=last), start)
    why = "holds escapes that are no characters (half a surrogate pair, or a number that is none)"
    return Row(number, line, clean, value, f"the line {why}; they were read as U+FFFD or null", start)


def _reason(line: bytes, error: Exception, *, last: bool) -> str:
    if isinstance(error, RecursionError):
        return "the line is nested too deeply to be read; it is kept as a note"
    if isinstance(error, UnicodeDecodeError):
        return f"the line is not UTF-8 (byte {error.start}); it is kept as a note"
    if isinstance(error, msgspec.ValidationError):
        return f"the line is no JSON object: {error}; it is kept as a note"
    where = f"the last line is cut off after {len(line):,} bytes" if last else f"the line is not JSON ({error})"
    return f"{where}; it is kept as a note"


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def fields(raw: bytes | Raw) -> dict[str, Raw]:
    """Return the fields of a JSON object in their order; nothing for other JSON."""
    try:
        return _FIELDS.decode(raw)
    except UNREADABLE:
        return {}


def elements(raw: bytes | Raw) -> list[Raw]:
    """Return the elements of a JSON list; nothing for other JSON."""
    try:
        return _ELEMENTS.decode(raw)
    except UNREADABLE:
        return []


def clean(line: bytes) -> bytes:
    """Return ``line`` as JSON that every decoder takes: itself, or with lone surrogates replaced."""
    if fields(line):
        return line
    try:
        return write(json.loads(line))
    except (ValueError, RecursionError):
        return line


def compact(raw: bytes) -> bytes:
    """Return JSON without the blanks that its writer put in, so that the same is the same wherever it is kept."""
    try:
        return bytes(msgspec.json.format(raw, indent=-1))
    except UNREADABLE:
        return raw


def edited(line: bytes, new: dict[str, Any]) -> bytes:
    """Return a JSON object with the fields of ``new`` set, in their old places, or ``line`` itself if they are so."""
    old = fields(clean(line))
    if not old or all(key in old and _same(old[key], value) for key, value in new.items()):
        return line
    return write(old | new)


def _same(raw: Raw, value: object) -> bool:
    try:
        return bool(msgspec.json.decode(raw) == value)
    except UNREADABLE:
        return False


def millis(text: str | float | None) -> int | None:
    """Return an ISO 8601 time (UTC where it names no zone), or a number of ms, as ms since 1970."""
    if isinstance(text, int | float):
        return int(text) if abs(text) < 2**53 else None
    try:
        moment = datetime.fromisoformat(text or "")
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return (moment - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        return None


def iso(at: int | None) -> str:
    """Return ms since 1970 as ISO 8601 with milliseconds and a Z; without a time, or outside the calendar, 1970."""
    try:
        moment = _EPOCH + timedelta(milliseconds=at or 0)
    except OverflowError:
        moment = _EPOCH
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
