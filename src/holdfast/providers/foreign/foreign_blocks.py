"""Whose form an element of a list of messages is: told by its type, or by the field that holds what it says.

Only what surely belongs to some APIs counts. Words, and calls of built-in tools, are told apart from all that a request
is mended for: an API's own writing of them is known, and yet they are put right where they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

from msgspec import Struct

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
    """What something is, and the APIs that write it so; the first of them reads it best."""

    content_kind: str
    apis: tuple[str, ...]

    @property
    def description(self) -> str:
        """What it is in words: ``a picture in the form of OpenAI Responses``."""
        *leading_names, last = (API_SPECS[api].display_name for api in self.apis)
        names = f"{', '.join(leading_names)} and {last}" if leading_names else last
        return (
            f"{'' if self.content_kind in (SOUND_KIND, THINKING_KIND) else 'a '}{self.content_kind} in the "
            f"form of {names}"
        )


ForeignBlock: TypeAlias = tuple[str, BlockOrigin]
"""Where something of another API stands, from its message on, and what it is."""
BlockClassifier: TypeAlias = Callable[[object], BlockOrigin | None]
"""Tells what an element is; nothing where it is none to look at."""

_KIND_BY_MEDIA_TYPE = {"image": PICTURE_KIND, "audio": SOUND_KIND}
"""What a document in an object without a type is, by the first half of its MIME type."""


def _merge_origins(*tables: tuple[str, Mapping[T, str]]) -> dict[T, BlockOrigin]:
    """Return what each key stands for, and all APIs that have it so, in the order of ``tables``."""
    origins: dict[T, BlockOrigin] = {}
    for api, kinds in tables:
        for key, kind in kinds.items():
            known = origins.get(key)
            origins[key] = BlockOrigin(kind, (*known.apis, api) if known is not None else (api,))
    return origins


_SPECS = API_SPECS.values()
_ORIGIN_BY_TYPE = _merge_origins(
    *((spec.api, spec.blocks.kinds_by_type) for spec in _SPECS),
    *((spec.api, spec.blocks.later_kinds_by_type) for spec in _SPECS),
)
_ORIGIN_BY_TYPE_AND_FIELD = _merge_origins(*((spec.api, spec.blocks.kinds_by_type_and_field) for spec in _SPECS))
"""Types that more than one API has, and the field by which this one is known."""
_ORIGIN_BY_FIELD = _merge_origins(*((spec.api, spec.blocks.kinds_by_field) for spec in _SPECS))
"""Fields that tell what an element without a type is."""
_COMPACTION_ORIGIN_BY_FIELD = _merge_origins(
    *((spec.api, {spec.blocks.compaction_field: TEXT_KIND}) for spec in _SPECS if spec.blocks.compaction_field)
)
"""Fields by which it is known whose a compaction is."""
_APIS_BY_TYPE_END = _merge_origins(
    *((spec.api, dict.fromkeys(spec.blocks.built_in_type_ends, BUILT_IN_CALL_KIND)) for spec in _SPECS)
)
"""Who writes the calls of built-in tools and what came of them, by how their types end."""
MESSAGE_ORIGIN_BY_FIELD = _merge_origins(*((spec.api, {spec.shape.content_field: MESSAGE_KIND}) for spec in _SPECS))
"""What a message is, by the field that holds what it says."""
_CALL_ORIGIN_BY_FIELD = _merge_origins(
    *((spec.api, dict.fromkeys(spec.blocks.call_fields, CALL_KIND)) for spec in _SPECS)
)
_CALL_FIELD_TYPES = {name: type_ for spec in _SPECS for name, type_ in spec.blocks.call_fields.items()}
"""Fields that hold calls beside a content, and what they are."""
_RESULT_ORIGIN_BY_ROLE = _merge_origins(
    *((spec.api, dict.fromkeys(spec.blocks.result_roles, RESULT_KIND)) for spec in _SPECS)
)
"""Roles of messages that are results."""
_CONTENT_FIELDS = (*MESSAGE_ORIGIN_BY_FIELD, "output")
"""Fields of a message, and of a result that is an element of its own, that hold blocks."""


def format_foreign_block_advice(kind: BlockOrigin, api: str) -> str:
    """Return what to say of something in another form than that of ``api``, and the one thing to do."""
    own_form = API_SPECS[api].blocks.own_forms.get(kind.content_kind) if api in API_SPECS else None
    return (
        f"this is {kind.description}; {f'write {own_form}' if own_form else 'leave it out'} here, as holdfast fix does"
    )


def classify_foreign_block(block: object) -> BlockOrigin | None:
    """Return what an element of a content, or of the list itself, is; nothing for words and what is not known."""
    kind = classify_any_block(block)
    return None if kind is None or kind.content_kind in (TEXT_KIND, BUILT_IN_CALL_KIND) else kind


def classify_any_block(block: object) -> BlockOrigin | None:
    """Return what an element is whose writers are known, be it words or a call of a built-in tool."""
    if not isinstance(block, Mapping):
        return None
    type_ = block.get("type")
    if isinstance(type_, str):
        matching_kinds = (
            kind for (name, field), kind in _ORIGIN_BY_TYPE_AND_FIELD.items() if name == type_ and block.get(field)
        )
        return _ORIGIN_BY_TYPE.get(type_) or next(matching_kinds, None) or _classify_special_block(type_, block)
    field = next((key for key in _ORIGIN_BY_FIELD if isinstance(block.get(key), Mapping)), None)
    if field is None:
        return None
    origin = _ORIGIN_BY_FIELD[field]
    if origin.content_kind != DOCUMENT_KIND:
        return origin
    mime = next((str(block[field][key]) for key in ("mimeType", "mime_type") if key in block[field]), "")
    return BlockOrigin(_KIND_BY_MEDIA_TYPE.get(mime.partition("/")[0], DOCUMENT_KIND), origin.apis)


def _classify_special_block(type_: str, block: Mapping[str, Any]) -> BlockOrigin | None:
    """Return what is told apart from all that a request is mended for."""
    if type_ == "compaction":
        return next((kind for field, kind in _COMPACTION_ORIGIN_BY_FIELD.items() if field in block), None)
    return next((origin for end, origin in _APIS_BY_TYPE_END.items() if type_.endswith(end)), None)


def classify_tool_declaration(tool: object) -> BlockOrigin | None:
    """Return whose form a function of the client's is offered in; nothing for other tools."""
    if not isinstance(tool, Mapping):
        return None
    apis = tuple([spec.api for spec in API_SPECS.values() if spec.blocks.is_own_tool(tool)])
    return BlockOrigin(TOOL_KIND, apis) if apis else None


