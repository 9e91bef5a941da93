"""Words of a streamed answer as they come, whichever API it comes over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.providers.common.sse import StreamEvent


def get_event_text(api: str, event: StreamEvent) -> str:
    """Return what the model says in ``event``: no thinking, no calls; nothing for what is no event of ``api``."""
    try:
        payload = msgspec.json.decode(event.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return "".join(_iter_text_pieces(api, payload)) if isinstance(payload, dict) else ""


def _iter_text_pieces(api: str, payload: dict[str, Any]) -> Iterator[str]:
    match api:
        case "anthropic":
            yield _get_text_at(payload, "delta", "text") if payload.get("type") == "content_block_delta" else ""
        case "openai-chat":
            yield _get_text_at(_get_first_object(payload.get("choices")), "delta", "content")
        case "openai-responses":
            yield _get_text_at(payload, "delta") if payload.get("type") == "response.output_text.delta" else ""
        case "gemini":
            parts = _as_object(_get_first_object(payload.get("candidates")).get("content")).get("parts")
            for part in parts if isinstance(parts, list) else ():
                yield "" if _as_object(part).get("thought") else _get_text_at(_as_object(part), "text")


def _as_object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _get_first_object(value: Any) -> dict[str, Any]:
    return _as_object(value[0]) if isinstance(value, list) and value else {}


def _get_text_at(value: dict[str, Any], *path: str) -> str:
    for name in path[:-1]:
        value = _as_object(value.get(name))
    text = value.get(path[-1])
    return text if isinstance(text, str) else ""
