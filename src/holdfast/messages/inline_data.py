"""What inline media really are: the type that their first bytes tell, and whether their base64 can be decoded.

Declared types are often wrong: taken from a file's name, or copied from a server that answered with an error page.
Only what is certain is reported: bytes without a known signature count as what they are declared to be.
"""

from __future__ import annotations

import binascii
import re
from typing import Literal, TypeAlias

from msgspec import Struct

from holdfast.messages.text.memo import cache_by_text

Base64Problem: TypeAlias = Literal["", "empty", "data_url", "white_space", "url_alphabet", "padding", "characters"]
"""What is wrong with base64 data; ``empty`` and ``characters`` cannot be corrected."""

_PROBE_CHARS = 2_048
"""Characters of base64 that are decoded to tell the type: a PDF's signature may follow up to 1,024 other bytes."""
_MIN_TEXT_BYTES = 16
"""Fewer readable bytes prove nothing: any few bytes can happen to be letters."""
_STANDARD_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_WHITE_SPACE = re.compile(r"[ \t\r\n\f\v]+")
_DATA_URL_PREFIX = re.compile(r"\s*data:[^,]{0,200};base64,", re.IGNORECASE)

_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
    (b"%PDF-", "application/pdf"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"\xff\xf3", "audio/mpeg"),
    (b"\xff\xf2", "audio/mpeg"),
    (b"fLaC", "audio/flac"),
    (b"OggS", "audio/ogg"),
)
_SIGNATURES_OF_LETTERS = frozenset({b"GIF87a", b"GIF89a", b"ID3", b"fLaC", b"OggS"})
"""Signatures with which a text may begin too."""
_RIFF_TYPES = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
_ISO_BRANDS = {
    b"heic": "image/heic",
    b"heix": "image/heic",
    b"hevc": "image/heic",
    b"heim": "image/heic",
    b"mif1": "image/heif",
    b"msf1": "image/heif",
    b"avif": "image/avif",
    b"avis": "image/avif",
}
"""Brands of image files in the ISO container. Others are videos and sound, which share their brands."""
_MIME_ALIASES = {
    "image/jpg": "image/jpeg",
    "image/pjpeg": "image/jpeg",
    "image/x-png": "image/png",
    "image/x-ms-bmp": "image/bmp",
    "image/x-bmp": "image/bmp",
    "image/tif": "image/tiff",
    "image/svg": "image/svg+xml",
    "image/heif-sequence": "image/heif",
    "image/heic-sequence": "image/heic",
    "application/x-pdf": "application/pdf",
    "audio/mp3": "audio/mpeg",
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/x-flac": "audio/flac",
}
"""Names for the same type. ``image/jpg`` is common, and refused by APIs that want ``image/jpeg``."""
_TYPE_NAMES = {
    "text/html": "an HTML page",
    "text/plain": "plain text",
    "application/json": "JSON",
    "image/svg+xml": "an SVG drawing",
    "application/xml": "XML",
}
_TEXT_TYPES = frozenset(_TYPE_NAMES)
_UNCOMMON_IMAGES = frozenset(
    {"image/bmp", "image/tiff", "image/svg+xml", "image/avif", "image/heic", "image/heif", "image/x-icon"}
)
"""Images that most APIs refuse by their declared type alone."""
_SAME_CONTAINER = frozenset({"image/heic", "image/heif", "image/avif"})
"""Types with one container, whose brands writers use loosely."""


class InlineData(Struct, frozen=True, gc=False):
    """Base64 data, checked: what is wrong with them, the same data corrected, and the type of their bytes."""

    problem: Base64Problem
    data: str
    """The data as they should be sent, the same object if nothing is wrong; empty if they cannot be decoded."""
    mime: str
    """The type that the first bytes tell; empty if they tell none."""


def _estimate_result_bytes(result: InlineData) -> int:
    # Sound data are the same object as the text that is cached with the result, so only a corrected copy counts.
    return len(result.data) if result.problem else 0


@cache_by_text(_estimate_result_bytes)
def inspect_base64(data: str) -> InlineData:
    """Check base64 data and detect the type of their bytes. Only the beginning is decoded.

    A plan, the normalization and the validator each ask about the same data, so results are cached.
    """
    problem, clean_data = _correct_base64(data)
    return InlineData(problem, clean_data, detect_media_type(decode_base64_head(clean_data)))


