"""Claude and Gemini on Google Cloud (Vertex AI, now the Gemini Enterprise Agent Platform).

Sources: docs.cloud.google.com, Anthropic's page on Vertex AI, and refusals in public issues.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from holdfast.providers.dialects.provider_spec import ProviderRules, ProviderSpec
from holdfast.providers.dialects.requirements.fields import (
    RefusedBetas,
    RefusedCacheFields,
    RefusedFields,
    RequiredFields,
)
from holdfast.providers.dialects.requirements.requirement import Condition, Requirement
from holdfast.providers.dialects.requirements.tools import RefusedToolTypes
from holdfast.providers.rules.envelope import RequestView
from holdfast.providers.rules.rule import Violations

_CLAUDE_PAGE = "platform.claude.com/docs, Claude on Vertex AI, 2026-07"
_SERVER_TOOLS = ("web_search", "web_fetch", "code_execution", "mcp_toolset", "memory_")
_BUILT_IN_TOOLS = ("googleSearch", "google_search", "urlContext", "url_context", "enterpriseWebSearch")


def _lacks_edit_beta(request: RequestView) -> bool:
    """Return whether the betas of the request are known, and none is about context edits or compaction."""
    if request.betas is None:
        return False
    return not any(beta.startswith(("context-management-", "compact-")) for beta in request.betas)


class NoMixedTools(Requirement, frozen=True, kw_only=True):
    """Built-in tools and function declarations exclude each other. Which to give up is the user's decision."""

    rule: ClassVar[str] = "mixed-tools"

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return "A request offers functions or built-in tools, not both."

    def find_violations(self, request: RequestView) -> Violations:
        """Yield the built-in tools that stand beside functions."""
        tools = request.get_list("tools")
        has_functions = any(
            isinstance(tool, Mapping) and (tool.get("functionDeclarations") or tool.get("function_declarations"))
            for tool in tools
        )
        if not has_functions:
            return
        for index, tool in enumerate(tools):
            for name in _BUILT_IN_TOOLS:
                if isinstance(tool, Mapping) and name in tool:
                    path = f"$.tools[{index}].{name}"
                    yield path, f"{name} stands beside functions, which Vertex AI refuses; offer one of them only"


_CLAUDE_REQUIREMENTS: tuple[Requirement, ...] = (
    RequiredFields(fields=("anthropic_version",), value="vertex-2023-10-16", source=_CLAUDE_PAGE),
    RefusedFields(fields=("model",), reason="the address names the model", source=_CLAUDE_PAGE),
    RefusedFields(
        fields=("output_format",),
        reason="it is deprecated and refused here",
        evidence="observed",
        source="BerriAI/litellm 1.110, Vertex AI transformation, 2026-11",
    ),
    RefusedFields(
        fields=("cache_control",), reason="automatic caching is not available on Vertex AI", source=_CLAUDE_PAGE
    ),
    RefusedCacheFields(
        fields=("scope",),
        evidence="observed",
        source="anthropics/claude-code#21625, 2026-01; BerriAI/litellm 1.110 strips it",
    ),
    RefusedFields(
        fields=("context_management",),
        reason="it is refused without its beta",
        when=Condition("without a beta for context edits or compaction", _lacks_edit_beta),
        evidence="observed",
        source="'context_management: Extra inputs are not permitted': anthropics/claude-code#21612, 2026-02",
    ),
    RefusedToolTypes(beginnings=_SERVER_TOOLS, allowed=("web_search_20250305",), source=_CLAUDE_PAGE),
    RefusedBetas(
        betas=frozenset({"prompt-caching-scope-2026-01-05", "oauth-2025-04-20"}),
        evidence="observed",
        source="'Unexpected value(s) `prompt-caching-scope-2026-01-05` for the `anthropic-beta` header': "
        "anthropics/claude-code#21625, 2026-01; oauth: better-ccflare#47",
    ),
)
_GEMINI_REQUIREMENTS: tuple[Requirement, ...] = (
    NoMixedTools(
        source="docs.cloud.google.com, function calling; BerriAI/litellm 1.110 drops the built-in tools, 2026-11"
    ),
)


def _build_messages_rules(_model: str) -> ProviderRules:
    return ProviderRules(requirements=_CLAUDE_REQUIREMENTS, keeps_size_limits=True)


def _build_gemini_rules(_model: str) -> ProviderRules:
    return ProviderRules(
        requirements=_GEMINI_REQUIREMENTS,
        keeps_size_limits=True,
        # The flag that lets both kinds of tools stand together is not known here.
        skipped_rules=frozenset({"server-side-tools", "server-side-mode"}),
    )


VERTEX = ProviderSpec(
    name="vertex",
    title="Google Cloud (Vertex AI)",
    rules_by_api={"anthropic": _build_messages_rules, "gemini": _build_gemini_rules},
    hosts=("aiplatform.googleapis.com", "*-aiplatform.googleapis.com", "aiplatform.*.rep.googleapis.com"),
    body_sign=("anthropic_version", "vertex-"),
)
