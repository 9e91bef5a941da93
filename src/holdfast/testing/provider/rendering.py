"""What of a piece of a request the model reads: its words, and the media that are counted flat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.testing.provider.seals.sealing import unseal

IMAGE = {"anthropic": 1_600, "gemini": 258}
"""Tokens of any image: Claude's largest (width x height / 750, cut at 1,600), one tile of Gemini."""
_IMAGE_ELSEWHERE = 765
"""Tokens of an image of OpenAI: 1,024 x 1,024 in high detail."""
DOCUMENT = 2_000
"""Tokens of any document or sound, about a page and its picture."""
_IMAGES = frozenset({"image", "image_url", "input_image", "computer_screenshot"})
_DOCUMENTS = frozenset({"document", "file", "input_file", "input_audio"})
_BLOBS = ("inlineData", "inline_data", "fileData", "file_data")
_UNREAD = frozenset(
    {"type", "role", "id", "call_id", "tool_use_id", "tool_call_id", "signature", "thoughtSignature", "cache_control",
     "thought_signature", "status", "annotations", "logprobs", "is_error", "strict", "data", "thought", "phase",
     "media_type"}
)  # fmt: skip
"""Fields that are no words for the model; ``data`` is what is redacted, unless it is the text of a document."""
_JSON = frozenset({"input", "args", "arguments", "response", "parameters", "input_schema", "schema"})
"""Fields that the model reads as JSON."""
_SEALED = ("reasoning", "compaction")


class Rendering(Struct, frozen=True):
    """What the model reads of one piece."""

    text: str
    media: int = 0
    """Tokens of its images and documents."""


def render(value: object, api: str) -> Rendering:
    """Return the words and the media of ``value``, a piece of a body of ``api``."""
    words: list[str] = []
    media = 0
    for found in _walk(value, api):
        if isinstance(found, int):
            media += found
        else:
            words.append(found)
    return Rendering("\n".join(words), media)


def _walk(value: object, api: str) -> Iterator[str | int]:
    """Yield texts, and numbers for tokens of media."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _walk(one, api)
    elif isinstance(value, dict):
        flat = _flat(value, api)
        if flat is None:
            yield from _fields(value, api)
        else:
            yield flat
    elif value is not None:
        yield msgspec.json.encode(value).decode()


def _fields(value: dict[str, Any], api: str) -> Iterator[str | int]:
    for key, inner in value.items():
        if key == "encrypted_content":
            yield from _hidden(inner)
        elif key == "summary" and value.get("encrypted_content"):
            continue
        elif key in _JSON and not isinstance(inner, str | list):
            yield msgspec.json.encode(inner).decode()
        elif key not in _UNREAD or (key == "data" and value.get("type") == "text"):
            yield from _walk(inner, api)


def _hidden(sealed: object) -> Iterator[str]:
    """Yield the words inside a seal of ours: the reasoning (not its summary beside it) or a compaction."""
    for kind in _SEALED:
        about = unseal(sealed, kind)
        if about is not None:
            yield about.get("words", "")


def _flat(value: dict[str, Any], api: str) -> int | None:
    """Return the tokens of an image, a document or a sound, nothing for other things."""
    kind = value.get("type")
    blob = next((value[key] for key in _BLOBS if isinstance(value.get(key), dict)), None)
    source = value.get("source")
    if kind == "document" and isinstance(source, dict) and source.get("type") in ("text", "content"):
        return None
    mime = str(blob.get("mimeType", blob.get("mime_type"))) if isinstance(blob, dict) else ""
    if (isinstance(kind, str) and kind in _IMAGES) or mime.startswith("image/"):
        return IMAGE.get(api, _IMAGE_ELSEWHERE)
    return DOCUMENT if mime or (isinstance(kind, str) and kind in _DOCUMENTS) else None
