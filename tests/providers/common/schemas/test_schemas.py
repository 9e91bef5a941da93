"""The schemas of tools: the check agrees with a real validator of JSON Schema, and a repair loses no word."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
from example_counts import choose
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from holdfast.providers.anthropic.tool_schemas import TOOL_LIMITS as ANTHROPIC_LIMITS
from holdfast.providers.common.openai.tool_schemas import FUNCTION_LIMITS, STRICT_LIMITS
from holdfast.providers.common.schemas.check import find_schema_problems, resolve_reference
from holdfast.providers.common.schemas.limits import SchemaLimits
from holdfast.providers.common.schemas.repair import repair_schema
from holdfast.providers.gemini.tool_schemas import JSON_SCHEMA_LIMITS, PARAMETERS_LIMITS

pytestmark = pytest.mark.counts
EXAMPLES = choose(quick=100, ci=600, thorough=20_000)
ANY_JSON_SCHEMA = SchemaLimits("a reader of JSON Schema")
LIMITS = [ANY_JSON_SCHEMA, ANTHROPIC_LIMITS, FUNCTION_LIMITS, STRICT_LIMITS, PARAMETERS_LIMITS, JSON_SCHEMA_LIMITS]

TYPE_NAMES = ["string", "integer", "number", "boolean", "array", "object", "null"]
NAMES = st.sampled_from(["city", "days", "a b", "type", "properties", "required"])
WORDS = st.sampled_from(["The city to look at.", "Days, at most ten.", "Which one?"])
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 9), st.sampled_from([0.5, 2.0]), WORDS, st.sampled_from(["3", "x"])
)
WRONG_VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=2), st.dictionaries(NAMES, SCALARS, max_size=1))


def build_node(schemas, *, wrong):
    """Return a strategy for schemas of these parts; any keyword may also have one of the wrong values."""
    values = {
        "type": st.one_of(st.sampled_from(TYPE_NAMES), st.lists(st.sampled_from(TYPE_NAMES), min_size=1, unique=True)),
        "description": WORDS,
        "title": WORDS,
        "properties": st.dictionaries(NAMES, schemas, max_size=3),
        "required": st.lists(NAMES, unique=True, max_size=3),
        "items": schemas,
        "prefixItems": st.lists(schemas, min_size=1, max_size=2),
        "anyOf": st.lists(schemas, min_size=1, max_size=3),
        "oneOf": st.lists(schemas, min_size=1, max_size=3),
        "allOf": st.lists(schemas, min_size=1, max_size=3),
        "not": schemas,
        "additionalProperties": st.one_of(st.booleans(), schemas),
        "enum": st.lists(st.one_of(WORDS, st.integers(0, 3)), max_size=3),
        "minLength": st.integers(0, 5),
        "minimum": st.integers(-5, 5),
        "exclusiveMinimum": st.integers(-5, 5),
        "multipleOf": st.sampled_from([1, 0.5]),
        "uniqueItems": st.booleans(),
        "examples": st.lists(SCALARS, max_size=2),
        "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, unique=True, max_size=2), max_size=1),
        "$defs": st.dictionaries(NAMES, schemas, max_size=2),
        "x-order": SCALARS,
        "default": SCALARS,
    }
    if wrong:
        values = {key: st.one_of(value, value, value, WRONG_VALUES) for key, value in values.items()}
        values["type"] = st.one_of(values["type"], st.sampled_from(["str", "string[]", "any", "File", ["int", "None"]]))
    fields = st.sampled_from(sorted(values)).flatmap(lambda key: values[key].map(lambda value: (key, value)))
    return st.lists(fields, max_size=4).map(dict)


def build_valid_node(schemas):
    return build_node(schemas, wrong=False)


def build_any_node(schemas):
    return build_node(schemas, wrong=True)


VALID_SCHEMAS = st.recursive(st.one_of(st.booleans(), build_valid_node(st.just({}))), build_valid_node, max_leaves=6)
SCHEMAS = st.recursive(build_any_node(st.just({})), build_any_node, max_leaves=6)


def is_valid_json_schema(schema):
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError:
        return False
    return True


def collect_words(schema):
    """Return the words of people in a schema: its descriptions and titles."""
    text = json.dumps(schema, ensure_ascii=False)
    return {words for words in ("The city to look at.", "Days, at most ten.", "Which one?") if words in text}


@settings(max_examples=EXAMPLES)
@given(SCHEMAS)
def test_find_schema_problems_agrees_with_a_validator_of_json_schema(schema):
    """A schema has a problem exactly if the meta-schema of draft 2020-12 refuses it."""
    problems = find_schema_problems({"type": "object", "properties": {"a": schema}}, ANY_JSON_SCHEMA)
    assert bool(problems) is not is_valid_json_schema(schema)


@settings(max_examples=EXAMPLES)
@given(SCHEMAS)
def test_find_schema_problems_points_at_what_it_names(schema):
    """The place of a problem exists, and the message ends with one thing to do."""
    for limits in LIMITS:
        for problem in find_schema_problems(schema, limits):
            value = schema
            for step in problem.steps:
                value = value[step]
            assert "; " in problem.message


@settings(max_examples=EXAMPLES)
@given(SCHEMAS, st.sampled_from(LIMITS))
def test_repair_schema_is_final_and_keeps_the_words(schema, limits):
    """A second repair changes nothing, the schema that was given stays as it was, and no description gets lost."""
    before = deepcopy(schema)
    repaired = repair_schema(schema, limits)
    assert schema == before
    assert collect_words(repaired.schema) == collect_words(schema)
    assert repair_schema(repaired.schema, limits).schema == repaired.schema
    if not repaired.notes:
        assert repaired.schema == schema


@settings(max_examples=EXAMPLES)
@given(VALID_SCHEMAS.filter(lambda schema: isinstance(schema, dict)))
def test_repair_schema_keeps_valid_json_schema(schema):
    """A schema that the meta-schema accepts is not changed where nothing else is refused."""
    if schema.get("type", "object") == "object":
        assert find_schema_problems(schema, ANY_JSON_SCHEMA) == ()
        assert repair_schema(schema, ANY_JSON_SCHEMA).notes == ()


@settings(max_examples=EXAMPLES)
@given(SCHEMAS)
def test_repair_schema_removes_the_form_problems(schema):
    """Broken JSON Schema becomes valid, but for values in the place of a schema that stand for nothing."""
    repaired = repair_schema(schema, ANY_JSON_SCHEMA).schema
    for problem in find_schema_problems(repaired, ANY_JSON_SCHEMA):
        is_left = "in the place of" in problem.message or "at the top level" in problem.message
        assert is_left or problem.keyword in ("properties", "$defs", "anyOf", "oneOf", "allOf", "prefixItems")


# -- single repairs ----------------------------------------------------------------------------------------------------

CITY = {"type": "string", "description": "The city to look at."}


def test_repair_schema_merges_variants_of_the_root():
    """Variants become one object with all properties; required is what all require, and the rest is in words."""
    variants = [
        {"title": "By name", "properties": {"city": CITY, "unit": {"type": "string"}}, "required": ["city", "unit"]},
        {"$ref": "#/$defs/ByPlace"},
    ]
    by_place = {"properties": {"latitude": {"type": "number"}, "unit": {"enum": ["C", "F"]}}, "required": ["unit"]}
    schema = {"description": "Ask.", "oneOf": variants, "$defs": {"ByPlace": by_place}}
    repaired = repair_schema(schema, ANTHROPIC_LIMITS).schema
    assert find_schema_problems(repaired, ANTHROPIC_LIMITS) == ()
    assert repaired["type"] == "object"
    assert repaired["properties"] == {
        "city": CITY,
        "unit": {"anyOf": [{"type": "string"}, {"enum": ["C", "F"]}]},
        "latitude": {"type": "number"},
    }
    assert repaired["required"] == ["unit"]
    assert repaired["description"] == (
        "Ask.\n\nThe arguments must match exactly one of these variants:\n"
        "1. By name; properties city, unit; requires city, unit\n"
        "2. properties latitude, unit; requires unit"
    )


def test_repair_schema_merges_parts_of_the_root():
    """Of allOf every part holds: all that any part requires is required, and a condition is quoted."""
    condition = {"if": {"required": ["a"]}, "then": {"required": ["b"]}}
    schema = {"type": "object", "properties": {"a": CITY}, "allOf": [{"required": ["a"]}, condition]}
    repaired = repair_schema(schema, FUNCTION_LIMITS).schema
    assert repaired["required"] == ["a"]
    assert json.dumps(condition, separators=(",", ":")) in repaired["description"]


def test_repair_schema_opens_an_object_for_the_properties_of_its_variants():
    """``additionalProperties: false`` beside variants with properties of their own would forbid them once merged."""
    schema = {"type": "object", "additionalProperties": False, "anyOf": [{"properties": {"a": CITY}}, {}]}
    assert "additionalProperties" not in repair_schema(schema, ANTHROPIC_LIMITS).schema


@pytest.mark.parametrize(
    ("schema", "repaired"),
    [
        ({"type": "str"}, {"type": "string"}),
        ({"type": ["string", "string[]"]}, {"type": ["string", "array"], "items": {"type": "string"}}),
        ({"type": "any"}, {}),
        ({"type": "Duration"}, {"description": "Type: Duration."}),
        ({"items": [CITY], "additionalItems": {}}, {"prefixItems": [CITY], "items": {}}),
        ({"minimum": 1, "exclusiveMinimum": True}, {"exclusiveMinimum": 1}),
        ({"minimum": 1, "exclusiveMinimum": False}, {"minimum": 1}),
        ({"description": None, "default": None}, {"default": None}),
        ({"description": ["a", "b"]}, {"description": "a\nb"}),
        ({"maxLength": "10"}, {"maxLength": 10}),
        ({"maxLength": -1}, {"description": "maxLength: -1"}),
        ({"uniqueItems": "true"}, {"uniqueItems": True}),
        ({"enum": "x"}, {"enum": ["x"]}),
        ({"properties": {"a": "string"}}, {"properties": {"a": {"type": "string"}}}),
        ({"properties": {"a": "The city."}}, {"properties": {"a": {"description": "The city."}}}),
        ({"properties": {"a": {"required": True}}}, {"required": ["a"], "properties": {"a": {}}}),
        ({"properties": {"a": {"required": False}}}, {"properties": {"a": {}}}),
        ({"anyOf": {"type": "str"}}, {"anyOf": [{"type": "string"}]}),
    ],
)  # fmt: skip
def test_repair_schema_rewrites_older_drafts_and_mistakes(schema, repaired):
    """What older drafts and languages write is rewritten to what draft 2020-12 says for it."""
    assert repair_schema(schema, ANY_JSON_SCHEMA).schema == repaired


def test_resolve_reference_follows_escapes_and_indexes():
    """A reference is a JSON pointer; one to another document leads to something unknown, not to nothing."""
    root = {"$defs": {"a/b": [CITY]}}
    assert resolve_reference(root, "#/$defs/a~1b/0") == CITY
    assert resolve_reference(root, "#") == root
    assert resolve_reference(root, "#/$defs/c") is None
    assert resolve_reference(root, "other.json#/$defs/c") == {}


def test_find_schema_problems_reads_deep_schemas():
    """A schema may be nested deeper than Python's stack."""
    schema = {}
    for _ in range(20_000):
        schema = {"items": schema}
    problems = find_schema_problems({"type": "object", "properties": {"a": schema}}, FUNCTION_LIMITS)
    assert problems == ()
