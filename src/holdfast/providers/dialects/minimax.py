"""MiniMax.

Sources: platform.minimax.io/docs/api-reference (text-openai-api, text-chat), and refusals in public issues.
"""

from __future__ import annotations

import re

from holdfast.providers.dialects.provider_spec import ProviderRules, ProviderSpec
from holdfast.providers.dialects.requirements.fields import AllowedValues, NumberRange
from holdfast.providers.dialects.requirements.messages import MaxSystemMessages, ObjectArguments
from holdfast.providers.dialects.requirements.requirement import Requirement
from holdfast.providers.dialects.requirements.tools import RequiredToolParameters, ToolTypes

_M2 = re.compile(r"minimax-m2")
_M3 = re.compile(r"minimax-m3(?!\.)")
_REFERENCE = "platform.minimax.io/docs/api-reference/text-chat, 2026"
_REQUIREMENTS: tuple[Requirement, ...] = (
    MaxSystemMessages(
        evidence="observed",
        source="'invalid chat setting (2013)' for two, 200 merged: can1357/oh-my-pi#954, 2026-05-07",
    ),
    RequiredToolParameters(
        evidence="observed",
        source="'function parameters is empty (2013)': QwenLM/qwen-code#11834, 2026-09-14",
    ),
    ToolTypes(
        types=("function",),
        evidence="observed",
        source="'invalid tool type: (2013)': decolua/9router#2509, 2026-07-10",
    ),
    ObjectArguments(
        evidence="observed",
        source="'invalid function arguments json string': NousResearch/hermes-agent#12167, 2026-04-18",
    ),
)


def _build_chat_rules(model: str) -> ProviderRules:
    requirements = list(_REQUIREMENTS)
    if _M2.match(model):
        requirements += [
            NumberRange(
                field="temperature",
                low=0,
                high=1,
                excludes_low=True,
                nearest_low=0.01,
                nearest_high=1,
                source=_REFERENCE,
            ),
            NumberRange(
                field="top_p", low=0, high=1, excludes_low=True, nearest_low=0.01, nearest_high=1, source=_REFERENCE
            ),
        ]
    if _M3.match(model):
        requirements.append(
            AllowedValues(
                field="thinking.type",
                values=("adaptive", "disabled"),
                replacements={"enabled": "adaptive"},
                evidence="observed",
                source="'invalid thinking.type: \"enabled\" (allowed: adaptive, disabled)': "
                "CherryHQ/cherry-studio#16431, 2026",
            )
        )
    return ProviderRules(
        requirements=tuple(requirements),
        more_refused_kinds=("message.refusal",),  # its reference has no such field in an answer
        skipped_rules=frozenset({"tool-schema", "tools", "stop", "images"}),
    )


MINIMAX = ProviderSpec(
    name="minimax",
    title="MiniMax",
    rules_by_api={"openai-chat": _build_chat_rules},
    example_models=("MiniMax-M2.5", "MiniMax-M3"),
    hosts=("api.minimax.io", "api.minimaxi.com", "api.minimax.chat"),
    model_pattern=r"minimax-m[0-9][a-z0-9.-]*|m2-her",
)
