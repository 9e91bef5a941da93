"""The top-level fields of a request body, and whether its bytes are JSON at all."""

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
"""How JSON in four and in two bytes a character begins: with its mark, or without."""


def parse_body_fields(body: bytes) -> dict[str, Raw]:
    """Return the top-level fields of a request body in their order, values as they stand.

    Raises ``FormatError`` with the reason and the place for anything that is not one JSON object in UTF-8, and for a
    field that stands twice.
    """
    if not isinstance(body, bytes):
        raise FormatError(f"the body is of type {type(body).__name__}; give the bytes of a request")
    if encoding := detect_wide_encoding(body):
        raise FormatError(f"the body is {encoding}; encode it as UTF-8")
    if body.startswith(b"\xef\xbb\xbf"):
        raise FormatError("the body begins with a byte order mark (byte 0); send it without")
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"the body is not UTF-8 at byte {error.start}; encode it as UTF-8") from None
    raw_fields = decode_json_fields(body, "the body")
    find_field_spans(body, raw_fields)
    return raw_fields


def detect_wide_encoding(data: bytes) -> str:
    """Return the encoding of JSON in two or four bytes a character, told by its first four; nothing for any other."""
    if not data.startswith(_UTF16_STARTS) and not data.startswith(_UTF32_STARTS):
        return ""
    return "UTF-32" if data.startswith(_UTF32_STARTS) else "UTF-16"