def find_foreign_blocks(
    message: object, api: str, *, classify: BlockClassifier = classify_foreign_block
) -> Iterator[ForeignBlock]:
    """Yield what ``classify`` knows to be another's in one element of the list of messages of ``api``."""
    if not isinstance(message, Mapping):
        return
    own = classify(message) if "role" not in message else None
    if own is not None and api not in own.apis:
        yield "", own
    yield from _find_calls_and_results(message, api)
    for key in _CONTENT_FIELDS:
        yield from _find_foreign_in_content(message.get(key), f".{key}", api, classify)


def _find_calls_and_results(message: Mapping[str, Any], api: str) -> Iterator[ForeignBlock]:
    """Yield the calls beside a content, and the results that are messages, which ``api`` has not."""
    if message.get("role") == "assistant":
        for name, origin in _CALL_ORIGIN_BY_FIELD.items():
            if api not in origin.apis and message.get(name) and isinstance(message[name], _CALL_FIELD_TYPES[name]):
                yield f".{name}", origin
    role = message.get("role")
    result_origin = _RESULT_ORIGIN_BY_ROLE.get(role) if isinstance(role, str) else None
    if result_origin is not None and api not in result_origin.apis and "parts" not in message:
        yield ".role", result_origin


def _find_foreign_in_content(content: object, path: str, api: str, classify: BlockClassifier) -> Iterator[ForeignBlock]:
    """Yield what is strange among the elements of a content, and of what a result holds."""
    for index, block in enumerate(content if isinstance(content, list) else [content]):
        place = f"{path}[{index}]" if isinstance(content, list) else path
        kind = classify(block)
        if kind is not None and api not in kind.apis:
            yield place, kind
        elif isinstance(block, Mapping) and kind is not None and kind.content_kind == RESULT_KIND:
            yield from _find_foreign_in_content(block.get("content"), f"{place}.content", api, classify)
