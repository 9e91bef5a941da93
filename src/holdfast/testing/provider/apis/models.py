"""What the models endpoints say, in each API's shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from holdfast.testing.provider.apis.encoder import FIXED_TIME

DEFAULT_MODELS = (
    "claude-opus-5-5",
    "claude-sonnet-5-5",
    "claude-haiku-5-5",
    "gpt-6-sol",
    "gpt-5.6-sol",
    "gemini-3-pro",
)
"""Models that are listed where the settings name none; every other name is there too."""
DEFAULT_MAX_OUTPUT = 64_000
"""Most tokens of an answer where the settings name no limit."""
_CREATED_AT = "2026-05-28T00:00:00Z"


class ListedModel(Struct, frozen=True):
    """A model as the provider's settings have it."""

    name: str
    window: int
    output: int


def encode_anthropic_model(model: ListedModel) -> dict[str, Any]:
    """Return the model as the Messages API tells it."""
    return {
        "type": "model",
        "id": model.name,
        "display_name": model.name,
        "created_at": _CREATED_AT,
        "lifecycle": "active",
        "max_input_tokens": model.window,
        "max_tokens": model.output,
    }


def encode_openai_model(model: ListedModel) -> dict[str, Any]:
    """Return the model as both OpenAI APIs tell it: no word of its window."""
    return {"id": model.name, "object": "model", "created": FIXED_TIME, "owned_by": "holdfast"}


def encode_gemini_model(model: ListedModel) -> dict[str, Any]:
    """Return the model as the Gemini API tells it."""
    return {
        "name": f"models/{model.name}",
        "version": "001",
        "displayName": model.name,
        "inputTokenLimit": model.window,
        "outputTokenLimit": model.output,
        "supportedGenerationMethods": ["generateContent", "streamGenerateContent", "countTokens"],
    }


def encode_anthropic_models(models: Sequence[ListedModel]) -> dict[str, Any]:
    """Return one page of models."""
    ends = {"first_id": models[0].name, "last_id": models[-1].name} if models else {"first_id": None, "last_id": None}
    return {"data": [encode_anthropic_model(model) for model in models], "has_more": False} | ends


def encode_openai_models(models: Sequence[ListedModel]) -> dict[str, Any]:
    """Return all models."""
    return {"object": "list", "data": [encode_openai_model(model) for model in models]}


def encode_gemini_models(models: Sequence[ListedModel]) -> dict[str, Any]:
    """Return all models."""
    return {"models": [encode_gemini_model(model) for model in models]}


class ModelPage(Struct, frozen=True):
    """Names that one request lists, and the fields that tell of the others."""

    names: Sequence[str]
    extra_fields: dict[str, Any] = {}


def choose_model_page(api: str, names: Sequence[str], query: Mapping[str, str]) -> ModelPage:
    """Return the page of ``names`` that ``query`` asks ``api`` for; OpenAI has no pages, and nonsense gets all."""
    if api == "anthropic":
        start = names.index(query["after_id"]) + 1 if query.get("after_id") in names else 0
        end = start + _parse_positive(query.get("limit"), len(names))
        return ModelPage(names[start:end], {"has_more": end < len(names)})
    if api == "gemini":
        start = _parse_positive(query.get("pageToken"), 0)
        end = start + _parse_positive(query.get("pageSize"), len(names))
        return ModelPage(names[start:end], {"nextPageToken": str(end)} if end < len(names) else {})
    return ModelPage(names)


def _parse_positive(text: str | None, default: int) -> int:
    """Return a whole number above 0 of at most four digits."""
    right = text is not None and text.isascii() and text.isdecimal() and len(text) < 5
    return (int(text or 0) if right else 0) or default


MODEL_ENCODERS = {
    "anthropic": encode_anthropic_model,
    "openai-chat": encode_openai_model,
    "openai-responses": encode_openai_model,
    "gemini": encode_gemini_model,
}
"""How an API tells one model."""
MODEL_LIST_ENCODERS = {
    "anthropic": encode_anthropic_models,
    "openai-chat": encode_openai_models,
    "openai-responses": encode_openai_models,
    "gemini": encode_gemini_models,
}
"""How an API lists its models."""
