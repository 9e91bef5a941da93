"""Request bodies of the four APIs as entries: the conversation one request holds.

A file is one body, or a line for each request: the bare body, ``{"api", "request"}``, or a captured ``{"path",
"body"}``. Of several, the one with the most messages is the session, the last of equals.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import NamedTuple

from msgspec import Raw, Struct

from holdfast.errors import FormatError, UnrecognizedContent
from holdfast.formats.base import Recording
from holdfast.formats.common.json_arrays import detect_array_apis, is_json_array, wrap_array_in_body
from holdfast.formats.common.lines import (
    BOM,
    DECODE_ERRORS,
    FileLine,
    LenientDecoder,
    decode_document,
    decode_lines,
    decode_raw_elements,
    decode_raw_fields,
)
from holdfast.formats.common.log import CallMetadata, RecordingBuilder, join_origin_lines, make_sized_message
from holdfast.messages.message import Message
from holdfast.providers.api_spec import ApiSpec
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.providers.registry import API_SPECS, DEFAULT_API
from holdfast.providers.requests.request_body import measure_request_setup
from holdfast.state.entries import MessageEntry, NoteEntry

REQUEST_BODY_NOTE = "request body"
"""Reason of the note that keeps a body without its messages (``null`` stands in their place)."""


class RequestWrapper(Struct):
    """A line of a file of requests: the body itself, or what a body lies in."""

    request: Raw = Raw()
    body: Raw = Raw()
    api: str = ""
    path: str = ""


class BodyProbe(Struct):
    """The fields of a body that matter here."""

    model: str = ""


class _MessageRole(Struct):
    role: str = ""
    type: str = ""
    parts: Raw = Raw()


REQUEST_WRAPPER, BODY_PROBE = LenientDecoder(RequestWrapper), LenientDecoder(BodyProbe)
_MESSAGE_ROLE = LenientDecoder(_MessageRole)

_PATH_PATTERNS = [
    (re.compile(spec.endpoints.captured_path), spec) for spec in API_SPECS.values() if spec.endpoints.captured_path
]
"""Whose body was sent to a path; some name the model."""


class _LocatedBody(NamedTuple):
    """A body, the API it is for, its model and its messages."""

    spec: ApiSpec
    raw: Raw
    model: str
    messages: list[Raw]


def read_request_bodies(data: bytes) -> Recording:
    """Return the recording in ``data``; ``UnrecognizedContent`` when no request in it has messages."""
    log = RecordingBuilder()
    lines = _decode_requests(data)
    bodies = [request_body for row in lines if (request_body := _locate_body(row)) is not None]
    if not bodies:
        raise UnrecognizedContent(
            "no request in the file has a list of messages with roles; give bodies of the Messages API, of Chat "
            "Completions, of Responses or of Gemini"
        )
    best = max(enumerate(bodies), key=lambda pair: (len(pair[1].messages), pair[0]))[1]
    log.skipped["line without messages"] = sum(row.value is not None for row in lines) - len(bodies)
    log.skipped["shorter request"] = len(bodies) - 1
    log.skipped = +log.skipped
    leaf = _append_body(log, best)
    for row in lines:
        if row.value is None:
            log.add_damaged_line(row.number, row.raw, row.fault, leaf)
        elif row.fault:
            log.report_problem(row.number, row.fault)
    session = f"body-{blake2b(bytes(best.raw), digest_size=8).hexdigest()}"
    api = best.spec.api
    return log.finish_recording(Recording(format=api, session=session, model=best.model, api=api, leaf=leaf))


def _decode_requests(data: bytes) -> list[FileLine[RequestWrapper]]:
    """Return the file as one request if it is one JSON value, else its lines. A bare list is one of messages."""
    row = decode_document(
        wrap_array_in_body(data) if is_json_array(data) else data.removeprefix(BOM).strip(), REQUEST_WRAPPER
    )
    return [row] if row.value is not None else list(decode_lines(data, REQUEST_WRAPPER))


def _locate_body(row: FileLine[RequestWrapper]) -> _LocatedBody | None:
    """Return the body that a line holds, if it holds one with messages."""
    line = row.value
    if line is None:
        return None
    fields = decode_raw_fields(row.decodable)
    is_bare = any(spec.messages_field in fields for spec in API_SPECS.values())
    raw = Raw(row.decodable) if is_bare else line.request or line.body or Raw(row.decodable)
    body_fields = decode_raw_fields(raw)
    body = BODY_PROBE.decode_or_default(raw)
    path_spec, path_model = _find_api_of_path(line.path)
    spec = API_SPECS.get(line.api) or path_spec or API_SPECS[_detect_body_api(body_fields)]
    raws = _get_raw_messages(spec, body_fields.get(spec.messages_field, Raw()))
    return _LocatedBody(spec, raw, body.model or path_model, raws) if raws else None


def _find_api_of_path(path: str) -> tuple[ApiSpec | None, str]:
    """Return whose body was sent to ``path``, and the model that it names; None where nobody's is known."""
    for pattern, spec in _PATH_PATTERNS:
        match = pattern.search(path)
        if match is not None:
            return spec, match[1] if match.groups() else ""
    return None, ""


