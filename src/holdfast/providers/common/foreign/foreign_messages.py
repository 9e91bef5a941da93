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
from holdfast.providers.common.foreign.foreign_blocks import DOCUMENT, known, strange
from holdfast.providers.common.foreign.transcode import all_speaking
from holdfast.providers.common.json.raw_json import write
from holdfast.state.codec.packing import fault

_A, _C, _R, _G = "anthropic", "openai-chat", "openai-responses", "gemini"
_FIELD = {_A: "messages", _C: "messages", _R: "input", _G: "contents"}
_MODULE = {_A: "anthropic", _C: "openai_chat", _R: "openai_responses", _G: "gemini"}

Sign = tuple[str, str, tuple[str, ...]]
"""Where something stands, what it is, and the APIs that it may belong to."""

_PARTS = frozenset(get_args(Part))
_FIELDS = Decoder(dict[str, Any])
_COMMON = frozenset({"user", "assistant", "system"})

_CHATS = frozenset({"tool_calls", "tool_call_id", "function_call", "reasoning_content", "refusal", "audio"})
"""Fields beside the content that say something in Chat, and nowhere else."""
_ROLES = {"tool": (_C,), "function": (_C,), "developer": (_C, _R)}
"""Roles that not every API knows; Gemini is told by its ``parts`` and had functions once."""


def read_all(wire: object, api: str, decode: Callable[[bytes], Message]) -> list[Message]:
    """Return each message of a list as a value.

    Raises ``FormatError`` with the JSON path of what cannot be read or belongs to another API, and who reads it.
    """
    raws = written(wire, api)
    return [_read(decode, raw, f"$.{_FIELD[api]}[{index}]") for index, raw in enumerate(raws)]


def _read(decode: Callable[[bytes], Message], raw: bytes, path: str) -> Message:
    try:
        return decode(raw)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None


def written(wire: object, api: str) -> list[bytes]:
    """Return each message of a list as JSON; ``FormatError`` where it is no list or one belongs to another API."""
    given = list(_listed(wire, api))
    raws = [write(one) for one in given]
    odd = [index for index, one in enumerate(given) if api == _G or not _is_plain(one)]
    signs = [sign for index in odd for sign in _signs(given[index], raws[index], f"$.{_FIELD[api]}[{index}]", api)]
    if signs:
        raise FormatError(_told(signs, api))
    return raws


def values(given: object, api: str) -> list[Message]:
    """Return the messages that ``dicts`` of ``api`` was given, without bytes of another API's.

    ``TypeError`` for what is none, by its place.
    """
    if not isinstance(given, Iterable):
        raise TypeError(f"values is a {type(given).__name__}; dicts() takes a list of what messages() makes of dicts")
    every = list(given)
    for index, one in enumerate(every):
        if not isinstance(one, Message):
            raise TypeError(f"values[{index}] is a {type(one).__name__}; dicts() takes what messages() makes of dicts")
        if not isinstance(one.parts, tuple | list) or not all(map(_is_part, one.parts)):
            raise TypeError(f"values[{index}] is no message: {fault(one, Message)}")
    return all_speaking(every, api)


def _is_part(part: object) -> bool:
    return type(part) in _PARTS and (type(part) is not ToolCall or type(part.arguments) is str)


def _listed(wire: object, api: str) -> Iterable[Any]:
    """Return ``wire`` where it is a list of messages."""
    if isinstance(wire, Mapping):
        known = next((field for field in _FIELD.values() if field in wire), None)
        why = f"give its {known!r}" if known else "put it into a list"
        raise FormatError(f"messages() takes a list of messages, and a dict was given; {why}")
    if isinstance(wire, str | bytes) or not isinstance(wire, Iterable):
        raise FormatError(f"messages() takes a list of messages of {api}, and a {type(wire).__name__} was given")
    return wire


def _is_plain(one: object) -> bool:
    """Return whether a message has words and nothing else, which three APIs say alike."""
    if type(one) is not dict or len(one) != 2:
        return False
    role, content = one.get("role"), one.get("content")
    return type(role) is str and role in _COMMON and type(content) is str


def _told(signs: Sequence[Sign], api: str) -> str:
    """Return what to say of a list: its first strange thing, and who reads all that is strange in it."""
    path, what, fit = signs[0]
    common = [one for one in fit if all(one in owners for _, _, owners in signs)]
    readers = " or ".join(f"holdfast.providers.{_MODULE[one]}.messages.messages" for one in common or fit)
    cure = f"read this list with {readers}" if common else f"the list mixes APIs, {readers} reads this one"
    return f"{path}: {what} is not part of {api} and would be lost; {cure}"


# -- what is strange in a message --------------------------------------------------------------------------------------


def _signs(one: object, raw: bytes, path: str, api: str) -> Iterator[Sign]:
    """Yield what surely belongs to another API in one message."""
    if isinstance(one, Message):
        raise FormatError(f"{path} is a Message already; messages() reads what is sent, dicts() writes it")
    try:
        found = _FIELDS.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    for place, what, owners in _found(found, api):
        if api not in owners:
            yield path + place, what, owners


def _found(found: Mapping[str, Any], api: str) -> Iterator[Sign]:
    """Yield what is known to belong to some APIs only; a field that holds nothing says nothing."""
    role, kind = _word(found, "role"), _word(found, "type")
    if kind and not role and api == _R:
        return
    for name, value in found.items():
        if name in _CHATS and value:
            yield f".{name}", f"a field {name!r}", (_C,)
    if role in _ROLES and api != _G:
        yield ".role", f'the role "{role}"', _ROLES[role]
    content, parts = found.get("content"), found.get("parts")
    if parts and isinstance(parts, list) and not content:
        yield ".parts", "a list of parts", (_G,)
    for place, what in strange(found, api, tell=known):
        owners = (*what.apis, _C) if what == DOCUMENT else what.apis  # as LiteLLM takes it in a list of Chat
        yield place or ".type", what.told, owners
    if content:
        yield ".content", "a field 'content'", (_A, _C, _R)


def _word(found: Mapping[str, Any], name: str) -> str:
    """Return a field that is a text; nothing where it is none."""
    value = found.get(name)
    return value if isinstance(value, str) else ""
