"""The keywords of JSON Schema draft 2020-12, and the form that the value of each must have.

The forms are those of the draft's meta-schema (https://json-schema.org/draft/2020-12/schema, read 2026-11-28), without
its patterns for identifiers. ``definitions`` and ``dependencies`` are in it too, for schemas of older drafts.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from holdfast.providers.common.schemas.limits import JSON_TYPE_NAMES


class KeywordForm(Enum):
    """The form of a keyword's value. Each value is that form in words, for messages."""

    SCHEMA = "a schema"
    SCHEMA_LIST = "a list of at least one schema"
    SCHEMA_MAP = "an object of schemas by name"
    TYPE = f"one of {', '.join(sorted(JSON_TYPE_NAMES))}, or a list of them"
    TEXT = "a string"
    NUMBER = "a number"
    POSITIVE_NUMBER = "a number above 0"
    COUNT = "a whole number of at least 0"
    FLAG = "true or false"
    LIST = "a list"
    NAMES = "a list of strings, each of them once"
    NAMES_MAP = "an object of lists of strings"
    SCHEMA_OR_NAMES_MAP = "an object of schemas or lists of strings"


_KEYWORDS_BY_FORM = {
    KeywordForm.SCHEMA: (
        "additionalProperties items contains not if then else propertyNames unevaluatedItems unevaluatedProperties"
        " contentSchema"
    ),
    KeywordForm.SCHEMA_LIST: "allOf anyOf oneOf prefixItems",
    KeywordForm.SCHEMA_MAP: "properties patternProperties $defs definitions dependentSchemas",
    KeywordForm.TYPE: "type",
    KeywordForm.TEXT: (
        "$id $schema $ref $anchor $dynamicRef $dynamicAnchor $comment title description format pattern"
        " contentEncoding contentMediaType"
    ),
    KeywordForm.NUMBER: "minimum maximum exclusiveMinimum exclusiveMaximum",
    KeywordForm.POSITIVE_NUMBER: "multipleOf",
    KeywordForm.COUNT: "minLength maxLength minItems maxItems minContains maxContains minProperties maxProperties",
    KeywordForm.FLAG: "uniqueItems deprecated readOnly writeOnly",
    KeywordForm.LIST: "enum examples",
    KeywordForm.NAMES: "required",
    KeywordForm.NAMES_MAP: "dependentRequired",
    KeywordForm.SCHEMA_OR_NAMES_MAP: "dependencies",
}


def _index_keywords() -> dict[str, KeywordForm]:
    forms = {}
    for form, keywords in _KEYWORDS_BY_FORM.items():
        for keyword in keywords.split():
            forms[keyword] = form
    return forms


KEYWORD_FORMS = _index_keywords()
"""The form of each keyword of the draft."""
_PROTOBUF_KEYWORDS = {
    "anyOf": "anyOf",
    "any_of": "anyOf",
    "items": "items",
    "properties": "properties",
    "required": "required",
    "defs": "$defs",
    "$defs": "$defs",
    "ref": "$ref",
    "$ref": "$ref",
}
"""Keywords of a protobuf schema whose value is checked, and the keyword of JSON Schema with that form. protobuf reads
numbers from texts, and has types and values without a form (``default``)."""


def get_keyword_form(keyword: str, *, is_protobuf: bool) -> KeywordForm | None:
    """Return the form of a keyword's value, or None for a keyword of which nothing is required."""
    if is_protobuf:
        keyword = _PROTOBUF_KEYWORDS.get(keyword, "")
    return KEYWORD_FORMS.get(keyword)


def is_plain_form(form: KeywordForm, value: Any) -> bool:
    """Return whether ``value`` has a form that holds no schema and is no type."""
    match form:
        case KeywordForm.TEXT:
            return isinstance(value, str)
        case KeywordForm.NUMBER:
            return _is_number(value)
        case KeywordForm.POSITIVE_NUMBER:
            return _is_number(value) and value > 0
        case KeywordForm.COUNT:
            # A number such as 3.0 is a whole number in JSON Schema.
            return _is_number(value) and value >= 0 and (isinstance(value, int) or value.is_integer())
        case KeywordForm.FLAG:
            return isinstance(value, bool)
        case KeywordForm.LIST:
            return isinstance(value, list)
        case KeywordForm.NAMES:
            return is_name_list(value)
        case KeywordForm.NAMES_MAP:
            return isinstance(value, dict) and all(map(is_name_list, value.values()))
        case _:
            return True


def is_name_list(value: Any) -> bool:
    """Return whether ``value`` is a list of different strings."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        return False
    return len(set(value)) == len(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
