"""The schemas of functions in OpenAI's APIs: ``parameters``, in Chat Completions inside ``function``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from holdfast.providers.common.schemas.check import find_schema_problems
from holdfast.providers.common.schemas.limits import RepairedTool, SchemaLimits, ToolSchema, ToolSchemaFormat
from holdfast.providers.common.schemas.repair import repair_schema

_SCHEMA_FIELD = "parameters"

FUNCTION_LIMITS = SchemaLimits(
    "OpenAI",
    # Observed: "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level"
    # (langchain-ai/langchainjs#9804, 2026-01-14; with 'const' feigeCode/navop#247, 2026-09-20).
    root_refused_keywords=frozenset({"oneOf", "anyOf", "allOf", "enum", "const", "not"}),
    requires_root_type=True,
    # Observed: "In context=(), object schema missing properties" (github/copilot-cli#2223, 2026-03-23;
    # inboxapi/cli#106, 2026-05-06).
    requires_root_properties=True,
    # Observed: "array schema missing items", at any depth (tidewave-ai/tidewave_phoenix#224, 2026-02-02;
    # ooples/token-optimizer-mcp#154, 2026-04-20).
    requires_array_items=True,
)
"""What OpenAI refuses of any function. Broken JSON Schema is refused too: "[] is not of type 'object', 'boolean'"
(FoundationAgents/OpenManus#1162, 2025-06-11)."""

STRICT_LIMITS = replace(
    FUNCTION_LIMITS,
    # Observed: "'additionalProperties' is required to be supplied and to be false" (nextlevelbuilder/goclaw#1007,
    # 2026-04-22; letta-ai/letta#3137, 2026-01-08), "'required' is required to be supplied and to be an array including
    # every key in properties" (kevinwatt/mysql-mcp#5, 2025-05-13), "schema must have a 'type' key" (apexive/odoo-llm
    # #212), "'allOf' is not permitted" (makenotion/notion-mcp-server#102, 2025-08-07).
    requires_closed_objects=True,
    requires_all_properties=True,
    requires_types=True,
    refused_keywords=frozenset(
        {"allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "patternProperties"}
    ),
)
"""What OpenAI refuses of a function with ``strict: true``. Without the field Responses makes a function strict as far
as its schema allows and refuses nothing more, so only the written flag counts."""

_STRICT_REPAIR_LIMITS = replace(STRICT_LIMITS, refused_keywords=frozenset())
"""What a repair removes of them: a keyword that strict mode refuses stays, and the function is strict no more."""


def iter_chat_schemas(body: Mapping[str, Any]) -> Iterator[ToolSchema]:
    """Yield the schemas of the functions of a request of Chat Completions."""
    for index, tool in _iter_tools(body):
        function = tool.get("function")
        if isinstance(function, dict):
            yield from _iter_function_schema(function, ("tools", index, "function"))


def iter_responses_schemas(body: Mapping[str, Any]) -> Iterator[ToolSchema]:
    """Yield the schemas of the functions of a request of Responses, also of those inside a namespace."""
    for index, tool in _iter_tools(body):
        if tool.get("type") == "function":
            yield from _iter_function_schema(tool, ("tools", index))
        elif tool.get("type") == "namespace":
            for inner_index, inner_tool in _iter_tools(tool):
                if inner_tool.get("type") == "function":
                    yield from _iter_function_schema(inner_tool, ("tools", index, "tools", inner_index))


def _iter_tools(holder: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    tools = holder.get("tools")
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(tool, dict):
            yield index, tool


def _iter_function_schema(function: dict[str, Any], steps: tuple[str | int, ...]) -> Iterator[ToolSchema]:
    # A function without parameters takes none.
    if isinstance(function.get(_SCHEMA_FIELD), dict):
        limits = STRICT_LIMITS if function.get("strict") is True else FUNCTION_LIMITS
        yield ToolSchema(function.get("name"), steps, function, _SCHEMA_FIELD, limits)


def repair_function(tool: ToolSchema) -> RepairedTool:
    """Repair the schema of a function; one that cannot be strict loses ``strict``, not its optional arguments."""
    if tool.limits is not STRICT_LIMITS:
        repaired = repair_schema(tool.schema, tool.limits)
        return RepairedTool({_SCHEMA_FIELD: repaired.schema}, repaired.notes)
    repaired = repair_schema(tool.schema, _STRICT_REPAIR_LIMITS)
    if find_schema_problems(repaired.schema, STRICT_LIMITS):
        repaired = repair_schema(tool.schema, FUNCTION_LIMITS)
        note = "strict: set to false, the schema has what strict mode does not take"
        return RepairedTool({_SCHEMA_FIELD: repaired.schema, "strict": False}, (note, *repaired.notes))
    return RepairedTool({_SCHEMA_FIELD: repaired.schema}, repaired.notes)


CHAT_TOOL_SCHEMAS = ToolSchemaFormat(iter_chat_schemas, repair_function)
"""Where Chat Completions has the schemas of functions, and how they are repaired."""
RESPONSES_TOOL_SCHEMAS = ToolSchemaFormat(iter_responses_schemas, repair_function)
"""Where Responses has the schemas of functions, and how they are repaired."""
