"""JSON lines, decoded one by one. Damaged lines raise nothing; they are returned with the reason."""

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
_RAW_OBJECT = Decoder(dict[str, Raw])
_RAW_ARRAY = Decoder(list[Raw])
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions that decoding raises for bytes that are not the expected JSON, deep nesting included."""


class LenientDecoder(Generic[T]):
    """Decodes lines into a struct. A field of an unexpected type counts as absent; the other fields are kept.

    Tools change their files between versions, and one field of a new type must not cost the message beside it.
    """

    def __init__(self, struct_type: type[T]) -> None:
        self.struct_type = struct_type
        self.decode = get_decoder(struct_type).decode

    def decode_strict(self, raw: bytes | Raw) -> T:
        """Return ``raw`` decoded; raises one of ``DECODE_ERRORS`` if it is not a JSON object."""
        try:
            return self.decode(raw)
        except msgspec.ValidationError:
            # The common case costs one decoding; only a line with an odd field is decoded field by field.
            return self._decode_fields(_RAW_OBJECT.decode(raw))

    def decode_or_default(self, raw: bytes | Raw) -> T:
        """Return ``raw`` decoded, or a struct of defaults if it is not a JSON object."""
        try:
            return self.decode_strict(raw)
        except DECODE_ERRORS:
            return self.struct_type()

    @cached_property
    def _types(self) -> dict[str, Any]:
        return get_type_hints(self.struct_type)

    def _decode_fields(self, fields: dict[str, Raw]) -> T:
        values = {}
        for field in msgspec.structs.fields(self.struct_type):
            raw = fields.get(field.encode_name)
            if raw is None:
                continue
            try:
                values[field.name] = get_decoder(self._types[field.name]).decode(raw)
            except DECODE_ERRORS:
                continue
        return self.struct_type(**values)


class FileLine(Struct, Generic[T], frozen=True):
    """A line of a file. ``value`` is None if the line is damaged; ``fault`` describes the damage, also one that was
    repaired.
    """

    number: int
    """Line number, counted from 1."""
    raw: bytes
    """The line's bytes as they are in the file."""
    decodable: bytes
    """The line as JSON that every decoder accepts: the same bytes, or a copy with lone surrogates replaced."""
    value: T | None
    fault: str = ""
    start: int = 0
    """Offset of the line in the file, in bytes."""


# Sessions are too large to be held: rollouts of Codex reach tens of gigabytes (codex#28866).
class LineFile:
    """A file that is read once from front to back and later at single lines, so its messages need not stay in memory.

    ``read_lines`` yields every line with its line feed. ``read_at(offset, length)`` returns ``length`` bytes, or
    fewer at the end of the file.
    """

    def __init__(self, read_lines: Callable[[], Iterator[bytes]], read_at: Callable[[int, int], bytes]) -> None:
        self.read_lines = read_lines
        self.read_at = read_at
        self._checksums = array("I")
        """CRC-32 of each line, by number. A tool may rewrite its file, and then other bytes stand at an old offset."""

    def record_checksum(self, number: int, line: bytes) -> None:
        """Store the checksum of line ``number``. Lines come in order; reading again from line 1 starts over."""
        del self._checksums[number - 1 :]
        self._checksums.append(crc32(line))

    def reread_line(self, number: int, start: int, length: int, shape: LenientDecoder[T]) -> FileLine[T]:
        """Return the line at offset ``start`` with ``length`` bytes, decoded again.

        Raises ``FormatError`` if the file has another line there by now, and ``RecursionError`` if the line is nested
        deeper than the stack left at this call can decode.
        """
        line = self.read_at(start, length)
        if crc32(line) != self._checksums[number - 1]:
            raise FormatError(f"line {number} was changed while the file was read; import the file again")
        row = _decode_line(number, line, shape, start, is_cut_off=False)
        if row.value is None:
            # It decoded on the first pass and the bytes are the same, so the nesting must be the reason.
            raise RecursionError(row.fault)
        return row


# Lines are split at ``\n`` alone. ``str.splitlines`` also splits at U+2028 and U+0085, which tool results have inside
# JSON strings.
def split_json_lines(data: bytes | LineFile) -> Iterator[tuple[int, bytes]]:
    r"""Yield the number and the bytes of each line that is not blank. Only ``\n`` ends a line; a ``\r`` before it is
    dropped.
    """
    for number, _start, line, _is_terminated in _iterate_lines(data):
        yield number, line


def decode_lines(data: bytes | LineFile, shape: LenientDecoder[T]) -> Iterator[FileLine[T]]:
    """Yield every line of ``data`` that is not blank, decoded into ``shape``; damaged lines carry the reason."""
    for number, start, line, is_terminated in _iterate_lines(data):
        yield _decode_line(number, line, shape, start, is_cut_off=not is_terminated)


def _decode_line(
    number: int,
    line: bytes,
    shape: LenientDecoder[T],
    start: int,
    *,
    is_cut_off: bool,
) -> FileLine[T]:
    try:
        if not line.isascii():
            # msgspec does not check the encoding of what it leaves raw.
            line.decode()
        return FileLine(number, line, line, shape.decode_strict(line), start=start)
    except DECODE_ERRORS as error:
        return _decode_line_leniently(number, line, shape, error, is_cut_off=is_cut_off, start=start)


