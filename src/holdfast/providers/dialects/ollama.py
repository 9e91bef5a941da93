"""Ollama's endpoint of Chat Completions, read in its source of 2026-08-21."""

from __future__ import annotations

from typing import ClassVar

from holdfast.providers.dialects.chat_requirements import ImageUrls, ObjectArguments
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
            NoNullContent(source=f"{_SOURCE}: 'invalid message content type: <nil>'"),
        ),
        dialect_changes={"reasoning_fields": ("reasoning",), "arguments_are_objects": True, "allows_media_urls": False},
        skipped_rules=frozenset({"tool-schema", "tools", "stop", "images"}),
    )


OLLAMA = ProviderSpec(
    name="ollama",
    title="Ollama",
    rules_by_api={"openai-chat": _build_chat_rules},
    ports=(11_434,),
    keeps_client_content=True,
)
