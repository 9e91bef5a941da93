"""The schemas of functions in generateContent: ``parametersJsonSchema``, or ``parameters`` in a form of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.providers.common.schemas.check import find_schema_problems
from holdfast.providers.common.schemas.limits import (
    JSON_TYPE_NAMES,
    JsonSchema,
    RepairedTool,
    SchemaLimits,
    ToolSchema,
    ToolSchemaFormat,
)
from holdfast.providers.common.schemas.repair import repair_schema
from holdfast.providers.gemini.field_spellings import get_spelled_field, to_snake_case

_SCHEMA_FIELD = "parameters"
_JSON_SCHEMA_FIELD = "parametersJsonSchema"
_PARAMETERS_FIELDS = (
    "additionalProperties", "anyOf", "default", "defs", "description", "enum", "example", "format", "items",
    "maxItems", "maxLength", "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum",
    "nullable", "pattern", "properties", "propertyOrdering", "ref", "required", "title", "type",
)  # fmt: skip
"""The fields of ``Schema`` in the SDK 3.6.1."""


PARAMETERS_LIMITS = SchemaLimits(
    "the field parameters",
    type_names=JSON_TYPE_NAMES | {"type_unspecified"},
    is_protobuf=True,
    # Observed: "Proto field is not repeating, cannot start list" (zed-industries/zed#53919;
    # taylorwilsdon/google_workspace_mcp#1099, 2026-09-06; WordPress/ai-provider-for-google#33, 2026-07-27).
    allows_type_lists=False,
    # Observed: 'Unknown name "const" … Cannot find field' (zed-industries/zed#44875; router-for-me/CLIProxyAPI#97,
    # 2025-10-07, for $schema). $ref and $defs are read: the error about them names them (next line but one).
    known_keywords=frozenset(
        {*_PARAMETERS_FIELDS, *map(to_snake_case, _PARAMETERS_FIELDS), "$ref", "$defs"},
    ),
    # Observed: "If a schema node has $ref set, then only description and default can be set alongside it"
    # (anomalyco/opencode#12295, 2026-02-05; su-kaka/gcli2api#374, 2026-05-09).
    reference_siblings=frozenset({"description", "default"}),
    requires_known_references=True,
    # Observed: "properties: only allowed for OBJECT type" (anomalyco/opencode#11888, 2026-02-03, and #43495, where the
    # type was missing and items were refused as well, 2026-09-16).
    keyword_types={"properties": "object", "required": "object", "items": "array"},
    # Observed: "items: missing field" (jackmusick/bifrost#225, 2026-05-08).
    requires_array_items=True,
    # Observed: names in required that are not in properties (Kilo-Org/kilocode#11955, 2026-07-06).
    requires_defined_names=True,
)
"""What ``parameters`` refuses. That values of an enum are texts, and not empty, is enforced too
(Bobsilvio/ha-claude#32, 2026-03-19: "enum[1]: cannot be empty")."""

JSON_SCHEMA_LIMITS = SchemaLimits(
    "the field parametersJsonSchema",
    # "The schema must describe an object where the properties are the parameters" (SDK 3.6.1); the root of another
    # type is refused (tetsuo-ai/agenc-core#1904, 2026-08-31).
    # Observed: "reference to undefined schema at properties.target_object.anyOf.1" (google-gemini/gemini-cli#13326).
    requires_known_references=True,
)
"""What ``parametersJsonSchema`` refuses: much less, so that a schema is put there if ``parameters`` cannot say it."""


def iter_function_schemas(body: Mapping[str, Any]) -> Iterator[ToolSchema]:
    """Yield the schemas of the declared functions, in either spelling of the fields."""
    tools = body.get("tools")
    for tool_index, tool in enumerate(tools if isinstance(tools, list) else ()):
        key, declarations = get_spelled_field(tool, "functionDeclarations")
        for index, declaration in enumerate(declarations if isinstance(declarations, list) else ()):
            if not isinstance(declaration, dict):
                continue
            steps = ("tools", tool_index, key, index)
            name = declaration.get("name")
            json_field, json_schema = get_spelled_field(declaration, _JSON_SCHEMA_FIELD)
            if isinstance(declaration.get(_SCHEMA_FIELD), dict):
                yield ToolSchema(name, steps, declaration, _SCHEMA_FIELD, PARAMETERS_LIMITS)
            if json_schema is not None:
                yield ToolSchema(name, steps, declaration, json_field, JSON_SCHEMA_LIMITS)


def repair_declaration(tool: ToolSchema) -> RepairedTool:
    """Repair the schema of a function; one that ``parameters`` cannot say is moved to ``parametersJsonSchema``."""
    repaired = repair_schema(tool.schema, tool.limits)
    if tool.limits is not PARAMETERS_LIMITS or not find_schema_problems(repaired.schema, tool.limits):
        return RepairedTool({tool.field: repaired.schema}, repaired.notes)
    repaired = repair_schema(_convert_to_json_schema(tool.schema), JSON_SCHEMA_LIMITS)
    note = "moved to parametersJsonSchema, which takes all of JSON Schema"
    return RepairedTool({_SCHEMA_FIELD: None, _JSON_SCHEMA_FIELD: repaired.schema}, (note, *repaired.notes))


_SCHEMA_LIST_FIELDS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMA_MAP_FIELDS = ("properties", "$defs", "definitions", "patternProperties")


def _map_keywords() -> dict[str, str]:
    keywords = {to_snake_case(name): name for name in _PARAMETERS_FIELDS}
    return keywords | {"ref": "$ref", "defs": "$defs"}


_JSON_SCHEMA_KEYWORDS = _map_keywords()
"""The keyword of JSON Schema for each field of ``parameters`` that is spelled otherwise."""


def _convert_to_json_schema(schema: Any) -> Any:
    """Convert a schema in the form of ``parameters`` to JSON Schema: names of types, ``nullable``, and spellings."""
    if not isinstance(schema, dict):
        return schema
    node: JsonSchema = {}
    for spelling, value in schema.items():
        keyword = _JSON_SCHEMA_KEYWORDS.get(str(spelling)) or str(spelling)
        if keyword in _SCHEMA_LIST_FIELDS and isinstance(value, list):
            node[keyword] = [_convert_to_json_schema(element) for element in value]
        elif keyword in _SCHEMA_MAP_FIELDS and isinstance(value, dict):
            node[keyword] = {name: _convert_to_json_schema(element) for name, element in value.items()}
        elif keyword == "type":
            node[keyword] = _lowercase_names(value)
        elif keyword == "$ref" and isinstance(value, str):
            node[keyword] = value.replace("#/defs/", "#/$defs/")
        else:
            node[keyword] = _convert_to_json_schema(value) if keyword not in ("default", "example", "enum") else value
    if node.pop("nullable", None) is True:
        _allow_null(node)
    return node


def _lowercase_names(value: Any) -> Any:
    if isinstance(value, list):
        return [name.lower() if isinstance(name, str) else name for name in value]
    return value.lower() if isinstance(value, str) else value


def _allow_null(node: JsonSchema) -> None:
    """Add null to the types of a schema, and to its enum if it has one."""
    types = node.get("type")
    if isinstance(types, str) and types != "null":
        node["type"] = [types, "null"]
    values = node.get("enum")
    if isinstance(values, list) and None not in values:
        node["enum"] = [*values, None]


TOOL_SCHEMAS = ToolSchemaFormat(iter_function_schemas, repair_declaration)
"""Where generateContent has the schemas of functions, and how they are repaired."""
