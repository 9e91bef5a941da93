"""Request bodies of the four APIs as recordings: the conversation that one request holds.

A file is one body, or one line for each request: the bare body, ``{"api", "request"}``, or a captured ``{"path",
"body"}``. Of several requests the one with the most messages is the session; of equal ones, the last.
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
from holdfast.providers.requests.parsed_request import measure_request_setup
from holdfast.state.entries import MessageEntry, NoteEntry

REQUEST_BODY_NOTE = "request body"
"""Reason of the note that keeps a body without its messages (which are ``null`` there)."""


class RequestWrapper(Struct):
    """A line of a file of requests: the body itself, or an object that holds it."""

    request: Raw = Raw()
    body: Raw = Raw()
    api: str = ""
    path: str = ""


class BodyProbe(Struct):
    """The fields of a body that the reader uses."""

    model: str = ""


class _MessageRole(Struct):
    role: str = ""
    type: str = ""
    parts: Raw = Raw()


REQUEST_WRAPPER = LenientDecoder(RequestWrapper)
BODY_PROBE = LenientDecoder(BodyProbe)
_MESSAGE_ROLE = LenientDecoder(_MessageRole)


def _compile_path_patterns() -> list[tuple[re.Pattern[str], ApiSpec]]:
    patterns = []
    for spec in API_SPECS.values():
        if spec.endpoints.captured_path:
            patterns.append((re.compile(spec.endpoints.captured_path), spec))
    return patterns


_PATH_PATTERNS = _compile_path_patterns()
"""Patterns of captured request paths, each with its API; a group in the pattern is the model."""


class _LocatedBody(NamedTuple):
    """A request body with its API, its model and its messages."""

    spec: ApiSpec
    raw: Raw
    model: str
    messages: list[Raw]


def read_request_bodies(data: bytes) -> Recording:
    """Return the recording in ``data``; raises ``UnrecognizedContent`` if no request in it has messages."""
    lines = _decode_requests(data)
    bodies = []
    for row in lines:
        body = _locate_body(row)
        if body is not None:
            bodies.append(body)
    if not bodies:
        raise UnrecognizedContent(
            "no request in the file has a list of messages with roles; give bodies of the Messages API, of Chat "
            "Completions, of Responses or of Gemini"
        )
    # A client sends its whole history each time, so the longest request has all of the others.
    longest = bodies[0]
    for body in bodies[1:]:
        if len(body.messages) >= len(longest.messages):
            longest = body
    log = RecordingBuilder()
    readable_lines = [row for row in lines if row.value is not None]
    log.skipped["line without messages"] = len(readable_lines) - len(bodies)
    log.skipped["shorter request"] = len(bodies) - 1
    # Drops the kinds that were counted zero times.
    log.skipped = +log.skipped
    leaf = _append_body(log, longest)
    for row in lines:
        if row.value is None:
            log.add_damaged_line(row.number, row.raw, row.fault, leaf)
        elif row.fault:
            log.report_problem(row.number, row.fault)
    # A body has no session id. A digest makes the import of the same file the same session.
    session = f"body-{blake2b(bytes(longest.raw), digest_size=8).hexdigest()}"
    api = longest.spec.api
    return log.finish_recording(Recording(format=api, session=session, model=longest.model, api=api, leaf=leaf))


def _decode_requests(data: bytes) -> list[FileLine[RequestWrapper]]:
    """Return the file as one request if it is one JSON value, else its lines. A bare array is a list of messages."""
    if is_json_array(data):
        document = wrap_array_in_body(data)
    else:
        document = data.removeprefix(BOM).strip()
    row = decode_document(document, REQUEST_WRAPPER)
    if row.value is not None:
        return [row]
    return list(decode_lines(data, REQUEST_WRAPPER))


def _locate_body(row: FileLine[RequestWrapper]) -> _LocatedBody | None:
    """Return the body on a line, or None without a body that has messages."""
    wrapper = row.value
    if wrapper is None:
        return None
    raw = Raw(row.decodable)
    wrapper_fields = decode_raw_fields(row.decodable)
    is_bare = any(spec.messages_field in wrapper_fields for spec in API_SPECS.values())
    if not is_bare:
        raw = wrapper.request or wrapper.body or raw
    fields = decode_raw_fields(raw)
    path_spec, path_model = _find_api_of_path(wrapper.path)
    # The API that the capture names counts more than the looks of the body.
    spec = API_SPECS.get(wrapper.api) or path_spec or API_SPECS[_detect_body_api(fields)]
    messages = _get_raw_messages(spec, fields.get(spec.messages_field, Raw()))
    if not messages:
        return None
    model = BODY_PROBE.decode_or_default(raw).model or path_model
    return _LocatedBody(spec, raw, model, messages)


def _find_api_of_path(path: str) -> tuple[ApiSpec | None, str]:
    """Return the API that a request path belongs to and the model that it names; None and "" for an unknown path."""
    for pattern, spec in _PATH_PATTERNS:
        match = pattern.search(path)
        if match is not None:
            return spec, match[1] if match.groups() else ""
    return None, ""


def _get_raw_messages(spec: ApiSpec, raw: Raw) -> list[Raw]:
    """Return the elements of a body's message list, or an empty list if none of them is a message."""
    if spec.accepts_plain_text and bytes(raw).startswith(b'"'):
        return [raw]
    elements = decode_raw_elements(raw)
    for element in elements:
        probe = _MESSAGE_ROLE.decode_or_default(element)
        is_item = bool(probe.type) and spec.group_items is not None
        if probe.role or probe.parts or is_item:
            return elements
    return []


