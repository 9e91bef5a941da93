"""Words of a streamed answer as they come, whichever API it comes over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.providers.common.sse import Event


def words_of(api: str, event: Event) -> str:
    """Return what the model says in ``event``: no thinking, no calls; nothing for what is no event of ``api``."""
    try:
        told = msgspec.json.decode(event.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return "".join(_pieces(api, told)) if isinstance(told, dict) else ""


def _pieces(api: str, told: dict[str, Any]) -> Iterator[str]:
    match api:
        case "anthropic":
            yield _text(told, "delta", "text") if told.get("type") == "content_block_delta" else ""
        case "openai-chat":
            yield _text(_first(told.get("choices")), "delta", "content")
        case "openai-responses":
            yield _text(told, "delta") if told.get("type") == "response.output_text.delta" else ""
        case "gemini":
            parts = _object(_first(told.get("candidates")).get("content")).get("parts")
            for part in parts if isinstance(parts, list) else ():
                yield "" if _object(part).get("thought") else _text(_object(part), "text")


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _first(value: Any) -> dict[str, Any]:
    return _object(value[0]) if isinstance(value, list) and value else {}


def _text(value: dict[str, Any], *path: str) -> str:
    for name in path[:-1]:
        value = _object(value.get(name))
    found = value.get(path[-1])
    return found if isinstance(found, str) else ""
