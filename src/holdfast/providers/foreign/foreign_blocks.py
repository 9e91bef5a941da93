"""Recognize which API's form an element of a message is in, by its type or by the field that holds its content.

Only forms that certainly belong to particular APIs count. Texts and calls of built-in tools have such forms too, but
``classify_foreign_block`` leaves them out: a text is rewritten in place, and a built-in call has no other form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

from msgspec import Struct

from holdfast.providers.api_spec import ApiSpec
from holdfast.providers.common.content_kinds import (
    BUILT_IN_CALL_KIND,
    CALL_KIND,
    DOCUMENT_KIND,
    MESSAGE_KIND,
    PICTURE_KIND,
    RESULT_KIND,
    SOUND_KIND,
    TEXT_KIND,
    THINKING_KIND,
    TOOL_KIND,
)
from holdfast.providers.registry import API_SPECS

T = TypeVar("T")


class BlockOrigin(Struct, frozen=True):
    """The kind of an element and the APIs that use its form."""

    content_kind: str
    apis: tuple[str, ...]
    """Never empty; the reader of the first one decodes the form best."""

    @property
    def description(self) -> str:
        """The origin in words, such as ``a picture in the form of OpenAI Responses``."""
        *leading_names, last_name = (API_SPECS[api].display_name for api in self.apis)
        if leading_names:
            names = f"{', '.join(leading_names)} and {last_name}"
        else:
            names = last_name
        article = "" if self.content_kind in (SOUND_KIND, THINKING_KIND) else "a "
        return f"{article}{self.content_kind} in the form of {names}"


ForeignBlock: TypeAlias = tuple[str, BlockOrigin]
"""The JSON path of a foreign block inside of its message (``.content[2]``), and its origin."""
BlockClassifier: TypeAlias = Callable[[object], BlockOrigin | None]
"""Returns the origin of an element, or None if its form belongs to no API in particular."""

_KIND_BY_MEDIA_TYPE = {"image": PICTURE_KIND, "audio": SOUND_KIND}
"""Kinds of inline data by the first half of its MIME type; any other type is a document."""


def _merge_origins(*getters: Callable[[ApiSpec], Mapping[T, str]]) -> dict[T, BlockOrigin]:
    """Merge the tables of kinds that ``getters`` take from the specs into one table of origins.

    The APIs of a key are in the order of the getters, and of the registry for each of them.
    """
    origins: dict[T, BlockOrigin] = {}
    for get_kinds in getters:
        for spec in API_SPECS.values():
            for key, kind in get_kinds(spec).items():
                earlier_apis = origins[key].apis if key in origins else ()
                origins[key] = BlockOrigin(kind, (*earlier_apis, spec.api))
    return origins


# The tables below are all derived from the specs of the APIs, so that an API is added without a change here.
_ORIGIN_BY_TYPE = _merge_origins(
    lambda spec: spec.blocks.kinds_by_type,
    lambda spec: spec.blocks.later_kinds_by_type,
)
_ORIGIN_BY_TYPE_AND_FIELD = _merge_origins(lambda spec: spec.blocks.kinds_by_type_and_field)
"""Origins by type and a field that must be there too, for types that several APIs use."""
_ORIGIN_BY_FIELD = _merge_origins(lambda spec: spec.blocks.kinds_by_field)
"""Origins of elements without a type (Gemini's parts), by the field that holds an object."""
_COMPACTION_ORIGIN_BY_FIELD = _merge_origins(
    lambda spec: {spec.blocks.compaction_field: TEXT_KIND} if spec.blocks.compaction_field else {}
)
"""Origins of blocks of type ``compaction``, by the field that only one API's have."""
_BUILT_IN_ORIGIN_BY_TYPE_END = _merge_origins(
    lambda spec: dict.fromkeys(spec.blocks.built_in_type_ends, BUILT_IN_CALL_KIND)
)
"""Origins of calls of built-in tools and their results, by the end of their types."""
MESSAGE_ORIGIN_BY_FIELD = _merge_origins(lambda spec: {spec.shape.content_field: MESSAGE_KIND})
"""Origins of messages, by the field that holds their content."""
_CALL_ORIGIN_BY_FIELD = _merge_origins(lambda spec: dict.fromkeys(spec.blocks.call_fields, CALL_KIND))
_CALL_FIELD_TYPES: dict[str, type] = {}
for _spec in API_SPECS.values():
    _CALL_FIELD_TYPES.update(_spec.blocks.call_fields)
"""The JSON types of fields that hold calls beside a content."""
_RESULT_ORIGIN_BY_ROLE = _merge_origins(lambda spec: dict.fromkeys(spec.blocks.result_roles, RESULT_KIND))
"""Origins of messages that are tool results, by their role."""
_CONTENT_FIELDS = (*MESSAGE_ORIGIN_BY_FIELD, "output")
"""Fields that hold blocks, of messages and of results that are elements of the list themselves."""


def format_foreign_block_advice(origin: BlockOrigin, api: str) -> str:
    """Format the message about a block in another form than that of ``api``: the form it has, and the remedy."""
    if api in API_SPECS:
        own_form = API_SPECS[api].blocks.own_forms.get(origin.content_kind)
    else:
        own_form = None
    remedy = f"write {own_form}" if own_form else "leave it out"
    return f"this is {origin.description}; {remedy} here, as holdfast fix does"


def classify_foreign_block(block: object) -> BlockOrigin | None:
    """Return the origin of an element of a content or of the list, or None for texts, built-in calls and the unknown.

    This is for checking and fixing requests; see the module's docstring for the exceptions.
    """
    origin = classify_any_block(block)
    if origin is None or origin.content_kind in (TEXT_KIND, BUILT_IN_CALL_KIND):
        return None
    return origin


def classify_any_block(block: object) -> BlockOrigin | None:
    """Return the origin of an element of any kind, or None if its form belongs to no API in particular."""
    if not isinstance(block, Mapping):
        return None
    block_type = block.get("type")
    if isinstance(block_type, str):
        return _classify_typed_block(block_type, block)
    for field, origin in _ORIGIN_BY_FIELD.items():
        payload = block.get(field)
        if not isinstance(payload, Mapping):
            continue
        if origin.content_kind != DOCUMENT_KIND:
            return origin
        # Gemini has one form for all inline data; the MIME type says whether it is an image.
        mime = str(payload.get("mimeType", payload.get("mime_type", "")))
        return BlockOrigin(_KIND_BY_MEDIA_TYPE.get(mime.partition("/")[0], DOCUMENT_KIND), origin.apis)
    return None


def _classify_typed_block(block_type: str, block: Mapping[str, Any]) -> BlockOrigin | None:
    if block_type in _ORIGIN_BY_TYPE:
        return _ORIGIN_BY_TYPE[block_type]
    for (name, field), origin in _ORIGIN_BY_TYPE_AND_FIELD.items():
        if name == block_type and block.get(field):
            return origin
    if block_type == "compaction":
        return next((origin for field, origin in _COMPACTION_ORIGIN_BY_FIELD.items() if field in block), None)
    for type_end, origin in _BUILT_IN_ORIGIN_BY_TYPE_END.items():
        if block_type.endswith(type_end):
            return origin
    return None


def classify_tool_declaration(tool: object) -> BlockOrigin | None:
    """Return the origin of a function that a client declares, or None for built-in tools and unknown forms."""
    if not isinstance(tool, Mapping):
        return None
    apis = tuple([spec.api for spec in API_SPECS.values() if spec.blocks.is_own_tool(tool)])
    return BlockOrigin(TOOL_KIND, apis) if apis else None


def find_foreign_blocks(
    message: object, api: str, *, classify: BlockClassifier = classify_foreign_block
) -> Iterator[ForeignBlock]:
    """Yield the foreign blocks in one element of the list of messages of ``api``, as ``classify`` recognizes them."""
    if not isinstance(message, Mapping):
        return
    # An element without a role is an item of Responses, or a block that belongs into a message.
    item_origin = classify(message) if "role" not in message else None
    if item_origin is not None and api not in item_origin.apis:
        yield "", item_origin
    yield from _find_calls_and_results(message, api)
    for key in _CONTENT_FIELDS:
        yield from _find_foreign_in_content(message.get(key), f".{key}", api, classify)


def _find_calls_and_results(message: Mapping[str, Any], api: str) -> Iterator[ForeignBlock]:
    """Yield calls beside a content, and messages that are results, if ``api`` does not have such."""
    role = message.get("role")
    if role == "assistant":
        for name, origin in _CALL_ORIGIN_BY_FIELD.items():
            calls = message.get(name)
            if api not in origin.apis and calls and isinstance(calls, _CALL_FIELD_TYPES[name]):
                yield f".{name}", origin
    # A message with Gemini's "parts" is one of Gemini's whatever its role: its results are parts.
    if not isinstance(role, str) or "parts" in message:
        return
    result_origin = _RESULT_ORIGIN_BY_ROLE.get(role)
    if result_origin is not None and api not in result_origin.apis:
        yield ".role", result_origin


def _find_foreign_in_content(
    content: object,
    path: str,
    api: str,
    classify: BlockClassifier,
) -> Iterator[ForeignBlock]:
    """Yield the foreign elements of a content, also those inside of this API's own results."""
    is_list = isinstance(content, list)
    for index, block in enumerate(content if isinstance(content, list) else [content]):
        origin = classify(block)
        if origin is None:
            continue
        block_path = f"{path}[{index}]" if is_list else path
        if api not in origin.apis:
            yield block_path, origin
        elif isinstance(block, Mapping) and origin.content_kind == RESULT_KIND:
            yield from _find_foreign_in_content(
                block.get("content"),
                f"{block_path}.content",
                api,
                classify,
            )
