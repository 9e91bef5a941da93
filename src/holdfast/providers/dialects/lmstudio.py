"""LM Studio.

Source: lmstudio-ai/docs, 2026-04-29.
"""

from __future__ import annotations

from holdfast.providers.dialects.provider_spec import ProviderRules, ProviderSpec
from holdfast.providers.dialects.requirements.fields import AllowedValues
from holdfast.providers.dialects.requirements.tools import ToolChoices

_DOCS = "lmstudio-ai/docs, OpenAI compatibility, 2026-04-29"


def _build_chat_rules(_model: str) -> ProviderRules:
    return ProviderRules(
        requirements=(
            AllowedValues(
                field="response_format.type",
                values=("json_schema", "text"),
                field_to_remove="response_format",
                source=_DOCS,
            ),
            ToolChoices(
                choices=("auto", "none", "required"),
                reason="only auto, none and required are taken",
                evidence="observed",
                source="lmstudio-ai/lmstudio-bug-tracker#670, 2025-05-21; can1357/oh-my-pi#6925, 2026-07-28",
            ),
        ),
        skipped_rules=frozenset({"tool-schema", "tools", "stop", "images"}),
    )


LMSTUDIO = ProviderSpec(
    name="lmstudio",
    title="LM Studio",
    rules_by_api={"openai-chat": _build_chat_rules},
    ports=(1_234,),
    keeps_client_content=True,
)
