"""Repair the JSON Schema of a tool, where there is one right way, without losing a word of its author.

What cannot be said in a keyword that is accepted is said in the description, which is what the model reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from holdfast.providers.common.json.raw_json import encode_json
from holdfast.providers.common.schemas.check import REFERENCE_KEYWORDS, resolve_reference
from holdfast.providers.common.schemas.keywords import KEYWORD_FORMS, KeywordForm, is_plain_form
from holdfast.providers.common.schemas.limits import JSON_TYPE_NAMES, JsonSchema, SchemaLimits

_TYPE_ALIASES = {
    "str": "string", "text": "string", "char": "string", "date": "string", "datetime": "string", "uuid": "string",
    "url": "string", "uri": "string", "enum": "string", "int": "integer", "int32": "integer", "int64": "integer",
    "long": "integer", "float": "number", "double": "number", "decimal": "number", "numeric": "number",
    "bool": "boolean", "dict": "object", "map": "object", "record": "object", "json": "object", "list": "array",
    "tuple": "array", "set": "array", "none": "null", "nil": "null", "undefined": "null",
}  # fmt: skip
"""Names of types in programming languages, in lower case, and what they are called in JSON Schema."""
_MAX_SHOWN_CHARS = 40
"""Characters of a wrong value that are shown in a note."""
_VARIANT_KEYWORDS = ("anyOf", "oneOf", "allOf")
_VARIANT_INTROS = {
    "anyOf": "The arguments must match at least one of these variants",
    "oneOf": "The arguments must match exactly one of these variants",
    "allOf": "The arguments must match all of these parts",
}
_MERGED_KEYWORDS = frozenset({"type", "properties", "required", "title", "description", "additionalProperties"})
"""Keywords of a variant that are merged into the object, or said in words; of any other the JSON is quoted."""

Notes: TypeAlias = dict[str, None]
"""What was changed, in order and each thing once."""


_OLD_REFERENCE_BEGINNING = "#/definitions/"
"""How references begin in older drafts, which call ``$defs`` so."""


class SchemaRepair(Struct, frozen=True):
    """A repaired schema, with a note on each kind of change; no notes if nothing had to change."""

    schema: Any
    notes: tuple[str, ...]


def repair_schema(schema: Any, limits: SchemaLimits) -> SchemaRepair:
    """Repair ``schema`` for ``limits`` as far as there is one right way; the schema given is not changed."""
    notes: Notes = {}
    try:
        repaired = schema if limits.is_protobuf else _repair_form(schema, notes)
        if isinstance(repaired, dict):
            repaired = _repair_root(repaired, limits, notes)
        root = repaired
        repaired = _map_nodes(root, lambda node: _repair_company(node, root, limits, notes))
    except RecursionError:
        return SchemaRepair(schema, ())
    return SchemaRepair(repaired, tuple(notes))


# -- broken JSON Schema ------------------------------------------------------------------------------------------------


def _repair_form(schema: Any, notes: Notes) -> Any:
    """Give every keyword a value of the form that draft 2020-12 demands."""
    if isinstance(schema, str):
        return _repair_form(_read_schema_text(schema, notes), notes)
    if schema is None:
        notes["null in the place of a schema is replaced by one that accepts anything"] = None
        return {}
    if not isinstance(schema, dict):
        return schema
    node: JsonSchema = {}
    for keyword, value in schema.items():
        if value is None and keyword in KEYWORD_FORMS:
            notes[f"{keyword}: null left out"] = None
        else:
            node[keyword] = value
    _repair_types(node, notes)
    _repair_tuple(node, notes)
    _repair_exclusive_limits(node, notes)
    _collect_required_flags(node, notes)
    for keyword, value in list(node.items()):
        _repair_value(node, keyword, value, notes)
    return node


def _read_schema_text(text: str, notes: Notes) -> JsonSchema:
    """Return the schema that a text in its place stands for, as in ``"items": "string"``: a type, or a description."""
    notes[f"{text[:_MAX_SHOWN_CHARS]!r} in the place of a schema is put into one"] = None
    if text.lower() in JSON_TYPE_NAMES or text.lower() in _TYPE_ALIASES:
        return {"type": text}
    return {"description": text} if text.strip() else {}


def _repair_value(node: JsonSchema, keyword: str, value: Any, notes: Notes) -> None:
    """Give the value of one keyword the form that draft 2020-12 demands."""
    form = KEYWORD_FORMS.get(keyword)
    if form is None or form is KeywordForm.TYPE:
        return
    if form is KeywordForm.SCHEMA and not isinstance(value, dict | bool | str):
        _add_to_description(node, f"{keyword}: {encode_json(node.pop(keyword)).decode()}")
        notes[f"{keyword}: moved to the description, it is not {form.value}"] = None
    elif form is KeywordForm.SCHEMA:
        node[keyword] = _repair_form(value, notes)
    elif form is KeywordForm.SCHEMA_LIST:
        _repair_schema_list(node, keyword, value, notes)
    elif form is KeywordForm.SCHEMA_MAP:
        _repair_schema_map(node, keyword, value, notes)
    elif not is_plain_form(form, value):
        _repair_plain_value(node, keyword, form, notes)


def _repair_types(node: JsonSchema, notes: Notes) -> None:
    """Replace names that are no types of JSON Schema: ``str`` is a string, ``string[]`` an array of strings."""
    value = node.get("type")
    if value is None:
        return
    given_names = value if isinstance(value, list) else [value]
    names: list[str] = []
    unknown_names: list[str] = []
    for given in given_names:
        name = _get_type_name(given)
        if name.endswith("[]") and _get_type_name(name[:-2]) in JSON_TYPE_NAMES:
            node.setdefault("items", {"type": _get_type_name(name[:-2])})
            name = "array"
        if name in JSON_TYPE_NAMES:
            names.append(name)
        elif name != "any" and given:
            unknown_names.append(given if isinstance(given, str) else encode_json(given).decode())
    names = list(dict.fromkeys(names))
    if unknown_names:
        _add_to_description(node, f"Type: {', '.join(unknown_names)}.")
    if names and names in (given_names, [value]):
        return
    notes[f"type {encode_json(value).decode()}: rewritten in the names of JSON Schema"] = None
    if not names:
        del node["type"]
    else:
        node["type"] = names if isinstance(value, list) and len(names) > 1 else _unwrap(names)


def _unwrap(names: list[str]) -> Any:
    return names[0] if len(names) == 1 else names


def _get_type_name(given: Any) -> str:
    """Return the name of a type in JSON Schema for the name given, in lower case and unknown ones too."""
    if not isinstance(given, str):
        return ""
    name = given.strip().lower()
    return _TYPE_ALIASES.get(name, name)


def _repair_tuple(node: JsonSchema, notes: Notes) -> None:
    """Rewrite a tuple of older drafts (``items`` as a list) to ``prefixItems``."""
    items = node.get("items")
    if not isinstance(items, list) or (items and "prefixItems" in node):
        return
    notes["items as a list: rewritten to prefixItems, as draft 2020-12 has it"] = None
    del node["items"]
    rest = node.pop("additionalItems", None)
    if items:
        node["prefixItems"] = items
    if rest is not None:
        node["items"] = rest


def _repair_exclusive_limits(node: JsonSchema, notes: Notes) -> None:
    """Rewrite ``exclusiveMinimum: true`` of draft 4, which makes ``minimum`` exclusive."""
    for exclusive, inclusive in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        flag = node.get(exclusive)
        if not isinstance(flag, bool):
            continue
        notes[f"{exclusive}: rewritten to the number, as draft 2020-12 has it"] = None
        del node[exclusive]
        if flag and inclusive in node:
            node[exclusive] = node.pop(inclusive)


def _collect_required_flags(node: JsonSchema, notes: Notes) -> None:
    """Move ``required: true`` of a property, as draft 3 had it, to the list of the object around it."""
    properties = node.get("properties")
    if not isinstance(properties, dict):
        return
    flagged_names = []
    for name, value in properties.items():
        if isinstance(value, dict) and value.get("required") is True:
            flagged_names.append(name)
    required = node.get("required")
    if flagged_names and (required is None or isinstance(required, list)):
        notes["required: true of a property moved to the list of the object around it"] = None
        node["required"] = list(dict.fromkeys([*(required or ()), *flagged_names]))


def _repair_schema_list(node: JsonSchema, keyword: str, value: Any, notes: Notes) -> None:
    if isinstance(value, dict) and value:
        notes[f"{keyword}: put into a list"] = None
        value = [value]
    if isinstance(value, list) and value:
        node[keyword] = [_repair_form(element, notes) for element in value]
    elif not value:
        notes[f"{keyword}: left out, it was empty"] = None
        del node[keyword]


def _repair_schema_map(node: JsonSchema, keyword: str, value: Any, notes: Notes) -> None:
    if isinstance(value, dict):
        node[keyword] = {name: _repair_form(element, notes) for name, element in value.items()}
    elif not value:  # an empty list, as PHP writes an empty object
        notes[f"{keyword}: rewritten to an empty object"] = None
        empty: JsonSchema = {}
        node[keyword] = empty


def _repair_plain_value(node: JsonSchema, keyword: str, form: KeywordForm, notes: Notes) -> None:
    """Rewrite a value that holds no schema, or say it in the description if it is not clear what was meant."""
    value = node[keyword]
    if form is KeywordForm.NAMES and isinstance(value, bool):  # of draft 3; true is in the list around it by now
        del node[keyword]
        notes[f"{keyword}: true or false at a property left out"] = None
        return
    new_value: Any = None
    if form is KeywordForm.TEXT:
        is_text_list = isinstance(value, list) and all(isinstance(line, str) for line in value)
        new_value = "\n".join(value) if is_text_list else encode_json(value).decode()
    elif form in (KeywordForm.COUNT, KeywordForm.NUMBER, KeywordForm.POSITIVE_NUMBER):
        new_value = _read_number(value)
    elif form is KeywordForm.FLAG:
        new_value = {"true": True, "false": False}.get(str(value).lower())
    elif form is KeywordForm.LIST:
        new_value = [value]
    elif form is KeywordForm.NAMES:
        names = value if isinstance(value, list) else [value]
        if all(isinstance(name, str) for name in names):
            new_value = list(dict.fromkeys(names))
    if new_value is None or not is_plain_form(form, new_value):
        _add_to_description(node, f"{keyword}: {encode_json(node.pop(keyword)).decode()}")
        notes[f"{keyword}: moved to the description, it is not {form.value}"] = None
        return
    notes[f"{keyword}: rewritten as {form.value}"] = None
    node[keyword] = new_value


def _read_number(value: Any) -> int | float | None:
    """Return the number in a text, or None if there is none."""
    if not isinstance(value, str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return int(number) if number.is_integer() else number


# -- the root ----------------------------------------------------------------------------------------------------------


def _repair_root(root: JsonSchema, limits: SchemaLimits, notes: Notes) -> JsonSchema:
    root = dict(root)
    if limits.reference_beginning and "definitions" in root and "$defs" not in root:
        root["$defs"] = root.pop("definitions")
        notes["definitions: renamed to $defs"] = None
    for keyword in _VARIANT_KEYWORDS:
        if keyword in limits.root_refused_keywords and isinstance(root.get(keyword), list):
            root = _merge_variants(root, keyword)
            notes[f"{keyword} at the top level: merged into one object, the variants are in the description"] = None
    for keyword in sorted(limits.root_refused_keywords & root.keys()):
        value = encode_json(root.pop(keyword)).decode()
        _add_to_description(root, f"The arguments as JSON Schema also have {keyword}: {value}")
        notes[f"{keyword} at the top level: moved to the description"] = None
    types = root.get("type")
    is_nullable_object = isinstance(types, list) and "object" in types
    is_called_object = is_nullable_object and not limits.allows_any_root
    if is_called_object or (types is None and limits.requires_root_type):
        root = {"type": "object"} | root | {"type": "object"}
        notes["type: object set at the top level"] = None
    if limits.requires_root_properties and "properties" not in root and root.get("type") == "object":
        root |= {"properties": {}}
        notes["properties: {} set at the top level"] = None
    return root


def _merge_variants(root: JsonSchema, keyword: str) -> JsonSchema:
    """Merge the variants at the root into one object that accepts the arguments of each, and describe them."""
    raw_variants = root[keyword]
    variants = [_follow_reference(root, variant) for variant in raw_variants]
    merged = {key: value for key, value in root.items() if key != keyword}
    properties = dict(merged["properties"]) if isinstance(merged.get("properties"), dict) else {}
    for variant in variants:
        for name, schema in _get_properties(variant).items():
            properties[name] = _merge_property(properties.get(name), schema, keyword)
    required = _merge_required(variants, keyword)
    own_required = merged.get("required")
    names = [*(own_required if isinstance(own_required, list) else ()), *required]
    if properties or "properties" in merged:
        merged["properties"] = properties
    if names:
        merged["required"] = list(dict.fromkeys(names))
    # What one variant forbids, another may need.
    if keyword != "allOf" and merged.get("additionalProperties") is False:
        root_properties = root.get("properties")
        if not isinstance(root_properties, dict) or properties.keys() - root_properties.keys():
            del merged["additionalProperties"]
    lines = [f"{index}. {_describe_variant(variant)}" for index, variant in enumerate(variants, 1)]
    _add_to_description(merged, "\n".join([f"{_VARIANT_INTROS[keyword]}:", *lines]))
    return merged


def _follow_reference(root: JsonSchema, variant: Any) -> Any:
    """Return what a variant refers to in the schema itself, or else the variant."""
    reference = variant.get("$ref") if isinstance(variant, dict) else None
    if not isinstance(reference, str) or not reference.startswith("#"):
        return variant
    target = resolve_reference(root, reference)
    if not isinstance(target, dict):
        return variant
    siblings = {key: value for key, value in variant.items() if key != "$ref"}
    return target | siblings


def _get_properties(variant: Any) -> Mapping[str, Any]:
    properties = variant.get("properties") if isinstance(variant, dict) else None
    return properties if isinstance(properties, dict) else {}


def _merge_property(old: Any, new: Any, keyword: str) -> Any:
    """Merge two schemas of one property: either of them for variants, both for parts of one whole."""
    if old is None or old == new:
        return new
    if keyword == "allOf":
        return {"allOf": [old, new]}
    is_merged_already = isinstance(old, dict) and old.keys() == {"anyOf"}
    choices = [*old["anyOf"], new] if is_merged_already else [old, new]
    return {"anyOf": [choice for index, choice in enumerate(choices) if choice not in choices[:index]]}


def _merge_required(variants: Sequence[Any], keyword: str) -> list[str]:
    """Return the names that all variants require, or for parts of one whole those that any requires."""
    lists = []
    for variant in variants:
        required = variant.get("required") if isinstance(variant, dict) else None
        lists.append(required if isinstance(required, list) else [])
    if keyword == "allOf":
        return [name for names in lists for name in names]
    return [name for name in lists[0] if all(name in names for names in lists)] if lists else []


def _describe_variant(variant: Any) -> str:
    """Describe a variant in one line: its words, its properties, and as JSON what else it says."""
    if not isinstance(variant, dict):
        return encode_json(variant).decode()
    phrases = []
    words = [str(variant[key]) for key in ("title", "description") if variant.get(key)]
    if words:
        phrases.append(": ".join(words))
    properties = _get_properties(variant)
    if properties:
        phrases.append(f"properties {', '.join(properties)}")
    required = variant.get("required")
    if isinstance(required, list) and required:
        phrases.append(f"requires {', '.join(map(str, required))}")
    if variant.get("additionalProperties") is False:
        phrases.append("no others")
    other_fields = {key: value for key, value in variant.items() if key not in _MERGED_KEYWORDS}
    if other_fields:
        phrases.append(encode_json(other_fields).decode())
    return "; ".join(phrases) or "no arguments required"


def _add_to_description(node: JsonSchema, text: str) -> None:
    """Add a text to the description of a schema, once."""
    description = node.get("description")
    if not isinstance(description, str) or not description:
        node["description"] = text
    elif text not in description:
        node["description"] = f"{description}\n\n{text}"


# -- keywords beside each other ----------------------------------------------------------------------------------------


def _map_nodes(schema: Any, change: Callable[[JsonSchema], JsonSchema]) -> Any:
    """Return a schema with ``change`` applied to each schema in it, the innermost first."""
    if not isinstance(schema, dict):
        return schema
    node: JsonSchema = {}
    for keyword, value in schema.items():
        form = KEYWORD_FORMS.get(keyword)
        if form is KeywordForm.SCHEMA:
            node[keyword] = _map_nodes(value, change)
        elif form is KeywordForm.SCHEMA_LIST and isinstance(value, list):
            node[keyword] = [_map_nodes(element, change) for element in value]
        elif form is KeywordForm.SCHEMA_MAP and isinstance(value, dict):
            node[keyword] = {name: _map_nodes(element, change) for name, element in value.items()}
        else:
            node[keyword] = value
    return change(node)


def _repair_company(node: JsonSchema, root: Any, limits: SchemaLimits, notes: Notes) -> JsonSchema:
    """Repair which keywords stand beside each other in one schema, and add those that are missing."""
    for keyword in sorted(limits.refused_keywords & node.keys()):
        value = encode_json(node.pop(keyword)).decode()
        _add_to_description(node, f"{keyword}: {value}")
        notes[f"{keyword}: moved to the description"] = None
    min_items = node.get("minItems")
    if limits.max_min_items is not None and isinstance(min_items, int) and min_items > limits.max_min_items:
        _add_to_description(node, f"minItems: {min_items}")
        node["minItems"] = limits.max_min_items
        notes[f"minItems: lowered to {limits.max_min_items}, the number is in the description"] = None
    if limits.requires_known_references:
        _drop_lost_references(node, root, notes)
    _repair_flavour(node, limits, notes)
    types = node.get("type")
    type_names = types if isinstance(types, list) else [types]
    for keyword, wanted_type in limits.keyword_types.items():
        # Without a type it is clear which one is meant; beside another type the keyword says nothing.
        if node.get(keyword) and types is None:
            node["type"] = types = wanted_type
            type_names = [wanted_type]
            notes[f"type: {wanted_type} set beside {keyword}"] = None
        elif node.get(keyword) and wanted_type not in [str(name).lower() for name in type_names]:
            _add_to_description(node, f"{keyword}: {encode_json(node.pop(keyword)).decode()}")
            notes[f"{keyword} of a schema of type {types}: moved to the description, it says nothing there"] = None
    if limits.requires_defined_names:
        _drop_undefined_names(node, notes)
    has_form_for_anything = not limits.is_protobuf  # there, an empty schema is not sure to be accepted
    if (
        has_form_for_anything
        and limits.requires_array_items
        and "array" in type_names
        and not ({"items", "prefixItems"} & node.keys())
    ):
        node["items"] = {}
        notes["items: {} set on an array"] = None
    is_object = "object" in type_names or "properties" in node
    if limits.requires_closed_objects and is_object and "additionalProperties" not in node:
        node["additionalProperties"] = False
        notes["additionalProperties: false set"] = None
    return node


def _repair_flavour(node: JsonSchema, limits: SchemaLimits, notes: Notes) -> None:
    """Put a type where Moonshot's flavour has it, and let references of older drafts begin as it wants."""
    if limits.types_stand_in_variants and isinstance(node.get("anyOf"), list) and "type" in node:
        _move_type_into_variants(node, notes)
    reference = node.get("$ref")
    if limits.reference_beginning and isinstance(reference, str) and reference.startswith(_OLD_REFERENCE_BEGINNING):
        node["$ref"] = limits.reference_beginning + reference.removeprefix(_OLD_REFERENCE_BEGINNING)


