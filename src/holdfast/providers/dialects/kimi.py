"""Kimi (Moonshot AI).

Sources: platform.kimi.ai, the fixtures of vercel/ai, and refusals in public issues.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from holdfast.providers.common.schemas.limits import SchemaLimits
from holdfast.providers.dialects.provider_spec import ProviderRules, ProviderSpec
from holdfast.providers.dialects.requirements.fields import (
    AllowedValues,
    ExclusiveFields,
    FixedValues,
    is_thinking_turned_on,
)
from holdfast.providers.dialects.requirements.messages import ImageTypes, ImageUrls, NonEmptyAnswers, ReturnedReasoning
from holdfast.providers.dialects.requirements.requirement import Condition, Requirement
from holdfast.providers.dialects.requirements.schemas import ToolSchemas
from holdfast.providers.dialects.requirements.tools import NoOldTools, ToolChoices, ToolNames
from holdfast.providers.rules.envelope import RequestView

_K3 = re.compile(r"(?:kimi-)?k3")
_CAN_THINK = re.compile(r"(?:kimi-)?k3|kimi-k2\.[567]|kimi-k2-thinking|kimi-for-coding")
_SAMPLING_SOURCE = (
    "'invalid temperature: only 1 is allowed for this model': fixtures of vercel/ai; "
    "platform.kimi.ai/docs/guide/migrating-from-openai-to-kimi, 2026"
)
# What is refused of a function with ``strict: false``, which only promises some JSON object.
_LOOSE_SCHEMA_LIMITS = SchemaLimits("Kimi", requires_root_type=True)
# A type beside anyOf: refused in five reports of 2026-07-22 to 2026-08-26, also at the root; one measurement of
# 2026-09-21 (14790897/MiqroForge-Desktop#1165) saw it taken. The repair changes no meaning, so it is made.
_SCHEMA_LIMITS = replace(
    _LOOSE_SCHEMA_LIMITS,
    root_refused_keywords=frozenset({"anyOf"}),
    requires_defined_names=True,
    types_stand_in_variants=True,
    reference_beginning="#/$defs/",
)
_IMAGE_TYPES = (
    "image/png",
    "image/jpeg",
    "image/webp",
    "image/gif",
    "image/bmp",
    "image/heic",
    "image/heif",
)


_WHILE_THINKING = Condition("while the model thinks", is_thinking_turned_on)


def _is_not_thinking(request: RequestView) -> bool:
    return not is_thinking_turned_on(request)


def _build_chat_rules(model: str) -> ProviderRules:
    can_think = _CAN_THINK.match(model) is not None
    requirements: list[Requirement] = [
        NonEmptyAnswers(
            evidence="observed",
            source="\"the message at position N with role 'assistant' must not be empty\": "
            "MoonshotAI/kimi-code#1985, 2026-07-21",
        ),
        NoOldTools(
            # An answer with nothing but function_call counts as empty there (see the rule above).
            evidence="inferred",
            source="platform.kimi.ai/docs/guide/use-kimi-api-to-complete-tool-calls, 2026-11, has tools and tool_calls "
            "only",
        ),
        ImageUrls(
            prefixes=("data:", "ms://"),
            source="platform.kimi.ai vision guide, in enricoros/big-AGI#1161, 2026-07-17",
        ),
    ]
    requirements += [
        ImageTypes(
            types=_IMAGE_TYPES,
            evidence="observed",
            source="'unsupported image format': fixture of vercel/ai, packages/moonshotai, 2026; types: its converter",
        ),
        ToolSchemas(
            limits=_SCHEMA_LIMITS,
            loose_limits=_LOOSE_SCHEMA_LIMITS,
            form="of Moonshot's flavour: of the type object and without anyOf at the root, with the type in the "
            "variants of anyOf and not beside it, with references to $defs, and with nothing in required that is not "
            "in properties; with strict: false only the root matters",
            evidence="observed",
            source="'tools.function.parameters.type is required and must be \"object\"': MoonshotAI/walle "
            "docs/mfjs-spec.md; \"required property 'codecType' is not defined in properties\": "
            "MoonshotAI/kimi-code#1610; 'when using anyOf, type should be defined in anyOf items instead of the parent "
            "schema': MoonshotAI/kimi-cli#2531, 2026-07-22, openJiuwen-ai/jiuwenswarm#3942, 2026-08-26; 'references "
            "must start with #/$defs/': CommandCodeAI/command-code#594, 2026-07-27; strict: "
            "platform.kimi.ai/docs/api/tool-use",
        ),
        ToolNames(
            pattern="[a-zA-Z][a-zA-Z0-9_-]*",
            form="a letter and up to 63 letters, digits, _ and -",
            evidence="observed",
            source="'function name is invalid, must start with a letter': MoonshotAI/kimi-cli#2531, 2026-07-22",
        ),
    ]
    if can_think:
        requirements += [
            ReturnedReasoning(
                fields=("reasoning_content",),
                scope="calls",
                when=_WHILE_THINKING,
                evidence="observed",
                source="'reasoning_content is missing in assistant tool call message': continuedev/continue#11711, "
                "2026-03-22; an empty text is refused too: farion1231/cc-switch#2365",
            ),
            FixedValues(
                values={"temperature": 1, "top_p": 0.95, "n": 1, "presence_penalty": 0, "frequency_penalty": 0},
                when=_WHILE_THINKING,
                source=_SAMPLING_SOURCE,
            ),
            FixedValues(
                values={"temperature": 0.6, "top_p": 0.95, "n": 1, "presence_penalty": 0, "frequency_penalty": 0},
                when=Condition("while thinking is turned off", _is_not_thinking),
                source=_SAMPLING_SOURCE,
            ),
        ]
    if not _K3.match(model):
        requirements.append(
            ExclusiveFields(
                fields=("thinking", "reasoning_effort"),
                evidence="observed",
                source="\"cannot specify both 'thinking' and 'reasoning_effort'\": HKUDS/nanobot#3939, 2026-05-20",
            )
        )
    if _K3.match(model):
        requirements.append(
            ToolChoices(
                choices=("auto", "none", "required"),
                reason="this model refuses a named tool",
                evidence="observed",
                source="UKGovernmentBEIS/inspect_ai#5152, 2026-08-31",
            )
        )
    elif can_think:
        requirements.append(
            ToolChoices(
                choices=("auto", "none"),
                reason="it is refused while the model thinks",
                when=_WHILE_THINKING,
                evidence="observed",
                source="\"tool_choice 'required' is incompatible with thinking enabled\": "
                "UKGovernmentBEIS/inspect_ai#5152, 2026-08-31",
            )
        )
    if model.startswith("kimi-k2.7"):
        requirements.append(
            AllowedValues(
                field="thinking.type",
                values=("enabled",),
                replacements={"disabled": "enabled"},
                source="'invalid thinking: only type=enabled is allowed for this model': fixture of vercel/ai",
            )
        )
    return ProviderRules(
        requirements=tuple(requirements),
        dialect_changes={
            "allows_empty_text": True,
            # No requirement lists it, since its evidence is weak; but to send calls of today cannot be wrong.
            "refuses_old_calls": True,
            # Both are stated because the requirement holds only while the model thinks; sent back they do no harm.
            "reasoning_fields": ("reasoning_content",),
            "reasoning_scope": "calls" if can_think else "",
        },
        more_refused_kinds=("message.refusal",),  # its reference has no such field in an answer
        skipped_rules=frozenset({"tool-schema", "tools", "stop", "images"}),
    )


KIMI = ProviderSpec(
    name="kimi",
    title="Kimi (Moonshot AI)",
    rules_by_api={"openai-chat": _build_chat_rules},
    example_models=("kimi-k2.6", "kimi-k2.7-code", "kimi-k3", "moonshot-v1-128k"),
    hosts=("api.moonshot.ai", "api.moonshot.cn", "api.kimi.com"),
    model_pattern=r"kimi-[a-z0-9.-]+|moonshot-v1-[a-z0-9-]+|k3(?:\.\d+)?(?:-[a-z0-9]+)*",
)
