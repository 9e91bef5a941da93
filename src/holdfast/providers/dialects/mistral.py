"""Mistral (La Plateforme), and its open models wherever their chat templates run.

Sources: the generated schema of mistralai/client-python (2026-06-30), docs.mistral.ai, and refusals in public issues.
"""

from __future__ import annotations

import re

from holdfast.providers.dialects.provider_spec import ProviderRules, ProviderSpec
from holdfast.providers.dialects.requirements.fields import AllowedValues, KnownFields
from holdfast.providers.dialects.requirements.messages import (
    AllowedRoles,
    CallIdForm,
    KnownMessageFields,
    LastMessage,
    NoUserAfterResults,
    PartTypes,
)
from holdfast.providers.dialects.requirements.requirement import Requirement
from holdfast.providers.dialects.requirements.tools import NoOldTools

_CHOOSES_TO_THINK = re.compile(r"mistral-(?:small-latest|small-2603|medium-3[.-]5|medium-2604)")
_SCHEMA = "schema of mistralai/client-python, 2026-06-30"
_KNOWN_FIELDS = frozenset(
    {
        "model",
        "messages",
        "temperature",
        "top_p",
        "max_tokens",
        "stream",
        "stop",
        "random_seed",
        "metadata",
        "response_format",
        "tools",
        "tool_choice",
        "presence_penalty",
        "frequency_penalty",
        "n",
        "prediction",
        "parallel_tool_calls",
        "reasoning_effort",
        "prompt_mode",
        "guardrails",
        "prompt_cache_key",
        "safe_prompt",
    }
)
_REQUIREMENTS = (
    AllowedRoles(
        roles=("system", "user", "assistant", "tool"),
        of_other_rules=("function",),
        source=_SCHEMA,
    ),
    NoOldTools(source=_SCHEMA),
    KnownFields(
        fields=_KNOWN_FIELDS,
        of_other_rules=frozenset({"functions", "function_call"}),
        renamed={"max_completion_tokens": "max_tokens", "seed": "random_seed"},
        source=f"422 extra_forbidden: partITech/php-mistral#76, 2025-11-13; fields: {_SCHEMA}",
    ),
    CallIdForm(
        character_pattern="[a-zA-Z0-9]",
        min_length=9,
        max_length=9,
        form="exactly nine letters and digits",
        evidence="observed",
        source="'must be a-z, A-Z, 0-9, with a length of 9': nearai/ironclaw#1241, 2026-03-16",
    ),
    NoUserAfterResults(
        evidence="observed",
        source="\"Unexpected role 'user' after role 'tool'\": NousResearch/hermes-agent#84944, 2026-08-13",
    ),
    LastMessage(
        mark="prefix",
        evidence="observed",
        source="'Expected last role User or Tool': NEKOparapa/AiNiee#641, 2025-06-03",
    ),
    PartTypes(types=("text", "thinking"), roles=("system", "assistant"), source=_SCHEMA),
    KnownMessageFields(
        fields_by_role={
            "system": ("role", "content"),
            "user": ("role", "content"),
            "assistant": ("role", "content", "tool_calls", "prefix"),
            "tool": ("role", "content", "tool_call_id", "name"),
        },
        of_other_rules=("function_call",),
        evidence="observed",
        source=f"422 extra_forbidden: BerriAI/litellm#30835, 2026-06-19, and #30882, 2026-06-20; fields: {_SCHEMA}",
    ),
)


def _build_effort_requirement(model: str) -> Requirement:
    """Return which levels of thinking the model has."""
    if _CHOOSES_TO_THINK.match(model):
        return AllowedValues(
            field="reasoning_effort",
            values=("none", "high"),
            replacements={"minimal": "none", "low": "high", "medium": "high", "xhigh": "high", "max": "high"},
            source="docs.mistral.ai/capabilities/reasoning/adjustable, 2026-11; code 3051: models.dev#7334, 2026-09-17",
        )
    return AllowedValues(
        field="reasoning_effort", values=("none", "minimal", "low", "medium", "high", "xhigh", "max"), source=_SCHEMA
    )


def _build_chat_rules(model: str) -> ProviderRules:
    return ProviderRules(
        requirements=(*_REQUIREMENTS, _build_effort_requirement(model)),
        dialect_changes={
            "max_tokens_field": "max_tokens",  # it has no max_completion_tokens
            "must_start_with_user": True,
            "system_position": "first",
            "arguments_are_objects": True,
            "unique_ids": True,
            "allows_blank_text": False,
            "merges_same_role": True,
            "reasoning_fields": (),
            "allows_thinking_in_any_role": False,
            # Eight on a vision model of 2025: earendil-works/pi#120.
            "max_images": 8,
            "allowed_kinds_by_role": {"system": (), "assistant": ("thinking",), "tool": ()},
        },
        accepted_kinds=("thinking",),
        refused_stream_fields=frozenset({"stream_options"}),  # usage stands in the last event anyway
        # Its limits on tools and stop sequences are not those of OpenAI, and are not known.
        skipped_rules=frozenset({"tool-schema", "tools", "stop", "images", "parts", "unknown-part"}),
    )


MISTRAL = ProviderSpec(
    name="mistral",
    title="Mistral",
    rules_by_api={"openai-chat": _build_chat_rules},
    example_models=("mistral-large-2512", "mistral-medium-3-5"),
    hosts=("api.mistral.ai", "codestral.mistral.ai"),
    model_pattern=r"(?:mistral|ministral|magistral|codestral|devstral|pixtral|voxtral)-[a-z0-9.-]+",
    open_model_pattern=r"(?:open-)?mi[sx]tral|ministral|magistral|codestral|devstral|pixtral|voxtral",
)
