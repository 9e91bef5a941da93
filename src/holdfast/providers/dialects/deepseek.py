"""DeepSeek.

Sources: api-docs.deepseek.com (guides thinking_mode, function_calling, vision), and refusals in public issues.
"""

from __future__ import annotations

import re
from typing import Any

from holdfast.providers.dialects.chat_requirements import AllowedRoles, PartTypes, ReturnedReasoning
from holdfast.providers.dialects.field_requirements import NumberRange, ToolChoices
from holdfast.providers.dialects.provider_spec import ProviderRules, ProviderSpec
from holdfast.providers.dialects.requirement import Requirement
from holdfast.providers.rules.envelope import RequestView

_NEVER_THINKS = re.compile(r"deepseek-chat")
_READS_TEXT_ONLY = re.compile(r"deepseek-v4-pro")


def _is_thinking(request: RequestView) -> bool:
    """Return whether the model thinks: it does unless the request turns that off."""
    return bool(request.get_option("thinking", "type") != "disabled")


def _is_thinking_with_tools(request: RequestView) -> bool:
    return _is_thinking(request) and bool(request.get_list("tools"))


def _build_chat_rules(model: str) -> ProviderRules:
    requirements: list[Requirement] = [
        AllowedRoles(
            roles=("system", "user", "assistant", "tool", "latest_reminder"),
            evidence="observed",
            source="\"unknown variant 'developer'\": decolua/9router#773, 2026-05-02",
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
                applies=_is_thinking_with_tools,
                source="api-docs.deepseek.com/guides/thinking_mode, 2026-08; 'must be passed back to the API': "
                "wavetermdev/waveterm#3266, 2026-05-01; an empty text is taken: openclaw/openclaw#73417, 2026-04-28",
            ),
            ToolChoices(
                choices=("auto", "none"),
                reason="it is refused while the model thinks",
                applies=_is_thinking,
                evidence="observed",
                source="'Thinking mode does not support this tool_choice': osaurus-ai/osaurus#1940, 2026-07-08",
            ),
        ]
    if _READS_TEXT_ONLY.match(model):
        dialect_changes["allows_media"] = False
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
        refused_kinds=("message.role",),  # the role developer becomes system
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
