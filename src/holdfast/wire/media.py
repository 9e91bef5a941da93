"""What media hold, in the form an API asks for: words, or bytes in base64."""

from __future__ import annotations

from base64 import b64decode, b64encode

from holdfast.model.parts import Media

_WEB = ("https://", "http://")


def is_web(part: Media) -> bool:
    """Return whether ``part`` stands at an address that anybody may read."""
    return part.form == "url" and part.source.startswith(_WEB)


def words_of(part: Media) -> str | None:
    """Return what a document of plain text says; nothing for other media, and for bytes that are no UTF-8."""
    if part.form == "text":
        return part.source
    if part.form != "base64" or part.kind != "document" or not part.mime.startswith("text/"):
        return None
    try:
        return b64decode(part.source).decode()
    except ValueError:
        return None


def told(part: Media) -> str | None:
    """Return the words of a document under its name, where OpenAI has them as text; a named file stays a file."""
    if part.form != "text" and part.name:
        return None
    words = words_of(part)
    return f"[{part.name}]\n{words}" if words is not None and part.name else words


def packed(part: Media) -> str:
    """Return the base64 of what ``part`` holds itself; nothing when it only names where that is."""
    if part.form == "text":
        return b64encode(part.source.encode("utf-8", "replace")).decode()
    return part.source if part.form == "base64" else ""


def data_url(part: Media) -> str:
    """Return what ``part`` holds itself as a data URL; nothing when it only names where that is."""
    data = packed(part)
    return f"data:{part.mime};base64,{data}" if data else ""
