"""OpenRouter.

Sources: openrouter.ai/docs (use-cases/reasoning-tokens, features/message-transforms), and its issues.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from holdfast.providers.dialects.provider_spec import ProviderRules, ProviderSpec
from holdfast.providers.dialects.requirements.fields import ExclusiveFields
from holdfast.providers.dialects.requirements.requirement import Requirement
from holdfast.providers.openai_chat.rules.request_view import ChatView
from holdfast.providers.rules.rule import Violations

_SIGNED_FORMATS = ("anthropic-claude-v1", "google-gemini-v1")
"""Formats of reasoning whose text is only taken back with its signature."""


class SignedReasoningDetails(Requirement, frozen=True, kw_only=True):
    """Reasoning text of providers that sign it comes back with its signature, or not at all."""

    rule: ClassVar[str] = "unsigned-reasoning"
    leaves_out: ClassVar[bool] = True

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"A reasoning.text of the format {' or '.join(_SIGNED_FORMATS)} has its signature."

    def find_violations(self, request: ChatView) -> Violations:
        """Yield the reasoning texts without a signature."""
        for index, message, _ in request.message_objects:
            details = message.get("reasoning_details")
            for number, detail in enumerate(details if isinstance(details, list) else []):
                if isinstance(detail, Mapping) and _is_unsigned_text(detail):
                    path = f"$.messages[{index}].reasoning_details[{number}]"
                    yield path, f"this reasoning of the format {detail.get('format')} has no signature; leave it out"


def _is_unsigned_text(detail: Mapping[str, object]) -> bool:
    is_signed_format = detail.get("type") == "reasoning.text" and detail.get("format") in _SIGNED_FORMATS
    return is_signed_format and not detail.get("signature")


_REQUIREMENTS: tuple[Requirement, ...] = (
    ExclusiveFields(
        fields=("reasoning.effort", "reasoning.max_tokens"),
        source="openrouter.ai/docs/use-cases/reasoning-tokens, 2026-11",
    ),
    SignedReasoningDetails(evidence="observed", source="OpenRouterTeam/ai-sdk-provider#423 and #418, 2026"),
)


def _build_chat_rules(_model: str) -> ProviderRules:
    return ProviderRules(
        requirements=_REQUIREMENTS,
        # Which limits hold depends on the provider that OpenRouter chooses, and it drops options that one lacks.
        skipped_rules=frozenset(
            {
                "tools",
                "stop",
                "images",
                "sampling",
                "model-sampling",
                "model-limit",
                "model-effort",
                "model-tools",
                "cache-retention",
                "service-tier",
                "tool-schema",
            }
        ),
    )


OPENROUTER = ProviderSpec(
    name="openrouter",
    title="OpenRouter",
    rules_by_api={"openai-chat": _build_chat_rules},
    hosts=("openrouter.ai",),
    # Each request may go to another provider, whose rules OpenRouter itself translates to.
    keeps_client_content=True,
)
