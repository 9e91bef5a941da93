"""What an API or a server refuses in the JSON Schema of a tool, as a plain value."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from msgspec import Struct

from holdfast.providers.common.json.json_path import PathSteps

JsonSchema: TypeAlias = dict[str, Any]

JSON_TYPE_NAMES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
"""The names of types in JSON Schema."""


class SchemaLimits(Struct, frozen=True, eq=False):
    """What one API or server refuses in the schema of a tool. The defaults refuse nothing but broken JSON Schema.

    Compared and hashed by identity: each value is a constant, and results are cached by it.
    """

    owner: str
    """Who refuses it, for messages: ``the Messages API``."""
    type_names: frozenset[str] = JSON_TYPE_NAMES
    is_protobuf: bool = False
    """The schema is a message of protobuf and no JSON Schema: null means unset, names of types may be in capitals, an
    enum holds texts that are not empty, and only the structure of the rest is checked."""
    allows_type_lists: bool = True
    known_keywords: frozenset[str] | None = None
    """The only keywords that are accepted; None if unknown ones are ignored."""
    refused_keywords: frozenset[str] = frozenset()
    """Keywords that are refused anywhere in the schema."""
    root_refused_keywords: frozenset[str] = frozenset()
    """Keywords that are refused at its root only."""
    requires_root_type: bool = False
    """The root must say ``type: object``. A root of another type is refused anyway."""
    allows_any_root: bool = False
    """The root may be of any type: the schema describes an answer, not the arguments of a function."""
    root_null_keywords: frozenset[str] = frozenset()
    """Keywords of the root that may be null, which is the same as leaving them out."""
    requires_root_properties: bool = False
    """The root must have ``properties``, if only empty ones."""
    root_property_pattern: re.Pattern[str] | None = None
    """The pattern of the names of arguments, which are the root's properties."""
    requires_array_items: bool = False
    requires_types: bool = False
    """Every schema needs a ``type``, or a keyword that stands for one (``anyOf``, ``$ref``, ``enum``, ``const``)."""
    keyword_types: Mapping[str, str] = {}
    """Keywords that are refused in a schema of another type, or of none."""
    requires_defined_names: bool = False
    """The names in ``required`` must be among the ``properties`` beside it."""
    types_stand_in_variants: bool = False
    """A type may not stand beside ``anyOf``, but in its variants."""
    reference_beginning: str = ""
    """How a reference must begin, ``#`` for the whole schema aside; empty if that does not matter."""
    reference_siblings: frozenset[str] | None = None
    """The only keywords that may stand beside a reference; None if all may."""
    requires_known_references: bool = False
    """A reference into the schema must lead to something."""
    refuses_recursion: bool = False
    """A schema may not contain itself by way of a reference."""
    max_min_items: int | None = None
    """The highest ``minItems`` that is accepted; None if any is."""
    requires_closed_objects: bool = False
    """Every object needs ``additionalProperties: false``."""
    requires_all_properties: bool = False
    """All properties of an object must be in its ``required``."""


class SchemaProblem(Struct, frozen=True, gc=False):
    """One place of a schema that an API refuses."""

    steps: PathSteps
    """The place, seen from the root of the schema."""
    keyword: str
    message: str
    """What is wrong, and after a semicolon what to do about it."""


class ToolSchema(Struct, frozen=True):
    """The schema of one function of a request, or of the form of its answer, with what is accepted in it."""

    tool_name: object
    """As the request writes it; may be anything in a damaged request."""
    holder_steps: PathSteps
    """Where in the body the object is that has the schema in a field."""
    holder: Mapping[str, Any]
    """That object, decoded."""
    field: str
    limits: SchemaLimits
    label: str = ""
    """What messages call it if it is no tool's: ``the format of the answer``."""

    @property
    def schema(self) -> Any:
        """The schema itself."""
        return self.holder.get(self.field)

    @property
    def steps(self) -> PathSteps:
        """Where in the body the schema is."""
        return (*self.holder_steps, self.field)


class RepairedTool(Struct, frozen=True):
    """New fields for the object that has a tool's schema, and what was changed, one note for each kind of change."""

    fields: Mapping[str, Any]
    """New values by field; None removes the field."""
    notes: tuple[str, ...]


class ToolSchemaFormat(Struct, frozen=True):
    """Where the requests of an API have the schemas of functions, and how to make them acceptable."""

    iter_schemas: Callable[[Mapping[str, Any]], Iterator[ToolSchema]]
    """Yields the schemas in a decoded body, in order."""
    repair: Callable[[ToolSchema], RepairedTool]
    """Repairs one of them as far as there is one right way. What is left is found again by the check."""
