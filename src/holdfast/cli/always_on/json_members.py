"""Set and remove members of a JSON object in its bytes, so that formatting, comments and order stay as they are.

The settings files of clients belong to their users. Parsing and writing them anew would lose comments and formatting,
so the members are found by their positions. Comments and trailing commas are accepted, as the clients accept them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from holdfast.cli.clients.client_settings import get_nested_value, parse_lenient_json
from holdfast.errors import ConfigError

_BLANKS = re.compile(r"(?:[ \t\r\n]|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_BLANK_CHARACTERS = " \t\r\n"
"""Named one by one: as positions are bytes, a byte of another sign may look like a blank to ``strip``."""
_LINE_END = re.compile(r"[ \t]*\r?\n")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_SCALAR = re.compile(r"[^\s,:{}\[\]\"/]+")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_EMPTY_OBJECT = re.compile(r"\s*(\{\s*,?\s*\}\s*)?")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_DEFAULT_INDENT = "  "


class JsonMemberSpan(Struct, frozen=True):
    """A member of an object: its key, and where it begins and its value ends."""

    key: str
    start: int
    value: JsonValueSpan


class JsonValueSpan(Struct, frozen=True):
    """A value in a text: where it is, and its members if it is an object."""

    start: int
    end: int
    members: tuple[JsonMemberSpan, ...] = ()
    is_object: bool = False

    def find_member(self, key: str) -> JsonMemberSpan | None:
        """Return the member called ``key``, the last one if there are several, as parsers do."""
        for member in reversed(self.members):
            if member.key == key:
                return member
        return None


def set_json_string(data: bytes, names: Sequence[str], value: str) -> bytes:
    """Return ``data`` with the string ``value`` at the path ``names``; nothing else changes. Empty data is an object.

    Raises ``ConfigError`` if ``data`` is not a JSON object in UTF-8, or something else than an object is in the way.
    """
    expected = _set_nested_value(_parse_object(data), names, value)
    if not data.removeprefix(_BYTE_ORDER_MARK).strip():
        return data + (json.dumps(expected, indent=2, ensure_ascii=False) + "\n").encode()
    text = _decode_positions(data)
    node = _scan_root(text)
    remaining = list(names)
    while remaining:
        member = node.find_member(remaining[0])
        if member is None:
            break
        remaining.pop(0)
        node = member.value
    if remaining:
        if not node.is_object:
            raise ConfigError(f"{'.'.join(names)} cannot be set: a part of it is not an object; change it there")
        changed = _insert_member(text, node, remaining, value)
    else:
        changed = text[: node.start] + _encode_positions(value) + text[node.end :]
    result = changed.encode("latin-1")
    if _parse_object(result) != expected:
        raise ConfigError(f"{'.'.join(names)} cannot be set without touching the rest of the file; set it by hand")
    return result


def get_json_token(data: bytes, names: Sequence[str]) -> bytes | None:
    """Return the bytes of the value at the path ``names``, or None if there is no such value."""
    text = _decode_positions(data)
    node = _scan_root(text)
    for name in names:
        member = node.find_member(name)
        if member is None:
            return None
        node = member.value
    return text[node.start : node.end].encode("latin-1")


def replace_json_token(data: bytes, names: Sequence[str], token: bytes) -> bytes:
    """Return ``data`` with the bytes ``token`` as the value at the path ``names``, which exists."""
    text = _decode_positions(data)
    node = _scan_root(text)
    for name in names:
        member = node.find_member(name)
        if member is None:
            raise ConfigError(f"{'.'.join(names)} is not there any more")
        node = member.value
    return (text[: node.start] + token.decode("latin-1") + text[node.end :]).encode("latin-1")


def remove_json_member(data: bytes, names: Sequence[str]) -> bytes:
    """Return ``data`` without the member at the path ``names``; comments and all other members stay.

    Raises ``ConfigError`` if there is no such member, or it cannot be removed alone.
    """
    expected = _remove_nested_value(_parse_object(data), names)
    text = _decode_positions(data)
    node = _scan_root(text)
    for name in names[:-1]:
        parent = node.find_member(name)
        if parent is None:
            raise ConfigError(f"{'.'.join(names)} is not there any more")
        node = parent.value
    member = node.find_member(names[-1])
    if member is None:
        raise ConfigError(f"{'.'.join(names)} is not there any more")
    result = _cut_member(text, node, member).encode("latin-1")
    if _parse_object(result) != expected:
        raise ConfigError(f"{'.'.join(names)} cannot be removed alone; remove it by hand")
    return result


def is_plain_empty_object(data: bytes, names: Sequence[str] = ()) -> bool:
    """Return whether the value at the path ``names`` is an object with nothing in it, not even a comment."""
    token = get_json_token(data, names)
    return token is not None and re.fullmatch(rb"\{\s*\}", token) is not None


def _decode_positions(data: bytes) -> str:
    # One character a byte, so that positions in the text are positions in the file.
    return data.decode("latin-1")


def _encode_positions(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).encode("utf-8").decode("latin-1")


def _parse_object(data: bytes) -> dict[str, Any]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeError as error:
        raise ConfigError("it is not UTF-8; convert it first") from error
    document = parse_lenient_json(text)
    if not document and not _EMPTY_OBJECT.fullmatch(_COMMENT.sub("", text)):
        raise ConfigError("it is not a JSON object; correct it first")
    return document


def _set_nested_value(document: dict[str, Any], names: Sequence[str], value: str) -> dict[str, Any]:
    if len(names) == 1:
        return document | {names[0]: value}
    inner = document.get(names[0], {})
    if not isinstance(inner, dict):
        raise ConfigError(f"{names[0]} is not an object; correct it first")
    return document | {names[0]: _set_nested_value(inner, names[1:], value)}


def _remove_nested_value(document: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    if len(names) == 1:
        return {key: value for key, value in document.items() if key != names[0]}
    inner = get_nested_value(document, names[0])
    if not isinstance(inner, dict):
        return document
    return document | {names[0]: _remove_nested_value(inner, names[1:])}


# -- positions ---------------------------------------------------------------------------------------------------------


def _skip_blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found else at


def _scan_root(text: str) -> JsonValueSpan:
    start = 3 if text.startswith("\xef\xbb\xbf") else 0
    root = _scan_value(text, _skip_blanks(text, start))
    if not root.is_object:
        raise ConfigError("it is not a JSON object; correct it first")
    return root


def _scan_value(text: str, at: int) -> JsonValueSpan:
    """Return the value that begins at ``at``."""
    opening = text[at : at + 1]
    if opening == "{":
        return _scan_object(text, at)
    if opening == "[":
        return _scan_array(text, at)
    pattern = _STRING if opening == '"' else _SCALAR
    found = pattern.match(text, at)
    if found is None:
        raise ConfigError(f"it is not valid JSON at byte {at:,}; correct it first")
    return JsonValueSpan(at, found.end())


def _scan_object(text: str, start: int) -> JsonValueSpan:
    members = []
    at = _skip_blanks(text, start + 1)
    while text[at : at + 1] != "}":
        key = _STRING.match(text, at)
        if key is None:
            raise ConfigError(f"it is not valid JSON at byte {at:,}; correct it first")
        colon = _skip_blanks(text, key.end())
        if text[colon : colon + 1] != ":":
            raise ConfigError(f"it is not valid JSON at byte {colon:,}; correct it first")
        value = _scan_value(text, _skip_blanks(text, colon + 1))
        members.append(JsonMemberSpan(_decode_key(key.group()), at, value))
        at = _skip_separator(text, value.end)
    return JsonValueSpan(start, at + 1, tuple(members), is_object=True)


def _scan_array(text: str, start: int) -> JsonValueSpan:
    at = _skip_blanks(text, start + 1)
    while text[at : at + 1] != "]":
        at = _skip_separator(text, _scan_value(text, at).end)
    return JsonValueSpan(start, at + 1)


def _skip_separator(text: str, at: int) -> int:
    """Return where the next item begins, or the closing bracket is."""
    at = _skip_blanks(text, at)
    if text[at : at + 1] == ",":
        return _skip_blanks(text, at + 1)
    if text[at : at + 1] not in {"}", "]"} or at >= len(text):
        raise ConfigError(f"it is not valid JSON at byte {at:,}; correct it first")
    return at


def _decode_key(token: str) -> str:
    try:
        return str(json.loads(token.encode("latin-1")))
    except ValueError as error:
        raise ConfigError("it has a name that is not valid JSON; correct it first") from error


# -- changes -----------------------------------------------------------------------------------------------------------


def _insert_member(text: str, node: JsonValueSpan, names: Sequence[str], value: str) -> str:
    """Insert a member at the end of the object ``node``; all names but the first are objects inside of it."""
    nested: Any = value
    for name in reversed(names[1:]):
        nested = {name: nested}
    newline = "\r\n" if "\r\n" in text else "\n"
    if node.members:
        return _insert_after_last_member(text, node, names[0], nested, newline)
    has_comment = text[node.start + 1 : node.end - 1].strip(_BLANK_CHARACTERS) != ""
    if has_comment:
        member = _render_member(names[0], nested, None, newline)
        return f"{text[: node.start + 1]}{member}{text[node.start + 1 :]}"
    return _fill_empty_object(text, node, names[0], nested, newline)


def _insert_after_last_member(text: str, node: JsonValueSpan, key: str, value: Any, newline: str) -> str:
    """Insert a member that is laid out like the last one."""
    separator = _find_separator(text, node)
    indent = separator.rpartition("\n")[2] if "\n" in separator else None
    member = _render_member(key, value, indent, newline)
    end = node.members[-1].value.end
    return f"{text[:end]},{separator}{member}{text[end:]}"


def _fill_empty_object(text: str, node: JsonValueSpan, key: str, value: Any, newline: str) -> str:
    """Insert a member on a line of its own: an empty object says nothing about the layout, so the usual one is used."""
    line_start = text.rfind("\n", 0, node.start) + 1
    line_indent = re.match(r"[ \t]*", text[line_start:])
    outer_indent = line_indent.group() if line_indent else ""
    indent = outer_indent + _DEFAULT_INDENT
    member = _render_member(key, value, indent, newline)
    is_on_one_line = "\n" not in text[node.start : node.end]
    if is_on_one_line:
        rest = newline + outer_indent + text[node.end - 1 :]
    else:
        rest = text[node.start + 1 :]
    return f"{text[: node.start + 1]}{newline}{indent}{member}{rest}"


def _find_separator(text: str, node: JsonValueSpan) -> str:
    """Return the blanks before the last member of ``node``; one blank where something else stands there."""
    start = node.members[-1].start
    blanks = text[len(text[:start].rstrip(_BLANK_CHARACTERS)) : start]
    if "\n" in blanks:
        return blanks[blanks.rfind("\r\n") if "\r\n" in blanks else blanks.rfind("\n") :]
    return blanks if len(node.members) > 1 else " "


def _render_member(key: str, value: Any, indent: str | None, newline: str) -> str:
    if indent is None or isinstance(value, str):
        rendered = json.dumps(value, ensure_ascii=False)
    else:
        step = "\t" if "\t" in indent else _DEFAULT_INDENT
        rendered = json.dumps(value, ensure_ascii=False, indent=step).replace("\n", newline + indent)
    return f"{_encode_positions(key)}: {rendered.encode('utf-8').decode('latin-1')}"


def _cut_member(text: str, node: JsonValueSpan, member: JsonMemberSpan) -> str:
    """Return ``text`` without ``member`` and the one comma that belonged to it."""
    end = member.value.end
    after = _skip_blanks(text, end)
    if text[after : after + 1] == ",":
        return _cut_span(text[:after] + text[after + 1 :], member.start, end)
    index = node.members.index(member)
    if index == 0:
        return _cut_span(text, member.start, end)
    comma = _skip_blanks(text, node.members[index - 1].value.end)
    return _cut_span(text[:comma] + text[comma + 1 :], member.start - 1, end - 1)


def _cut_span(text: str, start: int, end: int) -> str:
    """Return ``text`` without a span and the blanks before it; with its line end if it has its lines to itself."""
    begin = len(text[:start].rstrip(" \t"))
    is_line_start = begin == 0 or text[begin - 1] == "\n"
    if not is_line_start:
        return text[:begin] + text[end:]
    # The line end before it may end a comment, so only the one behind it is taken.
    line_end = _LINE_END.match(text, end)
    return text[:begin] + text[line_end.end() if line_end else end :]
