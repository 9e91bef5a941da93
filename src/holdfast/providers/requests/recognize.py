"""Recognize the API of a request body by its fields, its tools and its messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from holdfast.errors import UnrecognizedContent
from holdfast.providers.api_spec import ApiSpec, BodySigns
from holdfast.providers.dialects.request_provider import find_request_provider
from holdfast.providers.registry import API_SPECS, DEFAULT_API, get_api_spec, list_provider_apis


class _BlockType(Struct):
    type: str = ""


class _MessagePeek(Struct):
    """The parts of a message that tell APIs apart."""

    role: str = ""
    content: Raw = Raw(b"")
    tool_calls: Raw = Raw(b"")
    # The rest is compared with ``BodySigns.message_fields``.
    name: Raw = Raw(b"")
    refusal: Raw = Raw(b"")
    reasoning_content: Raw = Raw(b"")
    function_call: Raw = Raw(b"")
    audio: Raw = Raw(b"")


_PEEK_LIST_DECODER = Decoder(list[_MessagePeek])
_TOOL_LIST_DECODER = Decoder(list[dict[str, Raw]])
_BLOCK_TYPES_DECODER = Decoder(list[_BlockType])


def recognize_api(fields: Mapping[str, Raw], provider: str = "") -> str:
    """Return the API of a body with these top-level fields, which may lack messages if another field gives it away.

    ``provider`` serves the request, if that is known: of two APIs that the body may be for, it is then the one that
    the provider has rules for. Raises ``UnrecognizedContent`` for anything else.
    """
    listed = [spec for spec in API_SPECS.values() if spec.messages_field in fields]
    candidates = [spec for spec in listed if spec.messages_field == listed[0].messages_field]
    if len(candidates) > 1:
        provider_apis = list_provider_apis(provider)
        provider_candidates = [spec for spec in candidates if spec.api in provider_apis]
        if len(provider_candidates) == 1:
            # Not without a look at the body: most providers take other APIs too, for which they have no rules here.
            return recognize_expected_api(fields, provider_candidates[0].api)
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


def find_doubtful_api(fields: Mapping[str, Raw], api: str) -> str:
    """Return another API that a body taken for ``api`` may be for; empty unless only its model's name decided.

    A system message first and a bare Claude name are a mistake on the Messages API, and a valid request to a gateway
    that speaks Chat Completions.
    """
    messages_field = get_api_spec(api).messages_field
    candidates = [spec for spec in API_SPECS.values() if spec.messages_field == messages_field]
    if len(candidates) == 1 or messages_field not in fields:
        return ""
    nameless_fields = {key: value for key, value in fields.items() if key != "model"}
    weights = _weigh_candidates(nameless_fields, candidates)
    likely_api = max(weights, key=lambda name: weights[name], default=api)
    return "" if likely_api == api else likely_api


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


# How much a sign says. Servers of Chat Completions take fields of the Messages API (``thinking``), so a field that is
# only typical never outweighs what roles, calls and tools say; a field that no other API has counts as much as these.
_STRUCTURE_WEIGHT = 3
_BLOCK_WEIGHT = 2
_TYPICAL_WEIGHT = 2
_PROVIDER_WEIGHT = 2
_WEAK_WEIGHT = 1


def _choose_among_candidates(fields: Mapping[str, Raw], candidates: Sequence[ApiSpec]) -> str:
    """Return the most likely API of a body among ``candidates``, which use the same field for messages."""
    weights = _weigh_candidates(fields, candidates)
    # Of APIs with equal weight, the one that is named first is chosen: roles beat fields.
    return max(weights, key=lambda api: weights[api], default=DEFAULT_API)


def _weigh_candidates(fields: Mapping[str, Raw], candidates: Sequence[ApiSpec]) -> dict[str, int]:
    """Add up the signs for each of ``candidates``; those without any are left out."""
    peeks = _peek_messages(fields, candidates)
    block_types: set[str] = set()
    for peek in peeks:
        block_types |= _get_block_types(peek.content)
    # Each row is one kind of sign.
    signs = (
        [(spec.api, _WEAK_WEIGHT) for spec in candidates if _starts_with_own_system(peeks, spec.signs)],
        [(spec.api, _weigh_fields(fields, spec.signs)) for spec in candidates],
        [(api, _STRUCTURE_WEIGHT) for api in dict.fromkeys(_iter_tool_api_signs(fields, candidates))],
        [(spec.api, _STRUCTURE_WEIGHT) for spec in candidates if _has_own_roles_or_calls(peeks, spec.signs)],
        [(spec.api, _BLOCK_WEIGHT) for spec in candidates if _has_own_block_type(block_types, spec.signs)],
        [(spec.api, _TYPICAL_WEIGHT) for spec in candidates if _has_own_message_field(peeks, spec.signs)],
        [(spec.api, _TYPICAL_WEIGHT) for spec in candidates if _has_own_text_field(fields, spec.signs)],
        [(spec.api, _weigh_model(fields, spec)) for spec in candidates],
    )
    weights: dict[str, int] = {}
    for row in signs:
        for api, weight in row:
            if weight:
                weights[api] = weights.get(api, 0) + weight
    return weights


def _weigh_fields(fields: Mapping[str, Raw], signs: BodySigns) -> int:
    if not signs.exclusive_fields.isdisjoint(fields):
        return _STRUCTURE_WEIGHT
    typical_fields = signs.typical_fields.intersection(fields)
    if typical_fields - signs.borrowed_fields:
        return _TYPICAL_WEIGHT
    return _WEAK_WEIGHT if typical_fields else 0


def _has_own_roles_or_calls(peeks: Sequence[_MessagePeek], signs: BodySigns) -> bool:
    for peek in peeks:
        has_tool_calls = bytes(peek.tool_calls).startswith(b"[")
        if peek.role in signs.roles or (signs.has_tool_calls and has_tool_calls):
            return True
    return False


def _has_own_block_type(block_types: set[str], signs: BodySigns) -> bool:
    has_own_type = not block_types.isdisjoint(signs.block_types)
    return has_own_type or any(type_.endswith(signs.block_type_ends) for type_ in block_types)


def _has_own_message_field(peeks: Sequence[_MessagePeek], signs: BodySigns) -> bool:
    return any(bytes(getattr(peek, field)) for peek in peeks for field in signs.message_fields)


def _has_own_text_field(fields: Mapping[str, Raw], signs: BodySigns) -> bool:
    return any(bytes(fields[field]).startswith(b'"') for field in signs.text_fields if field in fields)


def _starts_with_own_system(peeks: Sequence[_MessagePeek], signs: BodySigns) -> bool:
    return signs.starts_with_system and bool(peeks) and peeks[0].role == "system"


def _weigh_model(fields: Mapping[str, Raw], spec: ApiSpec) -> int:
    """Weigh the model's name: gateways serve any model over any API, so it says little by itself.

    Together with an output limit, which only some APIs require, it says more.
    """
    model = bytes(fields.get("model", Raw(b""))).decode(errors="replace").strip('"').lower()
    if find_request_provider(spec.api, model).name:
        return _PROVIDER_WEIGHT
    if not spec.signs.model_name or spec.signs.model_name not in model:
        return 0
    is_required_limit_set = spec.options.requires_max_tokens and "max_tokens" in fields
    is_own_name = model.startswith(spec.signs.model_name)
    return _PROVIDER_WEIGHT if is_required_limit_set and is_own_name else _WEAK_WEIGHT


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
