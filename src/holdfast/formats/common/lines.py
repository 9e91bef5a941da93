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
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.state.codec.reading import get_decoder

T = TypeVar("T", bound=Struct)

BOM = b"\xef\xbb\xbf"
_RAW_OBJECT, _RAW_ARRAY = Decoder(dict[str, Raw]), Decoder(list[Raw])
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises when the bytes are not what they should be."""


class LenientDecoder(Generic[T]):
    """A struct to decode lines into. A field of another type than expected counts as absent, the others stand."""

    def __init__(self, kind: type[T]) -> None:
        self.kind = kind
        self.decode = get_decoder(kind).decode

    def decode_strict(self, raw: bytes | Raw) -> T:
        """Return ``raw`` decoded; raises what msgspec raises when it is no JSON object."""
        try:
            return self.decode(raw)
        except msgspec.ValidationError:
            return self._decode_fields(_RAW_OBJECT.decode(raw))

    def decode_or_default(self, raw: bytes | Raw) -> T:
        """Return ``raw`` decoded, or a struct of defaults when it is no JSON object."""
        try:
            return self.decode_strict(raw)
        except DECODE_ERRORS:
            return self.kind()

    @cached_property
    def _types(self) -> dict[str, Any]:
        return get_type_hints(self.kind)

    def _decode_fields(self, fields: dict[str, Raw]) -> T:
        values = {}
        for field in msgspec.structs.fields(self.kind):
            value = fields.get(field.encode_name)
            if value is not None:
                try:
                    values[field.name] = get_decoder(self._types[field.name]).decode(value)
                except DECODE_ERRORS:
                    continue
        return self.kind(**values)


class FileLine(Struct, Generic[T], frozen=True):
    """One line. ``value`` is nothing when the line is damaged; ``fault`` says what is wrong with it."""

    number: int
    """Counted from 1."""
    raw: bytes
    """The line as it stands in the file."""
    decodable: bytes
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
        self._checksums = array("I")
        """A checksum of each line: where a file is written over, another line may stand in the same place."""

    def record_checksum(self, number: int, line: bytes) -> None:
        """Note what line ``number`` holds, which is read in order; whoever reads from the first on begins anew."""
        del self._checksums[number - 1 :]
        self._checksums.append(crc32(line))

    def reread_line(self, number: int, start: int, length: int, shape: LenientDecoder[T]) -> FileLine[T]:
        """Return the line that has ``length`` bytes from ``start`` on.

        Raises ``FormatError`` where it is another line by now, and ``RecursionError`` where it is nested too deeply to
        be decoded from here.
        """
        line = self.read_at(start, length)
        if crc32(line) != self._checksums[number - 1]:
            raise FormatError(f"line {number} was changed while the file was read; import the file again")
        row = _decode_line(number, line, shape, start, last=False)
        if row.value is None:
            raise RecursionError(row.fault)
        return row


def split_json_lines(data: bytes | LineFile) -> Iterator[tuple[int, bytes]]:
    r"""Yield the lines that are not blank with their numbers. Only ``\n`` ends a line; a ``\r`` before it goes."""
    return ((number, bare) for number, _start, bare, _is_ended in _iterate_lines(data))


def decode_lines(data: bytes | LineFile, shape: LenientDecoder[T]) -> Iterator[FileLine[T]]:
    """Yield every line of ``data`` decoded into ``shape``, damaged ones with the reason."""
    for number, start, line, is_ended in _iterate_lines(data):
        yield _decode_line(number, line, shape, start, last=not is_ended)


def _decode_line(number: int, line: bytes, shape: LenientDecoder[T], start: int, *, last: bool) -> FileLine[T]:
    try:
        if not line.isascii():
            line.decode()  # msgspec does not look into what it leaves raw
        return FileLine(number, line, line, shape.decode_strict(line), start=start)
    except DECODE_ERRORS as error:
        return _decode_line_leniently(number, line, shape, error, last=last, start=start)


def _iterate_lines(data: bytes | LineFile) -> Iterator[tuple[int, int, bytes, bool]]:
    r"""Yield number, start, bytes and whether a ``\n`` ends it of every line that is not blank; a BOM goes."""
    start = 0
    for number, line in enumerate(_iterate_raw_lines(data) if isinstance(data, bytes) else data.read_lines(), 1):
        is_ended = line.endswith(b"\n")
        bare = line.removesuffix(b"\n").removesuffix(b"\r")
        begin, start = start, start + len(line)
        if number == 1 and bare.startswith(BOM):
            bare, begin = bare.removeprefix(BOM), len(BOM)
        if isinstance(data, LineFile):
            data.record_checksum(number, bare)
        if bare and not bare.isspace():
            yield number, begin, bare, is_ended


def _iterate_raw_lines(data: bytes) -> Iterator[bytes]:
    """Yield the lines of ``data`` one by one: a list of all would hold the file a second time."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start) + 1 or len(data)
        yield data[start:end]
        start = end


