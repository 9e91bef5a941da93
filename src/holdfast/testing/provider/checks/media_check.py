"""Decode inline media as a provider does, and refuse those that are not what the request declares.

The detection is independent of ``messages/inline_data.py``: what one of them gets wrong, the other shows. Bytes without
any known signature pass, as tests send short stand-ins for pictures.

Wordings: Anthropic's from llxprt-code#2130 (2026-06), claude-code#5174 (2025-08), claude-code#60920 (2026-05); OpenAI's
from acoyfellow/my-ax#67 (2026-08); Gemini's from gemini-cli#27244 (2026-05) and comic-translate#399 (2026-01). That of
Anthropic about broken base64 is not from a report.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from holdfast.testing.provider.calls import RefusalReply

_IMAGES = {
    "anthropic": {"jpeg", "png", "gif", "webp"},
    "openai-chat": {"jpeg", "png", "gif", "webp"},
    "openai-responses": {"jpeg", "png", "gif", "webp"},
    "gemini": {"jpeg", "png", "gif", "webp", "heic", "heif"},
}
"""Formats of images by API."""
_READABLE_BYTES = 16
"""Bytes from which readable text counts as text and not as a stand-in for a picture."""


class InlineMedium(Struct, frozen=True):
    """One inline medium of a request: its path in the API's notation, declared type, and base64."""

    path: str
    mime: str
    data: str


def check_inline_media(
    api: str, body: Mapping[str, Any], refused_data: tuple[str, ...] = (), *, ignores_declared_type: bool = False
) -> RefusalReply | None:
    """Return the refusal of the first inline medium that cannot be shown to the model, or None.

    Data that begin with one of ``refused_data`` are refused although they look fine, as for a damaged file.
    With ``ignores_declared_type`` an image may be declared as another kind that is taken.
    """
    for medium in iter_inline_media(api, body):
        if not medium.data:
            continue
        if medium.data.startswith(refused_data or ("\0",)):
            return _refuse_unreadable(api, medium)
        refusal = _check_medium(api, medium, ignores_declared_type=ignores_declared_type)
        if refusal is not None:
            return refusal
    return None


def iter_inline_media(api: str, body: Mapping[str, Any]) -> Iterator[InlineMedium]:
    """Yield the inline media of a request, in order."""
    field = {"gemini": "contents", "openai-responses": "input"}.get(api, "messages")
    yield from _walk(body.get(field), field)


def _walk(value: object, path: str) -> Iterator[InlineMedium]:
    if isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _walk(inner, f"{path}.{index}")
    if not isinstance(value, dict):
        return
    if value.get("type") == "tool_result":
        yield from _walk(value.get("content"), f"{path}.tool_result.content")
        return
    yield from _read_source(value, path)
    yield from _read_data_urls(value, path)
    blob = value.get("inlineData", value.get("inline_data"))
    if isinstance(blob, dict):
        mime = str(blob.get("mimeType", blob.get("mime_type", "")))
        data = str(blob.get("data", "")).replace("-", "+").replace("_", "/")
        yield InlineMedium(path, mime, data + "=" * (-len(data) % 4))
    for key in ("content", "output", "parts", "functionResponse", "function_response"):
        yield from _walk(value.get(key), f"{path}.{key}")


def _read_source(block: Mapping[str, Any], path: str) -> Iterator[InlineMedium]:
    source = block.get("source")
    if block.get("type") in ("image", "document") and isinstance(source, dict) and source.get("type") == "base64":
        name = "pdf" if block["type"] == "document" else "image"
        yield InlineMedium(f"{path}.{name}.source.base64", str(source.get("media_type")), str(source.get("data", "")))


def _read_data_urls(part: Mapping[str, Any], path: str) -> Iterator[InlineMedium]:
    for holder, key in ((part.get("image_url"), "url"), (part.get("file"), "file_data")):
        if isinstance(holder, dict):
            yield from _read_data_url(holder.get(key), path)
    for key in ("image_url", "file_data"):
        yield from _read_data_url(part.get(key), f"{path}.{key}")


