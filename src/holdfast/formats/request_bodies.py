"""Request bodies of the four APIs as entries: the conversation one request holds.

A file is one body, or a line for each request: the bare body, ``{"api", "request"}``, or a captured ``{"path",
"body"}``. Of several, the one with the most messages is the session, the last of equals.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import NamedTuple

from msgspec import Raw, Struct

from holdfast.errors import FormatError, Unrecognised
from holdfast.formats.base import Recording
from holdfast.formats.common.json_arrays import in_a_body, is_list, marked
from holdfast.formats.common.lines import BOM, UNREADABLE, Row, Shape, elements, fields, rows, whole
from holdfast.formats.common.log import Call, Log, origin_of, slot_of
from holdfast.messages.message import Message
from holdfast.providers.anthropic import messages as anthropic
from holdfast.providers.common.json.raw_json import write
from holdfast.providers.gemini import messages as gemini
from holdfast.providers.openai_chat import messages as openai_chat
from holdfast.providers.openai_responses import messages as openai_responses
from holdfast.providers.registry import FORMS, Form
from holdfast.providers.request_body import frame_of
from holdfast.state.entries import Note, Said

NOTE = "request body"
"""Reason of the note that keeps a body without its messages (``null`` stands in their place)."""


class Wrapper(Struct):
    """A line of a file of requests: the body itself, or what a body lies in."""

    messages: Raw = Raw()
    input: Raw = Raw()
    contents: Raw = Raw()
    request: Raw = Raw()
    body: Raw = Raw()
    api: str = ""
    path: str = ""


class Body(Struct):
    """The fields of a body that matter here."""

    messages: Raw = Raw()
    input: Raw = Raw()
    contents: Raw = Raw()
    model: str = ""
    system: Raw = Raw()
    tools: Raw = Raw()
    anthropic_version: str = ""


class _Message(Struct):
    role: str = ""
    type: str = ""
    parts: Raw = Raw()


class _Tool(Struct):
    input_schema: Raw = Raw()


WRAPPER, BODY = Shape(Wrapper), Shape(Body)
_MESSAGE, _TOOL = Shape(_Message), Shape(_Tool)

_PATHS = (
    (re.compile(r"/chat/completions"), openai_chat.API),
    (re.compile(r"/responses"), openai_responses.API),
    (re.compile(r"/v1/messages"), anthropic.API),
    (re.compile(r"models/([^/:]+):\w+"), gemini.API),
)
"""Whose body was sent to a path; Gemini's names the model."""


class _Found(NamedTuple):
    """A body, the API it is for, its model and its messages."""

    form: Form
    raw: Raw
    model: str
    raws: list[Raw]


def read(data: bytes) -> Recording:
    """Return the recording in ``data``; ``Unrecognised`` when no request in it has messages."""
    log = Log()
    lines = _requests(data)
    bodies = [found for row in lines if (found := _found(row)) is not None]
    if not bodies:
        raise Unrecognised(
            "no request in the file has a list of messages with roles; give bodies of the Messages API, of Chat "
            "Completions, of Responses or of Gemini"
        )
    best = max(enumerate(bodies), key=lambda pair: (len(pair[1].raws), pair[0]))[1]
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
    api = best.form.api
    return log.finish(Recording(format=api, session=session, model=best.model, api=api, leaf=leaf))


def _requests(data: bytes) -> list[Row[Wrapper]]:
    """Return the file as one request if it is one JSON value, else its lines. A bare list is one of messages."""
    row = whole(in_a_body(data) if is_list(data) else data.removeprefix(BOM).strip(), WRAPPER)
    return [row] if row.value is not None else list(rows(data, WRAPPER))


def _found(row: Row[Wrapper]) -> _Found | None:
    """Return the body that a line holds, if it holds one with messages."""
    line = row.value
    if line is None:
        return None
    bare = line.messages or line.input or line.contents
    raw = Raw(row.clean) if bare else line.request or line.body or Raw(row.clean)
    body = BODY.of(raw)
    sent = next(((api, match) for way, api in _PATHS if (match := way.search(line.path))), None)
    api = line.api if line.api in FORMS else sent[0] if sent is not None else _api(body)
    model = body.model or (sent[1][1] if sent is not None and sent[1].groups() else "")
    raws = _messages(FORMS[api], getattr(body, FORMS[api].field))
    return _Found(FORMS[api], raw, model, raws) if raws else None


def _messages(form: Form, raw: Raw) -> list[Raw]:
    """Return the elements of a body's list of messages; none when not one of them is a message."""
    if form.text and bytes(raw).startswith(b'"'):
        return [raw]
    raws = elements(raw)
    peeks = map(_MESSAGE.of, raws)
    return raws if any(peek.role or peek.parts or (peek.type and form.groups) for peek in peeks) else []


def _api(body: Body) -> str:
    """Return whose body this is: by the name of its list, else by fields and blocks that only one API has."""
    if body.contents or body.input:
        return gemini.API if body.contents else openai_responses.API
    if body.system or body.anthropic_version or any(_TOOL.of(tool).input_schema for tool in elements(body.tools)):
        return anthropic.API
    marks, hints = marked(elements(body.messages))
    return anthropic.API if anthropic.API in (marks or hints) else openai_chat.API


def _emit(log: Log, found: _Found) -> str:
    """Append the body's envelope, its frame and its messages; return the id of the last entry."""
    form, envelope = found.form, fields(found.raw)
    leaf = log.add("body", None, Note(NOTE, write(envelope | {form.field: None}), {"api": form.api}))
    frame = frame_of(form.api, envelope)
    if frame.digest:
        leaf = log.add("frame", leaf, frame)
    groups = _groups(form, found.raws)
    messages = [_read(form, raw) for _, raw in groups]
    said = [message for message in messages if isinstance(message, Message)]
    linked = iter(said if form.linked is None else form.linked(said))
    for (number, raw), message in zip(groups, messages, strict=True):
        kept = next(linked) if isinstance(message, Message) else message
        leaf = _append(log, found, number, leaf, raw, kept)
    return leaf


def _groups(form: Form, raws: Sequence[Raw]) -> list[tuple[int, Raw]]:
    """Return number and bytes of each message; where some elements are none, each element stands alone."""
    places = [(at, at + 1) for at in range(len(raws))]
    if form.groups is not None:
        with suppress(FormatError):
            places = [(start, stop) for start, stop, _ in form.groups(raws)]
    return [(start, origin_of([bytes(raw) for raw in raws[start:stop]])) for start, stop in places]


def _read(form: Form, raw: Raw) -> Message | str:
    """Return a message, or why it is none."""
    try:
        return form.decode(raw)
    except (FormatError, *UNREADABLE) as error:
        return str(error)


def _append(log: Log, found: _Found, number: int, parent: str, raw: Raw, message: Message | str) -> str:
    name = f"m{number:06}"
    if isinstance(message, str):
        log.problem(1, f"{found.form.field}[{number}] is kept as a note: {message}")
        return log.add(name, parent, Note("message that cannot be read", bytes(raw)))
    said = Said(slot_of(message, found.form.api, raw))
    if message.role == "assistant":
        return log.answer(name, parent, said, Call(found.model), None)
    return log.add(name, parent, said)