def decode_document(data: bytes, shape: LenientDecoder[T]) -> FileLine[T]:
    """Return ``data`` as one row, however many lines it has."""
    try:
        if not _is_utf8(data):
            data.decode()
        return FileLine(1, data, data, shape.decode_strict(data))
    except DECODE_ERRORS as error:
        return _decode_line_leniently(1, data, shape, error, last=False)


def _decode_line_leniently(
    number: int, line: bytes, shape: LenientDecoder[T], error: Exception, *, last: bool, start: int = 0
) -> FileLine[T]:
    """Return a line that msgspec refused: read by the standard library if that can, else as damaged."""
    try:
        clean = encode_json(json.loads(line))
        value = shape.decode_strict(clean)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return FileLine(number, line, line, None, _describe_decode_error(line, error, last=last), start)
    why = "holds escapes that are no characters (half a surrogate pair, or a number that is none)"
    return FileLine(number, line, clean, value, f"the line {why}; they were read as U+FFFD or null", start)


def _describe_decode_error(line: bytes, error: Exception, *, last: bool) -> str:
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


def decode_raw_fields(raw: bytes | Raw) -> dict[str, Raw]:
    """Return the fields of a JSON object in their order; nothing for other JSON."""
    try:
        return _RAW_OBJECT.decode(raw)
    except DECODE_ERRORS:
        return {}


def decode_raw_elements(raw: bytes | Raw) -> list[Raw]:
    """Return the elements of a JSON list; nothing for other JSON."""
    try:
        return _RAW_ARRAY.decode(raw)
    except DECODE_ERRORS:
        return []


def replace_bad_escapes(line: bytes) -> bytes:
    """Return ``line`` as JSON that every decoder takes: itself, or with lone surrogates replaced."""
    if decode_raw_fields(line):
        return line
    try:
        return encode_json(json.loads(line))
    except (ValueError, RecursionError):
        return line


def strip_json_whitespace(raw: bytes) -> bytes:
    """Return JSON without the blanks that its writer put in, so that the same is the same wherever it is kept."""
    try:
        return bytes(msgspec.json.format(raw, indent=-1))
    except DECODE_ERRORS:
        return raw


def set_json_fields(line: bytes, new: dict[str, Any]) -> bytes:
    """Return a JSON object with the fields of ``new`` set, in their old places, or ``line`` itself if they are so."""
    old = decode_raw_fields(replace_bad_escapes(line))
    if not old or all(key in old and _is_equal_json(old[key], value) for key, value in new.items()):
        return line
    return encode_json(old | new)


def _is_equal_json(raw: Raw, value: object) -> bool:
    try:
        return bool(msgspec.json.decode(raw) == value)
    except DECODE_ERRORS:
        return False


def parse_millis(text: str | float | None) -> int | None:
    """Return an ISO 8601 time (UTC where it names no zone), or a number of ms, as ms since 1970."""
    if isinstance(text, int | float):
        return int(text) if abs(text) < 2**53 else None
    try:
        moment = datetime.fromisoformat(text or "")
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return (moment - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        return None


def format_iso_time(at: int | None) -> str:
    """Return ms since 1970 as ISO 8601 with milliseconds and a Z; without a time, or outside the calendar, 1970."""
    try:
        moment = _EPOCH + timedelta(milliseconds=at or 0)
    except OverflowError:
        moment = _EPOCH
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
