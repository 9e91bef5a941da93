"""Cerebras.

Sources: inference-docs.cerebras.ai, and refusals in public issues.
"""

from __future__ import annotations

from holdfast.providers.dialects.provider_spec import ProviderRules, ProviderSpec
from holdfast.providers.dialects.requirements.fields import AllowedValues, RefusedFields
from holdfast.providers.dialects.requirements.messages import RefusedMessageFields
from holdfast.providers.dialects.requirements.tools import NoOldTools

_REQUIREMENTS = (
    RefusedMessageFields(
        fields_by_role={"assistant": ("reasoning_content", "reasoning_details")},
        evidence="observed",
        source="\"property 'messages.2.assistant.reasoning_content' is unsupported\": QwenLM/qwen-code#11045, "
        "2026-09-04",
    ),
    RefusedFields(
        fields=("reasoning", "enable_thinking"),
        evidence="observed",
        source="\"property 'body.reasoning' is unsupported\": router-for-me/CLIProxyAPI discussion 1144; "
        "OpenMinis#361, 2026-09",
    ),
    AllowedValues(
        field="reasoning_effort",
        values=("low", "medium", "high"),
        replacements={"none": "low", "minimal": "low", "xhigh": "high", "max": "high"},
        evidence="observed",
        source="\"Input should be 'low', 'medium' or 'high'\": router-for-me/CLIProxyAPI discussion 1144",
    ),
    RefusedMessageFields(
        fields_by_role={"system": ("tool_calls", "tool_call_id"), "user": ("tool_calls", "tool_call_id")},
        evidence="observed",
        source="DraftNRun/draftnrun#710, 2026-05",
    ),
    NoOldTools(
        # Nobody reported it, but other fields that Cerebras does not know are refused in a message.
        evidence="inferred",
        source="inference-docs.cerebras.ai/capabilities/tool-use has tools and tool_calls only; unknown fields: "
        "QwenLM/qwen-code#11045, 2026-09-04",
    ),
)


def _build_chat_rules(_model: str) -> ProviderRules:
    return ProviderRules(
        requirements=_REQUIREMENTS,
        dialect_changes={
            "reasoning_fields": ("reasoning",),
            "allows_thinking_in_any_role": False,
            "refuses_old_calls": True,
        },
        refused_kinds=("message.refusal",),  # unknown fields of a message are refused
        skipped_rules=frozenset({"tool-schema", "images"}),
    )


CEREBRAS = ProviderSpec(
    name="cerebras",
    title="Cerebras",
    rules_by_api={"openai-chat": _build_chat_rules},
    hosts=("api.cerebras.ai",),
    # Nobody else writes a hyphen between the family and its number.
    model_pattern=r"qwen-3[.-][a-z0-9.-]+",
)
