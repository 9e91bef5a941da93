"""Qwen (Alibaba Cloud Model Studio, DashScope).

Sources: www.alibabacloud.com/help/en/model-studio, and refusals in public issues.
"""

from __future__ import annotations

import re
from typing import ClassVar

from holdfast.providers.common.json.json_path import JsonTree, PathSteps, Replacements
from holdfast.providers.dialects.provider_spec import ProviderRules, ProviderSpec
from holdfast.providers.dialects.requirements.fields import NumberRange
from holdfast.providers.dialects.requirements.messages import AllowedRoles
from holdfast.providers.dialects.requirements.requirement import Condition, Requirement
from holdfast.providers.dialects.requirements.tools import ToolChoices
from holdfast.providers.rules.envelope import RequestView
from holdfast.providers.rules.rule import Violations

_ALWAYS_THINKS = re.compile(r".*-thinking|qwq")
_THINKS_BY_DEFAULT = re.compile(r"qwen3\.8-max|qwen3-\d+b")
_OPEN_MODEL = re.compile(r"qwen3-\d+b")
_REFERENCE = "www.alibabacloud.com/help/en/model-studio, API reference of Chat Completions, 2026"


def _is_thinking(request: RequestView) -> bool:
    """Return whether the request surely lets the model think; the default differs from model to model."""
    model = request.model.lower()
    if _ALWAYS_THINKS.match(model):
        return True
    switch = request.body.get("enable_thinking")
    if switch is not None:
        return switch is True
    effort = request.body.get("reasoning_effort")
    if effort is not None:
        return bool(effort != "none")
    return _THINKS_BY_DEFAULT.match(model) is not None


class ThinkingNeedsStream(Requirement, frozen=True, kw_only=True):
    """Open models think by default, and only in a stream; in one body thinking must be turned off."""

    rule: ClassVar[str] = "thinking-stream"

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return "A request for a single body sets enable_thinking to false."

    def find_violations(self, request: RequestView) -> Violations:
        """Yield the switch unless the answer is streamed or thinking is turned off."""
        if not request.body.get("stream") and request.body.get("enable_thinking") is not False:
            problem = "this model thinks, which it only does in a stream"
            yield "$.enable_thinking", f"{problem}; set enable_thinking to false, or stream to true"

    def suggest_changes(self, tree: JsonTree, steps: PathSteps) -> Replacements:  # noqa: ARG002
        """Turn thinking off."""
        return {("enable_thinking",): b"false"}


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
            when=Condition("while the model thinks", _is_thinking),
            evidence="observed",
            source="'tool_choice parameter does not support being set to required or object in thinking mode': "
            "cloudwego/eino#994, 2026-04-24",
        ),
        NumberRange(
            field="thinking_budget",
            low=1,
            high=1_000_000,
            nearest_low=1,
            source="'must be a positive integer': Model Studio error codes, 2026-06-23",
        ),
        NumberRange(field="temperature", low=0, high=2, excludes_high=True, nearest_high=1.99, source=_REFERENCE),
        NumberRange(
            field="top_p", low=0, high=1, excludes_low=True, nearest_low=0.01, nearest_high=1, source=_REFERENCE
        ),
    ]
    if _OPEN_MODEL.match(model):
        requirements.append(
            ThinkingNeedsStream(
                source="'enable_thinking must be set to false for non-streaming calls': Model Studio error codes, "
                "2026-06-23",
            )
        )
    return ProviderRules(
        requirements=tuple(requirements),
        dialect_changes={"reasoning_fields": ("reasoning_content",)},
        more_refused_kinds=("message.refusal",),  # its reference has no such field in an answer
        skipped_rules=frozenset({"tool-schema", "tools", "stop", "images", "sampling", "roles"}),
    )


QWEN = ProviderSpec(
    name="qwen",
    title="Qwen (Alibaba Cloud)",
    rules_by_api={"openai-chat": _build_chat_rules},
    example_models=("qwen3.8-max", "qwen3-32b"),
    hosts=("dashscope.aliyuncs.com", "dashscope-*.aliyuncs.com", "*.dashscope.aliyuncs.com"),
    model_pattern=r"qwen(?:\d+(?:\.\d+)?)?-(?:max|plus|flash|turbo|long|coder-(?:plus|flash)|vl-(?:max|plus|flash))"
    r"(?:-[a-z0-9.-]+)?|qwq-plus[a-z0-9-]*",
)
