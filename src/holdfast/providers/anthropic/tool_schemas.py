"""The schemas in a request of the Messages API: ``input_schema`` of a tool, ``schema`` of the answer's format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from holdfast.providers.common.schemas.check import find_schema_problems
from holdfast.providers.common.schemas.limits import RepairedTool, SchemaLimits, ToolSchema, ToolSchemaFormat
from holdfast.providers.common.schemas.repair import repair_schema

_SCHEMA_FIELD = "input_schema"

TOOL_LIMITS = SchemaLimits(
    "the Messages API",
    # Observed: "input_schema does not support oneOf, allOf, or anyOf at the top level" (claude-code#5319, 2025-08-07;
    # kenn-io/kata#365, 2026-09-14, which also shows that ``not`` and ``if`` are accepted there).
    root_refused_keywords=frozenset({"oneOf", "allOf", "anyOf"}),
    # The SDK types of 2.14: type is required and "object"; properties and required may be null.
    requires_root_type=True,
    root_null_keywords=frozenset({"properties", "required"}),
    # Observed: "Property keys should match pattern", at the top level only (aws-solutions-library-samples/
    # accelerated-intelligent-document-processing-on-aws#709, 2026-08-31; erikmaday/unusual-whales-mcp#57, 2026-01-08).
    root_property_pattern=re.compile(r"[a-zA-Z0-9_.-]{1,64}"),
)
"""What the Messages API refuses. Everything else must be valid draft 2020-12: "JSON schema is invalid. It must match
JSON Schema draft 2020-12" (kintone/mcp-server#553, 2026-08-18, for ``items`` as a list; crowecawcaw/click-mcp#20,
2026-01-12, for a description of null)."""

_STRICT_LIMITS = replace(
    TOOL_LIMITS,
    requires_closed_objects=True,
    refused_keywords=frozenset(
        {
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "multipleOf",
            "minLength",
            "maxLength",
            "maxItems",
        }
    ),
    max_min_items=1,
    refuses_recursion=True,
)
"""With ``strict: true`` also what structured outputs refuse (platform.claude.com/docs/en/build-with-claude/
structured-outputs, copy of 2026-08-21: numbers, lengths, ``minItems`` other than 0 and 1, recursion). Observed: "For
'array' type, property 'maxItems' is not supported" (agentjido/req_llm#706, 2026-05-19), exclusive limits
(BerriAI/litellm#20813, 2026-02-10)."""

_FORMAT_LIMITS = SchemaLimits(
    "the Messages API",
    allows_any_root=True,
    requires_closed_objects=True,
    refused_keywords=_STRICT_LIMITS.refused_keywords,
    max_min_items=_STRICT_LIMITS.max_min_items,
    refuses_recursion=True,
)
"""What the format of an answer refuses: the same, but it has no arguments. Observed: "output_config.format.schema: For
'array' type, 'minItems' values other than 0 or 1 are not supported" (ghostlobster/memorize-everything#93, 2026-05-01),
"output_format.schema: For 'integer' type, property 'minimum' is not supported" (agentjido/req_llm#302, 2025-12-28),
"For 'object' type, 'additionalProperties: true' is not supported" (BerriAI/litellm#35808, 2026-08-04)."""

_CALLED_BY_CODE_LIMITS = replace(TOOL_LIMITS, refuses_recursion=True)
"""A tool that code calls must not contain itself: "Circular $ref" (page on programmatic tool calling, copy of
2026-08-21)."""
_CODE_CALLER_PREFIX = "code_execution"


def _iter_schemas(body: Mapping[str, Any]) -> Iterator[ToolSchema]:
    tools = body.get("tools")
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        # Tools that the server runs have a type of their own, and no schema.
        if (
            isinstance(tool, dict)
            and tool.get("type") in (None, "custom")
            and isinstance(tool.get(_SCHEMA_FIELD), dict)
        ):
            yield ToolSchema(tool.get("name"), ("tools", index), tool, _SCHEMA_FIELD, _choose_limits(tool))
    for steps in (("output_config", "format"), ("output_format",)):
        answer_format = _get_object(body, steps)
        if isinstance(answer_format.get("schema"), dict):
            yield ToolSchema("", steps, answer_format, "schema", _FORMAT_LIMITS, "the format of the answer")


def _choose_limits(tool: Mapping[str, Any]) -> SchemaLimits:
    if tool.get("strict") is True:
        return _STRICT_LIMITS
    callers = tool.get("allowed_callers")
    if isinstance(callers, list) and any(str(caller).startswith(_CODE_CALLER_PREFIX) for caller in callers):
        return _CALLED_BY_CODE_LIMITS
    return TOOL_LIMITS


def _get_object(body: Mapping[str, Any], steps: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the object under ``steps``, or an empty one."""
    value: Any = body
    for step in steps:
        value = value.get(step) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _repair_tool(tool: ToolSchema) -> RepairedTool:
    repaired = repair_schema(tool.schema, tool.limits)
    if tool.limits is _STRICT_LIMITS and find_schema_problems(repaired.schema, _STRICT_LIMITS):
        # An open object cannot be strict; without ``strict`` its schema is accepted as it is.
        repaired = repair_schema(tool.schema, TOOL_LIMITS)
        return RepairedTool({_SCHEMA_FIELD: repaired.schema, "strict": None}, ("strict: left out", *repaired.notes))
    return RepairedTool({tool.field: repaired.schema}, repaired.notes)


TOOL_SCHEMAS = ToolSchemaFormat(_iter_schemas, _repair_tool)
"""Where the Messages API has the schemas of tools, and how they are repaired."""