def _read_data_url(url: object, path: str) -> Iterator[InlineMedium]:
    if isinstance(url, str) and urlsplit(url[:200]).scheme == "data" and ";base64," in url[:200]:
        head, _, data = url.partition(";base64,")
        yield InlineMedium(path, head[len("data:") :], data)


def _check_medium(api: str, medium: InlineMedium, *, ignores_declared_type: bool) -> RefusalReply | None:
    try:
        content = base64.b64decode(medium.data, validate=True)
    except ValueError:
        return _refuse_base64(api, medium)
    declared = medium.mime.partition(";")[0].strip().lower()
    if declared.startswith("image/"):
        found = _identify_format(content) if ignores_declared_type else ""
        return _check_image(api, medium, found or declared.removeprefix("image/"), content)
    if declared == "application/pdf" and _identify_format(content) not in ("", "pdf"):
        return _refuse_unreadable(api, medium)
    return None


def _check_image(api: str, medium: InlineMedium, declared: str, content: bytes) -> RefusalReply | None:
    found = _identify_format(content)
    if api == "gemini" and declared in ("jpg", "tif", "bmp", "svg"):
        return RefusalReply(400, "INVALID_ARGUMENT", f"Unsupported MIME type: image/{declared}")
    if not found:
        return None
    if found not in _IMAGES[api]:
        return _refuse_unreadable(api, medium)
    is_same = found == declared or {found, declared} in ({"heic", "heif"}, {"jpeg", "jpg"})
    if is_same:
        return None
    if api == "anthropic":
        words = f"specified using the {medium.mime} media type, but the image appears to be a image/{found} image"
        return RefusalReply(400, "invalid_request_error", f"{medium.path}: The image was {words}")
    return _refuse_unreadable(api, medium)


_HEADERS: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x89PNG", "png"), (0, b"GIF8", "gif"), (8, b"WEBP", "webp"), (0, b"\xff\xd8", "jpeg"), (8, b"WAVE", "wav"),
    (0, b"II*\0", "tiff"), (0, b"MM\0*", "tiff"), (0, b"OggS", "ogg"), (0, b"%PDF", "pdf"), (0, b"ID3", "mp3"),
    (0, b"\xff\xfb", "mp3"), (0, b"\xff\xf3", "mp3"), (4, b"ftypheic", "heic"), (4, b"ftypmif1", "heif"),
    (4, b"ftypavif", "avif"),
)  # fmt: skip
"""Formats by the bytes at a place of their header."""


def _identify_format(content: bytes) -> str:
    """Return the format of a file by its header: of an image, ``pdf``, ``text``, or "" if it is not known."""
    for start, header, name in _HEADERS:
        if content.startswith(header, start):
            return name
    if content.startswith(b"BM") and content[6:10] == bytes(4):
        return "bmp"
    is_readable = len(content) >= _READABLE_BYTES and all(32 <= byte < 127 or byte in b"\t\r\n" for byte in content)
    return "text" if is_readable else ""


def _refuse_unreadable(api: str, medium: InlineMedium) -> RefusalReply:
    """Return the refusal of a medium that cannot be read; some APIs do not say which."""
    if api == "anthropic" and ".pdf." in medium.path:
        words = f"{medium.path}.data: The PDF specified was not valid."
        return RefusalReply(400, "invalid_request_error", words)
    if api == "anthropic":
        return RefusalReply(400, "invalid_request_error", "Could not process image")
    if api == "gemini":
        return RefusalReply(400, "INVALID_ARGUMENT", "Provided image is not valid.")
    formats = "['image/jpeg', 'image/png', 'image/gif', 'image/webp']"
    words = "The image data you provided does not represent a valid image. Please check your input and try again with"
    return RefusalReply(400, "invalid_value", f"{words} one of the supported image formats: {formats}.")


def _refuse_base64(api: str, medium: InlineMedium) -> RefusalReply:
    if api == "anthropic":
        return RefusalReply(400, "invalid_request_error", f"{medium.path}: invalid base64 data")
    if api == "gemini":
        words = f"Invalid value at '{medium.path}.inline_data.data' (TYPE_BYTES), Base64 decoding failed"
        return RefusalReply(400, "INVALID_ARGUMENT", words)
    return RefusalReply(400, "invalid_value", f"Invalid '{medium.path}'. Expected a base64-encoded data URL.")
