"""Qwen (Alibaba Cloud Model Studio, DashScope).

Sources: www.alibabacloud.com/help/en/model-studio, and refusals in public issues.
"""

from __future__ import annotations

import re

from holdfast.providers.dialects.chat_requirements import AllowedRoles
from holdfast.providers.dialects.field_requirements import AllowedValues, NumberRange, ToolChoices
from holdfast.providers.dialects.provider_spec import ProviderRules, ProviderSpec
from holdfast.providers.dialects.requirement import Requirement
from holdfast.providers.rules.envelope import RequestView

_ALWAYS_THINKS = re.compile(r".*-thinking|qwq")
_OPEN_MODEL = re.compile(r"qwen3-\d+b")
_REFERENCE = "www.alibabacloud.com/help/en/model-studio, API reference of Chat Completions, 2026"


def _is_thinking(request: RequestView) -> bool:
    """Return whether the request surely lets the model think; the default differs from model to model."""
    return request.body.get("enable_thinking") is True or _ALWAYS_THINKS.match(request.model.lower()) is not None


def _wants_one_body(request: RequestView) -> bool:
    return not request.body.get("stream")


def _build_chat_rules(model: str) -> ProviderRules:
    requirements: list[Requirement] = [
        AllowedRoles(
            roles=("system", "user", "assistant", "tool", "function"),
            evidence="observed",
            source="\"developer is not one of ['system', 'assistant', 'user', 'tool', 'function']\": "
            "proma-ai/Proma#1496, 2026-08-08",
        ),
        ToolChoices(
            choices=("auto", "none"),
            reason="it is refused while the model thinks",
            applies=_is_thinking,
            evidence="observed",
            source="'tool_choice parameter does not support being set to required or object in thinking mode': "
            "cloudwego/eino#994, 2026-04-24",
        ),
        NumberRange(field="temperature", low=0, high=2, excludes_high=True, nearest_high=1.99, source=_REFERENCE),
        NumberRange(
            field="top_p", low=0, high=1, excludes_low=True, nearest_low=0.01, nearest_high=1, source=_REFERENCE
        ),
    ]
    if _OPEN_MODEL.match(model):
        requirements.append(
            AllowedValues(
                field="enable_thinking",
                values=(False,),
                replacements={True: False},
                applies=_wants_one_body,
                source="'enable_thinking must be set to false for non-streaming calls': Model Studio error codes, "
                "2026-06-23",
            )
        )
    return ProviderRules(
        requirements=tuple(requirements),
        dialect_changes={"reasoning_fields": ("reasoning_content",)},
        skipped_rules=frozenset({"tool-schema", "tools", "stop", "images", "sampling", "roles"}),
    )


QWEN = ProviderSpec(
    name="qwen",
    title="Qwen (Alibaba Cloud)",
    rules_by_api={"openai-chat": _build_chat_rules},
    hosts=("dashscope.aliyuncs.com", "dashscope-*.aliyuncs.com", "*.dashscope.aliyuncs.com"),
    model_pattern=r"qwen(?:\d+(?:\.\d+)?)?-(?:max|plus|flash|turbo|long|coder-(?:plus|flash)|vl-(?:max|plus|flash))"
    r"(?:-[a-z0-9.-]+)?|qwq-plus[a-z0-9-]*",
)
