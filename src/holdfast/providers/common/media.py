"""Convert media to the forms that APIs ask for: base64, data URLs, or plain text for documents that are text."""

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
"""MIME types of files that read as plain text: the registered ones, and unregistered ones in use for source code."""


def is_web_media(part: Media) -> bool:
    """Return whether ``part`` is at a public web address."""
    return part.form == "url" and part.source.startswith(_WEB_SCHEMES)


def convert_text_document(part: _PartT) -> _PartT | Text:
    """Return a document of plain text as ``Text`` with the document's bytes; any other part as it is.

    As text it is counted, shortened with a preview, searched and read back like any other. A blank document stays
    media: an empty text is an error for most APIs.
    """
    words = format_text_document(part) if isinstance(part, Media) else None
    if not words or words.isspace():
        return part
    return Text(words, None, part.raw)


def decode_text_document(part: Media) -> str | None:
    """Return the text of a plain-text document, or None for other media and for bytes that are not UTF-8 text."""
    if part.form == "text":
        return part.source
    if part.form != "base64" or part.kind != "document":
        return None
    mime = part.mime.partition(";")[0].lower()
    if not _TEXT_MIME_TYPE.fullmatch(mime):
        return None
    try:
        words = b64decode(part.source).decode()
    except ValueError:
        return None
    # A zero byte is valid UTF-8, but a file with one is binary whatever its type says.
    return None if "\0" in words else words


def format_text_document(part: Media) -> str | None:
    """Return the text of a plain-text document under its name, or None for other media."""
    words = decode_text_document(part)
    return None if words is None else add_document_title(part.name, words)


def add_document_title(name: str, words: str) -> str:
    """Return ``words`` under the name of their document, if it has one."""
    return f"[{name}]\n{words}" if name else words


def encode_media_base64(part: Media) -> str:
    """Return the content of ``part`` as base64; empty for media that only refer to their content by address or id."""
    if part.form == "text":
        # A lone surrogate cannot be encoded; a question mark in its place loses nothing that could be sent.
        return b64encode(part.source.encode("utf-8", "replace")).decode()
    return part.source if part.form == "base64" else ""


def build_data_url(part: Media) -> str:
    """Return the content of ``part`` as a data URL; empty for media that only refer to their content."""
    data = encode_media_base64(part)
    return f"data:{part.mime};base64,{data}" if data else ""
