"""Schemas of tools that an API refuses are repaired; the other tools of the request keep their bytes."""

from __future__ import annotations

import json

import pytest

from holdfast.providers.fix.fix_request import fix_request
from holdfast.providers.rules.validate import validate_request

HI = {"role": "user", "content": "hi"}
CITY = {"type": "string", "description": "The city."}


def build_request(api, schema, **tool_fields):
    """Return a request of ``api`` with a function of this schema, behind one that is all right."""
    whole = {"type": "object", "properties": {"city": CITY}}
    if api == "anthropic":
        tools = [{"name": "ok", "input_schema": whole}, {"name": "rule", "input_schema": schema, **tool_fields}]
        return {"model": "claude-opus-4-8", "max_tokens": 9, "messages": [HI], "tools": tools}
    if api == "openai-chat":
        functions = [{"name": "ok", "parameters": whole}, {"name": "rule", "parameters": schema, **tool_fields}]
        tools = [{"type": "function", "function": function} for function in functions]
        return {"model": "gpt-5", "messages": [HI], "tools": tools}
    if api == "openai-responses":
        functions = [{"name": "ok", "parameters": whole}, {"name": "rule", "parameters": schema, **tool_fields}]
        return {"model": "gpt-5", "input": [HI], "tools": [{"type": "function", **function} for function in functions]}
    declarations = [{"name": "ok", "parameters": whole}, {"name": "rule", "parameters": schema, **tool_fields}]
    contents = [{"role": "user", "parts": [{"text": "hi"}]}]
    return {"contents": contents, "tools": [{"functionDeclarations": declarations}]}


def fix(api, schema, **tool_fields):
    """Return the findings before, and the repaired tool; assert that the request is valid, and final, after."""
    body = json.dumps(build_request(api, schema, **tool_fields), indent=1).encode()
    found = validate_request(body, api)
    result = fix_request(body, api)
    assert result.is_valid, result.findings
    assert fix_request(result.body, api).body is result.body
    tools = json.loads(result.body)["tools"]
    assert json.dumps(CITY) in json.dumps(tools), "the other tool stays"
    tool = tools[0]["functionDeclarations"][1] if api == "gemini" else tools[1]
    return found, tool.get("function", tool), result.fixes


def test_fix_request_names_tool_and_keyword():
    """The finding says which tool and which keyword it is, with the path; the fix says what was done to it."""
    found, tool, fixes = fix("anthropic", {"type": "object", "properties": {"v": {"type": ["string", "string[]"]}}})
    assert [finding.path for finding in found] == ["$.tools[1].input_schema.properties.v.type"]
    assert "tool 'rule': type 'string[]'" in found[0].message
    assert tool["input_schema"]["properties"]["v"] == {"type": ["string", "array"], "items": {"type": "string"}}
    assert [(edit.rule, edit.path) for edit in fixes] == [("anthropic.tool-schema", found[0].path)]
    assert "tool 'rule'" in fixes[0].why


def test_fix_request_keeps_the_bytes_of_the_other_tools():
    """Only the object with a bad schema is written anew."""
    body = json.dumps(build_request("anthropic", {"type": "str"} | {"type": "object", "required": "a"}), indent=3)
    fixed = fix_request(body.encode(), "anthropic").body.decode()
    whole = json.dumps(build_request("anthropic", {})["tools"][0], indent=3)
    assert whole.replace("\n", "\n" + 6 * " ") in body
    assert whole.replace("\n", "\n" + 6 * " ") in fixed


@pytest.mark.parametrize("api", ["anthropic", "openai-chat", "openai-responses"])
@pytest.mark.parametrize("keyword", ["anyOf", "oneOf", "allOf"])
def test_fix_request_merges_variants_at_the_top_level(api, keyword):
    """Variants become one object with the properties of all; nothing that they say is lost."""
    variants = [{"properties": {"a": CITY}, "required": ["a"]}, {"properties": {"b": {"type": "integer"}}}]
    found, tool, _ = fix(api, {"type": "object", keyword: variants})
    assert f"tool 'rule': {keyword} at the top level" in found[0].message
    schema = tool.get("input_schema") or tool["parameters"]
    assert schema["properties"] == {"a": CITY, "b": {"type": "integer"}}
    assert schema.get("required") == (["a"] if keyword == "allOf" else None)
    assert "1. properties a; requires a\n2. properties b" in schema["description"]


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses"])
def test_fix_request_gives_openai_what_it_demands_of_every_function(api):
    """An object without properties and an array without items get empty ones, which mean the same."""
    _, tool, _ = fix(api, {"type": "object"})
    assert tool["parameters"] == {"type": "object", "properties": {}}
    _, tool, _ = fix(api, {"type": "object", "properties": {"a": {"type": "array"}}})
    assert tool["parameters"]["properties"]["a"] == {"type": "array", "items": {}}


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses"])
def test_fix_request_keeps_optional_arguments_optional(api):
    """A strict function is closed if that is all it lacks; one with optional arguments is strict no more."""
    schema = {"type": "object", "properties": {"a": CITY}, "required": ["a"]}
    _, tool, _ = fix(api, schema, strict=True)
    assert (tool["strict"], tool["parameters"]) == (True, schema | {"additionalProperties": False})
    optional = {"type": "object", "properties": {"a": CITY}, "additionalProperties": False}
    _, tool, fixes = fix(api, optional, strict=True)
    assert (tool["strict"], tool["parameters"]) == (False, optional)
    assert "strict: set to false" in fixes[0].why


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses"])
def test_validate_request_takes_a_missing_strict_for_no_demand(api):
    """Responses makes a function strict as far as its schema allows; that refuses nothing."""
    body = build_request(api, {"type": "object", "properties": {"a": CITY}})
    assert [finding for finding in validate_request(body, api) if "schema" in finding.rule] == []


