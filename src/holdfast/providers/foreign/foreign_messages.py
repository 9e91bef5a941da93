"""Messages that surely belong to another API, told by their place before their words are lost.

``messages`` of each API reads lists that a caller holds as dicts. What an API does not know is kept there, so a list
of another API would be read without a word and its calls and results be lost. Only what no provider of the API takes
counts as foreign: a field that is merely unknown is none. Bodies on their way through a proxy are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

import msgspec
from msgspec.json import Decoder

from holdfast.errors import FormatError
from holdfast.messages.message import Message
from holdfast.messages.parts import Part, ToolCall
from holdfast.providers.anthropic.spec import ANTHROPIC_SPEC
from holdfast.providers.api_spec import ApiSpec
from holdfast.providers.common.content_kinds import DOCUMENT_KIND
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.providers.foreign.foreign_blocks import (
    MESSAGE_ORIGIN_BY_FIELD,
    BlockOrigin,
    classify_any_block,
    find_foreign_blocks,
)
from holdfast.providers.foreign.foreign_bytes import drop_foreign_bytes_of_messages
from holdfast.providers.openai_chat.spec import OPENAI_CHAT_SPEC
from holdfast.providers.registry import API_SPECS
from holdfast.state.codec.packing import describe_type_mismatch

ForeignSign = tuple[str, str, tuple[str, ...]]
"""Where something stands, what it is, and the APIs that it may belong to."""

_PART_TYPES = frozenset(get_args(Part))
_FIELDS_DECODER = Decoder(dict[str, Any])
_SHARED_ROLES = frozenset({"user", "assistant", "system"})


def _merge_owners(*tables: tuple[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    """Return the APIs that have each key, in the order of ``tables``."""
    owners: dict[str, tuple[str, ...]] = {}
    for api, keys in tables:
        for key in keys:
            owners[key] = (*owners.get(key, ()), api)
    return owners


_APIS_BY_FIELD = _merge_owners(*((spec.api, spec.blocks.own_message_fields) for spec in API_SPECS.values()))
"""Fields beside the content that say something in some APIs, and nowhere else."""
_APIS_BY_ROLE = _merge_owners(*((spec.api, spec.blocks.own_roles) for spec in API_SPECS.values()))
"""Roles that not every API knows."""
_ALSO_READ_BY = {BlockOrigin(DOCUMENT_KIND, (ANTHROPIC_SPEC.api,)): (OPENAI_CHAT_SPEC.api,)}
"""What another API reads too: a document of Anthropic's in a list of Chat, as LiteLLM takes it."""


def decode_message_list(dicts: object, spec: ApiSpec) -> list[Message]:
    """Return each message of a list as a value.

    Raises ``FormatError`` with the JSON path of what cannot be read or belongs to another API, and who reads it.
    """
    raws = encode_own_messages(dicts, spec)
    return [
        _decode_at_path(spec.decode_message, raw, f"$.{spec.messages_field}[{index}]") for index, raw in enumerate(raws)
    ]


def _decode_at_path(decode: Callable[[bytes], Message], raw: bytes, path: str) -> Message:
    try:
        return decode(raw)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None


def encode_own_messages(dicts: object, spec: ApiSpec) -> list[bytes]:
    """Return each message of a list as JSON; ``FormatError`` where it is no list or one belongs to another API."""
    messages = list(_require_message_list(dicts, spec.api))
    raws = [encode_json(message) for message in messages]
    odd = [
        index
        for index, message in enumerate(messages)
        if spec.shape.content_field != "content" or not _is_plain_text_message(message)
    ]
    signs = [
        sign
        for index in odd
        for sign in _find_foreign_signs(messages[index], raws[index], f"$.{spec.messages_field}[{index}]", spec)
    ]
    if signs:
        raise FormatError(_format_foreign_error(signs, spec.api))
    return raws


