"""Correct inline media that are not what they are declared to be, or replace them by a line.

The correction depends on the part alone, so it is the same in every request, and it keeps all other bytes of the part:
fields such as ``cache_control`` and ``detail`` stay as the client wrote them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Raw
from msgspec.structs import replace

from holdfast.messages.inline_data import (
    InlineData,
    choose_image_type,
    contradicts_declared_type,
    describe_media_type,
    inspect_base64,
    is_unregistered_image_type,
    normalize_mime_type,
)
from holdfast.messages.parts import Media, Opaque, Text, ToolResult
from holdfast.state.dialect import Dialect

MEDIA_BYTES_RULE = "media-bytes"
"""Rule of the notice about media that were corrected or replaced for what their bytes are."""
_UNREADABLE = {
    "empty": "it has no data",
    "characters": "its data are no base64",
}


def correct_media(media: Media, dialect: Dialect) -> Media | Text:
    """Return inline media as the API takes them: the same object, a corrected one, or a line in their place.

    Media that are fetched from elsewhere, and bytes without a known signature, are left alone.
    """
    if media.form != "base64" or not media.source:
        return media
    facts = inspect_base64(media.source)
    if not facts.data:
        return Text(_format_left_out(media, _UNREADABLE[facts.problem]))
    declared = normalize_mime_type(media.mime)
    is_wrong_type = contradicts_declared_type(facts.mime, declared)
    if not _is_accepted_type(facts.mime, declared, dialect, is_wrong_type=is_wrong_type):
        if is_wrong_type:
            return Text(_format_left_out(media, f"but the bytes are {describe_media_type(facts.mime)}"))
        return Text(_format_left_out(media, "a type that is not accepted here"))
    mime = media.mime
    if is_wrong_type and not dialect.tells_media_from_bytes:
        mime = facts.mime
    elif dialect.needs_registered_image_types and is_unregistered_image_type(media.mime):
        mime = declared
    kind = _get_media_kind(mime, media.kind) if is_wrong_type else media.kind
    has_same_data = facts.data == media.source or _is_tolerated_base64(facts, dialect)
    if has_same_data and mime == media.mime and kind == media.kind:
        return media
    raw = None
    if media.raw is not None and kind == media.kind:
        raw = rewrite_media_raw(media.raw, media, mime, facts.data)
    return replace(media, kind=kind, mime=mime, source=facts.data, raw=raw)


def explain_media_correction(media: Media, dialect: Dialect) -> str:
    """Return in one line what ``correct_media`` does to ``media``; empty if it leaves them alone."""
    corrected = correct_media(media, dialect)
    if corrected is media:
        return ""
    if isinstance(corrected, Text):
        return f"a line stands for media: {corrected.text}"
    if corrected.mime != media.mime:
        declared = media.mime or "without a type"
        return f"declared {declared}, but the bytes are {corrected.mime}: the type is corrected"
    return "the base64 of media is corrected"


def _is_accepted_type(found: str, declared: str, dialect: Dialect, *, is_wrong_type: bool) -> bool:
    """Return whether the API takes inline bytes of the type ``found``; an unknown type counts as accepted."""
    image_type = choose_image_type(found, declared)
    if image_type:
        accepted_images = dialect.image_types or dialect.media_types
        return not accepted_images or image_type in accepted_images
    if not is_wrong_type:
        return True
    if found == "application/pdf":
        # A server of which not even the images are known may read no PDF.
        return found in dialect.media_types or bool(dialect.image_types)
    if found.startswith("audio/"):
        return not dialect.media_types or found in dialect.media_types
    return False


def _get_media_kind(mime: str, declared_kind: str) -> str:
    """Return the kind of media that a type belongs to."""
    mime_class = mime.partition("/")[0]
    if mime_class in ("image", "audio"):
        return mime_class
    return "document" if mime == "application/pdf" else declared_kind


def _is_tolerated_base64(facts: InlineData, dialect: Dialect) -> bool:
    return dialect.takes_url_base64 and facts.problem in ("url_alphabet", "padding")


def _format_left_out(media: Media, why: str) -> str:
    """Return the line that stands for media which cannot be sent, with their name and the declared type."""
    name = f" {media.name}" if media.name else ""
    return f"[{media.kind or 'file'}{name} left out: declared {media.mime or 'without a type'}, {why}]"


def rewrite_media_raw(raw: Raw, media: Media, mime: str, data: str) -> Raw | None:
    """Return a part's JSON with another type and other data; None if they cannot be found in it without doubt."""
    old_json = bytes(raw)
    old_data = media.source.encode()
    start = old_json.find(old_data)
    if start < 0 or not media.mime:
        return None
    before, after = old_json[:start], old_json[start + len(old_data) :]
    if mime != media.mime:
        # As a JSON string of its own, or at the head of a data URL; a slash may be escaped.
        escaped_mime = re.escape(media.mime.encode()).replace(b"/", rb"\\?/")
        pattern = re.compile(rb'(?<=["]|:)' + escaped_mime + rb'(?=["]|;)')
        if len(pattern.findall(before)) + len(pattern.findall(after)) != 1:
            return None
        before, after = (pattern.sub(mime.encode(), piece) for piece in (before, after))
    return Raw(b"%b%b%b" % (before, data.encode(), after))


def rewrite_result_raw(result: ToolResult, content: Sequence[Text | Media | Opaque | None]) -> Raw | None:
    """Return the JSON of a result with ``content`` in place of its own; None unless only media in it were corrected."""
    if result.raw is None:
        return None
    result_json = bytes(result.raw)
    for old_part, new_part in zip(result.content, content, strict=True):
        if new_part is old_part:
            continue
        is_corrected = isinstance(old_part, Media) and isinstance(new_part, Media)
        if not is_corrected or old_part.raw is None or new_part is None or new_part.raw is None:
            return None
        old_json = bytes(old_part.raw)
        if old_json not in result_json:
            return None
        result_json = result_json.replace(old_json, bytes(new_part.raw))
    return Raw(result_json)
