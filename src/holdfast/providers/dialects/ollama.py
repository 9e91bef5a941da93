"""Ollama's endpoint of Chat Completions, read in its source of 2026-08-21."""

from __future__ import annotations

from holdfast.providers.dialects.provider_spec import ProviderRules, ProviderSpec
from holdfast.providers.dialects.requirements.fields import AllowedValues
from holdfast.providers.dialects.requirements.messages import ImageUrls, NoNullContent, ObjectArguments, PartTypes
from holdfast.providers.dialects.requirements.tools import NoOldTools

_SOURCE = "ollama/ollama openai/openai.go, 2026-08-21"


def _build_chat_rules(_model: str) -> ProviderRules:
    return ProviderRules(
        requirements=(
            ImageUrls(source=f"{_SOURCE}: 'image URLs are not currently supported'"),
            ObjectArguments(source=f"{_SOURCE}: 'invalid tool call arguments'"),
            AllowedValues(
                field="reasoning_effort",
                values=("none", "minimal", "low", "medium", "high", "xhigh", "max"),
                source=f"{_SOURCE}: 'invalid reasoning value'",
            ),
            PartTypes(types=("text", "image_url", "input_audio"), source=f"{_SOURCE}: 'invalid message format'"),
            NoOldTools(
                source=f"{_SOURCE}: its Message has tool_calls alone, and a null content is refused without them"
            ),
            NoNullContent(source=f"{_SOURCE}: 'invalid message content type: <nil>'"),
        ),
        dialect_changes={
            "max_tokens_field": "max_tokens",  # it ignores max_completion_tokens
            "reasoning_fields": ("reasoning",),
            "media_types": ("image/jpeg", "image/png", "image/webp", "audio/wav", "audio/mp3", "audio/mpeg"),
        },
        more_refused_kinds=("message.refusal",),  # its Message has no such field
        skipped_rules=frozenset({"tool-schema", "tools", "stop", "images", "parts", "unknown-part"}),
    )


OLLAMA = ProviderSpec(
    name="ollama",
    title="Ollama",
    rules_by_api={"openai-chat": _build_chat_rules},
    ports=(11_434,),
    keeps_client_content=True,
)
