"""Find the one image or document that a refusal is about: by the path or the address that it names.

Sources of the wordings: "messages.83.content.0.tool_result.content.1.image.source.base64: The image was specified …"
(llxprt-code#2130, 2026-06), "Could not process image" (claude-code#60920, 2026-05), "Could not process PDF"
(anthropic-sdk-python#903, 2025-03), "messages.2.content.0.pdf.source.base64.data: The PDF specified was not valid."
(claude-code#5174, 2025-08), "The image data you provided does not represent a valid image" (acoyfellow/my-ax#67,
2026-08), "You uploaded an unsupported image" (gptpdf#6, 2024-06), "Provided image is not valid" (gemini-cli#27244,
2026-05), "Unable to process input image" (pollinations#4157, 2025-09), "unsupported image format: text/plain" (Kimi).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.providers.errors.error_facts import collect_error_facts
from holdfast.providers.errors.report import ErrorReport
from holdfast.state.codec.reading import get_decoder

_POSSIBLE_KINDS = frozenset({"media", "invalid_request", "invalid_history", "unknown", "oversized_part"})
"""Verdicts on refusals that may be about one medium."""
_REQUEST_STATUSES = frozenset({400, 413, 415, 422})
_MEDIUM = r"(?:images?|pdfs?|documents?|files?|pictures?|photos?|audio|videos?|media)"
_UNUSABLE = (
    r"(?:not valid|invalid|not a valid|does not match|not match|appears? to be|cannot be empty|is empty|corrupt\w*"
    r"|unsupported|not supported|could not|cannot|can not|unable to|failed|password|encrypted|not accessible"
    r"|does not represent|not recogni[sz]ed|truncated|unreadable|not an image)"
)
_ONE_MEDIUM_WORDING = re.compile(
    rf"\b{_MEDIUM}\b[^\n]{{0,60}}\b{_UNUSABLE}"
    rf"|\b(?:{_UNUSABLE}|error while|timeout while|invalid base64)\b[^\n]{{0,60}}"
    rf"\b(?:{_MEDIUM}|image_url|download\w*|fetch\w*)\b"
    r"|error while downloading|timeout while downloading|unsupported mime type|image[ _]parse[ _]error"
    r"|base64 (?:data|decod\w+|string)?[^\n]{0,30}\b(?:invalid|failed|incorrect)"
)
"""Wordings about a medium that cannot be read, whichever it is."""
_OTHER_REMEDY = re.compile(
    r"too many|number of (?:images|documents|pages)|many-image|(?:at most|up to) \d+ (?:images|documents)"
    r"|(?:model|endpoints?|server|provider)\b[^\n]{0,60}\bsupports? (?:images?|vision|multimodal|pdf|audio|video|media)"
    r"|(?:images?|vision|image input|multimodal)(?: inputs?)? (?:is|are) not supported (?:by|for|on|with)"
    r"|only supported by certain models|not a multimodal model|does not support (?:images?|image input|vision)"
)
"""Wordings about all media: their number, or a model that takes none. One less would not help."""
_PATH = re.compile(r"\b(?:messages|input|contents)(?:(?:\.|\[)[\w-]+\]?)+")
_PATH_STEP = re.compile(r"[\w-]+")
_MEDIA_STEPS = frozenset(
    {"image", "images", "image_url", "pdf", "document", "file", "file_data", "file_url", "inline_data", "inlinedata",
     "filedata", "source", "base64", "data", "url", "media_type", "mime_type", "mimetype", "input_image",
     "input_file", "input_audio", "audio", "video", "video_url"}
)  # fmt: skip
"""Last steps of a path that make an error one about a medium, whatever it says."""
_PARAM = re.compile(r'"param"\s*:\s*"([^"\\]{1,200})"')
_ADDRESS = re.compile(r"https?://[^\s\"'<>\\]{1,2000}")
_CONTENT_FIELDS = ("data", "url", "image_url", "file_data", "file_url", "fileuri", "file_uri", "file_id")
_TYPE_FIELDS = frozenset({"mimeType", "mime_type", "media_type", "format"})
_MAX_DEPTH = 12


def find_refused_media(report: ErrorReport, kind: str, body: bytes) -> tuple[str, ...] | None:
    """Return the sources (base64, address or file id) of the media in ``body`` that ``report`` refuses.

    The tuple is empty if the error is about one medium but does not say which. Return None if it is about something
    else, or about all media: their number, or a model that takes none.
    """
    if kind not in _POSSIBLE_KINDS or (report.status is not None and report.status not in _REQUEST_STATUSES):
        return None
    listed_sources = _find_listed_sources(report, body)
    if listed_sources:
        return listed_sources
    texts = collect_error_facts(report).raw_text
    if _OTHER_REMEDY.search(texts):
        return None
    is_about_one = _ONE_MEDIUM_WORDING.search(texts) is not None
    paths = [match[0] for match in _PATH.finditer(texts)] + [
        path.lower() for path in _PARAM.findall(_read_body(report))
    ]
    has_media_path = any(_PATH_STEP.findall(path)[-1] in _MEDIA_STEPS for path in paths)
    if not is_about_one and not has_media_path:
        return None
    try:
        request = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    all_sources = list(_iter_sources(request, _MAX_DEPTH))
    if not all_sources:
        return None
    for path in paths:
        sources = tuple(_iter_sources(_resolve_path(request, path), _MAX_DEPTH))
        if sources:
            return sources
    addresses = {address.rstrip(".,;:)") for address in _ADDRESS.findall(texts)}
    named_sources = tuple([source for source in all_sources if source.lower() in addresses])
    if not named_sources and not is_about_one:
        return None
    return named_sources


def _find_listed_sources(report: ErrorReport, body: bytes) -> tuple[str, ...]:
    """Return the sources of all media that the details of an error list, none without such a list.

    Anthropic's ``image_dimensions_too_large`` has the ``paths`` of every image over the limit (SDK 2.14 types).
    """
    text = _read_body(report)
    if '"paths"' not in text:
        return ()
    try:
        error = get_decoder(_ListingError).decode(text).error
        request = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return ()
    sources: dict[str, None] = {}
    for path in error.details.paths:
        sources |= dict.fromkeys(_iter_sources(_resolve_path(request, path), _MAX_DEPTH))
    return tuple(sources)


class _ErrorDetails(Struct, frozen=True):
    paths: tuple[str, ...] = ()


class _DetailedError(Struct, frozen=True):
    details: _ErrorDetails = _ErrorDetails()


class _ListingError(Struct, frozen=True):
    """An error with the paths of all media that it is about."""

    error: _DetailedError = _DetailedError()


def _read_body(report: ErrorReport) -> str:
    if isinstance(report.body, bytes):
        return report.body.decode("utf-8", "replace")[:20_000]
    if isinstance(report.body, str):
        return report.body[:20_000]
    try:
        return msgspec.json.encode(report.body).decode()[:20_000]
    except (msgspec.EncodeError, TypeError, ValueError, RecursionError):
        return ""


def _resolve_path(request: object, path: str) -> object:
    """Return the value at ``path``, as deep as its steps can be followed inside the list of messages.

    Steps that only tell a type (``tool_result``, ``image``, ``base64``) have no value of their own and are skipped.
    """
    value = request
    has_index = False
    for step in _PATH_STEP.findall(path):
        if step.isdecimal():
            if not isinstance(value, list) or int(step) >= len(value):
                continue
            value = value[int(step)]
            has_index = True
        elif isinstance(value, dict):
            inner = _get_field(value, step)
            # A plain string is the content itself; the object around it is what can be told from others.
            if isinstance(inner, dict | list):
                value = inner
    return value if has_index else None


def _get_field(value: Mapping[str, Any], step: str) -> Any:
    """Return a field under its name in either spelling, whatever the case."""
    wanted = step.replace("_", "").lower()
    for name, inner in value.items():
        if name.replace("_", "").lower() == wanted:
            return inner
    return None


def _iter_sources(value: object, depth: int) -> Iterator[str]:
    """Yield the content of each medium inside ``value``: base64, an address, or a file id."""
    if depth <= 0:
        return
    if isinstance(value, list):
        for inner in value:
            yield from _iter_sources(inner, depth - 1)
    if not isinstance(value, dict):
        return
    if value.get("type") == "tool_use" or "functionCall" in value or "function_call" in value:
        return
    is_media_holder = any(
        name in value for name in ("mimeType", "mime_type", "media_type", "format", "fileUri", "file_uri")
    )
    for name, inner in value.items():
        if isinstance(inner, dict | list):
            yield from _iter_sources(inner, depth - 1)
        elif isinstance(inner, str) and inner and name.lower() in _CONTENT_FIELDS:
            if name == "data" and not is_media_holder:
                continue
            yield inner.partition(";base64,")[2] or inner
