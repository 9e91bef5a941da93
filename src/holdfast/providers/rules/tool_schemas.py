"""The rule about the schemas of a request, those of tools above all, which every API has with limits of its own."""

from __future__ import annotations

from holdfast.providers.common.json.json_path import PathSteps, format_json_path
from holdfast.providers.common.schemas.check import find_schema_problems
from holdfast.providers.common.schemas.limits import ToolSchema, ToolSchemaFormat
from holdfast.providers.rules.envelope import RequestView
from holdfast.providers.rules.rule import Violations, format_json_value

TOOL_SCHEMA_RULE = "tool-schema"
"""The name of the rule, without the API before it."""
_MAX_PROBLEMS_PER_TOOL = 20
"""Problems told of one tool: one bad generator makes the same mistake in each of hundreds of properties."""


def check_tool_schemas(request: RequestView, schema_format: ToolSchemaFormat) -> Violations:
    """Yield the places in the schemas of tools that the API refuses; messages name tool and keyword."""
    for tool in schema_format.iter_schemas(request.body):
        problems = find_schema_problems(tool.schema, tool.limits)
        for problem in problems[:_MAX_PROBLEMS_PER_TOOL]:
            path: PathSteps = (*tool.steps, *problem.steps)
            yield format_json_path(path), f"{format_schema_owner(tool)}: {problem.message}"


def format_schema_owner(tool: ToolSchema) -> str:
    """Return what messages call the owner of a schema: a tool by its name, or the format of the answer."""
    return tool.label or f"tool {format_json_value(tool.tool_name)}"
