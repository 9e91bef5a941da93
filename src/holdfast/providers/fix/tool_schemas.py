"""Repair the schemas of tools that the API refuses; those that it accepts keep their bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from holdfast.providers.common.json.json_path import JsonTree, PathSteps, format_json_path, replace_json_at_paths
from holdfast.providers.common.json.raw_json import decode_json_value, encode_json
from holdfast.providers.common.schemas.check import find_schema_problems
from holdfast.providers.common.schemas.limits import RepairedTool, ToolSchema
from holdfast.providers.fix.fix_context import FixContext, RequestFix
from holdfast.providers.rules.rule import Finding
from holdfast.providers.rules.tool_schemas import TOOL_SCHEMA_RULE, format_schema_owner


def repair_tool_schemas(body: bytes, context: FixContext, errors: Sequence[Finding]) -> tuple[bytes, list[RequestFix]]:
    """Repair every schema of a tool that breaks a rule, as far as there is one right way."""
    schema_format = context.spec.tool_schemas
    rule = f"{context.spec.api}.{TOOL_SCHEMA_RULE}"
    if schema_format is None or not any(error.rule == rule for error in errors):
        return body, []
    tree = JsonTree(Raw(body))
    changes: dict[PathSteps, bytes | None] = {}
    fixes = []
    for tool in schema_format.iter_schemas(decode_json_value(body)):
        problems = find_schema_problems(tool.schema, tool.limits)
        if not problems:
            continue
        repaired = schema_format.repair(tool)
        if repaired.notes:
            changes[tool.holder_steps] = _encode_holder(tree, tool, repaired)
            why = f"{format_schema_owner(tool)}: {'; '.join(repaired.notes)}"
            fixes.append(RequestFix(rule, why, format_json_path((*tool.steps, *problems[0].steps))))
    if not changes:
        return body, []
    return replace_json_at_paths(tree.raw, changes), fixes


def _encode_holder(tree: JsonTree, tool: ToolSchema, repaired: RepairedTool) -> bytes:
    """Encode the object around a schema with its new fields; the other fields keep their bytes and their order."""
    new_fields: dict[str, Any] = dict(repaired.fields)
    fields: dict[str, Any] = {}
    for key, raw in tree.get_children(tool.holder_steps).items():
        value = new_fields.pop(str(key)) if key in new_fields else raw
        if value is not None:
            fields[str(key)] = value
    for key, value in new_fields.items():
        if value is not None:
            fields[key] = value
    return encode_json(fields)
