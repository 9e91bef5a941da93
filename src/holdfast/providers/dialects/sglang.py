"""SGLang, read in the source of version 0.5.23."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from holdfast.providers.common.json.json_path import JsonTree, PathSteps, Replacements
from holdfast.providers.common.schemas.limits import SchemaLimits
from holdfast.providers.dialects.provider_spec import ProviderRules, ProviderSpec
from holdfast.providers.dialects.requirements.messages import AllowedRoles, RefusedPartTypes
from holdfast.providers.dialects.requirements.requirement import Requirement
from holdfast.providers.dialects.requirements.schemas import ToolSchemas
from holdfast.providers.dialects.requirements.tools import iter_functions
from holdfast.providers.rules.envelope import RequestView
from holdfast.providers.rules.rule import Violations, format_json_value

_SOURCE = "sglang 0.5.23 source, entrypoints/openai, 2026-11"
_SCHEMA_LIMITS = SchemaLimits("SGLang")
"""Broken JSON Schema is refused, and nothing else."""


class KnownChosenTool(Requirement, frozen=True, kw_only=True):
    """A tool that must be called is one of the tools."""

    rule: ClassVar[str] = "chosen-tool"

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return "A tool that tool_choice names is in the list of tools."

    def find_violations(self, request: RequestView) -> Violations:
        """Yield the choice if no such tool is offered."""
        choice = request.body.get("tool_choice")
        function = choice.get("function") if isinstance(choice, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        offered = [offered_function.get("name") for _, offered_function in iter_functions(request)]
        if name is not None and name not in offered:
            problem = f"tool_choice names {format_json_value(name)}, which is not among the tools"
            yield "$.tool_choice", f"{problem}; offer it, or leave the choice out"

    def suggest_changes(self, tree: JsonTree, steps: PathSteps) -> Replacements:  # noqa: ARG002
        """Leave the choice to the model."""
        return {("tool_choice",): None}


def _build_chat_rules(_model: str) -> ProviderRules:
    return ProviderRules(
        requirements=(
            AllowedRoles(
                roles=(
                    "system",
                    "user",
                    "assistant",
                    "tool",
                    "function",
                    "developer",
                    "root",
                    "latest_reminder",
                ),
                source=_SOURCE,
            ),
            KnownChosenTool(source=_SOURCE),
            ToolSchemas(
                limits=_SCHEMA_LIMITS,
                form="valid JSON Schema of draft 2020-12",
                source=f"\"Tool 0 function has invalid 'parameters' schema\": {_SOURCE}",
            ),
            RefusedPartTypes(
                types=("thinking", "reasoning"), roles=("system", "developer", "user", "tool"), source=_SOURCE
            ),
        ),
        dialect_changes={"reasoning_fields": ("reasoning_content",)},
        skipped_rules=frozenset({"tool-schema", "tools", "stop", "images", "roles", "parts", "unknown-part"}),
    )


SGLANG = ProviderSpec(
    name="sglang",
    title="SGLang",
    rules_by_api={"openai-chat": _build_chat_rules},
    ports=(30_000,),
    keeps_client_content=True,
)