def _iterate_lines(data: bytes | LineFile) -> Iterator[tuple[int, int, bytes, bool]]:
    r"""Yield number, offset, bytes and whether a ``\n`` ends it, for every line that is not blank; drop a BOM."""
    lines = _iterate_raw_lines(data) if isinstance(data, bytes) else data.read_lines()
    next_start = 0
    for number, line in enumerate(lines, 1):
        start = next_start
        next_start += len(line)
        is_terminated = line.endswith(b"\n")
        bare = line.removesuffix(b"\n").removesuffix(b"\r")
        if number == 1 and bare.startswith(BOM):
            bare = bare.removeprefix(BOM)
            start = len(BOM)
        if isinstance(data, LineFile):
            # Blank lines too: checksums are looked up by line number.
            data.record_checksum(number, bare)
        if bare and not bare.isspace():
            yield number, start, bare, is_terminated


def _iterate_raw_lines(data: bytes) -> Iterator[bytes]:
    """Yield the lines of ``data`` one by one: a list of them would hold the whole file a second time."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start) + 1 or len(data)
        yield data[start:end]
        start = end


def decode_document(data: bytes, shape: LenientDecoder[T]) -> FileLine[T]:
    """Return a whole file decoded as one JSON value, however many lines it has."""
    try:
        if not _is_utf8(data):
            # Raises the error that names the byte.
            data.decode()
        return FileLine(1, data, data, shape.decode_strict(data))
    except DECODE_ERRORS as error:
        return _decode_line_leniently(1, data, shape, error, is_cut_off=False)


def _decode_line_leniently(
    number: int,
    line: bytes,
    shape: LenientDecoder[T],
    error: Exception,
    *,
    is_cut_off: bool,
    start: int = 0,
) -> FileLine[T]:
    """Return a line that msgspec refused: decoded by the standard library if possible, else marked as damaged.

    The standard library accepts lone surrogates and numbers like ``NaN``, which JavaScript tools write.
    """
    try:
        clean = encode_json(json.loads(line))
        value = shape.decode_strict(clean)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return FileLine(
            number,
            line,
            line,
            None,
            _describe_decode_error(line, error, is_cut_off=is_cut_off),
            start,
        )
    why = "holds escapes that are no characters (half a surrogate pair, or a number that is none)"
    return FileLine(number, line, clean, value, f"the line {why}; they were read as U+FFFD or null", start)


def _describe_decode_error(line: bytes, error: Exception, *, is_cut_off: bool) -> str:
    if isinstance(error, RecursionError):
        return "the line is nested too deeply to be read; it is kept as a note"
    if isinstance(error, UnicodeDecodeError):
        return f"the line is not UTF-8 (byte {error.start}); it is kept as a note"
    if isinstance(error, msgspec.ValidationError):
        return f"the line is no JSON object: {error}; it is kept as a note"
    if is_cut_off:
        return f"the last line is cut off after {len(line):,} bytes; it is kept as a note"
    return f"the line is not JSON ({error}); it is kept as a note"


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def decode_raw_fields(raw: bytes | Raw) -> dict[str, Raw]:
    """Return the fields of a JSON object in their order, undecoded, or an empty dict for any other bytes."""
    try:
        return _RAW_OBJECT.decode(raw)
    except DECODE_ERRORS:
        return {}


def decode_raw_elements(raw: bytes | Raw) -> list[Raw]:
    """Return the elements of a JSON array, undecoded, or an empty list for any other bytes."""
    try:
        return _RAW_ARRAY.decode(raw)
    except DECODE_ERRORS:
        return []


def replace_bad_escapes(line: bytes) -> bytes:
    """Return a JSON object that every decoder accepts: ``line`` itself, or a copy with lone surrogates replaced."""
    if decode_raw_fields(line):
        return line
    try:
        return encode_json(json.loads(line))
    except (ValueError, RecursionError):
        return line


def strip_json_whitespace(raw: bytes) -> bytes:
    """Return JSON without insignificant whitespace, so that equal values have equal bytes; bad JSON as it is."""
    try:
        return bytes(msgspec.json.format(raw, indent=-1))
    except DECODE_ERRORS:
        return raw


def set_json_fields(line: bytes, new: dict[str, Any]) -> bytes:
    """Return a JSON object with the fields of ``new`` set in place, or the same bytes if nothing would change."""
    fields = decode_raw_fields(replace_bad_escapes(line))
    if not fields:
        return line
    # Equal values keep the line's own bytes, with its spacing and escapes.
    for name, value in new.items():
        if name not in fields or not _is_equal_json(fields[name], value):
            return encode_json(fields | new)
    return line


def _is_equal_json(raw: Raw, value: object) -> bool:
    try:
        return bool(msgspec.json.decode(raw) == value)
    except DECODE_ERRORS:
        return False


def parse_millis(text: str | float | None) -> int | None:
    """Return an ISO 8601 time or a number of ms as ms since 1970, or None if it is neither.

    A time without a zone is UTC.
    """
    if isinstance(text, int | float):
        # Tools write JavaScript numbers: beyond 2**53 they are not exact, and no date is that far off.
        return int(text) if abs(text) < 2**53 else None
    try:
        moment = datetime.fromisoformat(text or "")
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return (moment - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        return None


def format_iso_time(at: int | None) -> str:
    """Return ms since 1970 as ISO 8601 with milliseconds and a Z. None and times outside the calendar become 1970."""
    try:
        moment = _EPOCH + timedelta(milliseconds=at or 0)
    except OverflowError:
        # A tool that reads the file needs some time, and a wrong one is better than no export.
        moment = _EPOCH
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
