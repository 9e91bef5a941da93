"""Parse the top-level fields of a request body, and check that it is JSON in UTF-8."""

from __future__ import annotations

from msgspec import Raw

from holdfast.errors import FormatError
from holdfast.providers.common.json.raw_json import decode_json_fields, find_field_spans

_UTF32_STARTS = (
    b"\xff\xfe\x00\x00",
    b"\x00\x00\xfe\xff",
    b"{\x00\x00\x00",
    b"\x00\x00\x00{",
    b"[\x00\x00\x00",
    b"\x00\x00\x00[",
)
_UTF16_STARTS = (b"\xff\xfe", b"\xfe\xff", b"{\x00", b"\x00{", b"[\x00", b"\x00[")
"""First bytes of JSON in UTF-32 and in UTF-16, with or without a byte order mark."""


def parse_body_fields(body: bytes) -> dict[str, Raw]:
    """Parse the top-level fields of a request body in their order, values as raw bytes.

    Raises ``FormatError`` with the reason and the place if the body is not one JSON object in UTF-8, or has a field
    twice.
    """
    if not isinstance(body, bytes):
        raise FormatError(f"the body is of type {type(body).__name__}; give the bytes of a request")
    if encoding := detect_wide_encoding(body):
        raise FormatError(f"the body is {encoding}; encode it as UTF-8")
    if body.startswith(b"\xef\xbb\xbf"):
        raise FormatError("the body begins with a byte order mark (byte 0); send it without")
    # msgspec accepts bytes that are not UTF-8 inside raw values; a provider would refuse them later.
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"the body is not UTF-8 at byte {error.start}; encode it as UTF-8") from None
    raw_fields = decode_json_fields(body, "the body")
    find_field_spans(body, raw_fields)  # raises for a field that occurs twice
    return raw_fields


def detect_wide_encoding(data: bytes) -> str:
    """Return ``UTF-16`` or ``UTF-32`` for JSON in one of these, by its first four bytes; empty for any other."""
    if not data.startswith(_UTF16_STARTS) and not data.startswith(_UTF32_STARTS):
        return ""
    # UTF-32 first: each of its little-endian starts begins with a UTF-16 start.
    return "UTF-32" if data.startswith(_UTF32_STARTS) else "UTF-16"
