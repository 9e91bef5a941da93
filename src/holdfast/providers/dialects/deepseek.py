"""DeepSeek.

Sources: api-docs.deepseek.com (guides thinking_mode, function_calling, vision), and refusals in public issues.
"""

from __future__ import annotations

import re
from typing import Any

from holdfast.providers.dialects.provider_spec import ProviderRules, ProviderSpec
from holdfast.providers.dialects.requirements.fields import NumberRange, is_thinking_turned_on
from holdfast.providers.dialects.requirements.messages import AllowedRoles, PartTypes, ReturnedReasoning
from holdfast.providers.dialects.requirements.requirement import Condition, Requirement
from holdfast.providers.dialects.requirements.tools import NoOldTools, ToolChoices
from holdfast.providers.rules.envelope import RequestView

_NEVER_THINKS = re.compile(r"deepseek-chat")
_READS_TEXT_ONLY = re.compile(r"deepseek-v4-pro")


_WHILE_THINKING = Condition("while the model thinks", is_thinking_turned_on)


def _is_thinking_with_tools(request: RequestView) -> bool:
    return is_thinking_turned_on(request) and bool(request.get_list("tools"))


def _build_chat_rules(model: str) -> ProviderRules:
    requirements: list[Requirement] = [
        AllowedRoles(
            roles=("system", "user", "assistant", "tool", "latest_reminder"),
            of_other_rules=("function",),
            evidence="observed",
            source="\"unknown variant 'developer'\": decolua/9router#773, 2026-05-02",
        ),
        NoOldTools(
            evidence="observed",
            source="the role function is none of the variants that 'unknown variant' lists: decolua/9router#773, "
            "2026-05-02; tools alone: api-docs.deepseek.com/api/create-chat-completion",
        ),
        ToolChoices(
            choices=("auto", "none", "required", "named"),
            reason="there is no such choice",
            evidence="observed",
            source="'any' is refused: BerriAI/litellm#37470, 2026",
        ),
        NumberRange(
            field="max_tokens",
            low=1,
            high=393_216,
            nearest_low=1,
            nearest_high=393_216,
            evidence="observed",
            source="'the valid range of max_tokens is [1, 393216]': langgenius/dify-official-plugins#3867, 2026",
        ),
    ]
    dialect_changes: dict[str, Any] = {
        "max_tokens_field": "max_tokens",  # the only limit in its reference
        "reasoning_fields": ("reasoning_content",),
        "allows_empty_reasoning": True,
        # "Told from the bytes, not the declared type" (guide to vision, via opencode#47965).
        "tells_media_from_bytes": True,
    }
    if not _NEVER_THINKS.match(model):
        dialect_changes["reasoning_scope"] = "all"
        requirements += [
            ReturnedReasoning(
                fields=("reasoning_content",),
                scope="all",
                accepts_empty=True,
                when=Condition("while the model thinks and has tools", _is_thinking_with_tools),
                source="api-docs.deepseek.com/guides/thinking_mode, 2026-08; 'must be passed back to the API': "
                "wavetermdev/waveterm#3266, 2026-05-01; an empty text is taken: openclaw/openclaw#73417, 2026-04-28",
            ),
            ToolChoices(
                choices=("auto", "none"),
                reason="it is refused while the model thinks",
                when=_WHILE_THINKING,
                evidence="observed",
                source="'Thinking mode does not support this tool_choice': osaurus-ai/osaurus#1940, 2026-07-08",
            ),
        ]
    if _READS_TEXT_ONLY.match(model):
        requirements.append(
            PartTypes(
                types=("text",),
                evidence="observed",
                source="\"unknown variant 'image_url', expected 'text'\": rikkahub/rikkahub#1433, 2026-07-03",
            )
        )
    return ProviderRules(
        requirements=tuple(requirements),
        dialect_changes=dialect_changes,
        more_refused_kinds=("message.refusal",),  # api/create-chat-completion has no such field in an answer
        # Sixteen stop sequences, 600 images (guides), and a role of its own; how many tools is not documented.
        skipped_rules=frozenset({"tool-schema", "tools", "stop", "images", "roles", "parts", "media-bytes"}),
    )


DEEPSEEK = ProviderSpec(
    name="deepseek",
    title="DeepSeek",
    rules_by_api={"openai-chat": _build_chat_rules},
    example_models=("deepseek-flash", "deepseek-v4-pro", "deepseek-chat"),
    hosts=("api.deepseek.com",),
    model_pattern=r"deepseek-(?:chat|reasoner|flash|v\d[a-z0-9.-]*)",
)
