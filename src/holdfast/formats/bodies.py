"""Request bodies of the Messages API and of Chat Completions as entries: the conversation one request holds.

A file is one body, or a line for each request: the bare body, ``{"api", "request"}``, or a captured ``{"path",
"body"}``. Of several, the one with the most messages is the session, the last of equals.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import NamedTuple

from msgspec import Raw, Struct
from msgspec.json import Decoder

from holdfast.errors import FormatError, Unrecognised
from holdfast.formats.base import Recording
from holdfast.formats.lines import BOM, UNREADABLE, Row, Shape, fields, rows, whole
from holdfast.formats.log import Call, Log, slot_of
from holdfast.model.entries import Frame, Note, Said
from holdfast.model.messages import Message
from holdfast.view.tokens import count_bytes
from holdfast.wire import anthropic, openai_chat
from holdfast.wire.splice import write

NOTE = "request body"
"""Reason of the note that keeps a body without its messages (``null`` stands in their place)."""
APIS: dict[str, Callable[[Raw | bytes], Message]] = {
    anthropic.API: anthropic.decode,
    openai_chat.API: openai_chat.decode,
}


class Wrapper(Struct):
    """A line of a file of requests: the body itself, or what a body lies in."""

    messages: Raw = Raw()
    request: Raw = Raw()
    body: Raw = Raw()
    api: str = ""
    path: str = ""


class Body(Struct):
    """The fields of a body that matter here."""

    messages: list[Raw] = []
    model: str = ""
    system: Raw = Raw()
    tools: Raw = Raw()
    anthropic_version: str = ""


class _Message(Struct):
    role: str = ""
    content: Raw = Raw()


class _Block(Struct):
    type: str = ""
    source: Raw = Raw()
    cache_control: Raw = Raw()


class _Tool(Struct):
    input_schema: Raw = Raw()


WRAPPER, BODY = Shape(Wrapper), Shape(Body)
_MESSAGE, _BLOCK, _TOOL = Shape(_Message), Shape(_Block), Shape(_Tool)
_LIST = Decoder(list[Raw])
_BLOCKS = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking", "document", "server_tool_use"})
"""Kinds of blocks that only the Messages API has; an image is its own when it has a ``source``."""


class _Found(NamedTuple):
    """A body, and the API it is for."""

    api: str
    raw: Raw
    body: Body


def read(data: bytes) -> Recording:
    """Return the recording in ``data``; ``Unrecognised`` when no request in it has messages."""
    log = Log()
    lines = _requests(data)
    bodies = [found for row in lines if (found := _found(row)) is not None]
    if not bodies:
        raise Unrecognised(
            "no request in the file has a list of messages with roles; give bodies of the Messages API or of Chat "
            "Completions (those of other APIs are not supported yet)"
        )
    best = max(enumerate(bodies), key=lambda pair: (len(pair[1].body.messages), pair[0]))[1]
    log.skipped["line without messages"] = sum(row.value is not None for row in lines) - len(bodies)
    log.skipped["shorter request"] = len(bodies) - 1
    log.skipped = +log.skipped
    leaf = _emit(log, best)
    for row in lines:
        if row.value is None:
            log.damage(row.number, row.raw, row.fault, leaf)
        elif row.fault:
            log.problem(row.number, row.fault)
    session = f"body-{blake2b(bytes(best.raw), digest_size=8).hexdigest()}"
    return log.finish(Recording(format=best.api, session=session, model=best.body.model, api=best.api, leaf=leaf))


def _requests(data: bytes) -> list[Row[Wrapper]]:
    """Return the file as one request if it is one JSON value, else its lines. A bare list is one of messages."""
    text = data.removeprefix(BOM).strip()
    row = whole(b'{"messages":' + text + b"}" if text.startswith(b"[") else text, WRAPPER)
    return [row] if row.value is not None else list(rows(data, WRAPPER))


def _found(row: Row[Wrapper]) -> _Found | None:
    """Return the body that a line holds, if it holds one with messages."""
    line = row.value
    if line is None:
        return None
    raw = Raw(row.clean) if line.messages else line.request or line.body or Raw(row.clean)
    body = BODY.of(raw)
    if not any(_MESSAGE.of(message).role for message in body.messages):
        return None
    return _Found(line.api if line.api in APIS else _api(line.path, body), raw, body)


def _api(path: str, body: Body) -> str:
    """Return whose body this is: by the path it was sent to, else by fields and blocks that only one API has."""
    if "/chat/completions" in path or "/v1/messages" in path:
        return openai_chat.API if "/chat/" in path else anthropic.API
    if body.system or body.anthropic_version or any(_TOOL.of(tool).input_schema for tool in _list(body.tools)):
        return anthropic.API
    blocks = (_BLOCK.of(raw) for one in body.messages for raw in _list(_MESSAGE.of(one).content))
    own = any(block.type in _BLOCKS or block.source or block.cache_control for block in blocks)
    return anthropic.API if own else openai_chat.API


def _list(raw: Raw) -> list[Raw]:
    try:
        return _LIST.decode(raw)
    except UNREADABLE:
        return []


def _emit(log: Log, found: _Found) -> str:
    """Append the body's envelope, its frame and its messages; return the id of the last entry."""
    body = found.body
    kept = write(fields(found.raw) | {"messages": None})
    leaf = log.add("body", None, Note(NOTE, kept, {"api": found.api}))
    frame = bytes(body.system) + bytes(body.tools)
    if frame:
        digest = blake2b(frame, digest_size=16).hexdigest()
        leaf = log.add("frame", leaf, Frame(digest, count_bytes(frame)))
    for number, raw in enumerate(body.messages):
        leaf = _message(log, found, f"m{number:06}", leaf, raw)
    return leaf


def _message(log: Log, found: _Found, name: str, parent: str, raw: Raw) -> str:
    try:
        message = APIS[found.api](raw)
    except (FormatError, *UNREADABLE) as error:
        log.problem(1, f"messages[{int(name[1:])}] is kept as a note: {error}")
        return log.add(name, parent, Note("message that cannot be read", bytes(raw)))
    said = Said(slot_of(message, found.api, raw))
    if message.role == "assistant":
        return log.answer(name, parent, said, Call(found.body.model), None)
    return log.add(name, parent, said)