def _detect_body_api(fields: Mapping[str, Raw]) -> str:
    """Return the API of a body: by the name of its message list, else by fields and blocks that only one API has.

    ``messages`` is shared by two APIs and most of their fields too; if nothing decides, it is the default API.
    """
    matching_specs = [spec for spec in reversed(API_SPECS.values()) if spec.messages_field in fields]
    candidates = [spec for spec in matching_specs if spec.messages_field == matching_specs[0].messages_field]
    if len(candidates) == 1:
        return candidates[0].api
    others = [spec for spec in candidates if spec.api != DEFAULT_API]
    tool_fields: set[str] = set()
    for tool in decode_raw_elements(fields.get("tools", Raw())):
        tool_fields.update(decode_raw_fields(tool))
    for spec in others:
        has_own_field = not spec.signs.exclusive_fields.isdisjoint(fields)
        if has_own_field or not tool_fields.isdisjoint(spec.signs.tool_fields):
            return spec.api
    messages = fields[matching_specs[0].messages_field] if matching_specs else Raw()
    certain, likely = detect_array_apis(decode_raw_elements(messages))
    for spec in others:
        if spec.api in (certain or likely):
            return spec.api
    return DEFAULT_API


def _append_body(log: RecordingBuilder, body: _LocatedBody) -> str:
    """Append the body's envelope, its setup and its messages; return the id of the last entry."""
    spec = body.spec
    envelope = decode_raw_fields(body.raw)
    envelope_bytes = encode_json(envelope | {spec.messages_field: None})
    leaf = log.add_entry("body", None, NoteEntry(REQUEST_BODY_NOTE, envelope_bytes, {"api": spec.api}))
    setup = measure_request_setup(spec.api, envelope)
    if setup.digest:
        leaf = log.add_entry("frame", leaf, setup)
    groups = _group_elements(spec, body.messages)
    messages = [_decode_message(spec, raw) for _, raw in groups]
    # Results without ids are linked to their calls by order, which takes all messages that could be read.
    readable_messages = [message for message in messages if isinstance(message, Message)]
    if spec.link_results is not None:
        readable_messages = spec.link_results(readable_messages)
    linked_messages = iter(readable_messages)
    for (number, raw), message in zip(groups, messages, strict=True):
        linked_message = next(linked_messages) if isinstance(message, Message) else message
        leaf = _append_body_message(log, body, number, leaf, raw, linked_message)
    return leaf


def _group_elements(spec: ApiSpec, elements: Sequence[Raw]) -> list[tuple[int, Raw]]:
    """Return index and bytes of each message, which may be several elements of the list.

    If an element cannot be read, each stands alone, so that only that one is lost.
    """
    spans = [(index, index + 1) for index in range(len(elements))]  # each element by itself
    if spec.group_items is not None:
        with suppress(FormatError):
            spans = [(start, stop) for start, stop, _ in spec.group_items(elements)]
    groups = []
    for start, stop in spans:
        element_bytes = [bytes(element) for element in elements[start:stop]]
        groups.append((start, join_origin_lines(element_bytes)))
    return groups


def _decode_message(spec: ApiSpec, raw: Raw) -> Message | str:
    """Return a message, or the reason why it cannot be read."""
    try:
        return spec.decode_message(raw)
    except (FormatError, *DECODE_ERRORS) as error:
        return str(error)


def _append_body_message(
    log: RecordingBuilder,
    body: _LocatedBody,
    number: int,
    parent: str,
    raw: Raw,
    message: Message | str,
) -> str:
    name = f"m{number:06}"
    if isinstance(message, str):
        log.report_problem(1, f"{body.spec.messages_field}[{number}] is kept as a note: {message}")
        return log.add_entry(name, parent, NoteEntry("message that cannot be read", bytes(raw)))
    message_entry = MessageEntry(make_sized_message(message, body.spec.api, raw))
    # A request tells neither usage nor stop reason of the answers in it.
    if message.role == "assistant":
        return log.add_answer(name, parent, message_entry, CallMetadata(body.model), None)
    return log.add_entry(name, parent, message_entry)
