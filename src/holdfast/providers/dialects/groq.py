"""Groq.

Sources: console.groq.com/docs (openai, reasoning, tool-use), and refusals in public issues.
"""

from __future__ import annotations

import re

from holdfast.providers.common.schemas.limits import SchemaLimits
from holdfast.providers.dialects.provider_spec import ProviderRules, ProviderSpec
from holdfast.providers.dialects.requirements.fields import AllowedValues, FixedValues, RefusedFields
from holdfast.providers.dialects.requirements.messages import RefusedMessageFields
from holdfast.providers.dialects.requirements.requirement import Condition, Requirement
from holdfast.providers.dialects.requirements.schemas import AnswerSchema
from holdfast.providers.rules.envelope import RequestView

_DOCS = "console.groq.com/docs/openai, 2026-11"
_REASONING_DOCS = "console.groq.com/docs/reasoning, 2026-11"
_QWEN = re.compile(r"(?:qwen/)?qwen")
_GPT_OSS = re.compile(r"(?:openai/)?gpt-oss")

_ANSWER_LIMITS = SchemaLimits("Groq", allows_any_root=True, refused_keywords=frozenset({"minItems", "maxItems"}))
_STRICT_ANSWER_LIMITS = SchemaLimits(
    "Groq", allows_any_root=True, requires_closed_objects=True, requires_all_properties=True
)


def _has_tools_or_json_mode(request: RequestView) -> bool:
    return bool(request.get_list("tools")) or request.get_option("response_format", "type") == "json_object"


def _build_chat_rules(model: str) -> ProviderRules:
    requirements: list[Requirement] = [
        AnswerSchema(
            limits=_ANSWER_LIMITS,
            form="without minItems and maxItems",
            evidence="observed",
            source="'minItems is not supported': i-am-bee/beeai-framework#1215, 2025-10-22; presenton/presenton#165, "
            "2025-09-10",
        ),
        AnswerSchema(
            limits=_STRICT_ANSWER_LIMITS,
            form="closed (additionalProperties: false on each object) and requires all properties",
            strict_only=True,
            source="console.groq.com/docs/structured-outputs, 2026-11",
        ),
        RefusedFields(fields=("logprobs", "logit_bias", "top_logprobs"), source=_DOCS),
        RefusedFields(
            fields=("store",),
            refuses_null=True,
            evidence="observed",
            source="\"property 'store' is unsupported, did you mean 'stop'?\": public issue chatbot#21, 2025",
        ),
        RefusedFields(
            fields=("thinking", "enable_thinking", "thinking_budget", "reasoning"),
            reason="Groq has no such field, and refuses unknown ones",
            evidence="observed",
            source="\"property 'X' is unsupported\": janhq/jan#8136, 2026; fields: console.groq.com/docs/reasoning",
        ),
        FixedValues(values={"n": 1}, source=_DOCS),
        RefusedMessageFields(
            fields_by_role={
                "system": ("name",),
                "user": ("name",),
                "assistant": ("name", "reasoning_content", "reasoning_details"),
                "tool": ("name",),
            },
            evidence="observed",
            source=f"name: {_DOCS}; \"property 'reasoning_content' is unsupported\": janhq/jan#8136, 2026",
        ),
        # The old form itself is taken: groq/groq-python, generated from the API's schema, has it.
        RefusedMessageFields(
            fields_by_role={"assistant": ("function_call",)},
            refuses_only_null=True,
            evidence="observed",
            source="BerriAI/litellm#5839",
        ),
        AllowedValues(
            field="reasoning_format",
            values=("parsed", "hidden"),
            replacements={"raw": "parsed"},
            when=Condition("with tools or in JSON mode", _has_tools_or_json_mode),
            source=_REASONING_DOCS,
        ),
    ]
    if _QWEN.match(model):
        efforts = {"minimal": "default", "low": "default", "medium": "default", "high": "default", "xhigh": "default"}
        requirements.append(
            AllowedValues(
                field="reasoning_effort", values=("none", "default"), replacements=efforts, source=_REASONING_DOCS
            )
        )
    elif _GPT_OSS.match(model):
        efforts = {"none": "low", "minimal": "low", "default": "medium", "xhigh": "high", "max": "high"}
        requirements.append(
            AllowedValues(
                field="reasoning_effort",
                values=("low", "medium", "high"),
                replacements=efforts,
                source=_REASONING_DOCS,
            )
        )
    return ProviderRules(
        requirements=tuple(requirements),
        dialect_changes={"reasoning_fields": ("reasoning",), "allows_thinking_in_any_role": False},
        # Its messages have no refusal: groq/groq-python, types of chat, 2026.
        more_refused_kinds=("message.refusal",),
        skipped_rules=frozenset({"tool-schema", "images"}),
    )


GROQ = ProviderSpec(
    name="groq",
    title="Groq",
    rules_by_api={"openai-chat": _build_chat_rules},
    example_models=("openai/gpt-oss-120b", "qwen/qwen3.8-27b"),
    hosts=("api.groq.com",),
)
