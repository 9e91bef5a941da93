"""Cerebras.

Sources: inference-docs.cerebras.ai, and refusals in public issues.
"""

from __future__ import annotations

from holdfast.providers.common.schemas.limits import SchemaLimits
from holdfast.providers.dialects.provider_spec import ProviderRules, ProviderSpec
from holdfast.providers.dialects.requirements.fields import AllowedValues, RefusedFields
from holdfast.providers.dialects.requirements.messages import RefusedMessageFields
from holdfast.providers.dialects.requirements.schemas import AnswerSchema
from holdfast.providers.dialects.requirements.tools import NoOldTools

_STRICT_ANSWER_LIMITS = SchemaLimits(
    "Cerebras",
    allows_any_root=True,
    allows_type_lists=False,
    refused_keywords=frozenset({"minItems", "maxItems"}),
    requires_closed_objects=True,
    requires_all_properties=True,
)
_REQUIREMENTS = (
    AnswerSchema(
        limits=_STRICT_ANSWER_LIMITS,
        form="closed (additionalProperties: false on each object), requires all properties, and has no lists of types, "
        "minItems and maxItems",
        strict_only=True,
        evidence="observed",
        source="inference-docs.cerebras.ai/capabilities/structured-outputs, 2026-11; \"'additionalProperties' is "
        "required to be supplied and set to false\": agno-agi/agno#6013, 2026-01-14; 'Unsupported JSON schema fields: "
        "minItems': musistudio/claude-code-router#708, 2025-08-26",
    ),
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
            "refuses_old_calls": True,  # no requirement lists it, since its evidence is weak; it cannot be wrong
        },
        more_refused_kinds=("message.refusal",),  # unknown fields of a message are refused
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
