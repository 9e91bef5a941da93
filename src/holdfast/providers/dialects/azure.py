"""Azure OpenAI and Microsoft Foundry. A request names a deployment, so its model is not known from the name.

Sources: learn.microsoft.com/azure, and what well-used clients leave out for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from holdfast.providers.dialects.provider_spec import ProviderRules, ProviderSpec
from holdfast.providers.dialects.requirements.fields import RefusedFields
from holdfast.providers.dialects.requirements.requirement import Requirement
from holdfast.providers.rules.envelope import RequestView
from holdfast.providers.rules.rule import Violations

_RULES_BY_MODEL = frozenset(
    {"model-sampling", "model-limit", "model-effort", "model-tools", "cache-retention", "service-tier"}
)
"""OpenAI's rules about its models, which the name of a deployment does not tell."""
_LITELLM = "BerriAI/litellm 1.110 leaves it out for Azure, 2026-11"


class NoItemStatus(Requirement, frozen=True, kw_only=True):
    """Items of these types have no ``status``."""

    rule: ClassVar[str] = "item-status"
    leaves_out: ClassVar[bool] = True
    types: tuple[str, ...] = ("message", "reasoning")

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"An input item of the type {' or '.join(self.types)} has no status."

    def find_violations(self, request: RequestView) -> Violations:
        """Yield the items with a status."""
        for index, item in enumerate(request.get_list("input")):
            if isinstance(item, Mapping) and item.get("type") in self.types and item.get("status") is not None:
                yield f"$.input[{index}].status", "the status of an item may be refused here; leave it out"


def _build_chat_rules(_model: str) -> ProviderRules:
    return ProviderRules(keeps_size_limits=True, skipped_rules=_RULES_BY_MODEL)


def _build_responses_rules(_model: str) -> ProviderRules:
    return ProviderRules(
        requirements=(
            RefusedFields(
                fields=("context_management",),
                reason="Azure does not compact on request",
                evidence="inferred",
                source=_LITELLM,
            ),
            NoItemStatus(evidence="inferred", source=_LITELLM),
        ),
        dialect_changes={"supports_compaction": False},
        keeps_size_limits=True,
        skipped_rules=_RULES_BY_MODEL,
    )


def _build_messages_rules(_model: str) -> ProviderRules:
    return ProviderRules(keeps_size_limits=True)


AZURE = ProviderSpec(
    name="azure",
    title="Azure",
    rules_by_api={
        "openai-chat": _build_chat_rules,
        "openai-responses": _build_responses_rules,
        "anthropic": _build_messages_rules,
    },
    hosts=(".openai.azure.com", ".services.ai.azure.com", ".cognitiveservices.azure.com"),
)
