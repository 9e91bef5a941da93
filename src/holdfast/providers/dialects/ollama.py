"""Ollama's endpoint of Chat Completions, read in its source of 2026-08-21."""

from __future__ import annotations

from typing import ClassVar

from holdfast.providers.dialects.chat_requirements import ImageUrls, ObjectArguments, PartTypes
from holdfast.providers.dialects.field_requirements import AllowedValues
from holdfast.providers.dialects.provider_spec import ProviderRules, ProviderSpec
from holdfast.providers.dialects.requirement import Requirement
from holdfast.providers.openai_chat.rules.request_view import ChatView
from holdfast.providers.rules.rule import Violations

_SOURCE = "ollama/ollama openai/openai.go, 2026-08-21"


class NoNullContent(Requirement, frozen=True, kw_only=True):
    """A message without calls has content."""

    rule: ClassVar[str] = "null-content"

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return "The content of a message without calls is not null."

    def find_violations(self, request: ChatView) -> Violations:
        """Yield the messages with neither content nor calls."""
        for index, message, _ in request.message_objects:
            if message.get("content") is None and not message.get("tool_calls"):
                yield f"$.messages[{index}].content", "the content is null without calls; send a text"


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
            NoNullContent(source=f"{_SOURCE}: 'invalid message content type: <nil>'"),
        ),
        dialect_changes={
            "max_tokens_field": "max_tokens",  # it ignores max_completion_tokens
            "reasoning_fields": ("reasoning",),
            "arguments_are_objects": True,
            "allows_media_urls": False,
            "media_types": ("image/jpeg", "image/png", "image/webp", "audio/wav", "audio/mp3", "audio/mpeg"),
            "allowed_kinds_by_role": dict.fromkeys(("system", "user", "assistant", "tool"), ()),
        },
        skipped_rules=frozenset({"tool-schema", "tools", "stop", "images", "parts", "unknown-part"}),
    )


OLLAMA = ProviderSpec(
    name="ollama",
    title="Ollama",
    rules_by_api={"openai-chat": _build_chat_rules},
    ports=(11_434,),
    keeps_client_content=True,
)
