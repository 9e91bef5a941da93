"""What of a piece of a request the model reads: its words, and the media that are counted flat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.testing.provider.signatures.opaque_texts import open_provider_signature

IMAGE_TOKENS = {"anthropic": 1_600, "gemini": 258}
"""Tokens of any image: Claude's largest (width x height / 750, cut at 1,600), one tile of Gemini."""
_DEFAULT_IMAGE_TOKENS = 765
"""Tokens of an image of OpenAI: 1,024 x 1,024 in high detail."""
DOCUMENT_TOKENS = 2_000
"""Tokens of any document or sound, about a page and its picture."""
_IMAGE_TYPES = frozenset({"image", "image_url", "input_image", "computer_screenshot"})
_DOCUMENT_TYPES = frozenset({"document", "file", "input_file", "input_audio"})
_BLOB_FIELDS = ("inlineData", "inline_data", "fileData", "file_data")
_UNREAD_FIELDS = frozenset(
    {"type", "role", "id", "call_id", "tool_use_id", "tool_call_id", "signature", "thoughtSignature", "cache_control",
     "thought_signature", "status", "annotations", "logprobs", "is_error", "strict", "data", "thought", "phase",
     "media_type"}
)  # fmt: skip
"""Fields that are no words for the model; ``data`` is what is redacted, unless it is the text of a document."""
_JSON_FIELDS = frozenset({"input", "args", "arguments", "response", "parameters", "input_schema", "schema"})
"""Fields that the model reads as JSON."""
_SEAL_KINDS = ("reasoning", "compaction")


class Rendering(Struct, frozen=True):
    """What the model reads of one piece."""

    text: str
    media: int = 0
    """Tokens of its images and documents."""


def render_block(value: object, api: str) -> Rendering:
    """Return the words and the media of ``value``, a piece of a body of ``api``."""
    words: list[str] = []
    media = 0
    for piece in _iterate_words_and_media(value, api):
        if isinstance(piece, int):
            media += piece
        else:
            words.append(piece)
    return Rendering("\n".join(words), media)


def _iterate_words_and_media(value: object, api: str) -> Iterator[str | int]:
    """Yield texts, and numbers for tokens of media."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _iterate_words_and_media(item, api)
    elif isinstance(value, dict):
        flat = _get_media_tokens(value, api)
        if flat is None:
            yield from _iterate_field_words(value, api)
        else:
            yield flat
    elif value is not None:
        yield msgspec.json.encode(value).decode()


def _iterate_field_words(value: dict[str, Any], api: str) -> Iterator[str | int]:
    for key, inner in value.items():
        if key == "encrypted_content":
            yield from _iterate_sealed_words(inner)
        elif key == "summary" and value.get("encrypted_content"):
            continue
        elif key in _JSON_FIELDS and not isinstance(inner, str | list):
            yield msgspec.json.encode(inner).decode()
        elif key not in _UNREAD_FIELDS or (key == "data" and value.get("type") == "text"):
            yield from _iterate_words_and_media(inner, api)


def _iterate_sealed_words(content: object) -> Iterator[str]:
    """Yield the words inside a seal of ours: the reasoning (not its summary beside it) or a compaction."""
    for kind in _SEAL_KINDS:
        about = open_provider_signature(content, kind)
        if about is not None:
            yield about.get("words", "")


def _get_media_tokens(value: dict[str, Any], api: str) -> int | None:
    """Return the tokens of an image, a document or a sound, nothing for other things."""
    kind = value.get("type")
    blob = next((value[key] for key in _BLOB_FIELDS if isinstance(value.get(key), dict)), None)
    source = value.get("source")
    if kind == "document" and isinstance(source, dict) and source.get("type") in ("text", "content"):
        return None
    mime = str(blob.get("mimeType", blob.get("mime_type"))) if isinstance(blob, dict) else ""
    if (isinstance(kind, str) and kind in _IMAGE_TYPES) or mime.startswith("image/"):
        return IMAGE_TOKENS.get(api, _DEFAULT_IMAGE_TOKENS)
    return DOCUMENT_TOKENS if mime or (isinstance(kind, str) and kind in _DOCUMENT_TYPES) else None
