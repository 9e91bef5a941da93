"""Claude on Amazon Bedrock: InvokeModel, whose body names ``anthropic_version``, and the Messages endpoint.

Sources: docs.aws.amazon.com/bedrock/latest/userguide (inference-messages-api), Anthropic's page on Bedrock, and
refusals in public issues. Bedrock checks a request against a schema of its own.
"""

from __future__ import annotations

import re
from typing import Any

from holdfast.providers.dialects.provider_spec import ProviderRules, ProviderSpec
from holdfast.providers.dialects.requirements.fields import (
    KnownFields,
    RefusedBetas,
    RefusedCacheFields,
    RefusedFields,
    RequiredFields,
)
from holdfast.providers.dialects.requirements.requirement import Condition, Requirement
from holdfast.providers.dialects.requirements.tools import RefusedToolFields, RefusedToolTypes
from holdfast.providers.rules.envelope import RequestView

_INVOKE_FIELDS = frozenset(
    {
        "anthropic_version",
        "anthropic_beta",
        "max_tokens",
        "messages",
        "system",
        "stop_sequences",
        "temperature",
        "top_p",
        "top_k",
        "tools",
        "tool_choice",
        "thinking",
        "metadata",
        "output_config",
        "safeguards",
        "context_management",
        "compaction",
    }
)
_HAS_NO_FORMAT = re.compile(r".*(?:opus-4-[78]|opus-5|fable-5|sonnet-5)")
_SERVER_TOOLS = ("web_search", "web_fetch", "code_execution", "mcp_toolset")
"""Tools that Anthropic runs itself."""


def _is_invoke_body(request: RequestView) -> bool:
    return "anthropic_version" in request.body


_IN_MESSAGES_BODY = Condition("in a body without anthropic_version", lambda request: not _is_invoke_body(request))


def _build_messages_rules(model: str) -> ProviderRules:
    requirements: list[Requirement] = [
        KnownFields(
            fields=_INVOKE_FIELDS,
            when=Condition("in a body with anthropic_version", _is_invoke_body),
            evidence="observed",
            source="'Extra inputs are not permitted'; fields: AWS user guide, parameters of Anthropic Claude Messages",
        ),
        RequiredFields(
            fields=("anthropic_version",),
            value="bedrock-2023-05-31",
            when=Condition("in a body without model", lambda request: "model" not in request.body),
            source="AWS user guide, parameters of Anthropic Claude Messages: InvokeModel, 2026-11",
        ),
        RefusedFields(
            fields=("anthropic_beta", "betas"),
            reason="beside a model in the body, betas are a header",
            when=_IN_MESSAGES_BODY,
            source="AWS user guide, inference-messages-api, 2026-11",
        ),
        RefusedCacheFields(
            fields=("scope",),
            evidence="observed",
            source="'cache_control.ephemeral.scope: Extra inputs are not permitted'; BerriAI/litellm 1.110 strips it",
        ),
        RefusedFields(
            fields=("cache_control",),
            reason="automatic caching is not available on Bedrock",
            when=_IN_MESSAGES_BODY,
            source="platform.claude.com/docs, Claude in Amazon Bedrock, 2026-07",
        ),
        RefusedToolTypes(
            beginnings=_SERVER_TOOLS, source="platform.claude.com/docs, Claude in Amazon Bedrock, 2026-07"
        ),
        RefusedBetas(
            betas=frozenset(
                {"prompt-caching-scope-2026-01-05", "extended-cache-ttl-2025-04-11", "claude-code-20250219"}
            ),
            # Betas went from refused to accepted within weeks, and differ from model to model.
            evidence="inferred",
            source="'invalid beta flag': anthropics/claude-code#49370, 2026-04; BerriAI/litellm 1.110, table of betas",
        ),
    ]
    if _HAS_NO_FORMAT.match(model):
        requirements.append(
            RefusedToolFields(
                fields=("strict",),
                evidence="observed",
                source="AI SDK amazon-bedrock 4.0, bedrock-anthropic-model-support, 2026-11",
            )
        )
        requirements.append(
            RefusedFields(
                fields=("output_config.format",),
                reason="this model takes no output format on Bedrock",
                evidence="observed",
                source="'output_config.format: Extra inputs are not permitted': AI SDK amazon-bedrock 4.0, 2026-11",
            )
        )
    dialect_changes: dict[str, Any] = {"max_bytes": 20_000_000}  # the AWS user guide: 20 MB
    return ProviderRules(
        requirements=tuple(requirements),
        dialect_changes=dialect_changes,
        keeps_size_limits=True,
    )


BEDROCK = ProviderSpec(
    name="bedrock",
    title="Amazon Bedrock",
    rules_by_api={"anthropic": _build_messages_rules},
    example_models=("anthropic.claude-sonnet-4-5", "us.anthropic.claude-opus-4-8"),
    hosts=("bedrock-runtime.*.amazonaws.com", "bedrock-runtime.*.amazonaws.com.cn", "bedrock-mantle.*.api.aws"),
    body_sign=("anthropic_version", "bedrock-"),
)
