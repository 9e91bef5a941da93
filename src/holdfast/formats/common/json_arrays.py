"""A file that is one JSON array: a request's messages, told by what only one API writes, or a session's lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Raw, Struct

from holdfast.errors import Unrecognised
from holdfast.formats.common.lines import BOM, Shape, clean, compact, elements, fields
from holdfast.providers.anthropic import messages as anthropic
from holdfast.providers.common.json.raw_json import write
from holdfast.providers.gemini import messages as gemini
from holdfast.providers.openai_chat import messages as openai_chat
from holdfast.providers.openai_responses import messages as openai_responses
from holdfast.providers.registry import FORMS

_OPENS, _EMPTY = (re.compile(rb"(?:\xef\xbb\xbf)?\s*\[" + rest) for rest in (b"", rb"\s*\]\s*"))
_A, _C, _R, _G = anthropic.API, openai_chat.API, openai_responses.API, gemini.API


class _Message(Struct):
    role: str = ""
    type: str = ""
    content: Raw = Raw()
    parts: Raw = Raw()
    tool_calls: Raw = Raw()


class _Block(Struct):
    type: str = ""
    source: Raw = Raw()
    cache_control: Raw = Raw()


class _Info(Struct, rename={"session": "sessionID"}):
    session: str = ""


_MESSAGE, _BLOCK, _INFO = Shape(_Message), Shape(_Block), Shape(_Info)
_BLOCKS = {
    **dict.fromkeys(("tool_use", "tool_result", "server_tool_use"), _A),
    **dict.fromkeys(("image_url", "input_audio", "file"), _C),
    **dict.fromkeys(("input_text", "output_text", "input_image", "input_file"), _R),
}
"""Kinds of blocks that only one API has; an image is Anthropic's when it has a ``source``."""
_TAKEN = frozenset({"thinking", "redacted_thinking", "document"})
"""Blocks of Anthropic's that routers take in Chat too."""
_ITEMS = frozenset({"reasoning", "compaction", "item_reference", "mcp_list_tools", "mcp_approval_request"})
_ENDS = ("_call", "_call_output", "_approval_response")
"""Types of the items of Responses that have no role, and how the others end."""
_ASKED = "give a list of messages as a request of one API has them, or the tool's own session file"


def listed(data: bytes) -> list[Raw]:
    """Return the elements of a file that is one JSON array; nothing for any other file."""
    if not _OPENS.match(data):
        return []
    text = data.removeprefix(BOM)
    return elements(text) or elements(clean(text))


def is_list(data: bytes) -> bool:
    """Return whether a file is one JSON array."""
    return bool(listed(data)) or _EMPTY.fullmatch(data) is not None


def as_lines(data: bytes, is_line: Callable[[Raw], bool]) -> bytes:
    """Return ``data`` as the file that its tool writes where it is an array of what would be lines there.

    ``is_line`` tells whether an element is one. The messages that opencode's server returns become what it exports.
    """
    raws = listed(data)
    whole = sum({"info", "messages"} <= fields(raw).keys() for raw in raws)
    if whole > 1:
        raise Unrecognised(f"the list holds {whole:,} sessions; give each in a file of its own")
    if any(map(is_line, raws)):
        return b"".join(compact(bytes(raw)) + b"\n" for raw in raws)
    infos = [found["info"] for raw in raws if {"info", "parts"} <= (found := fields(raw)).keys()]
    if not infos:
        return data
    return write({"info": {"id": _INFO.of(infos[0]).session}, "messages": Raw(data.removeprefix(BOM).strip())})


def in_a_body(data: bytes) -> bytes:
    """Return an array of messages in the field that a request of its API has for them.

    Raises ``Unrecognised`` where no element is a message, or where two APIs each wrote some of them.
    """
    raws = listed(data)
    if not any(_is_message(_MESSAGE.of(raw)) for raw in raws):
        raise Unrecognised(f"no element of the list is a message with a role{_instead(raws)}; {_ASKED}")
    marks, hints = marked(raws)
    if len(marks) > 1:
        told = " and ".join(f"[{at}] is of {api}" for api, at in marks.items())
        raise Unrecognised(f"the list holds messages of several APIs: {told}; {_ASKED}")
    field = FORMS[next(iter(marks or hints), _C)].field
    return write({field: Raw(b"[" + b",".join(map(bytes, raws)) + b"]")})


def marked(raws: Iterable[Raw]) -> tuple[dict[str, int], dict[str, int]]:
    """Return who alone writes such messages, and who likely does: each API with the first element that tells."""
    marks: dict[str, int] = {}
    hints: dict[str, int] = {}
    for at, raw in enumerate(raws):
        peek = _MESSAGE.of(raw)
        for api in _marks(peek):
            marks.setdefault(api, at)
        for api in _hints(peek):
            hints.setdefault(api, at)
    return marks, hints


def _instead(raws: Sequence[Raw]) -> str:
    """Return what the first element is instead."""
    if not raws:
        return ": it is empty"
    keys = [*fields(raws[0])]
    return f": the first has {', '.join(keys[:6])}" if keys else ": the first is no object"


def _is_message(peek: _Message) -> bool:
    return bool(peek.role or elements(peek.parts)) or _is_item(peek.type)


def _is_item(type_: str) -> bool:
    return type_ in _ITEMS or type_.endswith(_ENDS)


def _marks(peek: _Message) -> Iterator[str]:
    """Yield the API that alone writes a message like this one, as often as it shows."""
    if elements(peek.parts):
        yield _G
    if not peek.role and _is_item(peek.type):
        yield _R
    if elements(peek.tool_calls) or peek.role in ("tool", "function"):
        yield _C
    for block in map(_BLOCK.of, elements(peek.content)):
        if block.type in _BLOCKS:
            yield _BLOCKS[block.type]
        elif block.type == "image" and block.source:
            yield _A


def _hints(peek: _Message) -> Iterator[str]:
    """Yield the API that likely wrote a message, though another one takes it too."""
    if any(block.cache_control or block.type in _TAKEN for block in map(_BLOCK.of, elements(peek.content))):
        yield _A
    if peek.type == "message":
        yield _R
