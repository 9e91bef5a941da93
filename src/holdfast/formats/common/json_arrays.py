"""Files that are one JSON array: the messages of a request, or the lines of a session.

A bare array does not name its API, so it is detected from fields and block types that only one API has.
"""

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

_ARRAY_START = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[")
_EMPTY_ARRAY = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*\]\s*")


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


_MESSAGE_PROBE = LenientDecoder(_MessageProbe)
_BLOCK_PROBE = LenientDecoder(_BlockProbe)
_OPENCODE_INFO = LenientDecoder(_OpencodeInfo)
_WANTED_INPUT_TEXT = "give a list of messages as a request of one API has them, or the tool's own session file"


def read_array_elements(data: bytes) -> list[Raw]:
    """Return the elements of a file that is one JSON array, or an empty list for any other file."""
    if not _ARRAY_START.match(data):
        return []
    text = data.removeprefix(BOM)
    # Bad escapes cost a second decoding, so they are replaced only if the first one failed.
    return decode_raw_elements(text) or decode_raw_elements(replace_bad_escapes(text))


def is_json_array(data: bytes) -> bool:
    """Return whether a file is one JSON array."""
    return bool(read_array_elements(data)) or _EMPTY_ARRAY.fullmatch(data) is not None


def convert_array_to_lines(data: bytes, is_line: Callable[[Raw], bool]) -> bytes:
    """Return an array of a tool's records as the file that the tool writes; other data is returned as it is.

    ``is_line`` decides whether an element is a line of a session: then the array becomes JSON lines. The messages that
    opencode's server returns become an export of opencode. Raises ``UnrecognizedContent`` for several sessions.
    """
    elements = read_array_elements(data)
    elements_fields = [decode_raw_fields(element) for element in elements]
    session_count = sum({"info", "messages"} <= fields.keys() for fields in elements_fields)
    if session_count > 1:
        raise UnrecognizedContent(f"the list holds {session_count:,} sessions; give each in a file of its own")
    if any(map(is_line, elements)):
        return b"".join(strip_json_whitespace(bytes(element)) + b"\n" for element in elements)
    # Messages from opencode's server: each has its session in ``info``, so the session's own object can be made.
    for fields in elements_fields:
        if {"info", "parts"} <= fields.keys():
            info = {"id": _OPENCODE_INFO.decode_or_default(fields["info"]).session}
            return encode_json({"info": info, "messages": Raw(data.removeprefix(BOM).strip())})
    return data


def wrap_array_in_body(data: bytes) -> bytes:
    """Return an array of messages as a request body: in the message field of the API that they belong to.

    Raises ``UnrecognizedContent`` if no element is a message, or if two APIs each have messages that only they write.
    """
    elements = read_array_elements(data)
    if not any(_is_message_like(_MESSAGE_PROBE.decode_or_default(element)) for element in elements):
        raise UnrecognizedContent(
            f"no element of the list is a message with a role{_describe_first_element(elements)}; {_WANTED_INPUT_TEXT}"
        )
    certain, likely = detect_array_apis(elements)
    if len(certain) > 1:
        # Taking one API for all of them would lose the blocks of the other.
        places = [f"[{index}] is of {api}" for api, index in certain.items()]
        apis = " and ".join(places)
        raise UnrecognizedContent(f"the list holds messages of several APIs: {apis}; {_WANTED_INPUT_TEXT}")
    api = next(iter(certain or likely), DEFAULT_API)
    field = API_SPECS[api].messages_field
    return encode_json({field: Raw(b"[" + b",".join(map(bytes, elements)) + b"]")})


def detect_array_apis(elements: Iterable[Raw]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the APIs that certainly and those that likely wrote these messages.

    Each maps to the index of the first element that shows it.
    """
    certain: dict[str, int] = {}
    likely: dict[str, int] = {}
    for index, element in enumerate(elements):
        probe = _MESSAGE_PROBE.decode_or_default(element)
        for api in _iterate_certain_apis(probe):
            certain.setdefault(api, index)
        for api in _iterate_likely_apis(probe):
            likely.setdefault(api, index)
    return certain, likely


def _describe_first_element(elements: Sequence[Raw]) -> str:
    """Return how an error message describes the first element of an array without messages."""
    if not elements:
        return ": it is empty"
    keys = list(decode_raw_fields(elements[0]))
    if not keys:
        return ": the first is no object"
    return f": the first has {', '.join(keys[:6])}"


def _is_message_like(probe: _MessageProbe) -> bool:
    return bool(probe.role or decode_raw_elements(probe.parts)) or _is_item_type(probe.type)


def _is_item_type(type_: str) -> bool:
    return any(spec.signs.listed.is_item_type(type_) for spec in API_SPECS.values())


def _iterate_certain_apis(probe: _MessageProbe) -> Iterator[str]:
    """Yield the APIs that are the only ones to write a message with these fields and blocks, strongest sign first."""
    blocks = [_BLOCK_PROBE.decode_or_default(block) for block in decode_raw_elements(probe.content)]
    has_parts = bool(decode_raw_elements(probe.parts))
    has_tool_calls = bool(decode_raw_elements(probe.tool_calls))
    # One pass a sign, not one an API: the callers keep the first API found, so a field must come before a role, and a
    # role before a block type.
    for spec in API_SPECS.values():
        if spec.signs.listed.has_parts and has_parts:
            yield spec.api
    for spec in API_SPECS.values():
        if not probe.role and spec.signs.listed.is_item_type(probe.type):
            yield spec.api
    for spec in API_SPECS.values():
        signs = spec.signs.listed
        if probe.role in signs.roles or (signs.has_tool_calls and has_tool_calls):
            yield spec.api
    for block in blocks:
        for spec in API_SPECS.values():
            if _is_block_of(block, spec.signs.listed):
                yield spec.api


def _is_block_of(block: _BlockProbe, signs: ListSigns) -> bool:
    return block.type in signs.block_types or (block.type in signs.sourced_block_types and bool(block.source))


def _iterate_likely_apis(probe: _MessageProbe) -> Iterator[str]:
    """Yield the APIs that probably wrote a message that another API accepts too."""
    blocks = [_BLOCK_PROBE.decode_or_default(block) for block in decode_raw_elements(probe.content)]
    for spec in API_SPECS.values():
        signs = spec.signs.listed
        if signs.has_breakpoints and any(block.cache_control for block in blocks):
            yield spec.api
        has_likely_block = any(block.type in signs.likely_block_types for block in blocks)
        if has_likely_block or probe.type in signs.likely_message_types:
            yield spec.api