def check_messages_to_encode(messages: object, api: str) -> list[Message]:
    """Return the messages that ``encode_messages`` was given for ``api``, without bytes of another API's.

    ``TypeError`` for what is none, by its place.
    """
    if not isinstance(messages, Iterable):
        raise TypeError(
            f"messages is a {type(messages).__name__}; "
            "encode_messages() takes a list of what decode_messages() makes of dicts"
        )
    every = list(messages)
    for index, message in enumerate(every):
        if not isinstance(message, Message):
            raise TypeError(
                f"messages[{index}] is a {type(message).__name__}; "
                "encode_messages() takes what decode_messages() makes of dicts"
            )
        if not isinstance(message.parts, tuple | list) or not all(map(_is_valid_part, message.parts)):
            raise TypeError(f"messages[{index}] is no message: {describe_type_mismatch(message, Message)}")
    return drop_foreign_bytes_of_messages(every, api)


def _is_valid_part(part: object) -> bool:
    return type(part) in _PART_TYPES and (type(part) is not ToolCall or type(part.arguments) is str)


def _require_message_list(dicts: object, api: str) -> Iterable[Any]:
    """Return ``dicts`` where it is a list of messages."""
    if isinstance(dicts, Mapping):
        list_field = next((spec.messages_field for spec in API_SPECS.values() if spec.messages_field in dicts), None)
        why = f"give its {list_field!r}" if list_field else "put it into a list"
        raise FormatError(f"decode_messages() takes a list of messages, and a dict was given; {why}")
    if isinstance(dicts, str | bytes) or not isinstance(dicts, Iterable):
        raise FormatError(
            f"decode_messages() takes a list of messages of {api}, and a {type(dicts).__name__} was given"
        )
    return dicts


def _is_plain_text_message(message: object) -> bool:
    """Return whether a message has words and nothing else, which three APIs say alike."""
    if type(message) is not dict or len(message) != 2:
        return False
    role, content = message.get("role"), message.get("content")
    return type(role) is str and role in _SHARED_ROLES and type(content) is str


def _format_foreign_error(foreign_signs: Sequence[ForeignSign], api: str) -> str:
    """Return what to say of a list: its first strange thing, and who reads all that is strange in it."""
    path, description, fit = foreign_signs[0]
    common = [reader_api for reader_api in fit if all(reader_api in owners for _, _, owners in foreign_signs)]
    readers = " or ".join(f"decode_messages({reader_api!r}, …)" for reader_api in common or fit)
    cure = f"read this list with {readers}" if common else f"the list mixes APIs, {readers} reads this one"
    return f"{path}: {description} is not part of {api} and would be lost; {cure}"


# -- what is strange in a message --------------------------------------------------------------------------------------


def _find_foreign_signs(message: object, raw: bytes, path: str, spec: ApiSpec) -> Iterator[ForeignSign]:
    """Yield what surely belongs to another API in one message."""
    if isinstance(message, Message):
        raise FormatError(
            f"{path} is a Message already; decode_messages() reads what is sent, encode_messages() writes it"
        )
    try:
        fields = _FIELDS_DECODER.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    for place, description, owners in _find_api_specific_fields(fields, spec):
        if spec.api not in owners:
            yield path + place, description, owners


def _find_api_specific_fields(fields: Mapping[str, Any], spec: ApiSpec) -> Iterator[ForeignSign]:
    """Yield what is known to belong to some APIs only; a field that holds nothing says nothing."""
    role, kind = _get_string_field(fields, "role"), _get_string_field(fields, "type")
    if kind and not role and spec.group_items is not None:
        return
    for name, value in fields.items():
        if name in _APIS_BY_FIELD and value:
            yield f".{name}", f"a field {name!r}", _APIS_BY_FIELD[name]
    if role in _APIS_BY_ROLE and not spec.blocks.takes_any_role:
        yield ".role", f'the role "{role}"', _APIS_BY_ROLE[role]
    content, parts = fields.get("content"), fields.get("parts")
    if parts and isinstance(parts, list) and not content:
        yield ".parts", "a list of parts", MESSAGE_ORIGIN_BY_FIELD["parts"].apis
    for place, origin in find_foreign_blocks(fields, spec.api, classify=classify_any_block):
        owners = (*origin.apis, *_ALSO_READ_BY.get(origin, ()))
        yield place or ".type", origin.description, owners
    if content:
        yield ".content", "a field 'content'", MESSAGE_ORIGIN_BY_FIELD["content"].apis


def _get_string_field(fields: Mapping[str, Any], name: str) -> str:
    """Return a field that is a text; nothing where it is none."""
    value = fields.get(name)
    return value if isinstance(value, str) else ""
