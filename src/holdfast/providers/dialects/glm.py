"""GLM (Z.ai, Zhipu).

Sources: docs.z.ai/api-reference/llm/chat-completion and docs.z.ai/guides/capabilities/thinking-mode, refusals in public
issues.
"""

from __future__ import annotations

import re

from holdfast.providers.dialects.provider_spec import ProviderRules, ProviderSpec
from holdfast.providers.dialects.requirements.fields import AllowedValues, NumberRange
from holdfast.providers.dialects.requirements.messages import UserMessageRequired
from holdfast.providers.dialects.requirements.requirement import Requirement

_REFERENCE = "docs.z.ai/api-reference/llm/chat-completion, 2026-11"
_THINKS_ALWAYS = re.compile(r"glm-5\.3")


def _build_chat_rules(model: str) -> ProviderRules:
    requirements: list[Requirement] = [
        UserMessageRequired(source=f"{_REFERENCE}; 1214: sst/opencode#2557, 2025-09"),
        NumberRange(
            field="max_tokens",
            low=1,
            high=131_072,
            nearest_low=1,
            nearest_high=131_072,
            evidence="observed",
            source="400 with the range [1,131072]: dev.to/aihubmix, GLM-5.3 guide, 2026-08-14; models of 4.5 and older "
            "have less, which the refusal names",
        ),
        NumberRange(field="temperature", low=0, high=1, nearest_high=1, source=_REFERENCE),
        NumberRange(field="top_p", low=0.01, high=1, nearest_low=0.01, nearest_high=1, source=_REFERENCE),
    ]
    if _THINKS_ALWAYS.match(model):
        requirements += [
            AllowedValues(
                field="thinking.type",
                values=("enabled",),
                replacements={"disabled": "enabled"},
                evidence="observed",
                source="1210 'This model always engages in thinking and cannot be disabled': "
                "NousResearch/hermes-agent#85890, 2026-08-14",
            ),
            AllowedValues(
                field="reasoning_effort",
                values=("low", "high", "max"),
                replacements={"none": "low", "minimal": "low", "medium": "high", "xhigh": "max"},
                evidence="observed",
                source="1210 'please use low, high, or max': NousResearch/hermes-agent#97286, 2026-08-28",
            ),
        ]
    return ProviderRules(
        requirements=tuple(requirements),
        dialect_changes={
            "max_tokens_field": "max_tokens",  # the only limit in its reference
            "reasoning_fields": ("reasoning_content",),
        },
        more_refused_kinds=("message.refusal",),  # its reference has no such field in an answer
        skipped_rules=frozenset({"tool-schema", "stop", "images", "one-limit"}),
    )


GLM = ProviderSpec(
    name="glm",
    title="GLM (Z.ai, Zhipu)",
    rules_by_api={"openai-chat": _build_chat_rules},
    example_models=("glm-5", "glm-5.3"),
    hosts=("api.z.ai", "open.bigmodel.cn"),
    model_pattern=r"glm-[a-z0-9.-]+",
)