def decode_base64_head(data: str) -> bytes:
    """Return the first bytes of valid base64 data; empty for data that cannot be decoded."""
    head = data[:_PROBE_CHARS]
    try:
        return binascii.a2b_base64(head[: len(head) // 4 * 4])
    except (binascii.Error, ValueError):
        return b""


def has_only_base64_chars(data: str) -> bool:
    """Return whether ``data`` has only characters of standard base64, with ``=`` only at its end."""
    # Deleting the alphabet takes about a millisecond a megabyte, a regular expression ten times as long.
    return data.isascii() and not data.rstrip("=").encode().translate(None, _STANDARD_ALPHABET)


def _correct_base64(data: str) -> tuple[Base64Problem, str]:
    """Return the first problem of ``data`` and the corrected data, empty if they cannot be corrected."""
    if has_only_base64_chars(data) and len(data) % 4 == 0 and not data.endswith("==="):
        return ("", data) if data.strip("=") else ("empty", "")
    problem: Base64Problem = ""
    prefix = _DATA_URL_PREFIX.match(data)
    if prefix is not None:
        problem = "data_url"
        data = data[prefix.end() :]
    compact = _WHITE_SPACE.sub("", data)
    if compact != data:
        problem = problem or "white_space"
    if not compact.strip("="):
        return "empty", ""
    standard = compact.replace("-", "+").replace("_", "/")
    if standard != compact:
        problem = problem or "url_alphabet"
    body = standard.rstrip("=")
    # Base64 has groups of four characters; a single one left over holds less than a byte.
    if not has_only_base64_chars(body) or len(body) % 4 == 1:
        return "characters", ""
    padded = body + "=" * (-len(body) % 4)
    if padded != standard:
        problem = problem or "padding"
    return problem, padded


def detect_media_type(head: bytes) -> str:
    """Return the MIME type of the file that begins with ``head``; empty if it has no known signature."""
    for signature, mime in _SIGNATURES:
        if head.startswith(signature) and not _is_only_text(head, signature):
            return mime
    if head.startswith(b"RIFF"):
        return _RIFF_TYPES.get(head[8:12], "")
    if head[4:8] == b"ftyp":
        return _ISO_BRANDS.get(head[8:12], "")
    if _is_bitmap(head):
        return "image/bmp"
    # A PDF may have some bytes before its signature; a text that only names it is no PDF.
    if b"%PDF-" in head[:1_024] and _decode_text_head(head) is None:
        return "application/pdf"
    return _detect_text_type(head)


def _is_only_text(head: bytes, signature: bytes) -> bool:
    """Return whether ``head`` is a readable text that begins like a file of another kind ("ID3,name,size").

    Real files of these kinds have a byte that no text has soon after their signature. A PDF may be readable for long.
    """
    return signature in _SIGNATURES_OF_LETTERS and len(head) > len(signature) and _decode_text_head(head) is not None


def _is_bitmap(head: bytes) -> bool:
    # "BM" alone also begins words. The two reserved numbers are zero, and the header that follows has a known size.
    return head.startswith(b"BM") and head[6:10] == b"\0\0\0\0" and head[14:18] in _BITMAP_HEADER_SIZES


_BITMAP_HEADER_SIZES = frozenset([size.to_bytes(4, "little") for size in (12, 40, 52, 56, 64, 108, 124)])


def _detect_text_type(head: bytes) -> str:
    """Return the type of a readable text, or an empty string for binary data and for too few bytes."""
    text = _decode_text_head(head)
    if len(head) < _MIN_TEXT_BYTES or text is None:
        return ""
    start = text.lstrip("\ufeff \t\r\n").lower()
    if start.startswith(("<!doctype html", "<html", "<head", "<body")):
        return "text/html"
    if start.startswith("<svg") or (start.startswith(("<?xml", "<!--", "<!doctype svg")) and "<svg" in start):
        return "image/svg+xml"
    if start.startswith("<?xml"):
        return "application/xml"
    return "application/json" if start.startswith(('{"', "[{")) else "text/plain"


def _decode_text_head(head: bytes) -> str | None:
    """Return the beginning of a text, or None if ``head`` is not readable UTF-8."""
    # The probe may end inside a character of up to four bytes.
    for cut in range(4):
        try:
            text = head[: len(head) - cut].decode()
        except UnicodeDecodeError:
            continue
        has_controls = any(char < " " and char not in "\t\r\n\f\x1b" for char in text) or "\x7f" in text
        return None if has_controls else text
    return None


def normalize_mime_type(mime: str) -> str:
    """Return a declared type in the spelling that APIs ask for: lower case, without parameters, its usual name."""
    name = mime.partition(";")[0].strip().lower()
    return _MIME_ALIASES.get(name, name)


def is_unregistered_image_type(mime: str) -> bool:
    """Return whether an image's type has a name that is in use, but not the registered one: ``image/jpg``."""
    name = mime.partition(";")[0].strip().lower()
    return name.startswith("image/") and name in _MIME_ALIASES


def choose_image_type(found: str, declared: str) -> str:
    """Return the type by which an API judges an image: that of its bytes, or the declared one if they tell none.

    Empty if it is no image, or declared as one of no known type.
    """
    if found:
        return found if found.startswith("image/") else ""
    return declared if declared in _UNCOMMON_IMAGES else ""


def contradicts_declared_type(found: str, declared: str) -> bool:
    """Return whether bytes of the type ``found`` cannot be what a normalized type ``declared`` says."""
    if not found or found == declared:
        return False
    if {found, declared} <= _SAME_CONTAINER:
        return False
    declared_class = declared.partition("/")[0]
    if found in _TEXT_TYPES:
        # Text may be declared as any type of text, or as a type of an application that is written as text.
        is_binary_type = declared_class in ("image", "audio", "video") or declared == "application/pdf"
        return is_binary_type and not (declared == "image/svg+xml" and found in ("application/xml", "text/plain"))
    if found == "application/pdf" and declared_class == "text":
        return False  # a text may begin so, and a PDF may be readable for long
    # An Ogg file declared as a video, a PDF as some document: only what is certain counts.
    if found == "audio/ogg":
        return declared_class == "image" or declared == "application/pdf"
    if found == "audio/mpeg" and declared_class == "video":
        return False
    return declared_class in ("image", "audio", "video", "text", "") or declared in (
        "application/pdf",
        "application/octet-stream",
    )


def describe_media_type(mime: str) -> str:
    """Return a type in words for people: "HTML page" rather than its MIME type."""
    return _TYPE_NAMES.get(mime, mime)
