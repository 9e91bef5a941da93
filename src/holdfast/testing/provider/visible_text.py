"""Extract from a block of a request the text that the model reads, and the flat token counts of its media."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.testing.provider.signatures.opaque_texts import open_provider_signature

IMAGE_TOKENS = {"anthropic": 1_600, "gemini": 258}
"""Tokens of any image: Claude's largest (width times height / 750, at most 1,600), and one tile of Gemini."""
_DEFAULT_IMAGE_TOKENS = 765
"""Tokens of any image for OpenAI: 1,024 x 1,024 pixels in high detail."""
# Chosen by judgement: about one page as text and picture. Real counts depend on contents that tests do not have.
DOCUMENT_TOKENS = 2_000
"""Tokens of any document or audio."""
_IMAGE_TYPES = frozenset({"image", "image_url", "input_image", "computer_screenshot"})
_DOCUMENT_TYPES = frozenset({"document", "file", "input_file", "input_audio"})
_BLOB_FIELDS = ("inlineData", "inline_data", "fileData", "file_data")
_UNREAD_FIELDS = frozenset(
    {"type", "role", "id", "call_id", "tool_use_id", "tool_call_id", "signature", "thoughtSignature", "cache_control",
     "thought_signature", "status", "annotations", "logprobs", "is_error", "strict", "data", "thought", "phase",
     "media_type"}
)  # fmt: skip
"""Fields that the model does not read; ``data`` is redacted content, unless it is the text of a document."""
_JSON_FIELDS = frozenset({"input", "args", "arguments", "response", "parameters", "input_schema", "schema"})
"""Fields that the model reads as JSON."""
_SIGNATURE_KINDS = ("reasoning", "compaction")


class Rendering(Struct, frozen=True):
    """The content of one block, as the model reads it."""

    text: str
    media: int = 0
    """Tokens of its images and documents."""


def render_block(value: object, api: str) -> Rendering:
    """Render ``value``, a block of a body of ``api``."""
    texts: list[str] = []
    media_tokens = 0
    for piece in _iterate_words_and_media(value, api):
        if isinstance(piece, int):
            media_tokens += piece
        else:
            texts.append(piece)
    return Rendering("\n".join(texts), media_tokens)


def _iterate_words_and_media(value: object, api: str) -> Iterator[str | int]:
    """Yield texts as strings and media as numbers of tokens, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _iterate_words_and_media(item, api)
    elif isinstance(value, dict):
        media_tokens = _get_media_tokens(value, api)
        if media_tokens is None:
            yield from _iterate_field_words(value, api)
        else:
            yield media_tokens
    elif value is not None:
        yield msgspec.json.encode(value).decode()


def _iterate_field_words(value: dict[str, Any], api: str) -> Iterator[str | int]:
    for key, inner in value.items():
        if key == "encrypted_content":
            yield from _iterate_signed_words(inner)
        elif key == "summary" and value.get("encrypted_content"):
            # The model reads the reasoning itself, not the summary for the client.
            continue
        elif key in _JSON_FIELDS and not isinstance(inner, str | list):
            yield msgspec.json.encode(inner).decode()
        elif key not in _UNREAD_FIELDS or (key == "data" and value.get("type") == "text"):
            yield from _iterate_words_and_media(inner, api)


def _iterate_signed_words(content: object) -> Iterator[str]:
    """Yield the text inside of encrypted content that a strict provider made: reasoning or a compaction."""
    for kind in _SIGNATURE_KINDS:
        signed_fields = open_provider_signature(content, kind)
        if signed_fields is not None:
            yield signed_fields.get("words", "")


def _get_media_tokens(value: dict[str, Any], api: str) -> int | None:
    """Return the tokens of an image, a document or audio, or None for any other value."""
    block_type = str(value.get("type"))
    source = value.get("source")
    is_text_document = isinstance(source, dict) and source.get("type") in ("text", "content")
    if block_type == "document" and is_text_document:
        return None
    mime = ""
    for key in _BLOB_FIELDS:
        blob = value.get(key)
        if isinstance(blob, dict):
            mime = str(blob.get("mimeType", blob.get("mime_type")))
            break
    if block_type in _IMAGE_TYPES or mime.startswith("image/"):
        return IMAGE_TOKENS.get(api, _DEFAULT_IMAGE_TOKENS)
    return DOCUMENT_TOKENS if mime or block_type in _DOCUMENT_TYPES else None
