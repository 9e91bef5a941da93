"""Encode models and lists of models as the models endpoints of each API."""

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
"""Models that are listed if the settings name none; requests may use any other name then, too."""
DEFAULT_MAX_OUTPUT = 64_000
"""Output limit that is reported if the settings have none; chosen by judgement, clients only show it."""
_CREATED_AT = "2026-05-28T00:00:00Z"


class ListedModel(Struct, frozen=True):
    """A model with the limits from the provider's settings, in tokens."""

    name: str
    window: int
    output: int


def encode_anthropic_model(model: ListedModel) -> dict[str, Any]:
    """Encode a model as the Messages API."""
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
    """Encode a model as both OpenAI APIs, which do not report the window."""
    return {"id": model.name, "object": "model", "created": FIXED_TIME, "owned_by": "holdfast"}


def encode_gemini_model(model: ListedModel) -> dict[str, Any]:
    """Encode a model as the Gemini API."""
    return {
        "name": f"models/{model.name}",
        "version": "001",
        "displayName": model.name,
        "inputTokenLimit": model.window,
        "outputTokenLimit": model.output,
        "supportedGenerationMethods": ["generateContent", "streamGenerateContent", "countTokens"],
    }


def encode_anthropic_models(models: Sequence[ListedModel]) -> dict[str, Any]:
    """Encode one page of models as the Messages API."""
    return {
        "data": [encode_anthropic_model(model) for model in models],
        "has_more": False,
        "first_id": models[0].name if models else None,
        "last_id": models[-1].name if models else None,
    }


def encode_openai_models(models: Sequence[ListedModel]) -> dict[str, Any]:
    """Encode all models as the OpenAI APIs, which have no pages."""
    return {"object": "list", "data": [encode_openai_model(model) for model in models]}


def encode_gemini_models(models: Sequence[ListedModel]) -> dict[str, Any]:
    """Encode one page of models as the Gemini API."""
    return {"models": [encode_gemini_model(model) for model in models]}


class ModelPage(Struct, frozen=True):
    """The names on one page, and the fields of the reply that lead to the next page."""

    names: Sequence[str]
    extra_fields: dict[str, Any] = {}


def choose_model_page(api: str, names: Sequence[str], query: Mapping[str, str]) -> ModelPage:
    """Return the page of ``names`` for the query of a request; parameters that make no sense are ignored."""
    if api == "anthropic":
        start = 0
        if query.get("after_id") in names:
            start = names.index(query["after_id"]) + 1
        end = start + _parse_positive(query.get("limit"), len(names))
        return ModelPage(names[start:end], {"has_more": end < len(names)})
    if api == "gemini":
        # The token is the position of the next model; clients must not read anything into it.
        start = _parse_positive(query.get("pageToken"), 0)
        end = start + _parse_positive(query.get("pageSize"), len(names))
        if end < len(names):
            return ModelPage(names[start:end], {"nextPageToken": str(end)})
        return ModelPage(names[start:end])
    return ModelPage(names)


def _parse_positive(text: str | None, default: int) -> int:
    """Parse a whole number from 1 to 9999, or return ``default`` for anything else."""
    if text is None or not text.isascii() or not text.isdecimal() or len(text) > 4:
        return default
    return int(text) or default


MODEL_ENCODERS = {
    "anthropic": encode_anthropic_model,
    "openai-chat": encode_openai_model,
    "openai-responses": encode_openai_model,
    "gemini": encode_gemini_model,
}
"""Encoders of one model, by API."""
MODEL_LIST_ENCODERS = {
    "anthropic": encode_anthropic_models,
    "openai-chat": encode_openai_models,
    "openai-responses": encode_openai_models,
    "gemini": encode_gemini_models,
}
"""Encoders of a list of models, by API."""