def test_fix_request_keeps_parameters_where_they_can_be_repaired():
    """Of a schema that is no object, properties and required say nothing to Gemini; their words are kept."""
    schema = {"type": "object", "properties": {"data": {"type": "string", "properties": {"city": CITY}}}}
    found, tool, _ = fix("gemini", schema)
    assert found[0].path == "$.tools[0].functionDeclarations[1].parameters.properties.data.properties"
    data = tool["parameters"]["properties"]["data"]
    assert data.keys() == {"type", "description"}
    assert "The city." in data["description"]


@pytest.mark.parametrize(
    ("given", "moved"),
    [
        ({"type": ["STRING", "NULL"]}, {"type": ["string", "null"]}),
        ({"type": "STRING", "nullable": True, "const": "x"}, {"type": ["string", "null"], "const": "x"}),
        ({"any_of": [{"type": "STRING"}, {"type": "ARRAY"}]}, {"anyOf": [{"type": "string"}, {"type": "array"}]}),
        ({"type": "STRING", "enum": ["x", ""], "max_length": 5}, {"type": "string", "enum": ["x", ""], "maxLength": 5}),
        ({"oneOf": [{"type": "string"}]}, {"oneOf": [{"type": "string"}]}),
    ],
)
def test_fix_request_moves_what_parameters_cannot_say(given, moved):
    """Such a schema goes to parametersJsonSchema, as a conversion writes all of them."""
    _, tool, fixes = fix("gemini", {"type": "OBJECT", "properties": {"type": CITY, "a": given}})
    assert "parameters" not in tool
    assert tool["parametersJsonSchema"] == {"type": "object", "properties": {"type": CITY, "a": moved}}
    assert "moved to parametersJsonSchema" in fixes[0].why


def test_fix_request_replaces_a_reference_to_nothing():
    """A reference whose definition got lost accepts anything; its name stays in words."""
    _, tool, _ = fix("gemini", {"type": "object", "properties": {"a": {"$ref": "#/$defs/Place"}}})
    assert tool["parameters"]["properties"]["a"] == {"description": "See #/$defs/Place."}


@pytest.mark.parametrize("api", ["anthropic", "openai-chat", "openai-responses", "gemini"])
def test_fix_request_leaves_a_root_that_is_no_object(api):
    """What arguments an array or a text as the root would have is not known, so the finding stays."""
    body = json.dumps(build_request(api, {"type": "array", "items": CITY, "properties": {}})).encode()
    result = fix_request(body, api)
    assert result.body is body
    assert {finding.rule for finding in result.findings} == {f"{api}.tool-schema"}


def fix_answer_format(schema):
    """Return the repaired schema of an answer's format."""
    answer_format = {"type": "json_schema", "schema": schema}
    body = json.dumps(
        {"model": "claude-opus-4-8", "max_tokens": 9, "messages": [HI], "output_config": {"format": answer_format}}
    )
    result = fix_request(body.encode(), "anthropic")
    assert result.is_valid, result.findings
    assert fix_request(result.body, "anthropic").body is result.body
    assert "the format of the answer: " in result.fixes[0].why
    return json.loads(result.body)["output_config"]["format"]["schema"]


def test_fix_request_repairs_the_format_of_an_answer():
    """What structured outputs refuse is said in the description; a list as the answer stays a list."""
    rating = {"type": "object", "properties": {"stars": {"type": "integer", "maximum": 5}}}
    fixed = fix_answer_format({"type": "array", "items": rating, "minItems": 3})
    stars = {"type": "integer", "description": "maximum: 5"}
    item = {"type": "object", "properties": {"stars": stars}, "additionalProperties": False}
    assert fixed == {"type": "array", "items": item, "minItems": 1, "description": "minItems: 3"}


def test_fix_request_leaves_a_schema_that_contains_itself():
    """How deep a tree may be is the author's to say; the finding names the reference."""
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "additionalProperties": False}
    schema = {"$ref": "#/$defs/node", "$defs": {"node": node}}
    body = json.dumps(
        {"model": "claude-opus-4-8", "max_tokens": 9, "messages": [HI], "output_config": {"format": {"schema": schema}}}
    )
    result = fix_request(body.encode(), "anthropic")
    assert result.body == body.encode()
    assert "makes the schema contain itself" in result.findings[0].message
