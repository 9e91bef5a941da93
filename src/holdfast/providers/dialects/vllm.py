"""vLLM, read in the source of version 0.33. What order of roles it takes depends on the model's chat template."""

from __future__ import annotations

from holdfast.providers.dialects.provider_spec import ProviderRules, ProviderSpec
from holdfast.providers.dialects.requirements.fields import FieldNeedsField, TextForm
from holdfast.providers.dialects.requirements.tools import NoEmptyTools, RefusedToolTypes, ToolTypes

_SOURCE = "vllm 0.33 source, entrypoints/openai, 2026-11"


def _build_chat_rules(_model: str) -> ProviderRules:
    return ProviderRules(
        requirements=(
            NoEmptyTools(source=_SOURCE),
            ToolTypes(types=("function",), source=_SOURCE),
            TextForm(
                field="cache_salt",
                pattern=r"[^@/\\\x00]{1,128}",
                form="a text of 1 to 128 characters without @, / and \\",
                source=_SOURCE,
            ),
            FieldNeedsField(field="top_logprobs", needs="logprobs", source=_SOURCE),
        ),
        # Any text is a role, and nothing but memory limits tools, stop sequences and images.
        skipped_rules=frozenset({"tool-schema", "tools", "stop", "images", "roles", "parts", "unknown-part"}),
    )


def _build_messages_rules(_model: str) -> ProviderRules:
    return ProviderRules(
        requirements=(
            RefusedToolTypes(
                beginnings=("web_search", "web_fetch", "code_execution", "bash_", "text_editor_", "computer_"),
                source="vllm 0.33 source, entrypoints/anthropic: each tool has an input_schema, 2026-11",
            ),
        ),
    )


VLLM = ProviderSpec(
    name="vllm",
    title="vLLM",
    rules_by_api={"openai-chat": _build_chat_rules, "anthropic": _build_messages_rules},
    keeps_client_content=True,
)
