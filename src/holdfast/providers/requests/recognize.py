"""Recognize the API of a request body by its fields, its tools and its messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from holdfast.errors import UnrecognizedContent
from holdfast.providers.api_spec import ApiSpec, BodySigns
from holdfast.providers.registry import API_SPECS, DEFAULT_API, get_api_spec


class _BlockType(Struct):
    type: str = ""


class _MessagePeek(Struct):
    """The parts of a message that tell APIs apart."""

    role: str = ""
    content: Raw = Raw(b"")
    tool_calls: Raw = Raw(b"")


_PEEK_LIST_DECODER = Decoder(list[_MessagePeek])
_TOOL_LIST_DECODER = Decoder(list[dict[str, Raw]])
_BLOCK_TYPES_DECODER = Decoder(list[_BlockType])


def recognize_api(fields: Mapping[str, Raw]) -> str:
    """Return the API of a body with these top-level fields, which may lack messages if another field gives it away.

    Raises ``UnrecognizedContent`` for anything else.
    """
    listed = [spec for spec in API_SPECS.values() if spec.messages_field in fields]
    candidates = [spec for spec in listed if spec.messages_field == listed[0].messages_field]
    if len(candidates) > 1:
        return _choose_among_candidates(fields, candidates)
    # The last row first: Gemini's fields are more specific than those of Responses (``instructions``), which other
    # calls of OpenAI have too.
    for spec in reversed(API_SPECS.values()):
        signs = spec.signs
        is_named = spec.messages_field in fields or not signs.lone_fields.isdisjoint(fields)
        if is_named and signs.other_call_fields.isdisjoint(fields):
            return spec.api
    names = ", ".join(list(fields)[:8]) or "none"
    list_fields = dict.fromkeys(f"'{spec.messages_field}'" for spec in API_SPECS.values())
    lists = " or ".join(list_fields)
    raise UnrecognizedContent(f"no API is known by these fields: {names}; a request needs {lists}")


def recognize_expected_api(fields: Mapping[str, Raw], expected: str) -> str:
    """Return ``expected`` unless the body with these top-level fields is surely for another API.

    That is so if ``expected`` has no list of messages by that name, or if the body has something that only the other
    API with such a list has and nothing that only ``expected`` has. A stray role or picture of another API does not
    count: converters leave them behind, and ``fix`` repairs them. Raises ``UnrecognizedContent`` if the body is not a
    request at all.
    """
    if get_api_spec(expected).messages_field not in fields:
        return recognize_api(fields)
    messages_field, signs = API_SPECS[expected].messages_field, API_SPECS[expected].signs
    if not signs.exclusive_fields or not signs.typical_fields.isdisjoint(fields):
        return expected
    other_api = expected
    candidates = []
    for spec in API_SPECS.values():
        if spec.messages_field == messages_field:
            candidates.append(spec)
    for api in _iter_certain_api_signs(fields, candidates):
        if api == expected:
            return expected
        other_api = api
    return other_api


def _iter_certain_api_signs(fields: Mapping[str, Raw], candidates: Sequence[ApiSpec]) -> Iterator[str]:
    """Yield the API of each certain sign: fields that only one of ``candidates`` has, and how tools are offered and
    called.
    """
    for spec in candidates:
        if not spec.signs.exclusive_fields.isdisjoint(fields):
            yield spec.api
    yield from _iter_tool_api_signs(fields, candidates)
    for peek in _peek_messages(fields, candidates):
        has_tool_calls = bytes(peek.tool_calls).startswith(b"[")
        if peek.role == "assistant":
            answer_types = _get_block_types(peek.content)
        else:
            answer_types = frozenset()
        for spec in candidates:
            if peek.role in spec.signs.certain_roles or (spec.signs.has_tool_calls and has_tool_calls):
                yield spec.api
        for spec in candidates:
            if answer_types & spec.signs.certain_block_types:
                yield spec.api


def _iter_tool_api_signs(fields: Mapping[str, Raw], candidates: Sequence[ApiSpec]) -> Iterator[str]:
    """Yield the candidates that write tools in the form of the offered ones."""
    try:
        tools = _TOOL_LIST_DECODER.decode(fields.get("tools", b"[]"))
    except msgspec.DecodeError:
        return
    for spec in candidates:
        if any(_is_tool_of(tool, spec.signs) for tool in tools):
            yield spec.api


def _is_tool_of(tool: Mapping[str, Raw], signs: BodySigns) -> bool:
    return any(field in tool for field in signs.tool_fields) or bytes(tool.get("type", b"")) in signs.tool_types


def _choose_among_candidates(fields: Mapping[str, Raw], candidates: Sequence[ApiSpec]) -> str:
    """Return the most likely API of a body among ``candidates``, which use the same field for messages."""
    # From the surest sign to the weakest: fields of the body, then tools and messages, then the name of the model,
    # which says little since gateways serve any model over any API.
    for spec in candidates:
        if not spec.signs.typical_fields.isdisjoint(fields):
            return spec.api
    for api in _iter_likely_api_signs(fields, candidates):
        return api
    model = bytes(fields.get("model", Raw(b""))).lower()
    for spec in candidates:
        if spec.signs.model_name and spec.signs.model_name in model:
            return spec.api
    return DEFAULT_API


def _iter_likely_api_signs(fields: Mapping[str, Raw], candidates: Sequence[ApiSpec]) -> Iterator[str]:
    """Yield the API of each likely sign in the tools and messages, the most telling first."""
    yield from _iter_tool_api_signs(fields, candidates)
    peeks = _peek_messages(fields, candidates)
    for peek in peeks:
        has_tool_calls = bytes(peek.tool_calls).startswith(b"[")
        for spec in candidates:
            if peek.role in spec.signs.roles or (spec.signs.has_tool_calls and has_tool_calls):
                yield spec.api
        block_types = _get_block_types(peek.content)
        for spec in candidates:
            has_own_type = not block_types.isdisjoint(spec.signs.block_types)
            if has_own_type or any(type_.endswith(spec.signs.block_type_ends) for type_ in block_types):
                yield spec.api
    if peeks and peeks[0].role == "system":
        for spec in candidates:
            if spec.signs.starts_with_system:
                yield spec.api


def _peek_messages(fields: Mapping[str, Raw], candidates: Sequence[ApiSpec]) -> list[_MessagePeek]:
    try:
        return _PEEK_LIST_DECODER.decode(fields[candidates[0].messages_field])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []


def _get_block_types(content: Raw) -> frozenset[str]:
    """Return the types of the blocks in a content; empty if it is not a list of blocks."""
    try:
        return frozenset(block.type for block in _BLOCK_TYPES_DECODER.decode(content))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return frozenset()
