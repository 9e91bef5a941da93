"""What the models endpoints say, in each API's shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from holdfast.testing.provider.voices.voice import EPOCH

MODELS = ("claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5", "gpt-6-sol", "gpt-5.6-sol", "gemini-3-pro")
"""Models that are listed where the settings name none; every other name is there too."""
OUTPUT = 64_000
"""Most tokens of an answer where the settings name no limit."""
_MADE = "2026-05-28T00:00:00Z"


class Model(Struct, frozen=True):
    """A model as the provider's settings have it."""

    name: str
    window: int
    output: int


def anthropic(model: Model) -> dict[str, Any]:
    """Return the model as the Messages API tells it."""
    return {
        "type": "model",
        "id": model.name,
        "display_name": model.name,
        "created_at": _MADE,
        "lifecycle": "active",
        "max_input_tokens": model.window,
        "max_tokens": model.output,
    }


def openai(model: Model) -> dict[str, Any]:
    """Return the model as both OpenAI APIs tell it: no word of its window."""
    return {"id": model.name, "object": "model", "created": EPOCH, "owned_by": "holdfast"}


def gemini(model: Model) -> dict[str, Any]:
    """Return the model as the Gemini API tells it."""
    return {
        "name": f"models/{model.name}",
        "version": "001",
        "displayName": model.name,
        "inputTokenLimit": model.window,
        "outputTokenLimit": model.output,
        "supportedGenerationMethods": ["generateContent", "streamGenerateContent", "countTokens"],
    }


def anthropic_list(models: Sequence[Model]) -> dict[str, Any]:
    """Return one page of models."""
    ends = {"first_id": models[0].name, "last_id": models[-1].name} if models else {"first_id": None, "last_id": None}
    return {"data": [anthropic(model) for model in models], "has_more": False} | ends


def openai_list(models: Sequence[Model]) -> dict[str, Any]:
    """Return all models."""
    return {"object": "list", "data": [openai(model) for model in models]}


def gemini_list(models: Sequence[Model]) -> dict[str, Any]:
    """Return all models."""
    return {"models": [gemini(model) for model in models]}


class Page(Struct, frozen=True):
    """Names that one request lists, and the fields that tell of the others."""

    names: Sequence[str]
    more: dict[str, Any] = {}


def page(api: str, names: Sequence[str], query: Mapping[str, str]) -> Page:
    """Return the page of ``names`` that ``query`` asks ``api`` for; OpenAI has no pages, and nonsense gets all."""
    if api == "anthropic":
        start = names.index(query["after_id"]) + 1 if query.get("after_id") in names else 0
        end = start + _number(query.get("limit"), len(names))
        return Page(names[start:end], {"has_more": end < len(names)})
    if api == "gemini":
        start = _number(query.get("pageToken"), 0)
        end = start + _number(query.get("pageSize"), len(names))
        return Page(names[start:end], {"nextPageToken": str(end)} if end < len(names) else {})
    return Page(names)


def _number(text: str | None, default: int) -> int:
    """Return a whole number above 0 of at most four digits."""
    right = text is not None and text.isascii() and text.isdecimal() and len(text) < 5
    return (int(text or 0) if right else 0) or default


ONE = {"anthropic": anthropic, "openai-chat": openai, "openai-responses": openai, "gemini": gemini}
"""How an API tells one model."""
ALL = {
    "anthropic": anthropic_list,
    "openai-chat": openai_list,
    "openai-responses": openai_list,
    "gemini": gemini_list,
}
"""How an API lists its models."""
