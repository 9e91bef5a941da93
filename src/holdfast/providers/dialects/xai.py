"""xAI (Grok).

Sources: docs.x.ai (guides/reasoning, developers), the documentation of the AI SDK's xai package, and refusals in public
issues.
"""

from __future__ import annotations

import re

from holdfast.providers.dialects.provider_spec import ProviderRules, ProviderSpec
from holdfast.providers.dialects.requirements.fields import AllowedValues, RefusedFields
from holdfast.providers.dialects.requirements.requirement import Requirement
from holdfast.providers.dialects.requirements.tools import MaxTools

_EFFORTS_BY_MODEL = (
    (re.compile(r"grok-4\.6"), ("low", "medium", "high", "xhigh")),
    (re.compile(r"grok-4\.5"), ("low", "medium", "high")),
    (re.compile(r"grok-4\.3"), ("none", "low", "medium", "high")),
)
"""Levels of thinking by model; those of models that are not listed are not known."""
_NEAREST_EFFORTS = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
_HAS_NO_EFFORT = re.compile(r"grok-4\.20-(?:non-)?reasoning|grok-build-0\.1")
_NEVER_THINKS = re.compile(r".*-non-reasoning")
_GROK_4 = re.compile(r"grok-(?:4|build)")
_AI_SDK = "docs of the AI SDK's xai package 3.0, 2026-11"


def _build_effort_requirements(model: str, field: str) -> list[Requirement]:
    """Return what the model asks of the field with the level of its thinking."""
    if _HAS_NO_EFFORT.match(model):
        source = "'Argument not supported on this model: reasoningEffort': charmbracelet/crush#386"
        return [RefusedFields(fields=(field,), reason="this model refuses it", evidence="observed", source=source)]
    for pattern, efforts in _EFFORTS_BY_MODEL:
        if pattern.match(model):
            nearest = {name: near for name, near in _NEAREST_EFFORTS.items() if name not in efforts}
            return [AllowedValues(field=field, values=efforts, replacements=nearest, source=_AI_SDK)]
    return []


def _build_chat_rules(model: str) -> ProviderRules:
    requirements = _build_effort_requirements(model, "reasoning_effort")
    requirements.append(
        MaxTools(
            count=200,
            # One route of xAI takes 350 tools (github/copilot-cli#4836, 2026-09), so this only warns.
            evidence="inferred",
            source="400 above 200: router-for-me/CLIProxyAPI#5214, 2026-08",
        )
    )
    if not model or _GROK_4.match(model):
        refused = ["presence_penalty", "frequency_penalty"]
        if not _NEVER_THINKS.match(model):
            refused.append("stop")
        requirements.append(
            RefusedFields(
                fields=tuple(refused),
                reason="models that think refuse it, whatever its value",
                source="docs.x.ai/docs/guides/reasoning; 'Model grok-4.6 does not support parameter presencePenalty': "
                "NativeTavern#83, 2026-09-15",
            )
        )
    return ProviderRules(
        requirements=tuple(requirements), skipped_rules=frozenset({"tool-schema", "tools", "stop", "images"})
    )


def _build_responses_rules(model: str) -> ProviderRules:
    return ProviderRules(requirements=tuple(_build_effort_requirements(model, "reasoning.effort")))


XAI = ProviderSpec(
    name="xai",
    title="xAI (Grok)",
    rules_by_api={"openai-chat": _build_chat_rules, "openai-responses": _build_responses_rules},
    example_models=("grok-4.6", "grok-4.5", "grok-4.3", "grok-4.20-reasoning", "grok-4.20-non-reasoning"),
    hosts=("api.x.ai", "*.api.x.ai"),
    model_pattern=r"grok-[a-z0-9.-]+",
)