def _get_raw_messages(spec: ApiSpec, raw: Raw) -> list[Raw]:
    """Return the elements of a body's list of messages; none when not one of them is a message."""
    if spec.accepts_plain_text and bytes(raw).startswith(b'"'):
        return [raw]
    raws = decode_raw_elements(raw)
    peeks = map(_MESSAGE_ROLE.decode_or_default, raws)
    return raws if any(peek.role or peek.parts or (peek.type and spec.group_items) for peek in peeks) else []


def _detect_body_api(fields: Mapping[str, Raw]) -> str:
    """Return whose body this is: by the name of its list, else by fields and blocks that only one API has."""
    listed = [spec for spec in reversed(API_SPECS.values()) if spec.messages_field in fields]
    candidates = [spec for spec in listed if spec.messages_field == listed[0].messages_field]
    if len(candidates) == 1:
        return candidates[0].api
    others = [spec for spec in candidates if spec.api != DEFAULT_API]
    tool_fields = {key for tool in decode_raw_elements(fields.get("tools", Raw())) for key in decode_raw_fields(tool)}
    for spec in others:
        if not spec.signs.exclusive_fields.isdisjoint(fields) or not tool_fields.isdisjoint(spec.signs.tool_fields):
            return spec.api
    messages = fields[listed[0].messages_field] if listed else Raw()
    marks, hints = detect_array_apis(decode_raw_elements(messages))
    return next((spec.api for spec in others if spec.api in (marks or hints)), DEFAULT_API)


def _append_body(log: RecordingBuilder, body: _LocatedBody) -> str:
    """Append the body's envelope, its frame and its messages; return the id of the last entry."""
    spec, envelope = body.spec, decode_raw_fields(body.raw)
    leaf = log.add_entry(
        "body",
        None,
        NoteEntry(REQUEST_BODY_NOTE, encode_json(envelope | {spec.messages_field: None}), {"api": spec.api}),
    )
    setup = measure_request_setup(spec.api, envelope)
    if setup.digest:
        leaf = log.add_entry("frame", leaf, setup)
    groups = _group_elements(spec, body.messages)
    messages = [_decode_message(spec, raw) for _, raw in groups]
    readable_messages = [message for message in messages if isinstance(message, Message)]
    linked_messages = iter(readable_messages if spec.link_results is None else spec.link_results(readable_messages))
    for (number, raw), message in zip(groups, messages, strict=True):
        linked_message = next(linked_messages) if isinstance(message, Message) else message
        leaf = _append_body_message(log, body, number, leaf, raw, linked_message)
    return leaf


def _group_elements(spec: ApiSpec, raws: Sequence[Raw]) -> list[tuple[int, Raw]]:
    """Return number and bytes of each message; where some elements are none, each element stands alone."""
    places = [(at, at + 1) for at in range(len(raws))]
    if spec.group_items is not None:
        with suppress(FormatError):
            places = [(start, stop) for start, stop, _ in spec.group_items(raws)]
    return [(start, join_origin_lines([bytes(raw) for raw in raws[start:stop]])) for start, stop in places]


def _decode_message(spec: ApiSpec, raw: Raw) -> Message | str:
    """Return a message, or why it is none."""
    try:
        return spec.decode_message(raw)
    except (FormatError, *DECODE_ERRORS) as error:
        return str(error)


def _append_body_message(
    log: RecordingBuilder, body: _LocatedBody, number: int, parent: str, raw: Raw, message: Message | str
) -> str:
    name = f"m{number:06}"
    if isinstance(message, str):
        log.report_problem(1, f"{body.spec.messages_field}[{number}] is kept as a note: {message}")
        return log.add_entry(name, parent, NoteEntry("message that cannot be read", bytes(raw)))
    message_entry = MessageEntry(make_sized_message(message, body.spec.api, raw))
    if message.role == "assistant":
        return log.add_answer(name, parent, message_entry, CallMetadata(body.model), None)
    return log.add_entry(name, parent, message_entry)
