"""A file that is one JSON array: a request's messages, told by what only one API writes, or a session's lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Raw, Struct

from holdfast.errors import UnrecognizedContent
from holdfast.formats.common.lines import (
    BOM,
    LenientDecoder,
    decode_raw_elements,
    decode_raw_fields,
    replace_bad_escapes,
    strip_json_whitespace,
)
from holdfast.providers.api_spec import ListSigns
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.providers.registry import API_SPECS, DEFAULT_API

_ARRAY_START, _EMPTY_ARRAY = (re.compile(rb"(?:\xef\xbb\xbf)?\s*\[" + suffix) for suffix in (b"", rb"\s*\]\s*"))


class _MessageProbe(Struct):
    role: str = ""
    type: str = ""
    content: Raw = Raw()
    parts: Raw = Raw()
    tool_calls: Raw = Raw()


class _BlockProbe(Struct):
    type: str = ""
    source: Raw = Raw()
    cache_control: Raw = Raw()


class _OpencodeInfo(Struct, rename={"session": "sessionID"}):
    session: str = ""


_MESSAGE_PROBE, _BLOCK_PROBE, _OPENCODE_INFO = (
    LenientDecoder(_MessageProbe),
    LenientDecoder(_BlockProbe),
    LenientDecoder(_OpencodeInfo),
)
_WANTED_INPUT_TEXT = "give a list of messages as a request of one API has them, or the tool's own session file"


def read_array_elements(data: bytes) -> list[Raw]:
    """Return the elements of a file that is one JSON array; nothing for any other file."""
    if not _ARRAY_START.match(data):
        return []
    text = data.removeprefix(BOM)
    return decode_raw_elements(text) or decode_raw_elements(replace_bad_escapes(text))


def is_json_array(data: bytes) -> bool:
    """Return whether a file is one JSON array."""
    return bool(read_array_elements(data)) or _EMPTY_ARRAY.fullmatch(data) is not None


def convert_array_to_lines(data: bytes, is_line: Callable[[Raw], bool]) -> bytes:
    """Return ``data`` as the file that its tool writes where it is an array of what would be lines there.

    ``is_line`` tells whether an element is one. The messages that opencode's server returns become what it exports.
    """
    raws = read_array_elements(data)
    whole = sum({"info", "messages"} <= decode_raw_fields(raw).keys() for raw in raws)
    if whole > 1:
        raise UnrecognizedContent(f"the list holds {whole:,} sessions; give each in a file of its own")
    if any(map(is_line, raws)):
        return b"".join(strip_json_whitespace(bytes(raw)) + b"\n" for raw in raws)
    infos = [row_fields["info"] for raw in raws if {"info", "parts"} <= (row_fields := decode_raw_fields(raw)).keys()]
    if not infos:
        return data
    return encode_json(
        {
            "info": {"id": _OPENCODE_INFO.decode_or_default(infos[0]).session},
            "messages": Raw(data.removeprefix(BOM).strip()),
        }
    )


def wrap_array_in_body(data: bytes) -> bytes:
    """Return an array of messages in the field that a request of its API has for them.

    Raises ``UnrecognizedContent`` where no element is a message, or where two APIs each wrote some of them.
    """
    raws = read_array_elements(data)
    if not any(_is_message_like(_MESSAGE_PROBE.decode_or_default(raw)) for raw in raws):
        raise UnrecognizedContent(
            f"no element of the list is a message with a role{_describe_first_element(raws)}; {_WANTED_INPUT_TEXT}"
        )
    marks, hints = detect_array_apis(raws)
    if len(marks) > 1:
        apis = " and ".join(f"[{at}] is of {api}" for api, at in marks.items())
        raise UnrecognizedContent(f"the list holds messages of several APIs: {apis}; {_WANTED_INPUT_TEXT}")
    field = API_SPECS[next(iter(marks or hints), DEFAULT_API)].messages_field
    return encode_json({field: Raw(b"[" + b",".join(map(bytes, raws)) + b"]")})


def detect_array_apis(raws: Iterable[Raw]) -> tuple[dict[str, int], dict[str, int]]:
    """Return who alone writes such messages, and who likely does: each API with the first element that tells."""
    marks: dict[str, int] = {}
    hints: dict[str, int] = {}
    for at, raw in enumerate(raws):
        peek = _MESSAGE_PROBE.decode_or_default(raw)
        for api in _iterate_certain_apis(peek):
            marks.setdefault(api, at)
        for api in _iterate_likely_apis(peek):
            hints.setdefault(api, at)
    return marks, hints


def _describe_first_element(raws: Sequence[Raw]) -> str:
    """Return what the first element is instead."""
    if not raws:
        return ": it is empty"
    keys = [*decode_raw_fields(raws[0])]
    return f": the first has {', '.join(keys[:6])}" if keys else ": the first is no object"


def _is_message_like(peek: _MessageProbe) -> bool:
    return bool(peek.role or decode_raw_elements(peek.parts)) or _is_item_type(peek.type)


def _is_item_type(type_: str) -> bool:
    return any(spec.signs.listed.is_item_type(type_) for spec in API_SPECS.values())


def _iterate_certain_apis(peek: _MessageProbe) -> Iterator[str]:
    """Yield the APIs that alone write a message like this one, as its fields and its blocks tell."""
    blocks = [_BLOCK_PROBE.decode_or_default(block) for block in decode_raw_elements(peek.content)]
    has_parts, has_tool_calls = bool(decode_raw_elements(peek.parts)), bool(decode_raw_elements(peek.tool_calls))
    for spec in API_SPECS.values():
        if spec.signs.listed.has_parts and has_parts:
            yield spec.api
    for spec in API_SPECS.values():
        if not peek.role and spec.signs.listed.is_item_type(peek.type):
            yield spec.api
    for spec in API_SPECS.values():
        signs = spec.signs.listed
        if peek.role in signs.roles or (signs.has_tool_calls and has_tool_calls):
            yield spec.api
    for block in blocks:
        yield from [spec.api for spec in API_SPECS.values() if _is_block_of(block, spec.signs.listed)]


def _is_block_of(block: _BlockProbe, signs: ListSigns) -> bool:
    return block.type in signs.block_types or (block.type in signs.sourced_block_types and bool(block.source))


def _iterate_likely_apis(peek: _MessageProbe) -> Iterator[str]:
    """Yield the APIs that likely wrote a message, though another one takes it too."""
    blocks = [_BLOCK_PROBE.decode_or_default(block) for block in decode_raw_elements(peek.content)]
    for spec in API_SPECS.values():
        signs = spec.signs.listed
        if signs.has_breakpoints and any(block.cache_control for block in blocks):
            yield spec.api
        if any(block.type in signs.likely_block_types for block in blocks) or peek.type in signs.likely_message_types:
            yield spec.api
