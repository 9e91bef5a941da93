"""What media hold, in the form an API asks for: words, or bytes in base64. A document of plain words is words."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from typing import TypeVar

from holdfast.messages.parts import Media, Part, Text

_PartT = TypeVar("_PartT", bound=Part)
_WEB_SCHEMES = ("https://", "http://")
_TEXT_MIME_TYPE = re.compile(
    r"text/.+|application/(?:.+\+(?:json|xml|yaml)|(?:x-)?(?:csv|ecmascript|graphql|httpd-php|javascript|json|jsonl|jsonlines"
    r"|latex|markdown|ndjson|perl|python|python-code|ruby|rust|sh|sql|tex|toml|typescript|xml|yaml))"
)
"""Types of files that are words to whoever opens them (the registered ones, and those in use for code)."""


def is_web_media(part: Media) -> bool:
    """Return whether ``part`` stands at an address that anybody may read."""
    return part.form == "url" and part.source.startswith(_WEB_SCHEMES)


def convert_text_document(part: _PartT) -> _PartT | Text:
    """Return a document of plain words as these, in the bytes it came in; any other part as it is."""
    words = format_text_document(part) if isinstance(part, Media) else None
    return part if not words or words.isspace() else Text(words, None, part.raw)


def decode_text_document(part: Media) -> str | None:
    """Return what a document of plain text says; nothing for other media, and for bytes that are no text in UTF-8."""
    if part.form == "text":
        return part.source
    if (
        part.form != "base64"
        or part.kind != "document"
        or not _TEXT_MIME_TYPE.fullmatch(part.mime.partition(";")[0].lower())
    ):
        return None
    try:
        words = b64decode(part.source).decode()
    except ValueError:
        return None
    return None if "\0" in words else words


def format_text_document(part: Media) -> str | None:
    """Return the words of a document of plain text under its name; nothing for other media."""
    words = decode_text_document(part)
    return None if words is None else add_document_title(part.name, words)


def add_document_title(name: str, words: str) -> str:
    """Return the words of a document under its name, if it has one."""
    return f"[{name}]\n{words}" if name else words


def encode_media_base64(part: Media) -> str:
    """Return the base64 of what ``part`` holds itself; nothing when it only names where that is."""
    if part.form == "text":
        return b64encode(part.source.encode("utf-8", "replace")).decode()
    return part.source if part.form == "base64" else ""


def build_data_url(part: Media) -> str:
    """Return what ``part`` holds itself as a data URL; nothing when it only names where that is."""
    data = encode_media_base64(part)
    return f"data:{part.mime};base64,{data}" if data else ""