def _move_type_into_variants(node: JsonSchema, notes: Notes) -> None:
    """Take the type beside ``anyOf`` away and give it to each variant that says nothing of its type."""
    type_name = node.pop("type")
    for variant in node["anyOf"]:
        if isinstance(variant, dict) and not ({"type", "$ref", "anyOf"} & variant.keys()):
            variant["type"] = type_name
    notes["type beside anyOf: moved into its variants"] = None


def _drop_undefined_names(node: JsonSchema, notes: Notes) -> None:
    """Move names that are required but not defined to the description."""
    required, properties = node.get("required"), node.get("properties")
    if not isinstance(required, list):
        return
    defined_names = properties.keys() if isinstance(properties, dict) else ()
    undefined_names = [str(name) for name in required if name not in defined_names]
    if not undefined_names:
        return
    _add_to_description(node, f"Also required: {', '.join(undefined_names)}.")
    notes["required: names without a property moved to the description"] = None
    node["required"] = [name for name in required if name in defined_names]
    if not node["required"]:
        del node["required"]


def _drop_lost_references(node: JsonSchema, root: Any, notes: Notes) -> None:
    """Remove references that lead to nothing; their names stay in the description."""
    for keyword in REFERENCE_KEYWORDS:
        reference = node.get(keyword)
        if isinstance(reference, str) and resolve_reference(root, reference) is None:
            del node[keyword]
            _add_to_description(node, f"See {reference}.")
            notes[f"{keyword} {reference}: moved to the description, it leads to nothing"] = None
