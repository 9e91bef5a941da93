"""Refuse lists of messages that belong to another API, with the path and the reader that takes them.

``decode_messages`` reads lists of dicts that a caller holds. Readers keep what they do not know without interpreting
it, so a list of another API would be accepted silently, and its calls and results lost. Only what no provider of the
API accepts counts as foreign; a field that is merely unknown does not. Bodies on their way through the proxy are not
checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.json import Decoder

from holdfast.errors import FormatError
from holdfast.messages.message import Message
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
from holdfast.state.validation import is_valid_part


class ForeignSign(NamedTuple):
    """Evidence that a message was written for other APIs."""

    path: str
    """JSON path, from the message on or from the body on."""
    description: str
    owners: tuple[str, ...]
    """The APIs that have it, and whose readers take it."""


_FIELDS_DECODER = Decoder(dict[str, Any])
_SHARED_ROLES = frozenset({"user", "assistant", "system"})


def _list_apis_by_key(get_keys: Callable[[ApiSpec], Iterable[str]]) -> dict[str, tuple[str, ...]]:
    """Return the APIs that have each key, in the order of the registry."""
    apis: dict[str, tuple[str, ...]] = {}
    for spec in API_SPECS.values():
        for key in get_keys(spec):
            apis[key] = (*apis.get(key, ()), spec.api)
    return apis


_APIS_BY_FIELD = _list_apis_by_key(lambda spec: spec.blocks.own_message_fields)
"""The APIs of message fields that carry content in these APIs and mean nothing in others."""
_APIS_BY_ROLE = _list_apis_by_key(lambda spec: spec.blocks.own_roles)
"""The APIs of roles that not all of them have."""
# LiteLLM accepts a document of Anthropic's form in a list of Chat messages, so it is no sign against Chat.
_ALSO_READ_BY = {BlockOrigin(DOCUMENT_KIND, (ANTHROPIC_SPEC.api,)): (OPENAI_CHAT_SPEC.api,)}
"""Further APIs that accept a form."""


def decode_message_list(dicts: object, spec: ApiSpec) -> list[Message]:
    """Decode a list of messages that are dicts, or objects of an SDK.

    Raises ``FormatError`` with the JSON path of a message that cannot be read or belongs to another API; in the latter
    case it also names the API whose reader takes it.
    """
    messages = []
    for index, raw in enumerate(encode_own_messages(dicts, spec)):
        messages.append(_decode_at_path(spec.decode_message, raw, f"$.{spec.messages_field}[{index}]"))
    return messages


def _decode_at_path(decode: Callable[[bytes], Message], raw: bytes, path: str) -> Message:
    try:
        return decode(raw)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None


def encode_own_messages(dicts: object, spec: ApiSpec) -> list[bytes]:
    """Encode each message of a list as JSON.

    Raises ``FormatError`` if ``dicts`` is not a list of messages, or if a message belongs to another API.
    """
    messages = list(_require_message_list(dicts, spec.api))
    raws = [encode_json(message) for message in messages]
    signs: list[ForeignSign] = []
    for index, (message, raw) in enumerate(zip(messages, raws, strict=True)):
        # Most messages of a list are plain texts; they say nothing about the API and are not parsed again.
        if spec.shape.content_field == "content" and _is_plain_text_message(message):
            continue
        signs += _find_foreign_signs(message, raw, f"$.{spec.messages_field}[{index}]", spec)
    if signs:
        raise FormatError(_format_foreign_error(signs, spec.api))
    return raws


def check_messages_to_encode(messages: object, api: str) -> list[Message]:
    """Check the argument of ``encode_messages`` and return it without bytes of APIs other than ``api``.

    Raises ``TypeError`` with the index of an element that is not a valid message.
    """
    if not isinstance(messages, Iterable):
        raise TypeError(
            f"messages is a {type(messages).__name__}; "
            "encode_messages() takes a list of what decode_messages() makes of dicts"
        )
    checked_messages = list(messages)
    for index, message in enumerate(checked_messages):
        if not isinstance(message, Message):
            raise TypeError(
                f"messages[{index}] is a {type(message).__name__}; "
                "encode_messages() takes what decode_messages() makes of dicts"
            )
        if not isinstance(message.parts, tuple | list) or not all(map(is_valid_part, message.parts)):
            raise TypeError(f"messages[{index}] is not a message: {describe_type_mismatch(message, Message)}")
    return drop_foreign_bytes_of_messages(checked_messages, api)


def _require_message_list(dicts: object, api: str) -> Iterable[Any]:
    """Return ``dicts`` if it can be a list of messages, else raise ``FormatError``."""
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
    """Return whether a message has a role and a text and nothing else, a form that three APIs share."""
    if type(message) is not dict or len(message) != 2:
        return False
    role, content = message.get("role"), message.get("content")
    return type(role) is str and role in _SHARED_ROLES and type(content) is str


def _format_foreign_error(foreign_signs: Sequence[ForeignSign], api: str) -> str:
    """Format the error on a list: the first foreign thing, and the APIs that have all foreign things in the list."""
    first_sign = foreign_signs[0]
    common_owners: list[str] = []
    for owner in first_sign.owners:
        if all(owner in sign.owners for sign in foreign_signs):
            common_owners.append(owner)
    readers = " or ".join(f"decode_messages({owner!r}, …)" for owner in common_owners or first_sign.owners)
    if common_owners:
        cure = f"read this list with {readers}"
    else:
        cure = f"the list mixes APIs, {readers} reads this one"
    return f"{first_sign.path}: {first_sign.description} is not part of {api} and would be lost; {cure}"


# -- signs in one message ----------------------------------------------------------------------------------------------


def _find_foreign_signs(message: object, raw: bytes, path: str, spec: ApiSpec) -> Iterator[ForeignSign]:
    """Yield the signs that one message certainly belongs to another API."""
    if isinstance(message, Message):
        raise FormatError(
            f"{path} is a Message already; decode_messages() reads what is sent, encode_messages() writes it"
        )
    try:
        fields = _FIELDS_DECODER.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    for sign in _find_api_specific_fields(fields, spec):
        if spec.api not in sign.owners:
            yield sign._replace(path=path + sign.path)


def _find_api_specific_fields(fields: Mapping[str, Any], spec: ApiSpec) -> Iterator[ForeignSign]:
    """Yield everything in a message that only some APIs have, those of ``spec`` among them.

    Empty fields prove nothing: SDKs dump them for every message.
    """
    role = _get_string_field(fields, "role")
    item_type = _get_string_field(fields, "type")
    if item_type and not role and spec.group_items is not None:
        return  # an item of Responses; its type says all
    for name, value in fields.items():
        if name in _APIS_BY_FIELD and value:
            yield ForeignSign(f".{name}", f"a field {name!r}", _APIS_BY_FIELD[name])
    if role in _APIS_BY_ROLE and not spec.blocks.takes_any_role:
        yield ForeignSign(".role", f'the role "{role}"', _APIS_BY_ROLE[role])
    content = fields.get("content")
    parts = fields.get("parts")
    if parts and isinstance(parts, list) and not content:
        yield ForeignSign(".parts", "a list of parts", MESSAGE_ORIGIN_BY_FIELD["parts"].apis)
    for path, origin in find_foreign_blocks(fields, spec.api, classify=classify_any_block):
        owners = (*origin.apis, *_ALSO_READ_BY.get(origin, ()))
        yield ForeignSign(path or ".type", origin.description, owners)
    # Last, since it is the weakest sign: the first one of a list is shown.
    if content:
        yield ForeignSign(".content", "a field 'content'", MESSAGE_ORIGIN_BY_FIELD["content"].apis)


def _get_string_field(fields: Mapping[str, Any], name: str) -> str:
    """Return a field that is a string, or an empty string if it is missing or of another type."""
    value = fields.get(name)
    return value if isinstance(value, str) else ""
